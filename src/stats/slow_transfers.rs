// SPDX-License-Identifier: GPL-2.0-or-later

//! The transfers of a drain that took longest, if they took longer than a limit.

use crate::event::{Event, EventType};

/// Number of transfers that are kept.
pub const KEPT: usize = 8;

/// A transfer that took longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowTransfer {
    /// Microseconds from its start to its completion.
    pub micros: u64,
    /// `WRITE` or `READ`, and its bytes. `None`: its bytes did not follow its time.
    pub size: Option<(&'static str, u64)>,
}

/// Slow transfers of a drain.
#[derive(Debug, Default)]
pub struct SlowTransfers {
    /// Those that took longest, the longest first; at most [`KEPT`].
    pub longest: Vec<SlowTransfer>,
    /// Number of all.
    pub count: u64,
}

impl SlowTransfers {
    /// Removes all. The memory stays.
    pub fn clear(&mut self) {
        self.longest.clear();
        self.count = 0;
    }

    /// Adds the transfers of a batch that took longer than `limit` microseconds.
    pub fn add(&mut self, events: &[Event], limit: u64) {
        for (at, event) in events.iter().enumerate() {
            if event.kind != Some(EventType::XferTime) || event.value <= limit {
                continue;
            }
            let size = events.get(at + 1).and_then(|next| match next.kind? {
                EventType::TxBytes => Some(("WRITE", next.value)),
                EventType::RxBytes => Some(("READ", next.value)),
                _ => None,
            });
            let transfer = SlowTransfer {
                micros: event.value,
                size,
            };
            self.count += 1;
            let longer = |kept: &SlowTransfer| kept.micros >= transfer.micros;
            let place = self.longest.partition_point(longer);
            if place < KEPT {
                self.longest.truncate(KEPT - 1);
                self.longest.insert(place, transfer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(micros: u64, bytes: u64) -> [Event; 2] {
        [
            Event::new(Some(EventType::XferTime), micros),
            Event::new(Some(EventType::TxBytes), bytes),
        ]
    }

    #[test]
    fn longest_transfers_above_the_limit_are_kept() {
        let mut slow = SlowTransfers::default();
        let times = (0..20).map(|number| (number * 7) % 20);
        let events = Vec::from_iter(times.flat_map(|time| transfer(time, time + 100)));
        slow.add(&events, 5);
        assert_eq!(slow.count, 14);
        let kept = Vec::from_iter(slow.longest.iter().map(|kept| (kept.micros, kept.size)));
        let expected = (12..20)
            .rev()
            .map(|time| (time, Some(("WRITE", time + 100))));
        assert_eq!(kept, Vec::from_iter(expected));
    }

    #[test]
    fn transfer_without_bytes_has_no_size() {
        let mut slow = SlowTransfers::default();
        let [time, bytes] = transfer(9, 1);
        let read = Event::new(Some(EventType::RxBytes), 3);
        slow.add(&[time, time, read, bytes, time], 8);
        let sizes = Vec::from_iter(slow.longest.iter().map(|kept| kept.size));
        assert_eq!(sizes, [None, Some(("READ", 3)), None]);
    }
}
