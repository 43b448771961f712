//! Where in a ring events may be missing: what the producer could not write while it was full.
//!
//! Nothing in the events tells, but the place does. A ring is full when the producer stands one slot before `read_pos`; what it
//! writes into that slot, once it is free, may be the second half of a transfer whose first half was the last that had room.

use crate::ring::checkpoint::Checkpoint;
use std::collections::VecDeque;

/// Positions that events may be missing before, in the order in which they are met.
#[derive(Debug, Default)]
pub struct Gaps {
    ahead: VecDeque<u64>,
    /// Those of one batch: room that is kept.
    here: Vec<usize>,
}

/// More than this, which takes a ring of more than a million slots that is always full, are not kept.
const MOST: usize = 256;

impl Gaps {
    /// Before the event at this position others may be missing.
    pub fn add(&mut self, pos: u64) {
        if self.ahead.back() != Some(&pos) && self.ahead.len() < MOST {
            self.ahead.push_back(pos);
        }
    }

    /// Which events of a batch have one before them, by their number in it. They are met then.
    pub fn of(&mut self, batch: &Checkpoint) -> &[usize] {
        self.here.clear();
        let mask = batch.ring.capacity.wrapping_sub(1);
        let number = |pos: u64| pos.wrapping_sub(batch.from) & mask;
        while let Some(&next) = self.ahead.front() {
            if number(next) >= number(batch.upto) {
                break;
            }
            self.here.extend(usize::try_from(number(next)));
            self.ahead.pop_front();
        }
        &self.here
    }

    /// The ring was set up anew.
    pub fn clear(&mut self) {
        self.ahead.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: u64, upto: u64) -> Checkpoint {
        let mut checkpoint = Checkpoint {
            from,
            upto,
            ..Checkpoint::default()
        };
        checkpoint.ring.capacity = 16;
        checkpoint
    }

    #[test]
    fn each_is_met_once_by_the_batch_that_has_it() {
        let mut gaps = Gaps::default();
        for pos in [14, 14, 2, 7] {
            gaps.add(pos);
        }
        assert_eq!(gaps.of(&batch(10, 14)), [0; 0]);
        assert_eq!(gaps.of(&batch(14, 3)), [0, 4]);
        assert_eq!(gaps.of(&batch(3, 7)), [0; 0]);
        assert_eq!(gaps.of(&batch(7, 8)), [0]);
        assert_eq!(gaps.of(&batch(8, 7)), [0; 0]);
    }

    #[test]
    fn a_ring_that_is_set_up_anew_has_none_and_no_ring_has_too_many() {
        let mut gaps = Gaps::default();
        (0..100_000).for_each(|pos| gaps.add(pos));
        assert_eq!(gaps.ahead.len(), MOST);
        gaps.clear();
        assert_eq!(gaps.of(&batch(0, 15)), [0; 0]);
    }
}
