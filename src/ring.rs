//! The consumer's side of a ring: take a batch of events, and release its slots.
//!
//! Single producer, single consumer. The producer stores `write_pos` with release after it has written a slot; the consumer
//! stores `read_pos` with release after it has read one. Nothing that the producer wrote is trusted: every number is loaded
//! once, checked against what this side knows, and only the copy is used.

use crate::error::RingFault;
use crate::event::{EventType, Totals};
use crate::layout::{CAPACITY, HEADER_WORDS, Header, Layout, READ_POS, VERSIONS, WRITE_POS};
use crate::shm::{Broken, Mapping};
use std::fs::File;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// A mapped ring whose header was found good.
#[derive(Debug)]
pub struct Ring {
    mapping: Mapping,
    layout: Layout,
    capacity: u64,
    versions: u64,
}

/// Events that were read from a ring and whose slots are not released yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Position of the first event.
    pub from: u64,
    /// Position behind the last event.
    pub upto: u64,
    /// How many events there are.
    pub events: u64,
    /// Their values, by type.
    pub totals: Totals,
}

impl Ring {
    /// Maps a ring file of the given layout, from a header that passed [`Header::check`]. `file` is open for writing.
    ///
    /// # Errors
    /// What mmap(2) says; EINVAL for a ring that does not fit this machine's address space.
    pub fn map(file: &File, header: &Header, layout: Layout) -> io::Result<Self> {
        let capacity = usize::try_from(header.capacity).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = capacity
            .checked_mul(layout.slot_words())
            .and_then(|slots| slots.checked_add(HEADER_WORDS))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = Mapping::new(file, words)?;
        let version = u64::from(header.version.unsigned_abs());
        Ok(Self {
            mapping,
            layout,
            capacity: header.capacity,
            versions: version << 32 | version,
        })
    }

    /// The layout of its slots.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Slots; it holds one event less.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Copies and sums all events that are there, at most capacity - 1, without releasing their slots.
    ///
    /// # Errors
    /// The ring is no longer the one that was mapped, or was restarted meanwhile; nothing of the batch counts then.
    pub fn take(&self) -> Result<Batch, RingFault> {
        self.mapping.access(|words| self.take_from(words))?
    }

    fn take_from(&self, words: &[AtomicU64]) -> Result<Batch, RingFault> {
        let (from, upto) = self.positions(words)?;
        let mut batch = Batch {
            from,
            upto,
            ..Batch::default()
        };
        let mut pos = from;
        while pos != upto {
            let (event, value) = self.event(words, pos);
            batch.totals.count(event, value);
            batch.events += 1;
            pos = (pos + 1) & (self.capacity - 1);
        }
        // The slots are loaded before the positions are looked at once more.
        fence(Acquire);
        let (read_pos, write_pos) = self.positions(words)?;
        let ahead = write_pos.wrapping_sub(from) & (self.capacity - 1);
        if read_pos != from || ahead < batch.events {
            return Err(RingFault::Restarted);
        }
        Ok(batch)
    }

    /// Gives the slots of a batch back to the producer. `false`: `read_pos` is not where the batch began, because of another
    /// reader or of a restart, and nothing was changed.
    ///
    /// A compare-and-swap, since a plain store would turn a ring that was restarted meanwhile (both positions 0) into one
    /// that looks full of old events.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn release(&self, batch: &Batch) -> Result<bool, RingFault> {
        // Release: after the loads of the slots. Pairs with the producer's acquire load of read_pos.
        let swap = |words: &[AtomicU64]| {
            words[READ_POS].compare_exchange(batch.from, batch.upto, Release, Relaxed)
        };
        Ok(self.mapping.access(swap)?.is_ok())
    }

    /// Whether no event waits. Unlike [`Ring::take`] it looks at nothing but the positions.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn is_empty(&self) -> Result<bool, RingFault> {
        let same =
            |words: &[AtomicU64]| words[WRITE_POS].load(Relaxed) == words[READ_POS].load(Relaxed);
        Ok(self.mapping.access(same)?)
    }

    /// Both positions, if version and capacity are still ours and the positions lie within it.
    fn positions(&self, words: &[AtomicU64]) -> Result<(u64, u64), RingFault> {
        // Pairs with the producer's release store, and so comes before the loads of the slots.
        let write_pos = words[WRITE_POS].load(Acquire);
        let read_pos = words[READ_POS].load(Relaxed);
        if words[VERSIONS].load(Relaxed) != self.versions
            || words[CAPACITY].load(Relaxed) != self.capacity
        {
            return Err(RingFault::Reformatted);
        }
        if write_pos >= self.capacity || read_pos >= self.capacity {
            return Err(RingFault::Positions {
                read_pos,
                write_pos,
                capacity: self.capacity,
            });
        }
        Ok((read_pos, write_pos))
    }

    /// The event in a slot; `pos` is below our capacity.
    fn event(&self, words: &[AtomicU64], pos: u64) -> (Option<EventType>, u64) {
        let len = self.layout.slot_words();
        let pos = usize::try_from(pos).expect("a position below the capacity, which was mapped");
        let start = HEADER_WORDS + pos * len;
        let mut slot = [0; 7];
        for (copy, word) in slot.iter_mut().zip(&words[start..start + len]) {
            *copy = word.load(Relaxed);
        }
        self.layout.decode(&slot[..len])
    }
}

impl From<Broken> for RingFault {
    fn from(_: Broken) -> Self {
        RingFault::Truncated
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A v4 ring of 8 slots in a file of its own, and the file to write to it by pwrite.
    fn ring() -> (File, Ring) {
        let file = tempfile::tempfile().expect("a temporary file");
        let header = Header {
            write_pos: 0,
            read_pos: 0,
            version: 4,
            expected_version: 4,
            capacity: 8,
            mask: 7,
        };
        file.set_len(Layout::V4.file_len(8).expect("small"))
            .expect("room");
        put(&file, VERSIONS, 4 << 32 | 4);
        put(&file, CAPACITY, 8);
        let ring = Ring::map(&file, &header, Layout::V4).expect("mapped");
        (file, ring)
    }

    fn put(file: &File, word: usize, value: u64) {
        file.write_all_at(&value.to_le_bytes(), 8 * word as u64)
            .expect("written");
    }

    fn put_event(file: &File, pos: usize, event: EventType, value: u64) {
        put(file, HEADER_WORDS + 2 * pos, event as u64 | 0xbad << 32);
        put(file, HEADER_WORDS + 2 * pos + 1, value);
    }

    #[test]
    fn takes_what_is_there_across_the_end_of_the_ring() {
        let (file, ring) = ring();
        put(&file, READ_POS, 6);
        for pos in [6, 7, 0] {
            put_event(&file, pos, EventType::RxBytes, 10 + pos as u64);
        }
        put(&file, WRITE_POS, 1);
        let batch = ring.take().expect("a good ring");
        assert_eq!((batch.from, batch.upto, batch.events), (6, 1, 3));
        assert_eq!(batch.totals.get(EventType::RxBytes), 16 + 17 + 10);
        assert_eq!(ring.is_empty(), Ok(false), "take releases nothing");
        assert_eq!(ring.release(&batch), Ok(true));
        assert_eq!(ring.is_empty(), Ok(true));
        assert_eq!(ring.take().expect("a good ring").events, 0);
    }

    #[test]
    fn a_full_ring_gives_one_event_less_than_its_capacity() {
        let (file, ring) = ring();
        put(&file, READ_POS, 3);
        put(&file, WRITE_POS, 2);
        assert_eq!(ring.take().expect("a good ring").events, 7);
    }

    #[test]
    fn release_does_not_touch_a_ring_that_was_restarted_meanwhile() {
        let (file, ring) = ring();
        put(&file, READ_POS, 2);
        put(&file, WRITE_POS, 5);
        let batch = ring.take().expect("a good ring");
        put(&file, READ_POS, 0);
        put(&file, WRITE_POS, 0);
        assert_eq!(ring.release(&batch), Ok(false));
        assert_eq!(
            ring.is_empty(),
            Ok(true),
            "the new ring keeps its positions"
        );
    }

    #[test]
    fn another_version_capacity_or_position_is_noticed_before_slots_are_read() {
        let (file, ring) = ring();
        put(&file, VERSIONS, 3 << 32 | 3);
        assert_eq!(ring.take(), Err(RingFault::Reformatted));
        put(&file, VERSIONS, 4 << 32 | 4);
        put(&file, CAPACITY, 1 << 40);
        assert_eq!(ring.take(), Err(RingFault::Reformatted));
        put(&file, CAPACITY, 8);
        put(&file, WRITE_POS, 8);
        assert_eq!(
            ring.take(),
            Err(RingFault::Positions {
                read_pos: 0,
                write_pos: 8,
                capacity: 8
            })
        );
    }

    #[test]
    fn a_ring_that_was_truncated_is_a_fault_and_no_end() {
        crate::shm::guard_against_sigbus().expect("a handler");
        let (file, ring) = ring();
        put(&file, WRITE_POS, 3);
        file.set_len(0).expect("shorter");
        assert_eq!(ring.is_empty(), Err(RingFault::Truncated));
        assert_eq!(ring.take(), Err(RingFault::Truncated));
    }

    #[test]
    fn a_mapping_needs_a_file_that_may_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("ring");
        std::fs::write(&path, [0; 168]).expect("written");
        let header = Header {
            write_pos: 0,
            read_pos: 0,
            version: 4,
            expected_version: 4,
            capacity: 8,
            mask: 7,
        };
        assert!(Ring::map(&File::open(&path).expect("there"), &header, Layout::V4).is_err());
        let huge = Header {
            capacity: 1 << 63,
            ..header
        };
        assert!(Ring::map(&File::open(&path).expect("there"), &huge, Layout::V4).is_err());
    }
}
