// SPDX-License-Identifier: GPL-2.0-or-later

//! The fingerprint of a batch: recognises its slots later, and finds out whether they were overwritten.

use crate::base::words::words;
use crate::event::Totals;
use crate::ring::layout::MAX_SLOT_WORDS;
use std::ops::Range;

/// Slots at the start of a run whose words are all hashed in order, as are those of its last slot. A restarted producer
/// overwrites the first slots first. The slots between count by their sums by event type only, which are computed
/// anyway.
const HASHED_FIRST: u64 = 64;

/// Splits a run of slots into parts. The flag is true if every word of the part's slots is hashed.
pub(super) fn parts(run: Range<u64>) -> [(Range<u64>, bool); 3] {
    let Range { start, end } = run;
    let first = end.min(start + HASHED_FIRST);
    let last = first.max(end.saturating_sub(1));
    [
        (start..first, true),
        (first..last, false),
        (last..end, true),
    ]
}

/// The fingerprint of a run of slots: enough to detect that they were overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Hash of the words of some slots, and of the sums by event type of all slots.
    pub hash: u64,
    /// The words of the last slot.
    pub last: Slot,
}
words!(Fingerprint: hash, last);

/// The words of a slot. Words beyond the length of the layout's slots are 0.
pub type Slot = [u64; MAX_SLOT_WORDS];

/// Computes a [`Fingerprint`]. Each word of a slot has its own lane, so that no multiplication waits for another. The
/// hash is not secure: a user who makes two batches collide falsifies only that user's own counters.
#[derive(Default)]
pub(super) struct FingerprintBuilder {
    lanes: Slot,
}

impl FingerprintBuilder {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Adds the words of a slot to the hash.
    #[inline]
    pub(super) fn add(&mut self, slot: impl IntoIterator<Item = u64>) {
        for (lane, word) in self.lanes.iter_mut().zip(slot) {
            *lane = (*lane ^ word).wrapping_mul(Self::FACTOR).rotate_left(29);
        }
    }

    /// The hash of all words that were added.
    pub(super) fn hash(&self) -> u64 {
        let mix = |hash: u64, lane: &u64| (hash ^ lane).wrapping_mul(Self::FACTOR).rotate_left(29);
        self.lanes.iter().fold(0, mix)
    }

    /// The fingerprint of all slots, given the words of the last slot and the sums of all.
    pub(super) fn finish(mut self, slot: &[u64], totals: &Totals) -> Fingerprint {
        let mut last = Slot::default();
        last[..slot.len()].copy_from_slice(slot);
        for sums in totals.sums().chunks(MAX_SLOT_WORDS) {
            self.add(sums.iter().copied());
        }
        Fingerprint {
            hash: self.hash(),
            last,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_changes_with_any_bit_of_any_word() {
        let hash = |slots: [Slot; 2]| {
            let mut builder = FingerprintBuilder::default();
            slots.into_iter().for_each(|slot| builder.add(slot));
            builder.hash()
        };
        let slots = [Slot::default(), [u64::MAX; MAX_SLOT_WORDS]];
        for (at, bit) in (0..2 * MAX_SLOT_WORDS).flat_map(|at| (0..64).map(move |bit| (at, bit))) {
            let mut changed = slots;
            changed[at / MAX_SLOT_WORDS][at % MAX_SLOT_WORDS] ^= 1 << bit;
            assert_ne!(hash(changed), hash(slots), "bit {bit} of word {at}");
        }
    }

    #[test]
    fn parts_cover_the_run() {
        for run in [0..0, 7..7, 0..1, 5..69, 5..70, 5..71, 0..5000] {
            let parts = parts(run.clone());
            let mut at = run.start;
            for (part, _) in &parts {
                assert_eq!(part.start, at, "{run:?}");
                at = part.end;
            }
            assert_eq!(at, run.end, "{run:?}");
            let hashed = parts.into_iter().filter(|(_, is_hashed)| *is_hashed);
            let hashed: u64 = hashed.map(|(part, _)| part.end - part.start).sum();
            assert_eq!(
                hashed,
                (run.end - run.start).min(HASHED_FIRST + 1),
                "{run:?}"
            );
        }
    }
}
