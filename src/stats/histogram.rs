// SPDX-License-Identifier: GPL-2.0-or-later

//! Histograms with fixed upper bounds: latencies with the bounds of NIXL's own exporters, sizes, bandwidths.

use crate::base::words::words;
use crate::stats::scale::{self, STEPS, Scaled};

/// Limit of bounds of a histogram, as in NIXL.
pub const MAX_BOUNDS: usize = 32;
/// Limit of a bound, microseconds. Up to here, floating-point numbers, the type of bounds in NIXL and in tools of PCP,
/// are exact.
const MAX_BOUND: u64 = 1 << 53;
/// Limit of buckets: one per bound, and one above the last bound.
pub const MAX_BUCKETS: usize = MAX_BOUNDS + 1;

/// NIXL's default bounds of `agent_xfer_time_us` and `agent_xfer_post_time_us`, microseconds.
const LATENCY: [u64; 18] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000, 5_000_000, 10_000_000,
];

/// Length of a table with an entry for each step, rounded up to a power of two: an index modulo that needs no check.
const TABLE_LEN: usize = STEPS.next_power_of_two();

/// Upper bounds of a histogram, inclusive, strictly rising. Bucket `i` has the values above bound `i - 1` and not above
/// bound `i`. The last bucket has the values above all bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Padded with `u64::MAX`, so that the search ends.
    bounds: [u64; MAX_BUCKETS],
    len: usize,
    /// Number of bounds below all values of each step of the scale.
    below: [u8; TABLE_LEN],
}

impl Bounds {
    /// Bounds of bytes per transfer: 12 bounds, each 4 times the one before, 2^11 (2 KiB) to 2^33 (8 GiB), as in vLLM.
    pub const SIZE: Self = Self::powers(1 << 11, 2, 12);
    /// Bounds of byte/s: 20 bounds, each twice the one before, 10^6 (1 MB/s) to 10^6 x 2^19 (524.288 GB/s).
    pub const BANDWIDTH: Self = Self::powers(1_000_000, 1, 20);

    /// Returns bounds that grow by a power of two.
    const fn powers(first: u64, shift: usize, len: usize) -> Self {
        let mut bounds = [0; MAX_BOUNDS];
        let mut at = 0;
        while at < len {
            bounds[at] = first << (shift * at);
            at += 1;
        }
        Self::new(bounds.split_at(len).0)
    }

    /// Returns bounds without a check.
    const fn new(list: &[u64]) -> Self {
        let mut bounds = [u64::MAX; MAX_BUCKETS];
        let mut below = [0; TABLE_LEN];
        let (mut at, mut step) = (0, 0);
        while step < STEPS {
            below[step] = at;
            while (at as usize) < list.len() && list[at as usize] <= scale::highest(step) {
                bounds[at as usize] = list[at as usize];
                at += 1;
            }
            step += 1;
        }
        Self {
            bounds,
            len: list.len(),
            below,
        }
    }

    /// Returns configured bounds.
    ///
    /// # Errors
    /// What is wrong with the bounds, and what to change.
    pub fn from_config(bounds: &[u64]) -> Result<Self, String> {
        let count = bounds.len();
        let too_large = bounds.iter().find(|&&bound| bound > MAX_BOUND);
        let no_rise = bounds.windows(2).find(|pair| pair[1] <= pair[0]);
        Err(match (bounds, too_large, no_rise) {
            ([], ..) => format!(
                "no bound is given; give 1 to {MAX_BOUNDS} numbers in rising order, or leave the key out for NIXL's own"
            ),
            ([0, ..], ..) => {
                "0 is not a valid upper bound: its bucket would count only zeros; begin with a larger number".into()
            }
            _ if count > MAX_BOUNDS => {
                format!("{count} bounds are given; at most {MAX_BOUNDS} are allowed: leave some out")
            }
            (_, Some(bound), _) => {
                format!("{bound} is too large; bounds go up to {MAX_BOUND}, 285 years")
            }
            (.., Some(pair)) => format!(
                "{} is not above {}, the bound before it; sort the list and remove duplicates",
                pair[1], pair[0]
            ),
            _ => return Ok(Self::new(bounds)),
        })
    }

    /// Returns the bounds.
    #[must_use]
    pub fn as_slice(&self) -> &[u64] {
        &self.bounds[..self.len]
    }

    /// Returns the number of buckets: one more than the bounds.
    #[must_use]
    pub const fn buckets(&self) -> usize {
        self.len + 1
    }

    /// Returns the bucket of a value, which is the number of bounds below it. Called several times for each transfer.
    /// The step of the value gives the first candidate, and most steps have no bound, so that there is one comparison.
    #[inline]
    #[must_use]
    pub fn find(&self, value: impl Into<Scaled>) -> usize {
        let Scaled { value, step } = value.into();
        let mut at = usize::from(self.below[step % TABLE_LEN]);
        while self.bounds.get(at).is_some_and(|&bound| bound < value) {
            at += 1;
        }
        at
    }
}

/// The default is NIXL's bounds of latencies, 10 us to 10 s.
impl Default for Bounds {
    fn default() -> Self {
        Self::new(&LATENCY)
    }
}

/// Number of values in each bucket, with room for [`MAX_BUCKETS`]: 264 bytes without an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketCounts(pub [u64; MAX_BUCKETS]);
words!(BucketCounts: 0);

impl BucketCounts {
    /// Limit of a sum.
    const MAX: u64 = u64::MAX >> 1;

    /// Counts one value in a bucket that [`Bounds::find`] returned.
    #[inline]
    pub fn increment(&mut self, bucket: usize) {
        if let Some(count) = self.0.get_mut(bucket) {
            // From MAX, 2^63 single steps would be needed until the count wraps.
            *count = count.wrapping_add(1);
        }
    }

    /// Returns the number of values in a bucket.
    #[must_use]
    pub fn get(&self, bucket: usize) -> u64 {
        self.0.get(bucket).copied().unwrap_or(0)
    }

    /// Returns the number of values in all buckets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().copied().fold(0, u64::saturating_add)
    }

    /// Adds the counts of a store. They are untrusted, so a sum saturates far below the largest number.
    pub fn add(&mut self, delta: &BucketCounts) {
        for (sum, &more) in self.0.iter_mut().zip(&delta.0) {
            *sum = sum.saturating_add(more).min(Self::MAX);
        }
    }
}

impl Default for BucketCounts {
    fn default() -> Self {
        Self([0; MAX_BUCKETS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn value_at_a_bound_is_in_the_bucket_below() {
        let bounds = Bounds::default();
        assert_eq!(bounds.buckets(), 19);
        for (bucket, &bound) in bounds.as_slice().iter().enumerate() {
            assert_eq!(bounds.find(bound), bucket, "{bound}");
            assert_eq!(bounds.find(bound - 1), bucket, "{bound} less one");
            assert_eq!(bounds.find(bound + 1), bucket + 1, "{bound} and one");
        }
        assert_eq!((bounds.find(0), bounds.find(u64::MAX)), (0, 18));
    }

    #[test]
    fn adjacent_bounds_have_their_own_buckets() {
        let list: Vec<u64> = (1..=32).collect();
        let bounds = Bounds::from_config(&list).expect("as many as may be");
        for value in 0..40 {
            let bucket = value.clamp(1, 33) - 1;
            assert_eq!(bounds.find(value) as u64, bucket, "{value}");
        }
        let list: Vec<u64> = (1 << 20..).take(MAX_BOUNDS).collect();
        let bounds = Bounds::from_config(&list).expect("all on one step");
        for value in 0..50 {
            let bucket = bounds.find((1 << 20) - 9 + value);
            assert_eq!(bucket as u64, value.clamp(9, 41) - 9, "{value}");
        }
    }

    #[test]
    fn sizes_and_bandwidths_have_documented_bounds() {
        let size = Bounds::SIZE;
        let expected: Vec<u64> = (0..12).map(|power| 2048 << (2 * power)).collect();
        assert_eq!(size.as_slice(), expected);
        assert_eq!(size.as_slice().last(), Some(&(8 << 30)), "8 GiB");
        let bandwidth = Bounds::BANDWIDTH;
        assert_eq!((bandwidth.as_slice().len(), bandwidth.buckets()), (20, 21));
        assert_eq!(bandwidth.as_slice()[0], 1_000_000);
        assert_eq!(bandwidth.as_slice()[19], 524_288_000_000);
    }

    #[test]
    fn invalid_bounds_are_an_error_with_the_numbers() {
        let bound = MAX_BOUND + 1;
        let long: Vec<u64> = (1..34).collect();
        for (bounds, message) in [
            (&[][..], "no bound is given; give 1 to 32 numbers"),
            (&[0, 1], "0 is not a valid upper bound"),
            (
                &[1, bound],
                "9007199254740993 is too large; bounds go up to 9007199254740992",
            ),
            (&long, "33 bounds are given; at most 32 are allowed"),
            (
                &[1, 5, 5, 9],
                "5 is not above 5, the bound before it; sort the list",
            ),
            (
                &[1, 5, 4, 9],
                "4 is not above 5, the bound before it; sort the list",
            ),
        ] {
            let error = Bounds::from_config(bounds).expect_err("invalid bounds");
            assert!(error.starts_with(message), "{error}");
        }
        assert_eq!(
            Bounds::from_config(&LATENCY).expect("NIXL's own"),
            Bounds::default()
        );
    }

    #[test]
    fn counts_saturate() {
        let bounds = Bounds::default();
        let mut counts = BucketCounts::default();
        for value in [0, 10, 11, u64::MAX] {
            counts.increment(bounds.find(value));
        }
        let mut back = counts.clone();
        back.add(&counts);
        let got: Vec<u64> = (0..bounds.buckets())
            .map(|bucket| back.get(bucket))
            .collect();
        assert_eq!((got[0], got[1], got[18], back.total()), (4, 2, 2, 8));
        assert_eq!(back.get(MAX_BUCKETS), 0);
        back.add(&BucketCounts([u64::MAX; MAX_BUCKETS]));
        assert_eq!(back.0, [BucketCounts::MAX; MAX_BUCKETS], "none goes back");
        (0..1000).for_each(|_| back.increment(3));
        assert_eq!(back.get(3), BucketCounts::MAX + 1000, "nor does it then");
    }

    proptest! {
        #[test]
        fn value_is_between_the_bounds_of_its_bucket(
            bounds in prop::collection::btree_set(1..=MAX_BOUND, 1..=MAX_BOUNDS),
            near in 0..MAX_BOUNDS,
            offset in 0..3_u64,
            any in any::<u64>(),
        ) {
            let list: Vec<u64> = bounds.into_iter().collect();
            let bounds = Bounds::from_config(&list).expect("they rise");
            let near = list[near % list.len()].wrapping_sub(1).saturating_add(offset);
            for value in [near, any, 0, u64::MAX] {
                let expected = list.iter().filter(|&&bound| bound < value).count();
                prop_assert_eq!(bounds.find(value), expected);
            }
        }
    }
}
