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
        let Event { kind, value } = self.read(slot);
        Event::new(kind.filter(|_| value <= MAX_VALUE), value)
    }

    /// The same whatever its value is.
    #[inline]
    pub(crate) fn read(self, slot: &[u64]) -> Event {
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
mod tests {
    use super::*;

    fn good(layout: Layout, capacity: u64) -> (Header, u64) {
        let version = layout.version();
        let header = Header {
            write_pos: 0,
            read_pos: 0,
            version,
            expected_version: version,
            capacity,
            mask: capacity - 1,
        };
        (header, layout.file_len(capacity).expect("a small file"))
    }

    #[test]
    fn version_and_size_together_tell_the_layout() {
        for layout in Layout::ALL {
            for capacity in [1, 2, 4096, 1 << 20] {
                let (header, size) = good(layout, capacity);
                assert_eq!(header.check(size), Ok(layout));
                assert_eq!(
                    header.check(size + 8),
                    Err(Refusal::Length {
                        version: layout.version(),
                        capacity,
                        size: size + 8
                    })
                );
            }
        }
    }

    #[test]
    fn default_rings_have_the_sizes_that_nixl_makes() {
        let sizes = Layout::ALL.map(|layout| layout.file_len(4096));
        assert_eq!(
            sizes,
            [
                Some(229_416),
                Some(196_648),
                Some(65_576),
                Some(65_576),
                Some(65_576)
            ]
        );
        assert!(Layout::fits_any(229_416) && Layout::fits_any(65_576) && Layout::fits_any(56));
        assert!(!Layout::fits_any(65_592) && !Layout::fits_any(40) && !Layout::fits_any(0));
    }

    #[test]
    fn each_wrong_field_has_its_own_refusal() {
        let (header, size) = good(Layout::V4, 8);
        let refusal = |change: fn(&mut Header)| {
            let mut wrong = header;
            change(&mut wrong);
            wrong.check(size).expect_err("a wrong header")
        };
        assert_eq!(
            refusal(|h| h.version = 0),
            Refusal::Uninitialised { full: None }
        );
        assert_eq!(
            refusal(|h| h.expected_version = 0),
            Refusal::Uninitialised { full: None }
        );
        let blank = Header::from_words([0; HEADER_WORDS]);
        // 1,000 slots are what NIXL leaves; what UCX leaves in /dev/shm is of whole pages.
        for layout in Layout::ALL {
            let size = layout.file_len(1000).expect("small");
            assert_eq!(
                blank.check(size),
                Err(Refusal::Uninitialised { full: None })
            );
        }
        for size in [4096, 5 * 4096, 519 * 4096, 100] {
            assert_eq!(blank.check(size), Err(Refusal::Blank { size }));
        }
        assert_eq!(
            refusal(|h| h.version = 3),
            Refusal::Versions {
                version: 3,
                expected_version: 4
            }
        );
        assert_eq!(
            refusal(|h| (h.version, h.expected_version) = (5, 5)),
            Refusal::Unsupported {
                version: 5,
                newest: 4
            }
        );
        assert_eq!(
            refusal(|h| (h.version, h.expected_version) = (-1, -1)),
            Refusal::Version { version: -1 }
        );
        assert_eq!(
            refusal(|h| (h.version, h.expected_version) = (256, 256)),
            Refusal::Version { version: 256 }
        );
        // All sevens, as a file of other numbers may be; and the header of a NIXL branch, with the capacity in word 1.
        let words = |words| Header::from_words(words).check(size);
        assert_eq!(
            words([(7 << 32) | 7; 5]),
            Err(Refusal::Version { version: 7 })
        );
        assert_eq!(
            words([0, 4096, (5 << 32) | 5, 4095, 0]),
            Err(Refusal::Unsupported {
                version: 5,
                newest: 4
            })
        );
        assert_eq!(
            refusal(|h| h.capacity = 1000),
            Refusal::Capacity { capacity: 1000 }
        );
        assert_eq!(
            refusal(|h| h.capacity = 0),
            Refusal::Capacity { capacity: 0 }
        );
        assert_eq!(
            refusal(|h| h.capacity = 1 << 63),
            Refusal::Length {
                version: 4,
                capacity: 1 << 63,
                size: 168
            }
        );
        assert_eq!(
            refusal(|h| h.mask = 0),
            Refusal::Mask {
                mask: 0,
                capacity: 8
            }
        );
        assert_eq!(
            refusal(|h| h.write_pos = 8),
            Refusal::Positions {
                read_pos: 0,
                write_pos: 8,
                capacity: 8
            }
        );
        assert_eq!(
            refusal(|h| h.read_pos = u64::MAX),
            Refusal::Positions {
                read_pos: u64::MAX,
                write_pos: 0,
                capacity: 8
            }
        );
    }

    #[test]
    fn bytes_and_words_give_the_same_header() {
        let bytes: [u8; HEADER_LEN] = std::array::from_fn(|at| u8::try_from(at).expect("below 40"));
        let header = Header::from_bytes(&bytes);
        assert_eq!(header.write_pos, 0x0706_0504_0302_0100);
        assert_eq!(
            (header.version, header.expected_version),
            (0x1312_1110, 0x1716_1514)
        );
        assert_eq!(header.mask, 0x2726_2524_2322_2120);
    }

    #[test]
    fn version_3_does_not_know_the_type_that_version_4_added() {
        assert_eq!(
            Layout::V4.decode(&[20, 7]),
            Event::new(Some(EventType::EventsDropped), 7)
        );
        assert_eq!(Layout::V3.decode(&[20, 7]), Event::new(None, 7));
        assert_eq!(Layout::V2.decode(&[20 << 32, 7]), Event::new(None, 7));
        assert_eq!(Layout::V4.decode(&[21, 7]), Event::new(None, 7));
    }

    #[test]
    fn rubbish_in_the_padding_is_no_part_of_the_type() {
        assert_eq!(
            Layout::V3.decode(&[0xdead_beef_0000_0006, 9]),
            Event::new(Some(EventType::XferTime), 9)
        );
        assert_eq!(
            Layout::V4.decode(&[0xffff_ffff_0000_0000, 9]),
            Event::new(Some(EventType::TxBytes), 9)
        );
    }

    #[test]
    fn names_end_at_nul_or_at_32_bytes() {
        let slot = |name: &[u8]| {
            let mut bytes = [0xaa; 40];
            bytes[4..4 + name.len()].copy_from_slice(name);
            let mut words: Vec<u64> = bytes
                .chunks(8)
                .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
                .collect();
            words.push(5);
            words
        };
        assert_eq!(
            Layout::V2Named.decode(&slot(b"agent_tx_bytes\0")),
            Event::new(Some(EventType::TxBytes), 5)
        );
        assert_eq!(
            Layout::V2Named.decode(&slot(b"agent_tx_bytes")),
            Event::new(None, 5)
        );
        assert_eq!(
            Layout::V2Named.decode(&slot(&[b'x'; 32])),
            Event::new(None, 5)
        );
        let mut v1 = vec![123_456];
        v1.extend(slot(b"NIXL_ERR_BACKEND\0"));
        assert_eq!(
            Layout::V1.decode(&v1),
            Event::new(Some(EventType::Backend), 5)
        );
    }

    #[test]
    fn a_value_that_cannot_be_is_of_no_known_kind() {
        let tx_bytes = [EventType::TxBytes as u64, MAX_VALUE];
        assert_eq!(
            Layout::V4.decode(&tx_bytes),
            Event::new(Some(EventType::TxBytes), MAX_VALUE)
        );
        let absurd = [EventType::TxBytes as u64, MAX_VALUE + 1];
        let decoded = Layout::V4.decode(&absurd);
        assert_eq!(decoded, Event::new(None, MAX_VALUE + 1));
        // A name that another layout has where this one has a value.
        let name = u64::from_le_bytes(*b"agent_tx");
        assert_eq!(Layout::V3.decode(&[0, name]).kind, None);
    }
}
