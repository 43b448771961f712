//! How much is logged: lines in a minute, and bytes of a run.
//!
//! Each user whose files cause lines has a budget, and all of them together less than the whole log, so that they keep out
//! nothing that is about the daemon itself.

use std::collections::HashMap;
use tracing::Level;

/// Lines in a minute: about one user's files, and about nobody's files of each level.
const LINES: u32 = 60;
/// Users that have a budget of their own; nothing is logged about files of others.
const MOST_USERS: usize = 1024;
/// Bytes of all lines of one run, of those about files, and of those about one user's files.
pub const MAX_BYTES: u64 = 16 << 20;
const MAX_BYTES_OF_FILES: u64 = 8 << 20;
const MAX_BYTES_OF_USER: u64 = 2 << 20;

/// A line that is to be logged.
#[derive(Debug)]
pub struct Line {
    pub level: Level,
    /// The user whose files it is about.
    pub about: Option<u32>,
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
    /// It is left out, the first one because the log is long enough.
    Full,
}

/// What was logged about one user's files.
#[derive(Debug, Default)]
struct User {
    /// In this minute.
    lines: u32,
    bytes: u64,
}

/// What was logged.
#[derive(Debug, Default)]
pub struct Budget {
    minute: i64,
    /// Lines of this minute about nobody's files.
    own: HashMap<Level, u32>,
    users: HashMap<u32, User>,
    bytes: u64,
    bytes_of_files: u64,
    left_out: u64,
    /// True once a line was left out because the log was long enough.
    is_full: bool,
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
        if let Some(user) = line.about.and_then(|uid| self.users.get_mut(&uid)) {
            user.bytes += bytes;
            self.bytes_of_files += bytes;
        }
    }

    /// What is to be done with a line.
    pub fn judge(&mut self, line: &Line) -> Fate {
        if self.minute != line.minute {
            self.minute = line.minute;
            self.own.clear();
            self.users.values_mut().for_each(|user| user.lines = 0);
        }
        let fate = self.judge_line(line);
        let user = line.about.and_then(|uid| self.users.get(&uid));
        let is_full = self.bytes >= MAX_BYTES
            || user.is_some_and(|user| {
                user.bytes >= MAX_BYTES_OF_USER || self.bytes_of_files >= MAX_BYTES_OF_FILES
            });
        let fate = match fate {
            Fate::LeftOut => Fate::LeftOut,
            _ if is_full && self.is_full => Fate::LeftOut,
            _ if is_full => Fate::Full,
            fate => fate,
        };
        self.is_full |= fate == Fate::Full;
        self.left_out += u64::from(matches!(fate, Fate::LeftOut | Fate::Full));
        fate
    }

    /// What is to be done with a line as far as the minute's lines say.
    fn judge_line(&mut self, line: &Line) -> Fate {
        let (lines, whose) = match line.about {
            // Errors are few, and want something done.
            None if line.level == Level::ERROR => return Fate::Written,
            None => (
                self.own.entry(line.level).or_default(),
                " like these".into(),
            ),
            Some(uid) => {
                if self.users.len() >= MOST_USERS && !self.users.contains_key(&uid) {
                    return Fate::LeftOut;
                }
                let whose = match uid {
                    super::ANYBODY => " about files".into(),
                    uid => format!(" about files of user {uid}"),
                };
                (&mut self.users.entry(uid).or_default().lines, whose)
            }
        };
        *lines = lines.saturating_add(1);
        match *lines {
            line if line < LINES => Fate::Written,
            LINES => Fate::Last(format!(
                "further lines{whose} are not logged in this minute"
            )),
            _ => Fate::LeftOut,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(level: Level, about: Option<u32>, minute: i64) -> Line {
        Line {
            level,
            about,
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
    fn last_line_that_is_written_in_a_minute_says_so() {
        let mut budget = Budget::default();
        let warning = line(Level::WARN, None, 7);
        assert_eq!(written(&mut budget, &warning, 100), (60, 1));
        // Each level has its own, errors have no limit, and the next minute is another.
        let info = line(Level::INFO, None, 7);
        assert_eq!(written(&mut budget, &info, 100), (60, 1));
        let error = line(Level::ERROR, None, 7);
        assert_eq!(written(&mut budget, &error, 100), (100, 0));
        let later = line(Level::WARN, None, 8);
        assert_eq!(written(&mut budget, &later, 100), (60, 1));
        assert_eq!(budget.left_out(), 120);
    }

    #[test]
    fn lines_about_one_users_files_keep_nothing_else_out() {
        let mut budget = Budget::default();
        let of = |uid, minute| line(Level::WARN, Some(uid), minute);
        assert_eq!(written(&mut budget, &of(1, 7), 1000), (60, 1));
        assert_eq!(written(&mut budget, &of(2, 7), 5), (5, 0));
        assert_eq!(written(&mut budget, &of(1, 8), 1000), (60, 1));
        let own = line(Level::WARN, None, 8);
        assert_eq!(written(&mut budget, &own, 100), (60, 1));
        // Of more users than are known nothing is logged.
        let all = 3..3000_u32;
        let logged = all.filter(|&uid| written(&mut budget, &of(uid, 8), 1).0 == 1);
        assert_eq!(logged.count(), MOST_USERS - 2);
    }

    #[test]
    fn log_that_is_long_enough_says_so_once() {
        let mut budget = Budget::default();
        let (own, file) = (line(Level::INFO, None, 7), line(Level::INFO, Some(1), 7));
        assert_eq!(budget.judge(&file), Fate::Written);
        budget.add(&file, (2 << 20) - 1);
        assert_eq!(budget.judge(&file), Fate::Written);
        budget.add(&file, 1);
        assert_eq!(budget.judge(&file), Fate::Full);
        assert_eq!(budget.judge(&file), Fate::LeftOut);
        // The files of all users together may have half of it.
        for uid in 2..5 {
            let file = line(Level::INFO, Some(uid), 7);
            assert_eq!(budget.judge(&file), Fate::Written);
            budget.add(&file, 2 << 20);
        }
        let late = line(Level::INFO, Some(9), 7);
        assert_eq!(budget.judge(&late), Fate::LeftOut);
        assert_eq!(budget.judge(&own), Fate::Written);
        budget.add(&own, 8 << 20);
        assert_eq!(budget.judge(&own), Fate::LeftOut);
        assert_eq!(budget.judge(&line(Level::INFO, None, 8)), Fate::LeftOut);
        assert_eq!(budget.left_out(), 5);
    }
}
