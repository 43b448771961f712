// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits of the log: lines in a minute, and bytes in one run of the daemon.
//!
//! Each user whose files cause lines has a budget, and the daemon itself has another. All users together may log no more bytes than
//! the daemon, and what they log takes nothing from its budget.

use std::collections::HashMap;
use tracing::Level;

/// Limit of lines in a minute about the files of one user.
const MAX_LINES_OF_USER: u32 = 60;
/// Limit of lines in a minute about the daemon itself.
const MAX_LINES: u32 = 240;
/// Limit of users with a budget. Nothing is logged about files of further users.
const MAX_USERS: usize = 1024;
/// Limit of bytes in a run about the daemon itself, and about the files of all users together.
const MAX_BYTES: u64 = 8 << 20;
/// Limit of bytes in a run about the files of one user.
const MAX_BYTES_OF_USER: u64 = 2 << 20;

/// What was logged about the files of a user, or about the daemon itself.
#[derive(Debug, Default)]
struct Spent {
    /// Lines in this minute.
    lines: u32,
    /// Bytes in this run.
    bytes: u64,
}

/// Budgets of all users and of the daemon.
#[derive(Debug, Default)]
pub struct Budget {
    /// The present minute, counted from 1970.
    minute: i64,
    /// What was logged, by the user whose files the lines are about; `None`: the daemon itself.
    spent: HashMap<Option<u32>, Spent>,
    /// Bytes about the files of all users.
    bytes: u64,
    /// True once a line was left out because a limit of bytes was reached.
    is_full: bool,
}

impl Budget {
    /// Counts bytes that were written about the files of a user, or about the daemon itself.
    pub fn add(&mut self, about: Option<u32>, bytes: usize) {
        let bytes = bytes as u64;
        self.bytes += about.map_or(0, |_| bytes);
        if let Some(spent) = self.spent(about) {
            spent.bytes += bytes;
        }
    }

    /// Returns what was logged about the files of a user, or about the daemon itself. `None`: the user has no budget, because
    /// [`MAX_USERS`] others have one.
    fn spent(&mut self, about: Option<u32>) -> Option<&mut Spent> {
        let has_room = self.spent.len() < MAX_USERS || self.spent.contains_key(&about);
        let has_budget = has_room || about.is_none();
        has_budget.then(|| self.spent.entry(about).or_default())
    }

    /// Counts a line. `minute` is the present minute, counted from 1970. Returns true if the line is to be written, and a note to
    /// write after it or in its place.
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
                MAX_LINES_OF_USER,
                spent.bytes >= MAX_BYTES_OF_USER || of_all >= MAX_BYTES,
            ),
            None => (MAX_LINES, spent.bytes >= MAX_BYTES),
        };
        if is_full {
            let is_first = !std::mem::replace(&mut self.is_full, true);
            let note = "lines are left out: this log is too long; run Install to begin another";
            return (false, is_first.then(|| note.into()));
        }
        // The daemon logs few errors, and each needs an action.
        if about.is_none() && level == Level::ERROR {
            return (true, None);
        }
        spent.lines = spent.lines.saturating_add(1);
        let note = || {
            let of = match about {
                None => " like these".into(),
                Some(super::ANY_USER) => " about files".into(),
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

    /// Judges a number of equal lines. Returns the number that is written, and the number of notes.
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
    fn last_line_of_a_minute_has_a_note() {
        let mut budget = Budget::default();
        let mut of = |level, minute| written(&mut budget, None, level, minute, 1000);
        assert_eq!(of(Level::WARN, 7), (240, 1));
        // Errors have no limit, and the next minute is another.
        assert_eq!(of(Level::INFO, 7), (0, 0));
        assert_eq!(of(Level::ERROR, 7), (1000, 0));
        assert_eq!(of(Level::INFO, 8), (240, 1));
    }

    #[test]
    fn lines_about_one_user_take_no_other_budget() {
        let mut budget = Budget::default();
        let mut of = |uid, minute, lines| {
            let uid = Some(uid).filter(|&uid| uid > 0);
            written(&mut budget, uid, Level::WARN, minute, lines)
        };
        assert_eq!(of(1, 7, 1000), (60, 1));
        assert_eq!(of(2, 7, 5), (5, 0));
        assert_eq!(of(1, 8, 1000), (60, 1));
        assert_eq!(of(0, 8, 1000), (240, 1), "about the daemon");
        // Nothing is logged about further users. Two users and the daemon itself have a budget already.
        for _ in 0..2 {
            let logged = (3..3000).filter(|&uid| of(uid, 8, 1).0 == 1);
            assert_eq!(logged.count(), MAX_USERS - 3);
        }
    }

    #[test]
    fn full_log_has_one_note() {
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
