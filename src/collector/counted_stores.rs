//! The stores without a process that were counted to their end. Their files stay, so a scan finds them again after a reload or a
//! restart, or when the cache of rejected files was full.
//!
//! An agent's record identifies its present store only. This module knows what the daemon has counted since its start. Of the daemon
//! before, the state file has two times: for each agent the last update of its earlier stores (`last_store_update`), and for all
//! stores the time up to which they are counted ([`CountedStores::all_found`]).

use crate::store::StoreId;
use std::collections::HashMap;

/// Limit of known stores. When it is reached, the half with the older updates is dropped.
const MAX_STORES: usize = 1 << 16;
/// Longest time until a scan finds a file, in nanoseconds: a pass begins every 2 s, and a listing pauses for at most 5 s.
const FOUND_WITHIN: u64 = 10_000_000_000;

/// Stores that were counted to their end. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Debug, Default)]
pub(super) struct CountedStores {
    /// Last update of each store that was counted since the start.
    by_id: HashMap<StoreId, u64>,
    /// The daemon before had counted all stores without a process that were last updated until then.
    before: u64,
    /// All stores that were last updated until then are counted [`FOUND_WITHIN`] later, if no file is rejected meanwhile.
    pending: u64,
    /// Number of rejections for lack of room, as of `pending`.
    rejections: u64,
}

impl CountedStores {
    /// The stores that the daemon before had counted: those that were last updated until `before`.
    pub fn until(before: u64) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// Notes that a store is counted to its end.
    pub fn add(&mut self, id: StoreId, updated: u64) {
        if self.by_id.len() >= MAX_STORES {
            let mut times: Vec<u64> = self.by_id.values().copied().collect();
            let (_, &mut middle, _) = times.select_nth_unstable(MAX_STORES / 2);
            self.by_id.retain(|_, updated| *updated > middle);
        }
        self.by_id.insert(id, updated);
    }

    /// True if a store was counted to its end that no process writes and that is not the present store of an agent.
    pub fn has(&self, id: StoreId, updated: u64) -> bool {
        updated <= self.before || self.by_id.contains_key(&id)
    }

    /// Notes that all files found by a scan at `stamp` are attached or rejected. `rejections`: how many were rejected for lack of room
    /// since the start. Returns the time up to which all stores without a process are counted, if it is known now.
    pub fn all_found(&mut self, stamp: u64, rejections: u64) -> Option<u64> {
        if self.rejections != rejections || self.pending == 0 {
            (self.pending, self.rejections) = (stamp, rejections);
        }
        let is_due = stamp.saturating_sub(self.pending) >= FOUND_WITHIN;
        is_due.then(|| std::mem::replace(&mut self.pending, stamp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(instance: u64) -> StoreId {
        StoreId {
            instance,
            ..StoreId::default()
        }
    }

    #[test]
    fn latest_stores_are_known_when_there_are_many() {
        let mut counted = CountedStores::until(7);
        let many = 3 * MAX_STORES as u64;
        for number in 0..many {
            counted.add(store(number), 100 + number);
            assert!(counted.by_id.len() <= MAX_STORES);
        }
        for number in many - MAX_STORES as u64 / 2..many {
            assert!(counted.has(store(number), 100 + number));
        }
        assert!(!counted.has(store(many), 100));
        assert!(counted.has(store(many), 7));
    }

    #[test]
    fn stores_are_all_counted_only_if_no_file_was_rejected() {
        let mut counted = CountedStores::default();
        let second = |second: u64| second * 1_000_000_000;
        assert_eq!(counted.all_found(second(1), 0), None);
        assert_eq!(counted.all_found(second(10), 0), None);
        assert_eq!(counted.all_found(second(11), 0), Some(second(1)));
        assert_eq!(counted.all_found(second(20), 0), None);
        // One more finds no room.
        assert_eq!(counted.all_found(second(21), 1), None);
        assert_eq!(counted.all_found(second(30), 1), None);
        assert_eq!(counted.all_found(second(31), 1), Some(second(21)));
    }
}
