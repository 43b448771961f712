// SPDX-License-Identifier: GPL-2.0-or-later

//! The format of a ring file: header and slots (NIXL `cyclic_buffer.h` and `telemetry_event.h`).
//!
//! All integers are little-endian. Header and slots are whole 8-byte words, so that everything is read as words.
//! Begin with [`Header::check`]. This file must not know how a ring is mapped.

use crate::base::words;
use crate::error::Rejection;
use crate::event::{Event, EventType, MAX_VALUE};

#[cfg(target_endian = "big")]
compile_error!("NIXL's rings are little-endian and are read in place");

/// Indexes of the words of the header, which is the same in all layouts.
pub mod header {
    /// The slot that the producer writes next. It stores this word with release.
    pub const WRITE_POS: usize = 0;
    /// The slot that the consumer reads next. It stores this word with release.
    pub const READ_POS: usize = 1;
    /// The version (low half) and the producer's copy of it (high half).
    pub const VERSIONS: usize = 2;
    /// The number of slots.
    pub const CAPACITY: usize = 3;
    /// The mask, which is the capacity minus one.
    pub const MASK: usize = 4;
    /// Words before the first slot.
    pub const WORDS: usize = 5;
    /// Bytes before the first slot.
    pub const BYTES: usize = 8 * WORDS;
}

/// Words of the longest slot.
pub const MAX_SLOT_WORDS: usize = 7;

/// The newest ring version of a release of NIXL that this build reads.
pub const MAX_VERSION: i32 = 4;
/// Versions that are taken for a later NIXL. A higher number is taken for chance in an unrelated file. A fork of NIXL
/// has version 5 with the header and slots of version 4, and seventeen event types of its libfabric plugin before
/// number 20.
const FIRST_LATER_VERSION: i32 = MAX_VERSION + 1;
const LAST_LATER_VERSION: i32 = 255;
/// True for the capacity of a ring and its mask.
fn is_pair(capacity: u64, mask: u64) -> bool {
    capacity.is_power_of_two() && mask == capacity - 1
}

/// The header as it was read from a file. It is untrusted until [`Header::check`] has passed.
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
    /// Capacity minus one.
    pub mask: u64,
}

impl Header {
    /// Decodes the header from the first words of a file.
    #[must_use]
    pub fn from_words(words: &[u64; header::WORDS]) -> Self {
        let [version, expected_version] = halves(words[header::VERSIONS]).map(|half| half as i32);
        Self {
            write_pos: words[header::WRITE_POS],
            read_pos: words[header::READ_POS],
            version,
            expected_version,
            capacity: words[header::CAPACITY],
            mask: words[header::MASK],
        }
    }

    /// Decodes the header from the first bytes of a file.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; header::BYTES]) -> Self {
        Self::from_words(&std::array::from_fn(|at| words::word_at(bytes, at)))
    }

    /// Checks the header against the size of its file in bytes, and returns the layout of the slots.
    ///
    /// # Errors
    /// The first check that failed. The file is then not a ring, or not one that this build may read.
    pub fn check(&self, size: u64) -> Result<Layout, Rejection> {
        let &Self {
            write_pos,
            read_pos,
            version,
            expected_version,
            capacity,
            mask,
        } = self;
        if version == 0 || expected_version == 0 {
            // The producer first clears both versions, and stores them last, one after the other.
            return Err(if Layout::has_whole_slots(size) {
                Rejection::Uninitialised { full: None }
            } else {
                Rejection::Blank { size }
            });
        }
        if version != expected_version {
            return Err(Rejection::Versions {
                version,
                expected_version,
            });
        }
        let mut layouts = { Layout::ALL.into_iter() }.filter(|layout| layout.version() == version);
        if layouts.clone().next().is_none() {
            // In the header of the pull request nixl#2018, capacity and mask are in these words.
            let is_ring = is_pair(capacity, mask) || is_pair(read_pos, capacity);
            return Err(match version {
                FIRST_LATER_VERSION..=LAST_LATER_VERSION if is_ring => Rejection::Unsupported {
                    version,
                    newest: MAX_VERSION,
                },
                _ => Rejection::Version { version },
            });
        }
        if !capacity.is_power_of_two() {
            return Err(Rejection::Capacity { capacity });
        }
        let layout = layouts
            .find(|layout| layout.file_len(capacity) == Some(size))
            .ok_or(Rejection::Length {
                version,
                capacity,
                size,
            })?;
        if mask != capacity - 1 {
            return Err(Rejection::Mask { mask, capacity });
        }
        if write_pos >= capacity || read_pos >= capacity {
            return Err(Rejection::Positions {
                read_pos,
                write_pos,
                capacity,
            });
        }
        Ok(layout)
    }

    /// The number of events between the positions. Meaningful only for a header that passed [`Header::check`].
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.write_pos.wrapping_sub(self.read_pos) & self.mask
    }
}

/// The layout of a ring file. The version alone does not determine it: version 2 has two layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Slots of 56 bytes: time, category, name, value (NIXL 0.5 to 1.0).
    V1,
    /// Slots of 48 bytes: category, name, value (NIXL 1.1.0).
    V2Named,
    /// Slots of 16 bytes: category, type, value (NIXL 1.2).
    V2,
    /// Slots of 16 bytes: type, padding that NIXL does not clear, value (NIXL 1.3).
    V3,
    /// Slots of version 3 with event type 20 (NIXL 1.4 and 1.5).
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

    /// Name for operators, version in the header, and words of one slot.
    const fn row(self) -> (&'static str, i32, usize) {
        match self {
            Layout::V1 => ("v1", 1, 7),
            Layout::V2Named => ("v2 named", 2, 6),
            Layout::V2 => ("v2", 2, 2),
            Layout::V3 => ("v3", 3, 2),
            Layout::V4 => ("v4", 4, 2),
        }
    }

    /// The name of the layout for operators.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The version in the header of a ring with this layout.
    #[must_use]
    pub const fn version(self) -> i32 {
        self.row().1
    }

    /// Words of one slot.
    #[must_use]
    pub const fn slot_words(self) -> usize {
        self.row().2
    }

    /// Bytes of a ring file with `capacity` slots. `None` if no file can be that long.
    #[must_use]
    pub fn file_len(self, capacity: u64) -> Option<u64> {
        let slot = 8 * self.slot_words() as u64;
        capacity
            .checked_mul(slot)?
            .checked_add(header::BYTES as u64)
    }

    /// The number of slots in a file of this many bytes. `None` if it is not a whole number.
    fn slots(self, size: u64) -> Option<u64> {
        let slots = size.checked_sub(header::BYTES as u64)? / (8 * self.slot_words() as u64);
        (self.file_len(slots) == Some(size)).then_some(slots)
    }

    /// True if a ring of some layout has this many bytes.
    #[must_use]
    pub fn fits_any(size: u64) -> bool {
        let has_size = |layout: Self| layout.slots(size).is_some_and(u64::is_power_of_two);
        Self::ALL.into_iter().any(has_size)
    }

    /// True if a file of this many bytes has a whole number of slots of some layout. NIXL makes a file with any number
    /// of slots before it finds that it is not a power of two. False for whole pages, which another library has left: a
    /// ring has whole pages only in v1, and only with 365 slots, or 512 more, and so on.
    fn has_whole_slots(size: u64) -> bool {
        const PAGE: u64 = 4096;
        let has_size = |layout: Self| layout.slots(size).is_some();
        size % PAGE != 0 && Self::ALL.into_iter().any(has_size)
    }

    /// Decodes one slot of [`Layout::slot_words`] words. The type is `None` if this version does not have it, or if the
    /// value is greater than [`MAX_VALUE`].
    #[must_use]
    pub fn decode(self, slot: &[u64]) -> Event {
        let Event { kind, value } = self.decode_raw(slot);
        Event::new(kind.filter(|_| value <= MAX_VALUE), value)
    }

    /// Decodes one slot without a check of its value.
    #[inline]
    pub(crate) fn decode_raw(self, slot: &[u64]) -> Event {
        let kind = match self {
            Layout::V1 => named(&slot[1..6]),
            Layout::V2Named => named(&slot[..5]),
            Layout::V2 => numbered(halves(slot[0])[1], EventType::NoTelemetry),
            Layout::V3 => numbered(halves(slot[0])[0], EventType::NoTelemetry),
            Layout::V4 => numbered(halves(slot[0])[0], EventType::EventsDropped),
        };
        Event::new(kind, slot[self.slot_words() - 1])
    }
}

/// The event type with this number. `last` is the highest type of the ring's version, since a later version may give
/// the next number another meaning.
#[inline]
fn numbered(number: u32, last: EventType) -> Option<EventType> {
    EventType::from_number(number).filter(|&kind| kind as usize <= last as usize)
}

/// The event type with a name, from five words: the category (4 bytes), then the name (32 bytes, ended by NUL).
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

/// Splits a word into its low and its high half.
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(crate) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

#[cfg(test)]
mod tests;
