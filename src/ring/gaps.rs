// SPDX-License-Identifier: GPL-2.0-or-later

//! Gaps: positions in a ring before which events may be missing, since the producer could not write them while the ring
//! was full.
//!
//! The events themselves do not show a gap, but its position is known. A ring is full when `write_pos` is one slot
//! before `read_pos`. The next event that the producer writes there may be the second half of a transfer whose first
//! half was the last event that fitted.

use crate::ring::checkpoint::Checkpoint;
use std::collections::VecDeque;

/// Positions before which events may be missing, in reading order.
#[derive(Debug, Default)]
pub struct Gaps {
    positions: VecDeque<u64>,
    /// Scratch: the result of the last [`Gaps::remove_in`].
    in_batch: Vec<usize>,
}

/// Most gaps that are stored. A ring that is always full needs more than a million slots to exceed it.
const MAX_GAPS: usize = 256;

impl Gaps {
    /// Adds a gap before the event at this position.
    pub fn add(&mut self, pos: u64) {
        if self.positions.back() != Some(&pos) && self.positions.len() < MAX_GAPS {
            self.positions.push_back(pos);
        }
    }

    /// Removes the gaps within a batch. Returns the indexes of the events that they precede.
    pub fn remove_in(&mut self, batch: &Checkpoint) -> &[usize] {
        self.in_batch.clear();
        let number = |pos: u64| batch.ring.between(batch.from, pos);
        while let Some(&next) = self.positions.front() {
            if number(next) >= number(batch.end) {
                break;
            }
            self.in_batch.extend(usize::try_from(number(next)));
            self.positions.pop_front();
        }
        &self.in_batch
    }

    /// Removes all gaps, since the producer restarted.
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
    fn gap_is_removed_once_by_the_batch_that_has_it() {
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
    fn gaps_are_limited_and_removed_by_a_restart() {
        let mut gaps = Gaps::default();
        (0..100_000).for_each(|pos| gaps.add(pos));
        assert_eq!(gaps.positions.len(), MAX_GAPS);
        gaps.clear();
        assert_eq!(gaps.remove_in(&batch(0, 15)), [0; 0]);
    }
}
