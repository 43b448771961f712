// SPDX-License-Identifier: GPL-2.0-or-later

//! Logarithmic scale of values. It is fine enough for percentiles, and speeds up the search in a histogram.
//!
//! Each value below 32 has its own step. Above, each power of two has 16 steps. The middle of a step differs from its
//! values by at most 1/32.

/// Base-2 logarithm of the number of steps per power of two.
const FINE_BITS: u32 = 4;
/// Number of steps for values of 64 bits.
pub const STEPS: usize = ((u64::BITS - FINE_BITS + 1) << FINE_BITS) as usize;

/// A value and its step, which several histograms and percentiles use for each transfer.
#[derive(Clone, Copy, Debug)]
pub struct Scaled {
    /// Value.
    pub value: u64,
    /// Step of the value, less than [`STEPS`].
    pub step: usize,
}

impl From<u64> for Scaled {
    #[inline]
    fn from(value: u64) -> Self {
        let step = step(value);
        Self { value, step }
    }
}

/// Returns the step of a value, without a branch or a table.
#[inline]
#[must_use]
pub const fn step(value: u64) -> usize {
    let shift = (value | (1 << FINE_BITS)).ilog2() - FINE_BITS;
    #[allow(clippy::cast_possible_truncation, reason = "it is below 32")]
    let fine = (value >> shift) as usize;
    ((shift as usize) << FINE_BITS) + fine
}

/// Returns the smallest value of a step.
#[must_use]
pub const fn lowest(step: usize) -> u64 {
    let shift = (step >> FINE_BITS).saturating_sub(1);
    ((step - (shift << FINE_BITS)) as u64) << shift
}

/// Returns the largest value of a step.
#[must_use]
pub const fn highest(step: usize) -> u64 {
    match step + 1 {
        STEPS => u64::MAX,
        next => lowest(next) - 1,
    }
}

/// Returns the middle of the values of a step.
#[must_use]
pub fn middle(step: usize) -> f64 {
    (lowest(step) as f64 + highest(step) as f64) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_on_its_step_and_near_the_middle() {
        for number in 0..STEPS {
            for value in [lowest(number), highest(number)] {
                assert_eq!(Scaled::from(value).step, number, "{value}");
                let off = (middle(number) - value as f64).abs();
                assert!(off <= value as f64 / 32.0, "{value}");
            }
        }
        assert_eq!((lowest(0), lowest(31), highest(31)), (0, 31, 31));
        assert_eq!((lowest(32), highest(32)), (32, 33));
        assert_eq!(highest(STEPS - 1), u64::MAX);
        for number in 1..STEPS {
            assert_eq!(highest(number - 1), lowest(number) - 1, "no gap");
        }
    }
}
