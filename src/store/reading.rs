//! What was last read of a store: it outlives the daemon, so that a store goes on from there and no value counts twice.

use crate::base::file::FileId;
use crate::base::words::{WordReader, WordWriter};
use crate::event::EventType;
use crate::stats::histogram::MAX_BUCKETS;
use crate::stats::store_values::StoreValues;

/// Which store it is. Its name is never used twice, and no more is its file while somebody has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId {
    /// Which file it is.
    pub file: FileId,
    /// When that was made: seconds and nanoseconds, zeros where the file system does not tell.
    pub born: (i64, i64),
    /// What it says its process is.
    pub pid: i64,
    /// Number of the agent within that.
    pub instance: u64,
}

/// What of a store was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReading {
    /// Which store it was.
    pub id: StoreId,
    /// Its values then; [`StoreValues::NONE`] if it was not read yet.
    pub values: StoreValues,
}

impl StoreReading {
    /// Words of [`StoreReading::put`].
    pub const WORDS: usize = 8 + 2 * EventType::COUNT + 2 * MAX_BUCKETS;

    /// Nothing yet.
    #[must_use]
    pub fn none(id: StoreId) -> Self {
        let values = StoreValues::NONE;
        Self { id, values }
    }

    /// Writes it.
    pub fn put(&self, put: &mut WordWriter) {
        let StoreId {
            file,
            born,
            pid,
            instance,
        } = self.id;
        let [seconds, nanoseconds, pid] =
            [born.0, born.1, pid].map(|word| u64::from_ne_bytes(word.to_ne_bytes()));
        let values = &self.values;
        put.one(u64::from(*values != StoreValues::NONE));
        put.all([
            file.dev,
            file.ino,
            seconds,
            nanoseconds,
            pid,
            instance,
            values.updated,
        ]);
        put.all(values.counters);
        put.all(values.last);
        let [xfer_time, post_time] = values.histograms;
        put.all(xfer_time);
        put.all(post_time);
    }

    /// Reads what [`StoreReading::put`] has written.
    #[must_use]
    pub fn get(get: &mut WordReader) -> Self {
        // Where it was not read yet, the values are zeros.
        let _ = get.one();
        let [dev, ino, seconds, nanoseconds, pid, instance, updated] = get.all();
        let [seconds, nanoseconds, pid] =
            [seconds, nanoseconds, pid].map(|word| i64::from_ne_bytes(word.to_ne_bytes()));
        Self {
            id: StoreId {
                file: FileId { dev, ino },
                born: (seconds, nanoseconds),
                pid,
                instance,
            },
            values: StoreValues {
                updated,
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
    fn what_is_put_is_got() {
        let none = StoreReading::none(reading().id);
        for reading in [reading(), none] {
            let mut words = [0; StoreReading::WORDS];
            reading.put(&mut WordWriter::new(&mut words));
            assert_eq!(StoreReading::get(&mut WordReader::new(&words)), reading);
        }
    }
}
