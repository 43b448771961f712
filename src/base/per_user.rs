// SPDX-License-Identifier: GPL-2.0-or-later

//! Fair shares: how many of something each user has, and whose turn it is.

use std::collections::BTreeMap;

/// Number of things of each user.
#[derive(Debug, Default)]
pub struct Counts {
    of_users: BTreeMap<u32, usize>,
    total: usize,
}

impl Counts {
    /// Changes the number of one user.
    pub fn change(&mut self, uid: u32, before: usize, after: usize) {
        let count = self.of_users.entry(uid).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            self.of_users.remove(&uid);
        }
        self.total = (self.total + after).saturating_sub(before);
    }

    /// Returns the number of all users.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of one user.
    #[must_use]
    pub fn of(&self, uid: u32) -> usize {
        self.of_users.get(&uid).copied().unwrap_or(0)
    }

    /// Returns the number of the user that has the most.
    #[must_use]
    pub fn most(&self) -> usize {
        self.of_users.values().copied().max().unwrap_or(0)
    }

    /// Returns the user that gives one up for one more of this user: the one that has the most, if those are at least
    /// two more.
    #[must_use]
    pub fn giver(&self, uid: u32) -> Option<u32> {
        let greediest = self.of_users.iter().max_by_key(|(_, count)| **count);
        let (&greediest, _) = greediest.filter(|(_, count)| **count >= self.of(uid) + 2)?;
        Some(greediest)
    }
}

impl FromIterator<u32> for Counts {
    /// Counts the users of things.
    fn from_iter<I: IntoIterator<Item = u32>>(users: I) -> Self {
        let mut counts = Self::default();
        for uid in users {
            counts.change(uid, 0, 1);
        }
        counts
    }
}

/// Returns things with their number among those of their user, from 0 on. If they are sorted by it, each user has its
/// turn.
pub fn numbered<T>(all: Vec<T>, uid: impl Fn(&T) -> u32) -> Vec<(usize, T)> {
    let mut counts = Counts::default();
    let number = |one: T| {
        let (uid, number) = (uid(&one), counts.of(uid(&one)));
        counts.change(uid, 0, 1);
        (number, one)
    };
    all.into_iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_with_two_more_gives_one_up() {
        let mut counts: Counts = [7, 8, 7, 7].into_iter().collect();
        assert_eq!((counts.total(), counts.most(), counts.of(9)), (4, 3, 0));
        assert_eq!(
            [7, 8, 9].map(|uid| counts.giver(uid)),
            [None, Some(7), Some(7)]
        );
        counts.change(7, 1, 0);
        assert_eq!([8, 9].map(|uid| counts.giver(uid)), [None, Some(7)]);
        counts.change(7, 2, 0);
        assert_eq!(
            (counts.total(), counts.most(), counts.giver(9)),
            (1, 1, None)
        );
    }

    #[test]
    fn things_are_numbered_for_each_user() {
        let all = numbered(vec![(7, 'a'), (8, 'b'), (7, 'c')], |one| one.0);
        assert_eq!(all, [(0, (7, 'a')), (0, (8, 'b')), (1, (7, 'c'))]);
    }
}
