// SPDX-License-Identifier: GPL-2.0-or-later

//! Share of the bytes of an agent, or of all agents of a process, that went over TCP in the last minute.

use crate::observer::protocol::Traffic;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time that the share is of. Readings come every 10 s, unless processes take much time to read.
const WINDOW: Duration = Duration::from_secs(60);
/// Least number of bytes that NIXL moved in a direction. With fewer the share says nothing.
const MIN_BYTES: u64 = 1 << 20;

/// Bytes by TCP and by NIXL at the readings of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Share {
    samples: VecDeque<Sample>,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Instant,
    tcp: Traffic,
    nixl: Traffic,
}

impl Share {
    /// Adds a reading: the bytes so far. What NIXL moved has no retransmits.
    pub fn add(&mut self, at: Instant, tcp: Traffic, nixl: Traffic) {
        // One sample is as old as the window, or older.
        while self
            .samples
            .get(1)
            .is_some_and(|next| at.saturating_duration_since(next.at) >= WINDOW)
        {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at, tcp, nixl });
    }

    /// Returns the bytes over TCP divided by those of NIXL. `None`: NIXL moved less than a MiB in each direction.
    ///
    /// NIXL counts the bytes of an agent's own requests only; TCP also has those that other agents ask for. So a
    /// direction counts only if the agent has moved bytes in it.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let added = |of: fn(&Traffic) -> u64| {
            let nixl = of(&last.nixl).saturating_sub(of(&first.nixl));
            (nixl, of(&last.tcp).saturating_sub(of(&first.tcp)))
        };
        let directions = [added(|one| one.sent), added(|one| one.received)];
        let counting = directions
            .into_iter()
            .filter(|(nixl, _)| *nixl >= MIN_BYTES);
        let (nixl, tcp) = counting.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        (nixl > 0).then(|| tcp as f64 / nixl as f64)
    }

    /// Returns the bytes per second that NIXL moved.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let ends = self.samples.front().zip(self.samples.back());
        let Some((first, last)) = ends.filter(|(first, last)| last.at > first.at) else {
            return 0.0;
        };
        let moved = |sample: &Sample| sample.nixl.sent.saturating_add(sample.nixl.received);
        let bytes = moved(last).saturating_sub(moved(first));
        bytes as f64 / (last.at - first.at).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn share(readings: &[(u64, [u64; 4])]) -> Option<f64> {
        let (start, mut share) = (Instant::now(), Share::default());
        for &(seconds, [sent, received, nixl_sent, nixl_received]) in readings {
            let [tcp, nixl] = [(sent, received), (nixl_sent, nixl_received)].map(|bytes| Traffic {
                sent: bytes.0,
                received: bytes.1,
                retransmits: 0,
            });
            share.add(start + Duration::from_secs(seconds), tcp, nixl);
        }
        share.value()
    }

    #[test]
    fn share_is_of_the_directions_that_nixl_used() {
        assert_eq!(share(&[]), None);
        assert_eq!(share(&[(0, [9, 9, 9, 9])]), None);
        let zero = (0, [0; 4]);
        assert_eq!(share(&[zero, (10, [4 * MIB, 0, 4 * MIB, 0])]), Some(1.0));
        assert_eq!(
            share(&[zero, (10, [400, 300, 4 * MIB, 0])]),
            Some(400.0 / (4.0 * 1_048_576.0))
        );
        // The peer writes as much.
        assert_eq!(
            share(&[zero, (10, [4 * MIB, 9 * MIB, 4 * MIB, 9])]),
            Some(1.0)
        );
        assert_eq!(
            share(&[zero, (10, [2 * MIB, MIB, 4 * MIB, 2 * MIB])]),
            Some(0.5)
        );
        assert_eq!(share(&[zero, (10, [MIB, 0, MIB - 1, 0])]), None);
    }

    #[test]
    fn share_is_of_the_last_minute() {
        let at = |seconds, tcp, nixl| (seconds, [tcp, 0, nixl, 0]);
        let readings = [
            at(0, 0, 0),
            at(10, 9 * MIB, 9 * MIB),
            at(70, 9 * MIB, 19 * MIB),
        ];
        assert_eq!(share(&readings), Some(0.0));
        assert_eq!(share(&readings[..2]), Some(1.0));
        let readings = [
            at(0, 0, 0),
            at(10, 9 * MIB, 9 * MIB),
            at(69, 9 * MIB, 18 * MIB),
        ];
        assert_eq!(share(&readings), Some(0.5));
    }
}
