// SPDX-License-Identifier: GPL-2.0-or-later

//! The last counted reading of a store. It outlives the daemon, so that the next daemon continues from there and counts
//! no value twice.

use crate::base::file::FileId;
use crate::base::words::words;
use crate::stats::store_values::StoreValues;

/// The identity of a store. NIXL never uses a name twice, and the inode of a file is not used again while a process has
/// it open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId {
    /// Device and inode of the file.
    pub file: FileId,
    /// Birth time of the file in seconds and nanoseconds. Zeros if the file system has none.
    pub born: (i64, i64),
    /// Process id that the store claims.
    pub pid: i64,
    /// Number of the agent within that process.
    pub instance: u64,
}
words!(StoreId: file, born, pid, instance);

impl StoreId {
    /// The birth time of the file; `None` if the file system has none.
    #[must_use]
    pub fn made(self) -> Option<(i64, i64)> {
        Some(self.born).filter(|&born| born != (0, 0))
    }
}

/// The last counted reading of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReading {
    /// The store that was read.
    pub id: StoreId,
    /// The values that were counted, or [`StoreValues::NONE`] if it was not read yet.
    pub values: StoreValues,
}
words!(StoreReading: id, values);

impl StoreReading {
    /// A store that was not read yet.
    #[must_use]
    pub fn none(id: StoreId) -> Self {
        let values = StoreValues::NONE;
        Self { id, values }
    }
}
