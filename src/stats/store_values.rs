// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of a store, and the delta since another reading.

use crate::base::words::words;
use crate::event::EventType;
use crate::stats::histogram::MAX_BUCKETS;

/// All values of a store. They are read one after another, while NIXL may write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreValues {
    /// Time at which the last flush with events ended, or the store was created: nanoseconds of CLOCK_MONOTONIC.
    pub updated: u64,
    /// Running totals by event type.
    pub counters: [u64; EventType::COUNT],
    /// Transfers by bucket, for transfer time and post time, not cumulative.
    pub histograms: [[u64; MAX_BUCKETS]; 2],
}
words!(StoreValues: updated, counters, histograms);

impl StoreValues {
    /// Values of an empty store.
    pub const NONE: Self = Self {
        updated: 0,
        counters: [0; EventType::COUNT],
        histograms: [[0; MAX_BUCKETS]; 2],
    };

    /// Returns the delta since an earlier reading of this store: the differences of counters, and the current other
    /// values. A counter that went back counts from 0, as in Prometheus.
    #[must_use]
    pub fn delta_since(&self, before: &Self) -> Self {
        let mut delta = self.clone();
        subtract(&mut delta.counters, &before.counters);
        let histograms = delta.histograms.as_flattened_mut();
        subtract(histograms, before.histograms.as_flattened());
        delta
    }

    /// True if a counter or a bucket is above 0.
    #[must_use]
    pub fn has_counts(&self) -> bool {
        let histograms = self.histograms.as_flattened();
        self.counters
            .iter()
            .chain(histograms)
            .any(|&count| count > 0)
    }
}

fn subtract(counts: &mut [u64], before: &[u64]) {
    for (count, &before) in counts.iter_mut().zip(before) {
        *count = count.checked_sub(before).unwrap_or(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> StoreValues {
        StoreValues {
            updated: 7,
            counters: std::array::from_fn(|at| 100 + at as u64),
            histograms: [[8; MAX_BUCKETS], [9; MAX_BUCKETS]],
        }
    }

    #[test]
    fn delta_has_differences_of_counters_and_current_values() {
        let mut now = values();
        now.updated = 99;
        assert!(!now.delta_since(&values()).has_counts());
        now.histograms[1][32] += 2;
        let delta = now.delta_since(&values());
        assert!(delta.has_counts());
        assert_eq!(delta.updated, 99);
        assert_eq!((delta.histograms[1][32], delta.histograms[0][32]), (2, 0));
        now.counters[3] += 5;
        let delta = now.delta_since(&values());
        assert_eq!((delta.counters[3], delta.counters[4]), (5, 0));
    }

    #[test]
    fn counter_that_went_back_counts_from_zero() {
        let mut now = values();
        (now.counters[0], now.counters[1]) = (3, 201);
        assert_eq!(now.delta_since(&values()).counters[..3], [3, 100, 0]);
    }
}
