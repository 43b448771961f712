// SPDX-License-Identifier: GPL-2.0-or-later

//! Names of users by their numbers, looked up in the background.

use super::lookup::{ANSWER_TIME, END_TIME, Lookup};
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
    /// The look-up that runs, and its users.
    running: Option<(Lookup, Vec<u32>)>,
    /// When the next look-up may start, if the last one was not answered.
    pause_ends: Option<Instant>,
}

impl UserNames {
    /// Begins to look up the users whose names are not known. Those in /etc/passwd are known at once.
    pub fn request(&mut self, uids: impl IntoIterator<Item = u32>, now: Instant) {
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
            let name = || (Some(user.name.to_owned()), now + NAME_AGE);
            let known = self.known.entry(user.uid).or_insert_with(name);
            if known.1 <= now {
                *known = name();
            }
        }
        let is_known = |uid: &u32| self.known.get(uid).is_some_and(|(_, end)| now < *end);
        self.wanted
            .extend(missing.into_iter().filter(|uid| !is_known(uid)));
        self.start(now);
    }

    /// Starts a look-up if one is wanted and may start. After one that was not answered, there is none for a while.
    fn start(&mut self, now: Instant) {
        if self.running.is_some() || self.wanted.is_empty() {
            return;
        }
        if self.pause_ends.is_some_and(|end| now < end) {
            self.wanted.clear();
            return;
        }
        let uids: Vec<u32> = self.wanted.iter().copied().take(MAX_USERS).collect();
        self.wanted.retain(|uid| !uids.contains(uid));
        let keys: Vec<String> = uids.iter().map(u32::to_string).collect();
        match Lookup::start("passwd", &keys, now) {
            Ok(lookup) => self.running = Some((lookup, uids)),
            Err(_) => self.fail(now),
        }
    }

    fn fail(&mut self, now: Instant) {
        self.wanted.clear();
        self.pause_ends = Some(now + PAUSE);
    }

    /// Takes over answers, and waits for them for `wait` at most. Returns true if no look-up is running.
    pub fn poll(&mut self, wait: Duration, now: Instant) -> bool {
        let end = Instant::now() + wait;
        while let Some((lookup, uids)) = &mut self.running {
            let left = end.saturating_duration_since(Instant::now());
            let Some(answer) = lookup.poll(left, now) else {
                return false;
            };
            if let Ok(text) = &answer {
                for uid in uids {
                    let name = users(text).find(|user| user.uid == *uid);
                    let name = name.map(|user| user.name.to_owned());
                    self.known.insert(*uid, (name, now + NAME_AGE));
                }
            }
            self.running = None;
            match answer {
                Ok(_) => self.start(now),
                Err(_) => self.fail(now),
            }
        }
        true
    }

    /// Returns the name of a user, as far as it is known.
    #[must_use]
    pub fn get(&self, uid: u32) -> String {
        let known = self.known.get(&uid).and_then(|(name, _)| name.clone());
        known.unwrap_or_else(|| uid.to_string())
    }

    /// Looks a user up, and returns its name. Waits for the answer.
    pub fn wait_for(&mut self, uid: u32) -> String {
        let start = Instant::now();
        self.request([uid], start);
        // A process that the kernel holds does not end when it is killed.
        while !self.poll(END_TIME, Instant::now()) && start.elapsed() < ANSWER_TIME + 2 * END_TIME {
        }
        self.get(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn user_without_a_name_shows_as_its_number() {
        let mut names = UserNames::default();
        assert_eq!(names.get(0), "0", "not looked up");
        assert_eq!(names.wait_for(0), "root");
        let number = u32::MAX - 1;
        assert_eq!(names.wait_for(number), number.to_string());
        let now = Instant::now();
        // Both are known now.
        names.request([0, number], now);
        assert!(names.running.is_none() && names.wanted.is_empty());
        names.request([number], now + 2 * NAME_AGE);
        assert!(names.running.is_some());
    }

    #[test]
    fn look_up_without_an_answer_is_killed_and_followed_by_a_pause() {
        let mut names = UserNames::default();
        let (now, number) = (Instant::now(), u32::MAX - 1);
        let lookup = Lookup::run(Command::new("sleep").arg("600"), now);
        names.running = Some((lookup.expect("it starts"), vec![number]));
        assert!(!names.poll(Duration::from_millis(10), now));
        // Its time is over before it has answered.
        let late = now + Duration::from_secs(10);
        while !names.poll(Duration::from_millis(100), late) {}
        names.request([number], late);
        assert!(names.running.is_none());
        assert_eq!(names.get(number), number.to_string());
        names.request([number], late + PAUSE);
        assert!(names.running.is_some());
    }
}
