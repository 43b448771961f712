// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits the rate of new agent names of each user. Each name takes an instance id for as long as archives are kept,
//! and there are 2^25 ids.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Burst of new names of one user, or the limit on records if that is more. Then the rate is fifty a second: one user
/// uses up the ids in a week.
const BURST: u32 = 4096;
const INTERVAL: Duration = Duration::from_millis(20);
/// Number of users whose names are counted.
const MOST_USERS: usize = 1024;

/// New names of each user (GCRA).
#[derive(Debug, Default)]
pub(super) struct NewNames {
    /// When the full burst of a user is available again.
    available: HashMap<u32, Instant>,
}

impl NewNames {
    /// True if a user may have another new name.
    pub fn admits(&mut self, uid: u32, max_records: usize, now: Instant) -> bool {
        let burst = u32::try_from(max_records).unwrap_or(u32::MAX).max(BURST);
        if self.available.len() >= MOST_USERS && !self.available.contains_key(&uid) {
            self.available.retain(|_, available| *available > now);
        }
        let has_room = self.available.len() < MOST_USERS || self.available.contains_key(&uid);
        has_room && self.available(uid, now) - now <= INTERVAL * (burst - 1)
    }

    /// Counts a new name of a user.
    pub fn add(&mut self, uid: u32, now: Instant) {
        let available = self.available(uid, now);
        self.available.insert(uid, available + INTERVAL);
    }

    fn available(&self, uid: u32, now: Instant) -> Instant {
        self.available.get(&uid).copied().unwrap_or(now).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_names_come_burst_and_then_one_by_one() {
        let (mut new_names, start) = (NewNames::default(), Instant::now());
        let admitted = |new_names: &mut NewNames, uid, now| {
            let admit = |new_names: &mut NewNames| {
                let admits = new_names.admits(uid, 8, now);
                if admits {
                    new_names.add(uid, now);
                }
                admits
            };
            (0..10_000).filter(|_| admit(new_names)).count()
        };
        assert_eq!(admitted(&mut new_names, 1, start), 4096);
        assert_eq!(admitted(&mut new_names, 2, start), 4096, "another's");
        let later = start + 10 * INTERVAL;
        assert_eq!(admitted(&mut new_names, 1, later), 10);
        let all = start + INTERVAL * 10_000;
        assert_eq!(admitted(&mut new_names, 1, all), 4096);
        // One more user than are counted has no new name until one of them has had none for long enough.
        for uid in 100..3000 {
            if new_names.admits(uid, 8, all) {
                new_names.add(uid, all);
            }
        }
        assert_eq!(new_names.available.len(), MOST_USERS);
        assert!(new_names.admits(7, 8, all + INTERVAL * 10_000));
    }
}
