// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of users by their numbers, looked up in the background.

use super::{passwd_file, users};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Time after which a name is looked up again.
const NAME_AGE: Duration = Duration::from_secs(600);
/// Time without a look-up after one that was not answered.
const PAUSE: Duration = Duration::from_secs(30);
/// Limit of users in a look-up.
const MAX_USERS: usize = 64;
/// Limit of names that are kept.
const MAX_NAMES: usize = 1 << 16;

/// Names of users. A user without a name, or whose name is not known yet, has its number as its name.
#[derive(Debug, Default)]
pub struct UserNames {
    /// Answers by user id: the name, `None` for a user without one, and when the answer expires.
    known: HashMap<u32, (Option<String>, Instant)>,
    /// Users that are to be looked up.
    wanted: HashSet<u32>,
    /// True while a question waits for its answer.
    is_asking: bool,
    /// When the next question may be asked, if the last one was not answered.
    pause_ends: Option<Instant>,
}

impl UserNames {
    /// Asks for the names of these users. Those in /etc/passwd are known at once.
    pub fn want(&mut self, uids: impl IntoIterator<Item = u32>, now: Instant) {
        let is_known = |uid: &u32| self.known.get(uid).is_some_and(|(_, end)| now < *end);
        let missing: HashSet<u32> = uids.into_iter().filter(|uid| !is_known(uid)).collect();
        if missing.is_empty() {
            return;
        }
        if self.known.len() + missing.len() > MAX_NAMES {
            self.known.clear();
        }
        let text = passwd_file();
        for user in users(&text).filter(|user| missing.contains(&user.uid)) {
            // The first line of a number counts, as for getpwuid(3).
            let name = || (Some(user.name.clone()), now + NAME_AGE);
            let known = self.known.entry(user.uid).or_insert_with(name);
            if known.1 <= now {
                *known = name();
            }
        }
        let is_known = |uid: &u32| self.known.get(uid).is_some_and(|(_, end)| now < *end);
        self.wanted
            .extend(missing.into_iter().filter(|uid| !is_known(uid)));
    }

    /// Returns the users to ask for next. The answer is then waited for. After a question without an answer, there is
    /// none for a while.
    pub fn question(&mut self, now: Instant) -> Option<Vec<u32>> {
        if self.pause_ends.is_some_and(|end| now < end) {
            self.wanted.clear();
        }
        if self.is_asking || self.wanted.is_empty() {
            return None;
        }
        let uids: Vec<u32> = self.wanted.iter().copied().take(MAX_USERS).collect();
        self.wanted.retain(|uid| !uids.contains(uid));
        self.is_asking = true;
        Some(uids)
    }

    /// Takes over the answer for these users: lines of passwd(5).
    pub fn add(&mut self, uids: &[u32], lines: Option<&str>, now: Instant) {
        let Some(lines) = lines else {
            return;
        };
        self.is_asking = false;
        for &uid in uids {
            let name = users(lines).find(|user| user.uid == uid);
            let name = name.map(|user| user.name);
            self.known.insert(uid, (name, now + NAME_AGE));
        }
    }

    /// Ends a question whose answer has not come in time.
    pub fn end_question(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_asking) {
            self.wanted.clear();
            self.pause_ends = Some(now + PAUSE);
        }
    }

    /// True while a question waits for its answer.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Returns the name of a user, as far as it is known.
    #[must_use]
    pub fn get(&self, uid: u32) -> String {
        let known = self.known.get(&uid).and_then(|(name, _)| name.clone());
        known.unwrap_or_else(|| uid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_without_a_name_shows_as_its_number() {
        let (mut names, now) = (UserNames::default(), Instant::now());
        assert_eq!(names.get(0), "0", "not looked up");
        let number = u32::MAX - 1;
        names.want([0, number], now);
        assert_eq!(names.get(0), "root", "in /etc/passwd");
        let asked = names.question(now).expect("one");
        assert_eq!(asked, [number]);
        assert!(names.is_asking() && names.question(now).is_none());
        names.add(&asked, Some(""), now);
        assert_eq!(names.get(number), number.to_string());
        names.add(&[7], Some("x:x:8:8::/:\ny:x:7:7::/:\n"), now);
        assert_eq!([names.get(7), names.get(8)], ["y", "8"]);
        // All are known now.
        names.want([0, 7, number], now);
        assert_eq!(names.question(now), None);
        names.want([number], now + 2 * NAME_AGE);
        assert!(names.question(now + 2 * NAME_AGE).is_some());
    }

    #[test]
    fn question_without_an_answer_is_followed_by_a_pause() {
        let (mut names, now, number) = (UserNames::default(), Instant::now(), u32::MAX - 1);
        names.want([number], now);
        let asked = names.question(now).expect("one");
        names.add(&asked, None, now);
        assert!(names.is_asking());
        names.end_question(now);
        names.want([number], now);
        assert_eq!(names.question(now), None);
        assert_eq!(names.get(number), number.to_string());
        names.want([number], now + PAUSE);
        assert_eq!(names.question(now + PAUSE), Some(asked));
    }
}
