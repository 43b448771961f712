//! A mapped ring, of which events are taken and slots released.
//!
//! Single producer, single consumer. The producer stores `write_pos` with release after it has written a slot; the consumer
//! stores `read_pos` with release after it has read one. Nothing that the producer wrote is trusted: every number is loaded
//! once, checked against what this side knows, and only the copy is used. `protocol` has the loads and stores.

use crate::error::RingFault;
use crate::ring::layout::{CAPACITY, HEADER_WORDS, Header, Layout, READ_POS, VERSIONS, WRITE_POS};
use crate::shm::{FileShortened, HeaderPoll, Mapping, ReadWord};
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

pub mod candidate;
pub mod checkpoint;
mod fingerprint;
pub mod gaps;
pub mod layout;
pub mod protocol;
pub mod sparse;
pub use fingerprint::{Fingerprint, Slot};
use protocol::Consumer;
pub use protocol::{Batch, ProducerState, Shape};

/// Events that are taken from one ring at a time, so that a huge one holds up neither the others nor an answer to pmcd: all that
/// one of NIXL's own size holds, and a small part of a millisecond's worth.
pub const BATCH: u64 = 1 << 12;

/// A mapped ring whose header was found good.
#[derive(Debug)]
pub struct Ring {
    mapping: Rc<Mapping>,
    /// The descriptor that the mapping came from: a lease on another one would find the mapping in its way.
    file: File,
    /// What the header said when it was mapped.
    pub(crate) shape: Shape,
}

impl Ring {
    /// Maps a ring file of the given layout, from a header that passed [`Header::check`]. `file` is open for writing, unless
    /// the ring is only read.
    ///
    /// # Errors
    /// What mmap(2) says; EINVAL for a ring that does not fit this machine's address space.
    pub fn map(
        file: File,
        header: &Header,
        layout: Layout,
        is_read_only: bool,
    ) -> io::Result<Self> {
        let capacity = usize::try_from(header.capacity).map_err(|_| io::ErrorKind::InvalidInput)?;
        let words = capacity
            .checked_mul(layout.slot_words())
            .and_then(|slots| slots.checked_add(HEADER_WORDS))
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mapping = if is_read_only {
            Mapping::read_only(&file, words)?
        } else {
            Mapping::new(&file, words)?
        };
        let version = u64::from(header.version.unsigned_abs());
        let shape = Shape {
            layout,
            capacity: header.capacity,
            versions: (version << 32) | version,
        };
        Ok(Self {
            mapping: Rc::new(mapping),
            file,
            shape,
        })
    }

    /// Runs something on the words of the ring that only loads.
    ///
    /// # Errors
    /// The file was shortened: what was found is void.
    #[inline]
    pub fn read<T>(&self, run: impl FnOnce(Consumer<ReadWord>) -> T) -> Result<T, RingFault> {
        let read = |words: &[_]| run(Consumer::new(words, self.shape));
        Ok(self.mapping.read_access(&self.file, read)?)
    }

    /// As [`Consumer::release`], with its error inside.
    ///
    /// # Errors
    /// The file was shortened, or the ring is only looked at.
    pub fn release(&self, from: u64, end: u64) -> Result<Result<(), u64>, RingFault> {
        let release =
            |words: &[_]| Consumer::<AtomicU64>::new(words, self.shape).release(from, end);
        Ok(self.mapping.access(release)?)
    }

    /// As [`Consumer::positions`].
    ///
    /// # Errors
    /// The ring is no longer the one that was mapped.
    pub fn positions(&self) -> Result<(u64, u64), RingFault> {
        self.read(|ring| ring.positions())?
    }

    /// By which it can be seen whether consumer and producer are still here, in a ring of the same shape.
    #[must_use]
    pub fn header_poll(&self, read_pos: u64, write_pos: u64) -> Option<HeaderPoll> {
        let mut header = [0; 4];
        header[WRITE_POS] = write_pos;
        header[READ_POS] = read_pos;
        header[VERSIONS] = self.shape.versions;
        header[CAPACITY] = self.shape.capacity;
        HeaderPoll::new(&self.mapping, header)
    }

    /// How many events stand between two positions.
    #[must_use]
    pub fn between(&self, from: u64, end: u64) -> u64 {
        end.wrapping_sub(from) & (self.shape.capacity - 1)
    }

    /// Its file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Slots.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shape.capacity
    }

    /// Whether a file of this length holds another layout that has the same version: then the header does not tell that the
    /// ring was set up anew.
    #[must_use]
    pub fn fits_another_layout(&self, len: u64) -> bool {
        let Shape {
            layout, capacity, ..
        } = self.shape;
        Layout::ALL.into_iter().any(|other| {
            other != layout
                && other.version() == layout.version()
                && other.file_len(capacity) == Some(len)
        })
    }
}

impl From<FileShortened> for RingFault {
    fn from(_: FileShortened) -> Self {
        RingFault::Truncated
    }
}

#[cfg(test)]
mod tests;
