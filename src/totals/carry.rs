//! What is known of a histogram's counts when its bounds change.
//!
//! A range that is in both goes on. What lay in others is not known by the new ranges; but how many were at most a bound that is in
//! both, or any at all, is: that no such sum goes back, it is carried beside the counts.

use crate::totals::histogram::Counts;
use crate::totals::ranges::Ranges;

/// Counts by ranges, and what the sums up to each have from ranges that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// How many each range has.
    pub counts: Counts,
    /// How many more than in the ranges there are between the bound and the one before it.
    pub gone: Counts,
}

impl Carried {
    /// The same by other ranges.
    #[must_use]
    pub fn over(&self, from: &Ranges, to: &Ranges) -> Self {
        let mut sum = 0;
        // By upper bounds, which rise; none is that of all.
        let sums: Vec<(Option<f64>, u64)> = (0..from.count())
            .map(|range| {
                sum = [&self.counts, &self.gone]
                    .map(|counts| counts.get(range))
                    .into_iter()
                    .fold(sum, u64::saturating_add);
                (from.around(range).1, sum)
            })
            .collect();
        let (mut counts, mut gone) = (*Counts::default().words(), *Counts::default().words());
        let mut before = 0;
        let words = counts.iter_mut().zip(&mut gone).take(to.count());
        for (range, (count, gone)) in words.enumerate() {
            let around = to.around(range);
            let same = (0..from.count()).find(|&old| from.around(old) == around);
            *count = same.map_or(0, |old| self.counts.get(old));
            let known = sums.iter().find(|(bound, _)| *bound == around.1);
            let sum = known.map_or(before, |&(_, sum)| sum);
            *gone = sum.saturating_sub(before).saturating_sub(*count);
            before = sum;
        }
        let [counts, gone] = [counts, gone].map(Counts::from_words);
        Self { counts, gone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(bounds: &[u32]) -> Ranges {
        let bounds: Vec<f64> = bounds.iter().copied().map(f64::from).collect();
        Ranges::new(&bounds).expect("they rise")
    }

    fn of(list: &[u64]) -> Counts {
        let mut words = *Counts::default().words();
        words[..list.len()].copy_from_slice(list);
        Counts::from_words(words)
    }

    fn sums(counted: &Carried, ranges: &Ranges) -> Vec<(Option<f64>, u64)> {
        let mut sum = 0;
        let sums = (0..ranges.count()).map(|range| {
            sum += counted.counts.get(range) + counted.gone.get(range);
            (ranges.around(range).1, sum)
        });
        sums.collect()
    }

    #[test]
    fn a_range_that_stays_goes_on_and_others_begin_anew() {
        let (old, new) = (ranges(&[10, 100, 1000]), ranges(&[10, 50, 100, 2000]));
        let counted = Carried {
            counts: of(&[5, 7, 2, 1]),
            gone: Counts::default(),
        };
        let now = counted.over(&old, &new);
        assert_eq!(now.counts, of(&[5, 0, 0, 0, 0]));
        assert_eq!(now.gone, of(&[0, 0, 7, 0, 3]), "up to 100, and in all");
        let back = now.over(&new, &old);
        assert_eq!(back.counts, of(&[5, 0, 0, 0]));
        assert_eq!(back.gone, of(&[0, 7, 0, 3]));
        assert_eq!(counted.over(&old, &old), counted);
    }

    proptest! {
        #[test]
        fn no_sum_up_to_a_bound_that_stays_goes_back(
            sets in prop::collection::vec(prop::collection::btree_set(1..12_u32, 1..6), 2..6),
            counts in prop::collection::vec(0..9_u64, 7),
        ) {
            let sets: Vec<Ranges> = sets
                .iter()
                .map(|set| ranges(&set.iter().copied().collect::<Vec<_>>()))
                .collect();
            let mut counted = Carried::default();
            for pair in sets.windows(2) {
                let (from, to) = (&pair[0], &pair[1]);
                counted.counts.add(&of(&counts[..from.count()]));
                let before = sums(&counted, from);
                counted = counted.over(from, to);
                let after = sums(&counted, to);
                for (bound, sum) in &before {
                    let same = after.iter().find(|(other, _)| other == bound);
                    prop_assert!(same.is_none_or(|(_, other)| other == sum));
                }
                prop_assert!(after.is_sorted_by(|a, b| a.1 <= b.1));
            }
        }
    }
}
