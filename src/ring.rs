// SPDX-License-Identifier: GPL-2.0-or-later

//! NIXL's ring: reading events from its memory, releasing slots, and recognising a batch again.
//!
//! A ring has one producer, the NIXL agent, and one consumer, this daemon. The producer stores `write_pos` with release
//! after it has written a slot. The consumer stores `read_pos` with release after it has read one. Nothing that the
//! producer wrote is trusted. Every word is loaded once into a copy, the copy is checked, and only the copy is used.
//!
//! Begin with `protocol`, which has all loads and the one store. `checkpoint` decides what became of a batch after a
//! kill. `layout` has the format of the file. This module knows neither agents nor the state file: it adds up a batch
//! by type of event, and `source` says whose events they are.

use crate::error::RingFault;
use crate::ring::layout::{Header, Layout, header};
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

/// Most events of one batch: all that a ring of NIXL's default size holds, and a small part of a millisecond's work. A
/// huge ring then delays neither other rings nor an answer to pmcd.
pub const BATCH: u64 = 1 << 12;

/// A mapped ring whose header passed [`Header::check`].
#[derive(Debug)]
pub struct Ring {
    mapping: Rc<Mapping>,
    /// The descriptor that the file was mapped from. A lease is taken on it, since a second descriptor counts as
    /// another opening.
    file: File,
    /// Layout, capacity and version from the header at the time of mapping.
    pub(crate) shape: Shape,
}

impl Ring {
    /// Maps a ring file of the given layout. `header` has passed [`Header::check`]. `file` is open for writing, unless
    /// `is_read_only`.
    ///
    /// # Errors
    /// The error of mmap(2), or EINVAL for a ring that does not fit this machine's address space.
    pub fn map(
        file: File,
        header: &Header,
        layout: Layout,
        is_read_only: bool,
    ) -> io::Result<Self> {
        let len = layout.file_len(header.capacity);
        let len = len.and_then(|len| usize::try_from(len).ok());
        let words = len.ok_or(io::ErrorKind::InvalidInput)? / 8;
        let mapping = match is_read_only {
            true => Mapping::read_only(&file, words)?,
            false => Mapping::new(&file, words)?,
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

    /// Runs a closure that only loads on the words of the ring, and returns its result.
    ///
    /// # Errors
    /// [`RingFault::Truncated`] if the file was shortened. The result is then void.
    #[inline]
    pub fn read<T>(&self, run: impl FnOnce(Consumer<ReadWord>) -> T) -> Result<T, RingFault> {
        let read = |words: &[_]| run(Consumer::new(words, self.shape));
        Ok(self.mapping.read_access(&self.file, read)?)
    }

    /// Moves `read_pos` from `from` to `end` ([`Consumer::release`]). The inner error is the `read_pos` that is there
    /// instead.
    ///
    /// # Errors
    /// The file was shortened, or the mapping is read-only.
    pub fn release(&self, from: u64, end: u64) -> Result<Result<(), u64>, RingFault> {
        let release =
            |words: &[_]| Consumer::<AtomicU64>::new(words, self.shape).release(from, end);
        Ok(self.mapping.access(release)?)
    }

    /// Returns `read_pos` and `write_pos` ([`Consumer::positions`]).
    ///
    /// # Errors
    /// The ring no longer has the version, capacity or length that it was mapped with, or a position lies outside of
    /// it.
    pub fn positions(&self) -> Result<(u64, u64), RingFault> {
        self.read(|ring| ring.positions())?
    }

    /// A poll of the header. It detects if a position, the version or the capacity differs from these positions and the
    /// mapped ring.
    #[must_use]
    pub fn header_poll(&self, read_pos: u64, write_pos: u64) -> Option<HeaderPoll> {
        let mut expected = [0; 4];
        expected[header::WRITE_POS] = write_pos;
        expected[header::READ_POS] = read_pos;
        expected[header::VERSIONS] = self.shape.versions;
        expected[header::CAPACITY] = self.shape.capacity;
        HeaderPoll::new(&self.mapping, expected)
    }

    /// The number of slots from one position to another, going round the end of the ring.
    #[must_use]
    pub fn between(&self, from: u64, end: u64) -> u64 {
        end.wrapping_sub(from) & (self.shape.capacity - 1)
    }

    /// The mapped file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The number of slots.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.shape.capacity
    }

    /// True if a file of this length holds another layout of the same version (version 2 has two). The header then does
    /// not show that the producer re-initialised the ring.
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
pub(crate) mod tests;
