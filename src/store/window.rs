//! Percentiles of a store's transfers of the last minute, as far as its histograms tell.
//!
//! As in [`crate::totals::window`], time is cut into parts of 10 s, and what is between 60 and 70 s old leaves. A store has no single
//! values: within a range they are taken for evenly spread, so that a percentile is no more exact than the bounds are.

use crate::totals::histogram::MAX_BUCKETS;
use crate::totals::ranges::Ranges;
use crate::totals::scale::Rank;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Length of one part.
const PART: Duration = Duration::from_secs(10);
/// Whole parts that count beside the current one.
const WHOLE_PARTS: usize = 6;

/// Both histograms.
type Counts = [[u64; MAX_BUCKETS]; 2];

/// The ranges that a store has, of one histogram after the other: the low half of each count, since no more come in a minute.
type Low = Box<[u32]>;

/// What the histograms were at the ends of the last parts, the oldest first: seven at most, of 152 bytes with the bounds that NIXL
/// has by itself.
#[derive(Debug)]
pub struct StoreWindow {
    before: VecDeque<Low>,
    now: Low,
    part_ends: Instant,
}

impl StoreWindow {
    /// Begins with what a store has counted already, which is not of the last minute. `ranges` is how many each histogram has.
    #[must_use]
    pub fn new(counts: &Counts, ranges: usize, now: Instant) -> Self {
        let lists = counts.iter().flat_map(|counts| counts.iter().take(ranges));
        let low: Low = lists.copied().map(low).collect();
        Self {
            before: [low.clone()].into(),
            now: low,
            part_ends: now + PART,
        }
    }

    /// Tells the time, and what the histograms are by now. If any count has gone back, which NIXL's do not, it begins anew; one
    /// that went back by more than 2^31, in a store that a stranger has spoilt, is taken for transfers until they are a minute old.
    pub fn advance(&mut self, counts: &Counts, now: Instant) {
        if now >= self.part_ends {
            let parts = now.duration_since(self.part_ends).as_secs() / PART.as_secs() + 1;
            // After seven, nothing is left that could leave.
            for _ in 0..parts.min(WHOLE_PARTS as u64 + 1) {
                if self.before.len() <= WHOLE_PARTS {
                    self.before.push_back(self.now.clone());
                } else {
                    self.before.rotate_left(1);
                    self.before[WHOLE_PARTS].copy_from_slice(&self.now);
                }
            }
            self.part_ends += PART * u32::try_from(parts).unwrap_or(u32::MAX);
        }
        let ranges = self.ranges();
        let mut went_back = false;
        for (last, counts) in self.now.chunks_mut(ranges).zip(counts) {
            for (last, &count) in last.iter_mut().zip(counts) {
                let count = low(count);
                went_back |= count.wrapping_sub(*last) > u32::MAX / 2;
                *last = count;
            }
        }
        if went_back {
            self.before
                .iter_mut()
                .for_each(|part| part.copy_from_slice(&self.now));
        }
    }

    /// How many ranges each histogram has: one at least.
    fn ranges(&self) -> usize {
        (self.now.len() / 2).max(1)
    }

    /// A percentile of the times of the transfers, by histogram, interpolated as [`Rank`] does; `None` without transfers. A
    /// transfer above the last bound counts as that bound.
    #[must_use]
    pub fn percentile(&self, histogram: usize, ranges: &Ranges, percent: u64) -> Option<f64> {
        let ranges_of_it = self.ranges() * histogram..self.ranges() * (histogram + 1);
        let before = self.before.front()?.get(ranges_of_it.clone())?;
        let both = self.now.get(ranges_of_it)?.iter().zip(before);
        let counts = both.map(|(now, before)| u64::from(now.wrapping_sub(*before)));
        let rank = Rank::new(counts.clone().sum(), percent)?;
        let lower = value(counts.clone(), ranges, rank.lower)?;
        let upper = value(counts, ranges, rank.upper)?;
        Some(rank.between(lower, upper))
    }
}

/// The value at an index of the sorted values, where those of each range are evenly spread within it.
#[allow(clippy::cast_precision_loss, reason = "counts of a minute")]
fn value(counts: impl Iterator<Item = u64>, ranges: &Ranges, index: u64) -> Option<f64> {
    let mut below = 0;
    for (range, count) in counts.enumerate() {
        if index < below + count {
            let (lower, upper) = ranges.around(range);
            let share = ((index - below) as f64 + 0.5) / count as f64;
            return Some(upper.map_or(lower, |upper| lower + (upper - lower) * share));
        }
        below += count;
    }
    None
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "it is the low half that is wanted"
)]
fn low(count: u64) -> u32 {
    count as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(list: &[u64]) -> Counts {
        let mut counts = [[0; MAX_BUCKETS]; 2];
        counts[1][..list.len()].copy_from_slice(list);
        counts
    }

    fn ranges() -> Ranges {
        Ranges::new(&[10.0, 20.0, 40.0]).expect("good")
    }

    #[test]
    fn a_percentile_is_where_the_values_of_a_range_are_evenly_spread() {
        let now = Instant::now();
        let mut window = StoreWindow::new(&counts(&[1000, 1000]), 4, now);
        let of = |window: &StoreWindow, percent| window.percentile(1, &ranges(), percent);
        assert_eq!(
            of(&window, 50),
            None,
            "what was there before does not count"
        );
        window.advance(&counts(&[1000, 1010, 10]), now);
        let told = [0, 50, 90, 100].map(|percent| of(&window, percent));
        // numpy.percentile([10.5, 11.5, ... 19.5, 21, 23, ... 39], percent)
        let near = |(told, exact): (&Option<f64>, f64)| {
            told.is_some_and(|told| (told - exact).abs() < 1e-9)
        };
        let exact = [10.5, 20.25, 35.2, 39.0];
        assert!(told.iter().zip(exact).all(near), "{told:?}");
        assert_eq!(window.percentile(0, &ranges(), 50), None);
        window.advance(&counts(&[1000, 1010, 10, 20]), now);
        assert_eq!(of(&window, 50), Some(39.5));
        assert_eq!(of(&window, 52), Some(40.0), "no less than that");
    }

    #[test]
    fn what_is_older_than_a_minute_leaves() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut window = StoreWindow::new(&counts(&[0]), 4, start);
        window.advance(&counts(&[7]), at(5));
        for second in 6..=80 {
            window.advance(&counts(&[7]), at(second));
            let is_there = window.percentile(1, &ranges(), 50).is_some();
            assert!(is_there || second > 65, "{second}");
            assert!(!is_there || second < 75, "{second}");
        }
        window.advance(&counts(&[8]), at(100_000));
        assert!(window.percentile(1, &ranges(), 50).is_some());
        assert!(window.before.len() <= WHOLE_PARTS + 1);
        window.advance(&counts(&[8]), at(100_100));
        assert!(window.percentile(1, &ranges(), 50).is_none());
    }

    #[test]
    fn counts_of_any_size_have_percentiles() {
        let now = Instant::now();
        let mut window = StoreWindow::new(&counts(&[7, u64::MAX - 1, u64::MAX >> 32]), 4, now);
        window.advance(&counts(&[7, u64::MAX, (u64::MAX >> 32) + 1]), now);
        let told = [50, 75].map(|percent| window.percentile(1, &ranges(), percent));
        assert_eq!(told, [Some(22.5), Some(26.25)]);
    }

    #[test]
    fn counts_that_go_back_begin_anew() {
        let now = Instant::now();
        let mut window = StoreWindow::new(&counts(&[5, 500]), 4, now);
        let mut at = now;
        for second in [3, 12, 27] {
            at = now + Duration::from_secs(second);
            window.advance(&counts(&[5 + second, 500]), at);
        }
        window.advance(&counts(&[100, 3]), at);
        assert_eq!(window.percentile(1, &ranges(), 50), None);
        window.advance(&counts(&[100, 3, 1]), at);
        assert_eq!(window.percentile(1, &ranges(), 50), Some(30.0));
    }
}
