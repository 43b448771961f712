//! How much is logged: lines in a minute, and bytes of a run.
//!
//! Each user whose files cause lines has a budget, and all of them together less than the whole log, so that they keep out
//! nothing that is about the daemon itself.

use std::collections::HashMap;
use tracing::Level;

/// Lines in a minute: about one user's files, and about nobody's files of each level.
const LINES: u32 = 60;
/// Users that have a budget of their own, and levels; nothing is logged about files of other users.
const MOST_KINDS: usize = 1024;
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

/// What a line counts for: the daemon itself at a level, or one user's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Own(Level),
    User(u32),
}

/// What was logged of a kind.
#[derive(Debug, Default)]
struct Count {
    /// In this minute.
    lines: u32,
    bytes: u64,
}

/// What was logged.
#[derive(Debug, Default)]
pub struct Budget {
    minute: i64,
    counts: HashMap<Kind, Count>,
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
        self.bytes_of_files += line.about.map_or(0, |_| bytes);
        self.counts.entry(line.kind()).or_default().bytes += bytes;
    }

    /// What is to be done with a line.
    pub fn judge(&mut self, line: &Line) -> Fate {
        if self.minute != line.minute {
            self.minute = line.minute;
            self.counts.values_mut().for_each(|count| count.lines = 0);
        }
        let kind = line.kind();
        let is_file = line.about.is_some();
        let has_room =
            !is_file || self.counts.len() < MOST_KINDS || self.counts.contains_key(&kind);
        let mut count = Count::default();
        let count = match has_room {
            true => self.counts.entry(kind).or_default(),
            false => &mut count,
        };
        count.lines = count.lines.saturating_add(1);
        let is_full = self.bytes >= MAX_BYTES
            || is_file
                && (count.bytes >= MAX_BYTES_OF_USER || self.bytes_of_files >= MAX_BYTES_OF_FILES);
        // Errors are few, and want something done.
        let is_error = kind == Kind::Own(Level::ERROR);
        let fate = match count.lines {
            lines if !has_room || lines > LINES && !is_error => Fate::LeftOut,
            _ if is_full && self.is_full => Fate::LeftOut,
            _ if is_full => Fate::Full,
            LINES if !is_error => Fate::Last(format!(
                "further lines{} are not logged in this minute",
                match kind {
                    Kind::Own(_) => " like these".into(),
                    Kind::User(super::ANYBODY) => " about files".into(),
                    Kind::User(uid) => format!(" about files of user {uid}"),
                }
            )),
            _ => Fate::Written,
        };
        self.is_full |= fate == Fate::Full;
        self.left_out += u64::from(matches!(fate, Fate::LeftOut | Fate::Full));
        fate
    }
}

impl Line {
    fn kind(&self) -> Kind {
        self.about.map_or(Kind::Own(self.level), Kind::User)
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
        // Two are known, and a level.
        assert_eq!(logged.count(), MOST_KINDS - 3);
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
