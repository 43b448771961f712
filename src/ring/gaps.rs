//! Where in a ring events may be missing: what the producer could not write while it was full.
//!
//! Nothing in the events tells, but the place does. A ring is full when the producer stands one slot before `read_pos`; what it
//! writes into that slot, once it is free, may be the second half of a transfer whose first half was the last that had room.

use crate::ring::checkpoint::Checkpoint;
use std::collections::VecDeque;

/// Positions that events may be missing before, in the order in which they are met.
#[derive(Debug, Default)]
pub struct Gaps {
    positions: VecDeque<u64>,
    /// Those of one batch: room that is kept.
    in_batch: Vec<usize>,
}

/// More than this, which takes a ring of more than a million slots that is always full, are not kept.
const MAX_GAPS: usize = 256;

impl Gaps {
    /// Before the event at this position others may be missing.
    pub fn add(&mut self, pos: u64) {
        if self.positions.back() != Some(&pos) && self.positions.len() < MAX_GAPS {
            self.positions.push_back(pos);
        }
    }

    /// Which events of a batch have one before them, by their number in it. They are met then.
    pub fn remove_in(&mut self, batch: &Checkpoint) -> &[usize] {
        self.in_batch.clear();
        let mask = batch.ring.capacity.wrapping_sub(1);
        let number = |pos: u64| pos.wrapping_sub(batch.from) & mask;
        while let Some(&next) = self.positions.front() {
            if number(next) >= number(batch.end) {
                break;
            }
            self.in_batch.extend(usize::try_from(number(next)));
            self.positions.pop_front();
        }
        &self.in_batch
    }

    /// The ring was set up anew.
    pub fn clear(&mut self) {
        self.positions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(from: u64, end: u64) -> Checkpoint {
        let mut checkpoint = Checkpoint {
            from,
            end,
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
        assert_eq!(gaps.remove_in(&batch(10, 14)), [0; 0]);
        assert_eq!(gaps.remove_in(&batch(14, 3)), [0, 4]);
        assert_eq!(gaps.remove_in(&batch(3, 7)), [0; 0]);
        assert_eq!(gaps.remove_in(&batch(7, 8)), [0]);
        assert_eq!(gaps.remove_in(&batch(8, 7)), [0; 0]);
    }

    #[test]
    fn a_ring_that_is_set_up_anew_has_none_and_no_ring_has_too_many() {
        let mut gaps = Gaps::default();
        (0..100_000).for_each(|pos| gaps.add(pos));
        assert_eq!(gaps.positions.len(), MAX_GAPS);
        gaps.clear();
        assert_eq!(gaps.remove_in(&batch(0, 15)), [0; 0]);
    }
}
