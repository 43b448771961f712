//! How much is logged: lines in a minute, of one user's files and of all users', and bytes of a run.
//!
//! What strangers can cause has limits of its own, and less than all of the length, so that it keeps out nothing else.

use std::collections::HashMap;
use tracing::Level;
use tracing::callsite::Identifier;

/// Lines in a minute that are about nobody's files, of each level.
const OWN: u32 = 60;
/// Lines in a minute about one user's files that say the same, of all that they say, and about all users' files.
const ONE_KIND: u32 = 30;
const ONE_USER: u32 = 60;
const ALL_USERS: u32 = 120;
/// Users of whom lines are counted by themselves.
const MOST_USERS: usize = 1024;
/// Bytes of all lines of one run, and of those about files, of which nobody has more than is left for the others; of what comes
/// then, a line a minute says how much it was.
pub const MAX_BYTES: u64 = 16 << 20;
const MAX_BYTES_OF_FILES: u64 = 8 << 20;

/// A line that is to be logged.
#[derive(Debug)]
pub struct Line {
    pub level: Level,
    /// The user whose files it is about.
    pub about: Option<u32>,
    /// Where in the program it is written.
    pub place: Identifier,
    /// Minutes since 1970.
    pub minute: i64,
}

/// What is done with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Written,
    /// It is written, with a note that there are no more of its kind in this minute.
    Last(String),
    LeftOut,
    /// The log is long enough. So many were left out since that was said.
    Full(u64),
}

/// What was logged in this minute, and in all.
#[derive(Debug, Default)]
pub struct Budget {
    minute: i64,
    own: HashMap<Level, u32>,
    users: HashMap<u32, u32>,
    kinds: HashMap<(u32, Identifier), u32>,
    all_users: u32,
    bytes: u64,
    bytes_of_files: u64,
    /// The same of each user, of those that came first.
    bytes_of_users: HashMap<u32, u64>,
    left_out: u64,
    /// How many of these were said, and in which minute.
    said: (u64, i64),
}

impl Budget {
    /// Lines that were not written.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Counts a line that was written.
    pub fn add(&mut self, line: &Line, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        let Some(uid) = line.about else {
            return;
        };
        self.bytes_of_files += bytes;
        if self.bytes_of_users.len() < MOST_USERS || self.bytes_of_users.contains_key(&uid) {
            *self.bytes_of_users.entry(uid).or_default() += bytes;
        }
    }

    /// Whether a line about this user's files, or about nobody's, is one too many for this run.
    fn is_full(&self, about: Option<u32>) -> bool {
        let of_user = |uid: u32| self.bytes_of_users.get(&uid).copied().unwrap_or(0);
        let left = MAX_BYTES_OF_FILES.saturating_sub(self.bytes_of_files);
        self.bytes >= MAX_BYTES || about.is_some_and(|uid| left <= of_user(uid))
    }

    /// What is to be done with a line.
    pub fn judge(&mut self, line: &Line) -> Fate {
        if self.minute != line.minute {
            self.minute = line.minute;
            self.own.clear();
            self.users.clear();
            self.kinds.clear();
            self.all_users = 0;
        }
        let fate = match line.about {
            None => self.judge_own(line.level),
            Some(uid) => self.judge_users(uid, line),
        };
        if fate == Fate::LeftOut {
            self.left_out += 1;
            return fate;
        }
        if !self.is_full(line.about) {
            return fate;
        }
        self.left_out += 1;
        let (said, when) = self.said;
        if when == line.minute {
            return Fate::LeftOut;
        }
        self.said = (self.left_out, line.minute);
        Fate::Full(self.left_out - said)
    }

    fn judge_own(&mut self, level: Level) -> Fate {
        // Errors are few, and want something done.
        if level == Level::ERROR {
            return Fate::Written;
        }
        let lines = self.own.entry(level).or_default();
        *lines += 1;
        let note = || "further lines like these are not logged in this minute".into();
        fate(*lines, OWN, note)
    }

    fn judge_users(&mut self, uid: u32, line: &Line) -> Fate {
        let is_known = self.users.contains_key(&uid);
        let is_over = self.all_users >= ALL_USERS || (!is_known && self.users.len() >= MOST_USERS);
        let of_user = self.users.get(&uid).copied().unwrap_or(0);
        let kind = (uid, line.place.clone());
        let of_kind = self.kinds.get(&kind).copied().unwrap_or(0);
        if is_over || of_user >= ONE_USER || of_kind >= ONE_KIND {
            return Fate::LeftOut;
        }
        self.all_users += 1;
        self.users.insert(uid, of_user + 1);
        self.kinds.insert(kind, of_kind + 1);
        let whose = match uid {
            super::ANYBODY => String::new(),
            uid => format!(" of user {uid}"),
        };
        if self.all_users == ALL_USERS {
            Fate::Last("further lines about files are not logged in this minute".into())
        } else if of_user + 1 == ONE_USER {
            Fate::Last(format!(
                "further lines about files{whose} are not logged in this minute"
            ))
        } else {
            fate(of_kind + 1, ONE_KIND, || {
                format!("further lines like this about files{whose} are not logged in this minute")
            })
        }
    }
}

/// That of the nth line of so many.
fn fate(line: u32, most: u32, note: impl FnOnce() -> String) -> Fate {
    match line {
        line if line < most => Fate::Written,
        line if line == most => Fate::Last(note()),
        _ => Fate::LeftOut,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::callsite::Callsite;
    use tracing::{Metadata, subscriber::Interest};

    /// A place in a program.
    struct Place;

    impl Callsite for Place {
        fn set_interest(&self, _: Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("never asked")
        }
    }

    static HERE: (Place, u8) = (Place, 1);
    static THERE: (Place, u8) = (Place, 2);

    fn line(level: Level, about: Option<u32>, minute: i64) -> Line {
        let place = Identifier(&HERE.0);
        Line {
            level,
            about,
            place,
            minute,
        }
    }

    /// How many of so many such lines are written, and how many notes there are.
    fn written(budget: &mut Budget, line: &Line, lines: usize) -> (usize, usize) {
        let fates: Vec<Fate> = (0..lines).map(|_| budget.judge(line)).collect();
        let notes = fates.iter().filter(|fate| matches!(fate, Fate::Last(_)));
        let left_out = fates.iter().filter(|&fate| *fate == Fate::LeftOut);
        (lines - left_out.count(), notes.count())
    }

    #[test]
    fn the_last_line_that_is_written_in_a_minute_says_so() {
        let mut budget = Budget::default();
        let warning = line(Level::WARN, None, 7);
        assert_eq!(written(&mut budget, &warning, 100), (60, 1));
        // Each level has its own, errors have no limit, and the next minute is another.
        assert_eq!(
            written(&mut budget, &line(Level::INFO, None, 7), 100),
            (60, 1)
        );
        assert_eq!(
            written(&mut budget, &line(Level::ERROR, None, 7), 100),
            (100, 0)
        );
        assert_eq!(
            written(&mut budget, &line(Level::WARN, None, 8), 100),
            (60, 1)
        );
        assert_eq!(budget.left_out(), 120);
    }

    #[test]
    fn what_is_said_of_one_users_files_keeps_nothing_else_out() {
        let mut budget = Budget::default();
        let of = |uid| line(Level::WARN, Some(uid), 7);
        assert_eq!(written(&mut budget, &of(1), 1000), (30, 1));
        // Something else of his, then another's.
        let mut other = of(1);
        other.place = Identifier(&THERE.0);
        assert_eq!(written(&mut budget, &other, 1000), (30, 1));
        assert_eq!(written(&mut budget, &of(2), 5), (5, 0));
        // Many users together are no more than these, and the daemon's own lines are not among them.
        let all: usize = (3..100)
            .map(|uid| written(&mut budget, &of(uid), 5).0)
            .sum();
        assert_eq!(all, 120 - 65);
        assert_eq!(
            written(&mut budget, &line(Level::WARN, None, 7), 100),
            (60, 1)
        );
    }

    #[test]
    fn a_log_that_is_long_enough_says_once_a_minute_what_it_left_out() {
        let mut budget = Budget::default();
        let (own, file) = (line(Level::INFO, None, 7), line(Level::INFO, Some(1), 7));
        budget.add(&file, (4 << 20) - 1);
        assert_eq!(budget.judge(&file), Fate::Written);
        budget.add(&file, 1);
        // What is about files may have half of it, and one user as much as he leaves.
        assert_eq!(budget.judge(&file), Fate::Full(1));
        assert_eq!(budget.judge(&file), Fate::LeftOut);
        let second = line(Level::INFO, Some(2), 7);
        assert_eq!(budget.judge(&second), Fate::Written);
        budget.add(&second, 2 << 20);
        assert_eq!(budget.judge(&second), Fate::LeftOut);
        assert_eq!(budget.judge(&line(Level::INFO, Some(3), 7)), Fate::Written);
        assert_eq!(budget.judge(&own), Fate::Written);
        budget.add(&own, 10 << 20);
        assert_eq!(
            budget.judge(&own),
            Fate::LeftOut,
            "it was said in this minute"
        );
        assert_eq!(budget.judge(&line(Level::INFO, None, 8)), Fate::Full(4));
    }
}
