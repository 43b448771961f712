// SPDX-License-Identifier: GPL-2.0-or-later

//! Mean transfer times of the last minute by size class, for the comparison of agents. A size class is a bucket of the
//! histogram of sizes, where the largest transfer has at most four times the bytes of the smallest.
//!
//! The means are geometric, so that no single slow transfer decides. The parts are those of
//! [`crate::stats::window::Window`].

use crate::stats::histogram::Bounds;
use crate::stats::window::WHOLE_PARTS;

/// Number of size classes.
pub const SIZE_CLASSES: usize = Bounds::SIZE.buckets();

/// Bits of a floating-point number below its exponent and the first four bits of its mantissa. The rest is a logarithm
/// with 16 steps per power of two, which are linear within that power: its error is at most 6 % of the number.
const DROPPED_BITS: u32 = f64::MANTISSA_DIGITS - 1 - 4;
/// Logarithm of 1.
const LOG_OF_ONE: u64 = 1.0_f64.to_bits() >> DROPPED_BITS;

/// Number and mean time of the transfers of one size class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanTime {
    /// Number of transfers, at least 1.
    pub transfers: u64,
    /// Geometric mean of their times, microseconds.
    pub micros: f64,
}

/// Number of transfers, and the sum of the logarithms of their times, in one word: the drain of an event adds once. The
/// logarithm of a time below 2^56 is less than 2^10, so the sum has room for 2^26 transfers in 10 s.
#[derive(Clone, Copy, Debug, Default)]
struct Sum(u64);

impl Sum {
    const LOG_BITS: u32 = 36;
    const ONE_TRANSFER: u64 = 1 << Self::LOG_BITS;

    #[inline]
    fn add(&mut self, micros: f64) {
        let log = (micros.to_bits() >> DROPPED_BITS).wrapping_sub(LOG_OF_ONE);
        self.0 = self.0.wrapping_add(log.wrapping_add(Self::ONE_TRANSFER));
    }

    fn transfers(self) -> u64 {
        self.0 >> Self::LOG_BITS
    }

    fn logs(self) -> u64 {
        self.0 & (Self::ONE_TRANSFER - 1)
    }
}

/// Sums of the size classes in one part of the window.
type Part = [Sum; SIZE_CLASSES];

/// The transfer times of the last 60 to 70 s by size class. It has 728 bytes.
#[derive(Debug, Default)]
pub struct SizedTimes {
    current: Part,
    whole: [Part; WHOLE_PARTS],
}

impl SizedTimes {
    /// Counts the time of a transfer, at least 1 microsecond, in a bucket of [`Bounds::SIZE`].
    #[inline]
    pub fn record(&mut self, bucket: usize, micros: f64) {
        if let Some(sum) = self.current.get_mut(bucket) {
            sum.add(micros);
        }
    }

    /// Ends a number of parts.
    pub fn advance(&mut self, parts: u64) {
        // After seven parts the window is empty.
        for _ in 0..parts.min(WHOLE_PARTS as u64 + 1) {
            self.whole.rotate_right(1);
            self.whole[0] = std::mem::take(&mut self.current);
        }
    }

    /// Returns the mean time of each size class; `None` without transfers.
    #[must_use]
    pub fn means(&self) -> [Option<MeanTime>; SIZE_CLASSES] {
        std::array::from_fn(|class| {
            let parts = self.whole.iter().chain([&self.current]);
            let (transfers, logs) = parts.fold((0, 0), |(transfers, logs), part| {
                (
                    transfers + part[class].transfers(),
                    logs + part[class].logs(),
                )
            });
            (transfers > 0).then(|| MeanTime {
                transfers,
                micros: number(logs as f64 / transfers as f64),
            })
        })
    }
}

/// Returns the number with this logarithm.
fn number(log: f64) -> f64 {
    let (power, rest) = ((log / 16.0).floor(), log % 16.0);
    power.exp2() * (1.0 + rest / 16.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of transfers and the mean time of a class.
    fn mean(times: &SizedTimes, class: usize) -> Option<(u64, f64)> {
        let mean = times.means()[class]?;
        Some((mean.transfers, mean.micros))
    }

    #[test]
    fn mean_is_geometric_and_of_its_size_class_only() {
        let mut times = SizedTimes::default();
        for (class, micros) in [(0, 1.0), (3, 100.0), (3, 10_000.0), (12, 16.0), (12, 16.0)] {
            times.record(class, micros);
        }
        times.record(SIZE_CLASSES, 5.0);
        assert_eq!(mean(&times, 0), Some((1, 1.0)));
        assert_eq!(mean(&times, 12), Some((2, 16.0)));
        let (transfers, micros) = mean(&times, 3).expect("two");
        assert!(
            transfers == 2 && (940.0..1060.0).contains(&micros),
            "{micros}"
        );
        let classes = times.means().iter().flatten().count();
        assert_eq!((classes, SIZE_CLASSES), (3, 13));
    }

    #[test]
    fn mean_of_equal_times_is_at_most_a_sixteenth_below() {
        for power in 0..56 {
            for sixteenths in 16..32 {
                let micros = f64::from(sixteenths) / 16.0 * f64::powi(2.0, power);
                let mut times = SizedTimes::default();
                (0..3).for_each(|_| times.record(1, micros));
                let (_, mean) = mean(&times, 1).expect("three");
                assert!(
                    mean <= micros && mean > micros * 15.0 / 16.0,
                    "{mean} of {micros}"
                );
            }
        }
    }

    #[test]
    fn transfer_leaves_after_the_sixth_whole_part() {
        let mut times = SizedTimes::default();
        for part in 0..4_u32 {
            times.record(2, f64::from(1 << part));
            times.advance(1);
        }
        assert_eq!(mean(&times, 2).map(|mean| mean.0), Some(4));
        times.advance(2);
        assert_eq!(mean(&times, 2).map(|mean| mean.0), Some(4));
        times.advance(1);
        assert_eq!(mean(&times, 2), Some((3, 4.0)));
        times.record(2, 1.0);
        times.advance(u64::MAX);
        assert_eq!(mean(&times, 2), None);
    }

    #[test]
    fn sum_has_room_for_the_transfers_of_a_part() {
        let mut longest = Sum::default();
        longest.add(crate::event::MAX_VALUE as f64);
        let (transfers, logs) = (longest.transfers(), longest.logs());
        assert_eq!(transfers, 1);
        assert!(logs << 26 < Sum::ONE_TRANSFER, "{logs}");
    }
}
