//! Which stores without a process were counted to their end. Their files stay, so that they are found again after a reload, a
//! restart, or when the cache of rejected files was full.
//!
//! An agent's record tells this of its present store only. Of earlier ones, and of those of agents that are forgotten, this module
//! knows what this process has counted, and the state file tells two times of what the process before it has: of each agent, when
//! the last of its earlier stores was updated (`last_store_update`), and of all, until when the scans had found everything.

use crate::store::StoreId;
use std::collections::HashMap;

/// Stores that are known, of all users; with more, the half with the older updates is forgotten.
const MOST: usize = 1 << 16;
/// Within this time each file is found, in nanoseconds: a pass begins every 2 s, and a listing pauses for 5 s at most.
const FOUND_WITHIN: u64 = 10_000_000_000;

/// Stores that were counted to their end.
#[derive(Debug, Default)]
pub(super) struct CountedStores {
    /// With the time of their last update.
    by_id: HashMap<StoreId, u64>,
    /// The process before had counted the stores without a process that were last updated until then.
    before: u64,
    /// The stores that were last updated until then are counted, if the scans until [`FOUND_WITHIN`] later set none aside.
    next: u64,
    /// How many files had been set aside then for lack of room.
    set_aside: u64,
}

impl CountedStores {
    /// None but those that the process before had counted.
    pub fn until(before: u64) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// Notes that a store is counted to its end.
    pub fn add(&mut self, id: StoreId, updated: u64) {
        if self.by_id.len() >= MOST {
            let mut times: Vec<u64> = self.by_id.values().copied().collect();
            let (_, &mut middle, _) = times.select_nth_unstable(MOST / 2);
            self.by_id.retain(|_, updated| *updated > middle);
        }
        self.by_id.insert(id, updated);
    }

    /// True if a store without a process, whose agent is not known, was counted to its end.
    pub fn has(&self, id: StoreId, updated: u64) -> bool {
        updated <= self.before || self.by_id.contains_key(&id)
    }

    /// Notes at a time that all files that were found are attached or set aside, so many of them ever for lack of room. Returns
    /// until when all stores are counted, if that is known now.
    pub fn all_found(&mut self, stamp: u64, set_aside: u64) -> Option<u64> {
        if self.set_aside != set_aside || self.next == 0 {
            (self.next, self.set_aside) = (stamp, set_aside);
        }
        let is_due = stamp.saturating_sub(self.next) >= FOUND_WITHIN;
        is_due.then(|| std::mem::replace(&mut self.next, stamp))
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
        let many = 3 * MOST as u64;
        for number in 0..many {
            counted.add(store(number), 100 + number);
            assert!(counted.by_id.len() <= MOST);
        }
        for number in many - MOST as u64 / 2..many {
            assert!(counted.has(store(number), 100 + number));
        }
        assert!(!counted.has(store(many), 100));
        assert!(counted.has(store(many), 7));
    }

    #[test]
    fn stores_are_all_counted_only_if_none_was_set_aside() {
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
