// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits of the log: lines in a minute, and bytes in one run of the daemon. The files of each user have their own,
//! those of all users together have a second one, and the daemon itself has a third. Notices take nothing from what
//! warnings and errors may have: a warning says why something is missing.

use std::collections::HashMap;
use tracing::Level;

/// Limit of entries that stay at the begin of a minute, so that many users cannot fill the memory. While there are
/// fewer, each user has a line in a minute.
const MAX_ENTRIES: usize = 1024;

/// What the lines of a limit are about.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Scope {
    /// The daemon itself.
    Daemon,
    /// Files, of any user.
    Files,
    /// Files of one user.
    User(String),
}

impl Scope {
    /// Returns what may be logged in a run, with the lines of one minute. Notices may have it, and warnings with errors
    /// again.
    fn limits(&self) -> Left {
        let (lines, bytes) = match self {
            Self::Daemon => (240, 4 << 20),
            Self::Files => (1200, 4 << 20),
            Self::User(_) => (60, 1 << 20),
        };
        Left { lines, bytes }
    }
}

/// What may still be logged.
#[derive(Debug)]
struct Left {
    /// Lines in this minute.
    lines: u32,
    /// Bytes in this run.
    bytes: usize,
}

impl Left {
    /// Returns the end of the last line, if no other is left.
    fn note(&self) -> Option<&'static str> {
        match self {
            Left { bytes: 0, .. } => Some(
                "; further lines like this are left out: this log is too long; run Install to begin another",
            ),
            Left { lines: 0, .. } => {
                Some("; further lines like this are not logged in this minute")
            }
            _ => None,
        }
    }
}

/// What may still be logged, by scope and level. [`Level::WARN`] stands for errors too.
#[derive(Debug, Default)]
pub struct Budget {
    /// The present minute, counted from 1970.
    minute: i64,
    left: HashMap<(Scope, Level), Left>,
}

impl Budget {
    /// Counts a line. `user`: owner of the files that it is about, or `None` for the daemon itself. `minute`: the
    /// present one, counted from 1970. Returns what to write at the end of the line. `None`: the line is left out, and
    /// not counted.
    pub fn admit(
        &mut self,
        user: Option<String>,
        level: Level,
        minute: i64,
        bytes: usize,
    ) -> Option<&'static str> {
        if self.minute != minute {
            self.minute = minute;
            if self.left.len() > MAX_ENTRIES {
                self.left
                    .retain(|(scope, _), _| !matches!(scope, Scope::User(_)));
            }
            for ((scope, _), left) in &mut self.left {
                left.lines = scope.limits().lines;
            }
        }
        let scopes = match user {
            Some(user) => vec![Scope::Files, Scope::User(user)],
            None => vec![Scope::Daemon],
        };
        let keys = scopes.into_iter();
        let keys = Vec::from_iter(keys.map(|scope| (scope, level.max(Level::WARN))));
        // The first line of a user in a minute is written even if others have used up the lines of all.
        let is_first = |key: &(Scope, Level)| {
            let limit = key.0.limits().lines;
            self.left.get(key).is_none_or(|left| left.lines == limit)
        };
        let is_first = self.left.len() < MAX_ENTRIES && keys.last().is_some_and(is_first);
        let mut entries = keys.iter().filter_map(|key| self.left.get(key));
        if entries.any(|left| left.bytes == 0 || (left.lines == 0 && !is_first)) {
            return None;
        }
        let mut note = "";
        for key in keys {
            let limits = key.0.limits();
            let left = self.left.entry(key).or_insert(limits);
            left.lines = left.lines.saturating_sub(1);
            left.bytes = left.bytes.saturating_sub(bytes);
            note = left.note().unwrap_or(note);
        }
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: &str = "are not logged in this minute";
    const RUN: &str = "this log is too long";

    /// Counts lines of a length about a user, or about the daemon. Returns the number that is written, and the notes.
    fn logged(
        budget: &mut Budget,
        (user, level): (Option<u32>, Level),
        minute: i64,
        (lines, bytes): (usize, usize),
    ) -> (usize, String) {
        let user = user.map(|uid| uid.to_string());
        let ends = (0..lines).filter_map(|_| budget.admit(user.clone(), level, minute, bytes));
        let ends = Vec::from_iter(ends);
        (ends.len(), ends.concat())
    }

    /// Asserts that so many lines are written, and that the last one has this note, or none.
    #[track_caller]
    fn expect((lines, notes): (usize, String), expected: usize, note: &str) {
        assert_eq!(lines, expected);
        assert!(notes.contains(note) && notes.is_empty() == note.is_empty());
        assert_eq!(
            notes.matches("; further lines like this").count(),
            usize::from(!note.is_empty())
        );
    }

    #[test]
    fn last_line_of_a_minute_has_a_note() {
        let mut budget = Budget::default();
        for minute in [7, 8] {
            let scope = (None, Level::WARN);
            expect(logged(&mut budget, scope, minute, (1000, 9)), 240, MINUTE);
            expect(logged(&mut budget, scope, minute, (1000, 9)), 0, "");
        }
    }

    #[test]
    fn lines_about_one_user_take_no_other_budget() {
        let mut budget = Budget::default();
        // For longer than the user's bytes last.
        for minute in 0..1000 {
            logged(&mut budget, (Some(1), Level::WARN), minute, (1000, 100));
            for (user, lines) in [(Some(2), 5), (None, 200)] {
                expect(
                    logged(&mut budget, (user, Level::WARN), minute, (lines, 9)),
                    lines,
                    "",
                );
            }
        }
        expect(
            logged(&mut budget, (Some(1), Level::WARN), 1000, (1, 1)),
            0,
            "",
        );
    }

    #[test]
    fn notices_take_nothing_from_warnings() {
        let mut budget = Budget::default();
        for (user, lines) in [(Some(1), 60), (None, 240)] {
            for level in [Level::INFO, Level::WARN] {
                expect(
                    logged(&mut budget, (user, level), 7, (1000, 9)),
                    lines,
                    MINUTE,
                );
            }
            // Errors are counted with warnings.
            expect(logged(&mut budget, (user, Level::ERROR), 7, (1, 9)), 0, "");
            expect(
                logged(&mut budget, (user, Level::INFO), 8, (1, 4 << 20)),
                1,
                RUN,
            );
            expect(logged(&mut budget, (user, Level::WARN), 8, (1, 9)), 1, "");
        }
    }

    #[test]
    fn lines_about_all_users_leave_room_for_the_daemon() {
        let mut budget = Budget::default();
        let mut all = |minute, uids: std::ops::Range<u32>| {
            let written =
                uids.map(|uid| logged(&mut budget, (Some(uid), Level::WARN), minute, (1, 9)).0);
            written.sum::<usize>()
        };
        assert_eq!(all(7, 0..5000), 1200);
        assert_eq!(all(8, 5000..9000), 1200);
        assert!(
            budget.left.len() <= 1201,
            "entries of the minute before are removed"
        );
        for uid in 0..4 {
            logged(&mut budget, (Some(uid), Level::WARN), 9, (1, 1 << 20));
        }
        expect(
            logged(&mut budget, (Some(4), Level::WARN), 10, (1, 9)),
            0,
            "",
        );
        expect(
            logged(&mut budget, (None, Level::WARN), 10, (1000, 9)),
            240,
            MINUTE,
        );
    }

    #[test]
    fn users_that_use_up_the_lines_of_all_leave_one_to_each_other_user() {
        let mut budget = Budget::default();
        for uid in 0..25 {
            let lines = if uid < 20 { 60 } else { 1 };
            let (written, _) = logged(&mut budget, (Some(uid), Level::WARN), 7, (70, 9));
            assert_eq!(written, lines, "{uid}");
        }
    }

    #[test]
    fn last_line_of_a_full_log_has_a_note() {
        let mut budget = Budget::default();
        let user = (Some(1), Level::INFO);
        expect(logged(&mut budget, user, 7, (1, (1 << 20) - 1)), 1, "");
        expect(logged(&mut budget, user, 7, (2, 1)), 1, RUN);
        expect(logged(&mut budget, user, 8, (1, 1)), 0, "");
        expect(
            logged(&mut budget, (None, Level::INFO), 8, (5, 2 << 20)),
            2,
            RUN,
        );
    }
}
