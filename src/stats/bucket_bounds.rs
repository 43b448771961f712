// SPDX-License-Identifier: GPL-2.0-or-later

//! Bounds of the buckets of a histogram, and the names and labels of their instances.

use crate::base::words::{Rest, Words};
use crate::stats::histogram::{Bounds, MAX_BOUNDS};

/// Upper bounds of the buckets of a histogram, inclusive, strictly rising; one bucket is above them. Unlike [`Bounds`],
/// they may be fractions, because NIXL counts the histograms of a store with its own bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketBounds {
    /// Bounds as [`f64::to_bits`]; 0 beyond the last.
    bounds: [u64; MAX_BOUNDS],
    len: usize,
}

impl BucketBounds {
    /// Returns the bounds as floating-point numbers, which are exact up to 2^53, the limit of a configured bound.
    #[must_use]
    pub fn of(bounds: &Bounds) -> Self {
        Self::unchecked(bounds.as_slice().iter().map(|&bound| bound as f64))
    }

    /// Returns the bounds of a store.
    ///
    /// # Errors
    /// What is wrong with them, so that no histogram can have them.
    pub fn new(bounds: &[f64]) -> Result<Self, String> {
        if !(1..=MAX_BOUNDS).contains(&bounds.len()) {
            return Err(format!("no histogram bounds, or more than {MAX_BOUNDS}"));
        }
        for (at, &bound) in bounds.iter().enumerate() {
            let before = at.checked_sub(1).map(|before| bounds[before]);
            // -0 would give zero a second name.
            let rises = before.map_or(bound.is_sign_positive(), |before| bound > before);
            if !bound.is_finite() || !rises {
                let (number, count) = (at + 1, bounds.len());
                let least = before.map_or("not below 0".into(), |before| format!("above {before}"));
                return Err(format!(
                    "{bound} as bound {number} of {count}, which has to be a number {least}"
                ));
            }
        }
        Ok(Self::unchecked(bounds.iter().copied()))
    }

    fn unchecked(bounds: impl Iterator<Item = f64>) -> Self {
        let mut result = Self::default();
        for (word, bound) in result.bounds.iter_mut().zip(bounds) {
            *word = bound.to_bits();
            result.len += 1;
        }
        result
    }

    /// Returns the number of buckets: one more than the bounds.
    #[must_use]
    pub fn bucket_count(&self) -> usize {
        self.len + 1
    }

    /// Returns the lower bound of a bucket, 0 for the first, and its upper bound, `None` for the last.
    #[must_use]
    pub fn lower_and_upper(&self, bucket: usize) -> (f64, Option<f64>) {
        let bounds = &self.bounds[..self.len];
        let bound = |at: usize| bounds.get(at).copied().map(f64::from_bits);
        let below = bucket.min(self.len).checked_sub(1);
        (below.and_then(bound).unwrap_or(0.0), bound(bucket))
    }

    /// Returns the bounds of a bucket as texts. `infinity` is the upper bound of the last.
    fn texts(&self, bucket: usize, infinity: &str) -> (String, String) {
        let (lower, upper) = self.lower_and_upper(bucket);
        let upper = upper.map_or_else(|| infinity.into(), format_bound);
        (format_bound(lower), upper)
    }

    /// Returns the bounds of a bucket as labels: the exclusive lower and the inclusive upper one, `+Inf` for the last,
    /// as in Prometheus.
    #[must_use]
    pub fn label(&self, bucket: usize) -> (String, String) {
        self.texts(bucket, "+Inf")
    }

    /// Returns the suffix of an instance for one bucket: `LOW-HIGH`, for the last `LOW-inf`.
    #[must_use]
    pub fn suffix(&self, bucket: usize) -> String {
        let (lower, upper) = self.texts(bucket, "inf");
        format!("{lower}-{upper}")
    }

    /// Returns the suffix of an instance for all values up to a bound: `le-HIGH`, for the last `le-inf`.
    #[must_use]
    pub fn le_suffix(&self, bucket: usize) -> String {
        format!("le-{}", self.texts(bucket, "inf").1)
    }
}

/// Invalid words give no bounds.
impl Words for BucketBounds {
    const MAX: usize = 1 + MAX_BOUNDS;

    fn put(&self, words: &mut Rest) {
        (self.len as u64, self.bounds).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        let (len, bounds): (u64, [u64; MAX_BOUNDS]) = Words::get(words)?;
        let len = usize::try_from(len).unwrap_or(0).min(MAX_BOUNDS);
        let bounds = Vec::from_iter(bounds[..len].iter().map(|&bits| f64::from_bits(bits)));
        Some(Self::new(&bounds).unwrap_or_default())
    }
}

/// Returns the shortest text that parses to this number.
fn format_bound(bound: f64) -> String {
    if bound == 0.0 || (1e-6..1e21).contains(&bound) {
        bound.to_string()
    } else {
        format!("{bound:e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::words::tests::{assert_round_trip, from_words};

    #[test]
    fn bucket_suffix_and_label_are_its_bounds() {
        let bounds = BucketBounds::of(&Bounds::default());
        assert_eq!(bounds.bucket_count(), 19);
        assert_eq!(bounds.suffix(0), "0-10");
        assert_eq!(bounds.suffix(18), "10000000-inf");
        assert_eq!(
            [0, 18].map(|bucket| bounds.le_suffix(bucket)),
            ["le-10", "le-inf"]
        );
        assert_eq!(bounds.label(1), ("10".into(), "25".into()));
        assert_eq!(bounds.label(18), ("10000000".into(), "+Inf".into()));
        let odd = BucketBounds::new(&[0.5, 1.5, 1000.25, 1e300]).expect("good");
        let names: Vec<String> = (0..5).map(|bucket| odd.suffix(bucket)).collect();
        assert_eq!(
            names,
            [
                "0-0.5",
                "0.5-1.5",
                "1.5-1000.25",
                "1000.25-1e300",
                "1e300-inf"
            ]
        );
        assert_eq!(
            BucketBounds::new(&[5e-324]).expect("good").suffix(0),
            "0-5e-324"
        );
    }

    #[test]
    fn bounds_of_nixl_and_of_the_configuration_are_equal() {
        let bounds: Vec<f64> = [1, 7, 1 << 53].map(|bound: u64| bound as f64).to_vec();
        let counted_here = Bounds::from_config(&[1, 7, 1 << 53]).expect("good bounds");
        assert_eq!(
            BucketBounds::new(&bounds),
            Ok(BucketBounds::of(&counted_here))
        );
    }

    #[test]
    fn bounds_that_do_not_rise_are_an_error() {
        let nan = f64::NAN;
        for bounds in [
            &[][..],
            &[1.0, 1.0],
            &[2.0, 1.0],
            &[-1.0],
            &[-0.0],
            &[f64::INFINITY],
            &[nan],
            &[1.0, nan],
            &[1.0; MAX_BOUNDS + 1],
        ] {
            assert!(BucketBounds::new(bounds).is_err(), "{bounds:?}");
        }
        let most: Vec<f64> = (1..=MAX_BOUNDS).map(|bound| bound as f64).collect();
        assert!(BucketBounds::new(&most).is_ok());
    }

    #[test]
    fn bounds_from_invalid_words_are_empty() {
        let bounds = BucketBounds::new(&[0.5, 3.0]).expect("good");
        assert_round_trip(&bounds);
        for word in [u64::MAX, 0, 7] {
            let words = [word; BucketBounds::MAX];
            assert_eq!(from_words(&words), Some(BucketBounds::default()));
        }
        assert_eq!(BucketBounds::default().suffix(0), "0-inf");
    }
}
