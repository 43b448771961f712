//! How much is logged: lines in a minute, and bytes of a run.
//!
//! Each user whose files cause lines has a budget, and so has the daemon itself. All users together have no more than the daemon,
//! so that they keep out nothing that is about the daemon itself.

use std::collections::HashMap;
use tracing::Level;

/// Lines in a minute: about the files of one user, and about the daemon itself.
const LINES_OF_USER: u32 = 60;
const LINES: u32 = 240;
/// Users that have a budget; nothing is logged about files of other users.
const MOST_USERS: usize = 1024;
/// Bytes of a run: of the lines about the daemon itself, and of all others together.
const MAX_BYTES: u64 = 8 << 20;
const MAX_BYTES_OF_USER: u64 = 2 << 20;

/// What was logged of the files of a user, or of the daemon itself.
#[derive(Debug, Default)]
struct Spent {
    /// In this minute.
    lines: u32,
    bytes: u64,
}

/// What was logged.
#[derive(Debug, Default)]
pub struct Budget {
    minute: i64,
    /// By the user whose files the lines are about; `None`: the daemon itself.
    spent: HashMap<Option<u32>, Spent>,
    /// Of all users.
    bytes: u64,
    /// True once a line was left out because the log was long enough.
    is_full: bool,
}

impl Budget {
    /// Counts what was written about the files of a user, or about the daemon itself.
    pub fn add(&mut self, about: Option<u32>, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += about.map_or(0, |_| bytes);
        if let Some(spent) = self.spent(about) {
            spent.bytes += bytes;
        }
    }

    /// Returns what was logged about the files of a user, or about the daemon itself. `None`: the user has no budget, since as many
    /// others have one as may.
    fn spent(&mut self, about: Option<u32>) -> Option<&mut Spent> {
        let has_room = self.spent.len() < MOST_USERS || self.spent.contains_key(&about);
        let has_budget = has_room || about.is_none();
        has_budget.then(|| self.spent.entry(about).or_default())
    }

    /// Counts a line in this minute since 1970. Returns true if it is to be written, and a note that is to stand behind it, or
    /// in its place.
    pub fn judge(
        &mut self,
        about: Option<u32>,
        level: Level,
        minute: i64,
    ) -> (bool, Option<String>) {
        if self.minute != minute {
            self.minute = minute;
            self.spent.values_mut().for_each(|spent| spent.lines = 0);
        }
        let of_all = self.bytes;
        let Some(spent) = self.spent(about) else {
            return (false, None);
        };
        let (lines, is_full) = match about {
            Some(_) => (
                LINES_OF_USER,
                spent.bytes >= MAX_BYTES_OF_USER || of_all >= MAX_BYTES,
            ),
            None => (LINES, spent.bytes >= MAX_BYTES),
        };
        if is_full {
            let is_first = !std::mem::replace(&mut self.is_full, true);
            let note = "lines are left out: this log is too long; run Install to begin another";
            return (false, is_first.then(|| note.into()));
        }
        // Errors are few, and want something done.
        if about.is_none() && level == Level::ERROR {
            return (true, None);
        }
        spent.lines = spent.lines.saturating_add(1);
        let note = || {
            let of = match about {
                None => " like these".into(),
                Some(super::ANYBODY) => " about files".into(),
                Some(uid) => format!(" about files of user {uid}"),
            };
            format!("further lines{of} are not logged in this minute")
        };
        (spent.lines <= lines, (spent.lines == lines).then(note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many such lines are written, and how many notes there are.
    fn written(
        budget: &mut Budget,
        about: Option<u32>,
        level: Level,
        minute: i64,
        lines: usize,
    ) -> (usize, usize) {
        let judged = (0..lines).map(|_| {
            let judged = budget.judge(about, level, minute);
            // As the log does, also for a line that is not written.
            budget.add(about, 0);
            judged
        });
        let judged: Vec<_> = judged.collect();
        let written = judged.iter().filter(|(is_written, _)| *is_written);
        let notes = judged.iter().filter(|(_, note)| note.is_some());
        (written.count(), notes.count())
    }

    #[test]
    fn last_line_that_is_written_in_a_minute_says_so() {
        let mut budget = Budget::default();
        let mut of = |level, minute| written(&mut budget, None, level, minute, 1000);
        assert_eq!(of(Level::WARN, 7), (240, 1));
        // Errors have no limit, and the next minute is another.
        assert_eq!(of(Level::INFO, 7), (0, 0));
        assert_eq!(of(Level::ERROR, 7), (1000, 0));
        assert_eq!(of(Level::INFO, 8), (240, 1));
    }

    #[test]
    fn lines_about_one_users_files_keep_nothing_else_out() {
        let mut budget = Budget::default();
        let mut of = |uid, minute, lines| {
            let uid = Some(uid).filter(|&uid| uid > 0);
            written(&mut budget, uid, Level::WARN, minute, lines)
        };
        assert_eq!(of(1, 7, 1000), (60, 1));
        assert_eq!(of(2, 7, 5), (5, 0));
        assert_eq!(of(1, 8, 1000), (60, 1));
        assert_eq!(of(0, 8, 1000), (240, 1), "about the daemon");
        // Of more users than are known nothing is logged. Two are known, and the daemon itself.
        for _ in 0..2 {
            let logged = (3..3000).filter(|&uid| of(uid, 8, 1).0 == 1);
            assert_eq!(logged.count(), MOST_USERS - 3);
        }
    }

    #[test]
    fn log_that_is_long_enough_says_so_once() {
        let mut budget = Budget::default();
        let judge = |budget: &mut Budget, about| {
            let (is_written, note) = budget.judge(about, Level::INFO, 7);
            (is_written, note.is_some())
        };
        let (own, file) = (None, Some(1));
        budget.add(file, (2 << 20) - 1);
        assert_eq!(judge(&mut budget, file), (true, false));
        budget.add(file, 1);
        assert_eq!(judge(&mut budget, file), (false, true));
        assert_eq!(judge(&mut budget, file), (false, false));
        // The files of all users together may have half of it.
        for uid in 2..5 {
            assert_eq!(judge(&mut budget, Some(uid)), (true, false));
            budget.add(Some(uid), 2 << 20);
        }
        assert_eq!(judge(&mut budget, Some(9)), (false, false));
        assert_eq!(judge(&mut budget, own), (true, false));
        budget.add(own, 8 << 20);
        assert_eq!(judge(&mut budget, own), (false, false));
        assert!(!budget.judge(own, Level::ERROR, 8).0);
    }
}
