// SPDX-License-Identifier: GPL-2.0-or-later

//! Percentiles of the values of the last minute, for live views. Histograms that are logged or summed are in
//! [`crate::stats::histogram`].
//!
//! A window has parts of 10 s, see [`crate::stats::windows`]: the current part and the six before it. So a value stays
//! for at least 60 s and leaves before 70 s have passed. Parts depend on time only, so that a fetch changes nothing for
//! other clients.
//!
//! Each part counts values by their steps on [`crate::stats::scale`], and has counters from its smallest to its largest
//! step. The hdrhistogram crate has counters from 0 on. Almost all of them would be for values that no fabric is fast
//! enough to reach, seven times for each kind of value of each agent.

mod part;

use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::scale::Scaled;
use part::{BUCKETS, WindowPart, middle};
use std::time::Duration;

/// Length of one part.
pub const PART: Duration = Duration::from_secs(10);
/// Number of whole parts beside the current one.
pub(super) const WHOLE_PARTS: usize = 6;
/// Least time that a value stays.
pub const LENGTH: Duration = Duration::from_secs(60);
const _: () = assert!(LENGTH.as_secs() == PART.as_secs() * WHOLE_PARTS as u64);

/// The values of the last 60 to 70 s.
///
/// Memory: 4 bytes per bucket between the smallest and the largest value, for each of seven parts and for the sum of
/// the whole parts. An agent with one kind of transfer has values within a factor of 8, which take less than 2 KiB in
/// all. The worst case is values of 0 and of more than 2^40 in each part: 8 x 593 counters, less than 20 KiB.
#[derive(Debug, Default)]
pub struct Window {
    current: WindowPart,
    whole: [WindowPart; WHOLE_PARTS],
    /// Index of the oldest whole part.
    oldest: usize,
    /// Sum of the whole parts, so that a percentile reads two parts and not seven.
    sum: WindowPart,
}

impl Window {
    /// Counts a value in the current part.
    #[inline]
    pub fn record(&mut self, value: impl Into<Scaled>) {
        self.current.record(value.into());
    }

    /// Ends a number of parts. Called before values are recorded and before percentiles are read. Allocates nothing
    /// while the parts have similar values.
    pub fn advance(&mut self, parts: u64) {
        // After seven parts the window is empty.
        for _ in 0..parts.min(WHOLE_PARTS as u64 + 1) {
            let last = &mut self.whole[self.oldest];
            std::mem::swap(last, &mut self.current);
            self.current.clear(last.counts().len());
            self.oldest = (self.oldest + 1) % WHOLE_PARTS;
        }
        self.sum.clear(self.sum.counts().len());
        for part in &self.whole {
            self.sum.add_part(part);
        }
    }

    /// Adds transfers of a store, by bucket.
    pub fn record_buckets(&mut self, counts: &[u64]) {
        for (bucket, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            self.current.add_count(bucket, count);
        }
    }

    /// Returns a percentile of the values, with an error of at most 1/32; `None` without values. Values above 2^42
    /// count as 2^42.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Option<f64> {
        let max = self.max()? as f64;
        self.interpolate(percent, |bucket, _| middle(bucket).min(max))
    }

    /// Returns a percentile of the transfers of a store with these bounds; `None` without transfers. A store has no
    /// single values: the values of a bucket count as evenly spread in it, and those above the last bound as that
    /// bound.
    #[must_use]
    pub fn percentile_of_buckets(&self, bounds: &BucketBounds, percent: u64) -> Option<f64> {
        self.interpolate(percent, |bucket, share| {
            let (lower, upper) = bounds.lower_and_upper(bucket);
            upper.map_or(lower, |upper| lower + (upper - lower) * share)
        })
    }

    /// Returns a percentile as the default method (`linear`) of `numpy.percentile`, with which vLLM computes its own:
    /// between the values that are next to `(count - 1) * percent / 100`, counted from 0. `value` returns the value in
    /// a bucket at a fraction of the bucket's values.
    fn interpolate(&self, percent: u64, value: impl Fn(usize, f64) -> f64) -> Option<f64> {
        let position = self.count().checked_sub(1)? * percent.min(100);
        let (first, last) = (position / 100, position.div_ceil(100));
        let fraction = (position % 100) as f64 / 100.0;
        let (mut below, mut lower) = (0, None);
        for bucket in self.first_bucket()..BUCKETS {
            let count = u64::from(self.sum.get(bucket)) + u64::from(self.current.get(bucket));
            let at = |index: u64| value(bucket, ((index - below) as f64 + 0.5) / count as f64);
            if first < below + count {
                let lower = *lower.get_or_insert_with(|| at(first));
                if last < below + count {
                    return Some(lower + (at(last) - lower) * fraction);
                }
            }
            below += count;
        }
        None
    }

    /// Returns the exact largest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        let max = self.current.max().max(self.sum.max());
        (self.first_bucket() < BUCKETS).then_some(max)
    }

    /// Returns the first bucket with a count; [`BUCKETS`] without values.
    fn first_bucket(&self) -> usize {
        self.sum.first_bucket().min(self.current.first_bucket())
    }

    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.sum.count() + self.current.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::windows::Windows;
    use proptest::prelude::*;
    use std::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns all counters of a window.
    fn allocated(window: &Window) -> impl Iterator<Item = &Vec<u32>> {
        let parts = window.whole.iter().chain([&window.current, &window.sum]);
        parts.map(WindowPart::counts)
    }

    /// Returns the memory of a window, in bytes.
    fn bytes(window: &Window) -> usize {
        let counts: usize = allocated(window).map(Vec::capacity).sum();
        size_of::<Window>() + counts * size_of::<u32>()
    }

    /// Returns a percentile as numpy does, with values limited to the start of the last bucket.
    fn exact(values: &mut [u64], percent: usize) -> Option<f64> {
        values.sort_unstable();
        let position = (values.len() - 1) * percent;
        let at = |index: usize| Some((*values.get(index)?).min(1 << 42) as f64);
        let (lower, upper) = (at(position / 100)?, at(position.div_ceil(100))?);
        Some(lower + (upper - lower) * (position % 100) as f64 / 100.0)
    }

    /// True if a percentile is within its documented error.
    fn is_close(found: f64, exact: f64) -> bool {
        (found - exact).abs() <= exact / 32.0 + 1e-9 * exact
    }

    #[test]
    fn window_without_values_has_no_percentile() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        assert_eq!(
            (windows.xfer_time.percentile(50), windows.xfer_time.max()),
            (None, None)
        );
        windows.xfer_time.record(0);
        assert_eq!(
            (windows.xfer_time.percentile(50), windows.xfer_time.max()),
            (Some(0.0), Some(0))
        );
        windows.advance(start + 1000 * SECOND);
        assert_eq!(
            (windows.xfer_time.percentile(50), windows.xfer_time.max()),
            (None, None)
        );
        assert_eq!(windows.xfer_time.count(), 0);
    }

    #[test]
    fn percentile_of_buckets_spreads_values_evenly() {
        let bounds = BucketBounds::new(&[10.0, 20.0, 40.0]).expect("good");
        let mut window = Window::default();
        assert_eq!(window.percentile_of_buckets(&bounds, 50), None);
        window.record_buckets(&[0, 10, 10, 0]);
        let found = [0, 50, 90, 100].map(|percent| window.percentile_of_buckets(&bounds, percent));
        // numpy.percentile([10.5, 11.5, ... 19.5, 21, 23, ... 39], percent)
        let near = |(found, exact): (&Option<f64>, f64)| {
            found.is_some_and(|found| (found - exact).abs() < 1e-9)
        };
        let exact = [10.5, 20.25, 35.2, 39.0];
        assert!(found.iter().zip(exact).all(near), "{found:?}");
        window.record_buckets(&[0, 0, 0, 20]);
        assert_eq!(window.percentile_of_buckets(&bounds, 50), Some(39.5));
        assert_eq!(
            window.percentile_of_buckets(&bounds, 52),
            Some(40.0),
            "no less than that"
        );
    }

    #[test]
    fn percentile_of_largest_counts_does_not_overflow() {
        let bounds = BucketBounds::new(&[10.0, 20.0]).expect("good");
        let mut window = Window::default();
        for part in 0..2 {
            (0..2).for_each(|_| window.record_buckets(&[0, u64::MAX, 0]));
            assert_eq!(
                window.percentile_of_buckets(&bounds, 50),
                Some(15.0),
                "{part}"
            );
            window.advance(1);
        }
    }

    #[test]
    fn value_stays_60_seconds_and_leaves_within_70() {
        for at in 0..20 {
            let start = Instant::now();
            let mut windows = Windows::new(start);
            windows.advance(start + at * SECOND);
            windows.xfer_time.record(1000);
            for age in 0..=75 {
                windows.advance(start + (at + age) * SECOND);
                let is_there = windows.xfer_time.max() == Some(1000);
                assert_eq!(is_there, windows.xfer_time.percentile(99).is_some());
                assert!(is_there || age > 60, "recorded at {at}, gone after {age}");
                assert!(!is_there || age < 70, "recorded at {at}, there after {age}");
            }
        }
    }

    #[test]
    fn values_of_three_octaves_take_less_than_2_kib() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        for second in 0..200 {
            windows.advance(start + second * SECOND);
            // Not in order, so that the counters grow both ways.
            (0..1000_u64).for_each(|number| {
                windows
                    .xfer_time
                    .record(900 + number * 379 % 1000 * 6301 / 1000)
            });
        }
        assert_eq!(
            (windows.xfer_time.max(), windows.xfer_time.count()),
            (Some(7194), 70_000)
        );
        assert!(
            bytes(&windows.xfer_time) < 2048,
            "{} bytes",
            bytes(&windows.xfer_time)
        );
    }

    #[test]
    fn worst_values_take_less_than_20_kib() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        for second in 0..200 {
            windows.advance(start + second * SECOND);
            for value in [1 << 20, u64::MAX, 0] {
                windows.xfer_time.record(value);
            }
        }
        let worst = 8 * BUCKETS * 4 + size_of::<Window>();
        assert_eq!(bytes(&windows.xfer_time), worst, "as documented");
        assert!(worst < 20 * 1024, "{worst} bytes");
    }

    #[test]
    fn slow_transfer_does_not_keep_memory() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        let values = |windows: &mut Windows, from: u32| {
            for second in from..from + 100 {
                windows.advance(start + second * SECOND);
                (0..100).for_each(|value| windows.xfer_time.record(100 + value));
            }
            bytes(&windows.xfer_time)
        };
        let before = values(&mut windows, 0);
        windows.xfer_time.record(1 << 39);
        assert!(bytes(&windows.xfer_time) > before + 1024);
        assert_eq!(values(&mut windows, 100), before);
    }

    #[test]
    fn steady_window_allocates_nothing() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        let mut places = Vec::new();
        for part in 0..80 {
            windows.advance(start + part * PART);
            for number in 0..100 {
                windows
                    .xfer_time
                    .record(1000 + number * u64::from(part % 5 + 1));
            }
            if part >= 40 {
                let mut now: Vec<_> = allocated(&windows.xfer_time)
                    .map(|counts| (counts.as_ptr(), counts.capacity()))
                    .collect();
                now.sort_unstable();
                places.push(now);
            }
        }
        places.dedup();
        assert_eq!(places.len(), 1, "counts were moved");
    }

    /// Generates values of any size, each with the seconds before it.
    fn values() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let value = (0..64_u32, any::<u64>()).prop_map(|(shift, value)| value >> shift);
        prop::collection::vec((value, prop_oneof![8 => 0..2_u64, 1 => 0..80_u64]), 1..120)
    }

    proptest! {
        #[test]
        fn percentile_is_that_of_the_values_in_the_window(values in values()) {
            let start = Instant::now();
            let mut windows = Windows::new(start);
            let mut now = 0;
            let mut recorded: Vec<(u64, u64)> = Vec::new();
            for (value, wait) in values {
                now += wait;
                windows.advance(start + Duration::from_secs(now));
                windows.xfer_time.record(value);
                recorded.push((now, value));
                recorded.retain(|&(at, _)| now / 10 - at / 10 <= 6);
                let mut held: Vec<u64> = recorded.iter().map(|&(_, value)| value).collect();
                for percent in [0, 10, 50, 90, 99, 100] {
                    let found = windows.xfer_time.percentile(percent as u64).expect("there is one");
                    let exact = exact(&mut held, percent).expect("there is one");
                    prop_assert!(is_close(found, exact), "{found} for {exact} of {held:?}");
                }
                prop_assert_eq!(windows.xfer_time.max(), held.last().copied());
                prop_assert_eq!(windows.xfer_time.count(), held.len() as u64);
            }
        }
    }
}
