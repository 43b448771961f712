//! The numbers that the ranges of an agent's histogram have in the ids of their instances.
//!
//! Bounds may change: the configuration names others, or a store has its own. Archives know an id by one name for good, and a count
//! under one id never goes back: a range that stays keeps its number, and one that comes, or comes again and begins anew, has the
//! next.

use crate::totals::histogram::MAX_BUCKETS;
use crate::totals::ranges::Ranges;

/// How many ranges an agent can have had before it needs another instance id.
pub const SLOTS: usize = 64;
const _: () = assert!(MAX_BUCKETS < SLOTS && SLOTS <= u8::MAX as usize);

/// Set in the lower bound of a range that has left, and in an upper bound that no range has any more: none is negative.
const GONE: u64 = 1 << 63;
/// Marks words as [`Slots::to_words`] gave them.
const MARK: u64 = 0x536c_6f74_7300;

/// All ranges that an agent's histogram ever had, and which of them it has now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Lower and upper bound of each, in the order of the numbers, [`GONE`] or not.
    had: Vec<(u64, u64)>,
    /// Numbers of the ranges that there are now, in their order.
    own: Vec<u8>,
    /// The same where each is for all up to its bound: the first number that a range with that upper bound had since it came.
    up_to: Vec<u8>,
}

/// There is no number left for a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Slots {
    /// Words of [`Slots::to_words`].
    pub const WORDS: usize = 1 + 2 * SLOTS;

    /// Those of an agent that never had other ranges.
    #[must_use]
    pub fn of(ranges: &Ranges) -> Self {
        let mut slots = Self::default();
        // There are fewer ranges than numbers.
        let _ = slots.take(ranges);
        slots
    }

    /// The ranges are these now; whether there is something of them to be kept.
    ///
    /// # Errors
    /// There are not enough numbers left; nothing changed.
    pub fn take(&mut self, ranges: &Ranges) -> Result<bool, Full> {
        let now: Vec<(u64, u64)> = (0..ranges.count())
            .map(|range| {
                let (lower, upper) = ranges.around(range);
                (lower.to_bits(), upper.unwrap_or(f64::INFINITY).to_bits())
            })
            .collect();
        let mut had = self.had.clone();
        for (lower, upper) in &mut had {
            let is = |(_, other): &(u64, u64)| other == upper;
            let (range_left, bound_left) = (!now.contains(&(*lower, *upper)), !now.iter().any(is));
            *lower |= if range_left { GONE } else { 0 };
            *upper |= if bound_left { GONE } else { 0 };
        }
        let is_there = |range: &(u64, u64)| had.contains(range);
        let new: Vec<_> = now
            .iter()
            .copied()
            .filter(|range| !is_there(range))
            .collect();
        had.extend(new);
        if had.len() > SLOTS {
            return Err(Full);
        }
        let first = |is_it: &dyn Fn(&(u64, u64)) -> bool| {
            let number = had.iter().position(is_it).unwrap_or_default();
            u8::try_from(number).unwrap_or(u8::MAX)
        };
        self.own = now.iter().map(|range| first(&|had| had == range)).collect();
        let up_to = now.iter().map(|range| first(&|had| had.1 == range.1));
        self.up_to = up_to.collect();
        let changed = had != self.had;
        self.had = had;
        Ok(changed)
    }

    /// Whether there are numbers for all of these.
    #[must_use]
    pub fn fits(&self, ranges: &Ranges) -> bool {
        self.clone().take(ranges).is_ok()
    }

    /// The number of a range, of those that there are now.
    #[must_use]
    pub fn number(&self, range: usize) -> Option<u32> {
        self.own.get(range).copied().map(u32::from)
    }

    /// The same where the instance is for all up to the range's bound.
    #[must_use]
    pub fn number_up_to(&self, range: usize) -> Option<u32> {
        self.up_to.get(range).copied().map(u32::from)
    }

    /// The range that has a number now.
    #[must_use]
    pub fn range(&self, number: u32) -> Option<usize> {
        self.own.iter().position(|&own| u32::from(own) == number)
    }

    /// The same where the instance is for all up to the range's bound.
    #[must_use]
    pub fn range_up_to(&self, number: u32) -> Option<usize> {
        self.up_to.iter().position(|&own| u32::from(own) == number)
    }

    /// All ranges that there ever were.
    #[must_use]
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        words[0] = MARK | self.had.len() as u64;
        let bounds = self.had.iter().flat_map(|&(lower, upper)| [lower, upper]);
        words[1..]
            .iter_mut()
            .zip(bounds)
            .for_each(|(word, bound)| *word = bound);
        words
    }

    /// The reverse; which of them there are now is to be said by [`Slots::take`]. `None`: nobody wrote these words here.
    #[must_use]
    pub fn from_words(words: &[u64; Self::WORDS]) -> Option<Self> {
        let len = usize::try_from(words[0] ^ MARK).ok()?;
        let bounds = words.get(1..=len.checked_mul(2)?)?;
        let had: Vec<(u64, u64)> = bounds
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1]))
            .collect();
        let are_ranges = had.iter().all(|&(lower, upper)| {
            let [lower, upper] = [lower, upper].map(|bound| f64::from_bits(bound & !GONE));
            lower >= 0.0 && lower < upper
        });
        are_ranges.then_some(Self {
            had,
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::totals::histogram::{Bounds, MAX_BOUNDS};
    use std::collections::HashMap;
    use std::collections::hash_map::Entry;

    fn ranges(bounds: &[f64]) -> Ranges {
        Ranges::new(bounds).expect("good")
    }

    /// Numbers and names of the ranges that there are.
    fn named(slots: &Slots, ranges: &Ranges) -> Vec<[(u32, String); 2]> {
        let all = (0..ranges.count()).map(|range| {
            [
                (slots.number(range).expect("one"), ranges.suffix(range)),
                (slots.number_up_to(range).expect("one"), ranges.up_to(range)),
            ]
        });
        all.collect()
    }

    #[test]
    fn no_number_ever_has_a_second_name_and_what_stays_keeps_its_number() {
        let mut slots = Slots::default();
        let (mut names, mut before) = (HashMap::new(), HashMap::new());
        let sets: [&[f64]; 8] = [
            &[10.0, 100.0],
            &[10.0, 50.0, 100.0],
            &[100.0],
            &[50.0, 100.0],
            &[10.0, 100.0],
            &[0.5],
            &[10.0, 50.0],
            &[10.0, 50.0, 100.0],
        ];
        for bounds in sets {
            let ranges = ranges(bounds);
            slots.take(&ranges).expect("room");
            let mut now = HashMap::new();
            for (kind, (number, name)) in named(&slots, &ranges)
                .into_iter()
                .flat_map(|both| [0, 1].into_iter().zip(both))
            {
                let known = names.entry((kind, number));
                let is_new = matches!(known, Entry::Vacant(_));
                assert_eq!(
                    *known.or_insert_with(|| name.clone()),
                    name,
                    "{kind} {number}"
                );
                // Its count goes on, or begins where none was ever seen.
                match before.get(&(kind, name.clone())) {
                    Some(same) => assert_eq!(*same, number, "{name} stays"),
                    None => assert!(is_new, "{name} begins anew, as {number}"),
                }
                now.insert((kind, name), number);
            }
            before = now;
            slots = {
                let mut read = Slots::from_words(&slots.to_words()).expect("they are its words");
                assert_eq!(read.take(&ranges), Ok(false), "it is as it was");
                assert_eq!(read, slots);
                read
            };
        }
    }

    #[test]
    fn the_first_ranges_have_the_numbers_of_their_places() {
        let nixls = Ranges::of(&Bounds::latency());
        let slots = Slots::of(&nixls);
        for range in 0..nixls.count() {
            let number = u32::try_from(range).ok();
            assert_eq!(slots.number(range), number);
            assert_eq!(slots.number_up_to(range), number);
            assert_eq!(number.and_then(|number| slots.range(number)), Some(range));
        }
        assert_eq!((slots.number(19), slots.range(19)), (None, None));
    }

    #[test]
    fn what_is_not_there_now_is_no_range() {
        let mut slots = Slots::of(&ranges(&[10.0, 100.0]));
        assert_eq!(slots.take(&ranges(&[50.0, 100.0])), Ok(true));
        assert_eq!(
            [0, 1, 2, 3, 4].map(|n| slots.range(n)),
            [None, None, Some(2), Some(0), Some(1)]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|n| slots.range_up_to(n)),
            [None, Some(1), Some(2), Some(0)]
        );
    }

    #[test]
    fn where_no_number_is_left_nothing_changes() {
        let set = |first: usize| {
            let bounds: Vec<f64> = (first..first + MAX_BOUNDS - 1).map(|n| n as f64).collect();
            ranges(&bounds)
        };
        let mut slots = Slots::of(&set(1));
        slots.take(&set(1000)).expect("room for two sets");
        let before = slots.clone();
        assert!(!slots.fits(&set(2000)));
        assert_eq!(slots.take(&set(2000)), Err(Full));
        assert_eq!(slots, before);
        assert_eq!(slots.take(&set(1000)), Ok(false));
        assert_eq!(slots.take(&set(1)), Err(Full), "they would begin anew");
    }

    #[test]
    fn words_of_any_kind_are_slots_or_none() {
        let good = Slots::of(&ranges(&[10.0])).to_words();
        assert!(Slots::from_words(&good).is_some());
        for (at, word) in [
            (0, 0),
            (0, MARK | 65),
            (0, u64::MAX),
            (2, 0),
            (3, f64::NAN.to_bits()),
        ] {
            let mut words = good;
            words[at] = word;
            assert_eq!(Slots::from_words(&words), None, "{at}: {word:#x}");
        }
        assert_eq!(Slots::from_words(&[7; Slots::WORDS]), None);
    }
}
