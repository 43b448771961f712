// SPDX-License-Identifier: GPL-2.0-or-later

//! The last counted reading of a store. It outlives the daemon, so that the next daemon continues from there and counts
//! no value twice.

use crate::base::file::FileId;
use crate::base::words::{WordReader, WordWriter, signed, unsigned};
use crate::event::EventType;
use crate::stats::histogram::MAX_BUCKETS;
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

impl StoreId {
    /// The birth time of the file; `None` if the file system has none.
    #[must_use]
    pub fn made(self) -> Option<(i64, i64)> {
        Some(self.born).filter(|&born| born != (0, 0))
    }

    /// Number of words of an identity.
    pub const WORDS: usize = 6;

    /// The words of the identity in a state file.
    #[must_use]
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let FileId { dev, ino } = self.file;
        let [seconds, nanoseconds, pid] = [self.born.0, self.born.1, self.pid].map(unsigned);
        [dev, ino, seconds, nanoseconds, pid, self.instance]
    }

    /// The identity in these words.
    #[must_use]
    pub fn from_words([dev, ino, seconds, nanoseconds, pid, instance]: [u64; Self::WORDS]) -> Self {
        Self {
            file: FileId { dev, ino },
            born: (signed(seconds), signed(nanoseconds)),
            pid: signed(pid),
            instance,
        }
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

impl StoreReading {
    /// Number of words that [`StoreReading::put`] writes.
    pub const WORDS: usize = 8 + 2 * EventType::COUNT + 2 * MAX_BUCKETS;

    /// A store that was not read yet.
    #[must_use]
    pub fn none(id: StoreId) -> Self {
        let values = StoreValues::NONE;
        Self { id, values }
    }

    /// Writes the words of the reading.
    pub fn put(&self, put: &mut WordWriter) {
        let values = &self.values;
        put.one(u64::from(*values != StoreValues::NONE));
        put.all(self.id.to_words());
        put.one(values.updated);
        put.all(values.counters);
        put.all(values.last);
        let [xfer_time, post_time] = values.histograms;
        put.all(xfer_time);
        put.all(post_time);
    }

    /// Reads the words that [`StoreReading::put`] has written.
    #[must_use]
    pub fn get(get: &mut WordReader) -> Self {
        // If the store was not read yet, all values are zeros.
        let _ = get.one();
        Self {
            id: StoreId::from_words(get.all()),
            values: StoreValues {
                updated: get.one(),
                counters: get.all(),
                last: get.all(),
                histograms: [get.all(), get.all()],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> StoreReading {
        let mut reading = StoreReading::none(StoreId {
            file: FileId { dev: 1, ino: 2 },
            born: (-3, 4),
            pid: -5,
            instance: 6,
        });
        reading.values = StoreValues {
            updated: 7,
            counters: std::array::from_fn(|at| 100 + at as u64),
            last: [10; EventType::COUNT],
            histograms: [[8; MAX_BUCKETS], [9; MAX_BUCKETS]],
        };
        reading
    }

    #[test]
    fn reading_is_read_as_it_was_written() {
        let none = StoreReading::none(reading().id);
        for reading in [reading(), none] {
            let mut words = [0; StoreReading::WORDS];
            reading.put(&mut WordWriter::new(&mut words));
            assert_eq!(StoreReading::get(&mut WordReader::new(&words)), reading);
        }
    }
}
