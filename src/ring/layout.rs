//! The ring file's format: the header and the five slot layouts (NIXL `cyclic_buffer.h` and `telemetry_event.h`).
//!
//! All integers are little-endian, and header and slots are whole 8-byte words, so that everything is read as words.

use crate::error::Refusal;
use crate::event::{Event, EventType, MAX_VALUE};

#[cfg(target_endian = "big")]
compile_error!("NIXL's rings are little-endian and are read in place");

/// Bytes of the header, the same in every version.
pub const HEADER_LEN: usize = 40;
/// Words of the header.
pub const HEADER_WORDS: usize = HEADER_LEN / 8;
/// Word that the producer stores with release: the slot it writes next.
pub const WRITE_POS: usize = 0;
/// Word that the consumer stores with release: the slot it reads next.
pub const READ_POS: usize = 1;
/// Word of the version (low half) and of the producer's copy of it (high half).
pub const VERSIONS: usize = 2;
/// Word of the capacity in slots.
pub const CAPACITY: usize = 3;
/// Word of the capacity less one.
pub const MASK: usize = 4;

/// Words of the longest slot.
pub const MAX_SLOT_WORDS: usize = 7;

/// The newest ring version that this build reads.
pub const MAX_VERSION: i32 = 4;
/// Up to here a version is taken for that of a later NIXL, beyond it for a chance of an unrelated file.
const LATER_VERSIONS: i32 = 255;

/// A header as it was found in a file. Nothing in it is trusted before [`Header::check`] has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Slot that the producer writes next.
    pub write_pos: u64,
    /// Slot that the consumer reads next.
    pub read_pos: u64,
    /// Version of the format.
    pub version: i32,
    /// The producer's own copy of the version.
    pub expected_version: i32,
    /// Slots in the ring.
    pub capacity: u64,
    /// Capacity less one.
    pub mask: u64,
}

impl Header {
    /// Takes the first words of a file apart.
    #[must_use]
    pub fn from_words(words: [u64; HEADER_WORDS]) -> Self {
        let [version, expected_version] = halves(words[VERSIONS]).map(|half| half as i32);
        Self {
            write_pos: words[WRITE_POS],
            read_pos: words[READ_POS],
            version,
            expected_version,
            capacity: words[CAPACITY],
            mask: words[MASK],
        }
    }

    /// Takes the first bytes of a file apart.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; HEADER_LEN]) -> Self {
        let mut words = [0; HEADER_WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk
                .iter()
                .rev()
                .fold(0, |word, &byte| (word << 8) | u64::from(byte));
        }
        Self::from_words(words)
    }

    /// Tells which layout a file of `size` bytes with this header has.
    ///
    /// # Errors
    /// The first thing that does not fit; the file is then no ring, or none that this build may touch.
    pub fn check(&self, size: u64) -> Result<Layout, Refusal> {
        let &Self {
            write_pos,
            read_pos,
            version,
            expected_version,
            capacity,
            mask,
        } = self;
        if version == 0 || expected_version == 0 {
            // The producer clears both at first and stores them last, one after the other.
            return Err(if Layout::has_whole_slots(size) {
                Refusal::Uninitialised { full: None }
            } else {
                Refusal::Blank { size }
            });
        }
        if version != expected_version {
            return Err(Refusal::Versions {
                version,
                expected_version,
            });
        }
        // A later NIXL may move these: one of its branches has the capacity where we have read_pos, and the mask behind it.
        let is_later = (MAX_VERSION + 1..=LATER_VERSIONS).contains(&version);
        let is_pair = |capacity: u64, mask: u64| capacity.is_power_of_two() && mask == capacity - 1;
        if is_later && (is_pair(capacity, mask) || is_pair(read_pos, capacity)) {
            let newest = MAX_VERSION;
            return Err(Refusal::Unsupported { version, newest });
        }
        if !(1..=MAX_VERSION).contains(&version) {
            return Err(Refusal::Version { version });
        }
        if !capacity.is_power_of_two() {
            return Err(Refusal::Capacity { capacity });
        }
        let layout = Layout::ALL
            .into_iter()
            .find(|layout| layout.version() == version && layout.file_len(capacity) == Some(size))
            .ok_or(Refusal::Length {
                version,
                capacity,
                size,
            })?;
        if mask != capacity - 1 {
            return Err(Refusal::Mask { mask, capacity });
        }
        if write_pos >= capacity || read_pos >= capacity {
            return Err(Refusal::Positions {
                read_pos,
                write_pos,
                capacity,
            });
        }
        Ok(layout)
    }

    /// How many events wait for the consumer. Only of use for a header that passed [`Header::check`].
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.write_pos.wrapping_sub(self.read_pos) & self.mask
    }
}

/// How the slots of a ring are laid out. The version alone does not tell: v2 has two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Version 1, 56 bytes: time, category, name, value (NIXL 0.5 to 1.0).
    V1,
    /// Version 2, 48 bytes: category, name, value (NIXL 1.1.0).
    V2Named,
    /// Version 2, 16 bytes: category, type, value (NIXL 1.2).
    V2,
    /// Version 3, 16 bytes: type, padding, value (NIXL 1.3).
    V3,
    /// Version 4: as 3, with event type 20 added (NIXL 1.4 and 1.5).
    V4,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Layout; 5] = [
        Layout::V1,
        Layout::V2Named,
        Layout::V2,
        Layout::V3,
        Layout::V4,
    ];

    /// The version in the header of such a ring.
    #[must_use]
    pub fn version(self) -> i32 {
        match self {
            Layout::V1 => 1,
            Layout::V2Named | Layout::V2 => 2,
            Layout::V3 => 3,
            Layout::V4 => 4,
        }
    }

    /// What operators call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Layout::V1 => "v1",
            Layout::V2Named => "v2 named",
            Layout::V2 => "v2",
            Layout::V3 => "v3",
            Layout::V4 => "v4",
        }
    }

    /// Words of one slot.
    #[must_use]
    pub fn slot_words(self) -> usize {
        match self {
            Layout::V1 => 7,
            Layout::V2Named => 6,
            Layout::V2 | Layout::V3 | Layout::V4 => 2,
        }
    }

    /// Bytes of a ring file with `capacity` slots; `None` where no file can be that long.
    #[must_use]
    pub fn file_len(self, capacity: u64) -> Option<u64> {
        let slot = 8 * self.slot_words() as u64;
        capacity.checked_mul(slot)?.checked_add(HEADER_LEN as u64)
    }

    /// Whether a ring of some layout has this many bytes.
    #[must_use]
    pub fn fits_any(size: u64) -> bool {
        Self::ALL.into_iter().any(|layout| {
            let slots = size.saturating_sub(HEADER_LEN as u64) / (8 * layout.slot_words() as u64);
            slots.is_power_of_two() && layout.file_len(slots) == Some(size)
        })
    }

    /// Whether a file of this many bytes has a whole number of some layout's slots, as one that NIXL makes before it finds that
    /// their number is no power of two. One of whole pages is another library's: of no layout but v1 can it be a ring, and of
    /// that only with 365 slots, or 512 more, and so on.
    fn has_whole_slots(size: u64) -> bool {
        const PAGE: u64 = 4096;
        size % PAGE != 0
            && Self::ALL.into_iter().any(|layout| {
                let slot = 8 * layout.slot_words() as u64;
                size.checked_sub(HEADER_LEN as u64)
                    .is_some_and(|slots| slots % slot == 0)
            })
    }

    /// Decodes one slot of [`Layout::slot_words`] words. Its type is known if it is one that this version has, and if its value can
    /// be one ([`MAX_VALUE`]).
    #[must_use]
    pub fn decode(self, slot: &[u64]) -> Event {
        let Event { kind, value } = self.decode_raw(slot);
        Event::new(kind.filter(|_| value <= MAX_VALUE), value)
    }

    /// The same whatever its value is.
    #[inline]
    pub(crate) fn decode_raw(self, slot: &[u64]) -> Event {
        let kind = match self {
            Layout::V1 => named(&slot[1..6]),
            Layout::V2Named => named(&slot[..5]),
            Layout::V2 => numbered(halves(slot[0])[1], EventType::NoTelemetry),
            // The upper half is padding that NIXL does not clear.
            Layout::V3 => numbered(halves(slot[0])[0], EventType::NoTelemetry),
            Layout::V4 => numbered(halves(slot[0])[0], EventType::EventsDropped),
        };
        Event::new(kind, slot[slot.len() - 1])
    }
}

/// An event by its number; `last` is the highest that the version knows, since a later version may give the next number
/// another meaning.
#[inline]
fn numbered(number: u32, last: EventType) -> Option<EventType> {
    EventType::from_number(number).filter(|&kind| kind as usize <= last as usize)
}

/// An event by its name: five words that hold the category (4 bytes), then the name (32 bytes, ended by NUL).
fn named(words: &[u64]) -> Option<EventType> {
    let mut bytes = [0; 40];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    let name = &bytes[4..36];
    let end = name
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(name.len());
    EventType::from_name(&name[..end])
}

/// The low and the high half of a word.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

#[cfg(test)]
mod tests;
