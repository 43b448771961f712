// SPDX-License-Identifier: GPL-2.0-or-later

//! One part of a window: counts by bucket, from its smallest to its largest bucket.

use crate::stats::scale::{self, Scaled};

/// Smallest value of the last bucket, which has all larger values too.
const LAST_BUCKET_START: u64 = 1 << 42;
/// Number of buckets: one for each step of the scale up to the last bucket.
pub const BUCKETS: usize = scale::step(LAST_BUCKET_START) + 1;

/// Counts of the buckets from the first to the last with a value.
#[derive(Debug, Default)]
pub struct WindowPart {
    /// Bucket of the first count.
    first: usize,
    /// Counts of 32 bits: 2^32 values in 10 s would need less than 3 ns for each.
    counts: Vec<u32>,
    max: u64,
}

impl WindowPart {
    /// Counts one value.
    #[inline]
    pub fn record(&mut self, Scaled { value, step }: Scaled) {
        if value > self.max {
            self.max = value;
        }
        match self.counts.get_mut(step.wrapping_sub(self.first)) {
            Some(count) => *count = count.wrapping_add(1),
            None => self.record_new_bucket(step),
        }
    }

    /// Counts a value of a bucket that has no counter yet, or a value above all buckets.
    #[cold]
    fn record_new_bucket(&mut self, step: usize) {
        self.add_count(step.min(BUCKETS - 1), 1);
    }

    /// Adds values to a bucket without a change of the maximum.
    pub fn add_count(&mut self, bucket: usize, more: u64) {
        self.extend_to(bucket, bucket + 1);
        let count = &mut self.counts[bucket - self.first];
        *count = count.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Returns the largest value; 0 without values.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the counts, from [`WindowPart::first_bucket`] on.
    pub fn counts(&self) -> &Vec<u32> {
        &self.counts
    }

    /// Adds all counts of another part.
    pub fn add_part(&mut self, part: &WindowPart) {
        if part.counts.is_empty() {
            return;
        }
        self.max = self.max.max(part.max);
        self.extend_to(part.first, part.first + part.counts.len());
        let counts = &mut self.counts[part.first - self.first..];
        for (sum, &more) in counts.iter_mut().zip(&part.counts) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Adds counters for the buckets from `first` to before `end`. Allocates exactly what they need.
    fn extend_to(&mut self, first: usize, end: usize) {
        if self.counts.is_empty() {
            self.first = first;
        }
        let end = end.max(self.first + self.counts.len());
        let below = self.first.saturating_sub(first);
        self.first -= below;
        let len = end - self.first;
        self.counts.reserve_exact(len - self.counts.len());
        self.counts.splice(..0, std::iter::repeat_n(0, below));
        self.counts.resize(len, 0);
    }

    /// Removes all values. Frees memory if it is far more than the `usual` number of counters needs. Otherwise one slow
    /// transfer would keep it for ever.
    pub fn clear(&mut self, usual: usize) {
        self.counts.clear();
        if self.counts.capacity() > 2 * usual + 16 {
            self.counts.shrink_to(usual);
        }
        self.max = 0;
    }

    /// Returns the count of a bucket.
    pub fn get(&self, bucket: usize) -> u32 {
        let at = bucket.wrapping_sub(self.first);
        self.counts.get(at).copied().unwrap_or(0)
    }

    /// Returns the first bucket with a count; [`BUCKETS`] without values.
    pub fn first_bucket(&self) -> usize {
        if self.counts.is_empty() {
            BUCKETS
        } else {
            self.first
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&count| u64::from(count)).sum()
    }
}

/// Returns the middle of the values of a bucket; for the last one, which has no end, its smallest value.
pub fn middle(bucket: usize) -> f64 {
    if bucket < BUCKETS - 1 {
        scale::middle(bucket)
    } else {
        LAST_BUCKET_START as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::scale::step;

    /// Counts these values.
    fn record(part: &mut WindowPart, values: &[u64]) {
        for &value in values {
            part.record(value.into());
        }
    }

    #[test]
    fn last_bucket_has_all_larger_values() {
        let mut part = WindowPart::default();
        record(
            &mut part,
            &[
                LAST_BUCKET_START - 1,
                LAST_BUCKET_START,
                2 * LAST_BUCKET_START,
                u64::MAX,
                7,
            ],
        );
        assert_eq!(part.counts().len(), BUCKETS - 7);
        let counts = [BUCKETS - 2, BUCKETS - 1, 7].map(|bucket| part.get(bucket));
        assert_eq!((counts, part.max()), ([1, 3, 1], u64::MAX));
        assert_eq!(
            (BUCKETS, middle(BUCKETS - 1)),
            (625, LAST_BUCKET_START as f64)
        );
        assert!(middle(BUCKETS - 2) < LAST_BUCKET_START as f64);
    }

    #[test]
    fn part_grows_both_ways_and_keeps_its_counts() {
        let mut part = WindowPart::default();
        assert_eq!((part.first_bucket(), part.count()), (BUCKETS, 0));
        record(&mut part, &[1000, 20, 1000, 70_000, 0, 20]);
        let counts = [0, 20, 1000, 70_000].map(|value| part.get(step(value)));
        assert_eq!(
            (counts, part.count(), part.max()),
            ([1, 2, 2, 1], 6, 70_000)
        );
        assert_eq!(part.counts().len(), step(70_000) + 1);
        let mut sum = WindowPart::default();
        record(&mut sum, &[1 << 30]);
        sum.add_part(&part);
        sum.add_part(&part);
        assert_eq!((sum.count(), sum.max()), (13, 1 << 30));
        assert_eq!((sum.get(step(20)), sum.get(step(1 << 30))), (4, 1));
        sum.clear(0);
        assert_eq!(
            (sum.first_bucket(), sum.count(), sum.max()),
            (BUCKETS, 0, 0)
        );
        assert_eq!(sum.get(step(20)), 0);
        record(&mut sum, &[3000]);
        assert_eq!((sum.counts().len(), sum.get(step(3000))), (1, 1));
    }

    #[test]
    fn cleared_part_keeps_the_memory_of_its_usual_size() {
        for (len, kept) in [(36, 36), (37, 10)] {
            let mut part = WindowPart::default();
            part.extend_to(0, len);
            assert_eq!(part.counts.capacity(), len);
            part.clear(10);
            assert_eq!(part.counts.capacity(), kept);
        }
    }

    #[test]
    fn sum_of_parts_saturates() {
        let (mut part, mut sum) = (WindowPart::default(), WindowPart::default());
        record(&mut part, &[5]);
        part.counts[0] = u32::MAX;
        record(&mut sum, &[5]);
        sum.add_part(&part);
        assert_eq!(sum.count(), u64::from(u32::MAX));
    }
}
