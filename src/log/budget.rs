// SPDX-License-Identifier: GPL-2.0-or-later

//! Limits of the log: lines in a minute, and bytes in one run of the daemon.
//!
//! Each user whose files cause lines has a budget, and the daemon itself has another. All users together may log no more bytes than
//! the daemon, and what they log takes nothing from its budget. Warnings and errors take nothing from what notices may have, and
//! notices leave half of the bytes to them: a warning says why something is missing.

use std::collections::HashMap;
use tracing::Level;

/// Limit of notices in a minute about the files of one user, and limit of warnings and errors.
const MAX_LINES_OF_USER: u32 = 60;
/// Limit of notices in a minute about the daemon itself, and limit of warnings.
const MAX_LINES: u32 = 240;
/// Limit of users with a budget. In a minute, nothing is logged about files of further users.
const MAX_USERS: usize = 1024;
/// Limit of bytes in a run about the daemon itself, and about the files of all users together.
const MAX_BYTES: u64 = 8 << 20;
/// Limit of bytes in a run about the files of one user.
const MAX_BYTES_OF_USER: u64 = 2 << 20;
/// Bytes in a run from which a user's entry stays. At most 256 users reach them, because of [`MAX_BYTES`].
const STAYS_FROM: u64 = MAX_BYTES / 256;

/// Class of a line, which has a number of lines of its own in each budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum LineClass {
    /// What happens as it should.
    Notice,
    /// A warning or an error.
    Warning,
}

impl LineClass {
    fn of(level: Level) -> Self {
        match level <= Level::WARN {
            true => Self::Warning,
            false => Self::Notice,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Notice => "notices",
            Self::Warning => "warnings",
        }
    }

    /// Returns the bytes that the lines of this class may fill, of so many.
    fn share(self, bytes: u64) -> u64 {
        match self {
            Self::Notice => bytes / 2,
            Self::Warning => bytes,
        }
    }
}

/// What was logged about the files of a user, or about the daemon itself.
#[derive(Debug, Default)]
struct Spent {
    /// Lines in this minute, by class.
    lines: HashMap<LineClass, u32>,
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
    /// Classes of lines that were left out because a limit of bytes was reached.
    full: Vec<LineClass>,
    /// True if a note of this minute says that there are too many users.
    is_crowded: bool,
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
    /// [`MAX_USERS`] others have one in this minute.
    fn spent(&mut self, about: Option<u32>) -> Option<&mut Spent> {
        if self.spent.len() >= MAX_USERS && !self.spent.contains_key(&about) {
            self.spent.retain(|about, spent| {
                about.is_none() || !spent.lines.is_empty() || spent.bytes >= STAYS_FROM
            });
        }
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
            self.is_crowded = false;
            { self.spent.values_mut() }.for_each(|spent| spent.lines.clear());
        }
        let (of_all, class) = (self.bytes, LineClass::of(level));
        let Some(spent) = self.spent(about) else {
            let has_note = !self.is_crowded && of_all < class.share(MAX_BYTES);
            self.is_crowded |= has_note;
            let note = format!(
                "lines about files of further users are not logged in this minute: {MAX_USERS} users cause lines"
            );
            return (false, has_note.then_some(note));
        };
        let most = |bytes| class.share(bytes);
        let (most_lines, is_full) = match about {
            Some(_) => (
                MAX_LINES_OF_USER,
                spent.bytes >= most(MAX_BYTES_OF_USER) || of_all >= most(MAX_BYTES),
            ),
            None => (MAX_LINES, spent.bytes >= most(MAX_BYTES)),
        };
        if is_full {
            if self.full.contains(&class) {
                return (false, None);
            }
            self.full.push(class);
            let note = format!(
                "{} are left out: this log is too long; run Install to begin another",
                class.name()
            );
            return (false, Some(note));
        }
        // The daemon logs few errors, and each needs an action.
        if about.is_none() && level == Level::ERROR {
            return (true, None);
        }
        let lines = spent.lines.entry(class).or_default();
        *lines = lines.saturating_add(1);
        let note = || {
            let (class, of) = (class.name(), about_text(about));
            format!("further {class}{of} are not logged in this minute")
        };
        (*lines <= most_lines, (*lines == most_lines).then(note))
    }
}

/// Returns the end of a note: what the lines are about.
fn about_text(about: Option<u32>) -> String {
    match about {
        None => " like these".into(),
        Some(super::ANY_USER) => " about files".into(),
        Some(uid) => format!(" about files of user {uid}"),
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
        // Notices have a share of their own, errors have no limit, and the next minute is another.
        assert_eq!(of(Level::INFO, 7), (240, 1));
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
    }

    #[test]
    fn users_of_a_past_minute_take_no_budget_of_others() {
        let mut budget = Budget::default();
        // The daemon and this user keep their entries for the whole run.
        budget.add(None, 1);
        budget.add(Some(1), 2 << 20);
        let mut notes = 0;
        for minute in 7..10 {
            let first = 2000 * u32::try_from(minute).expect("small");
            let mut of = |uid| written(&mut budget, Some(uid), Level::WARN, minute, 1);
            let logged = Vec::from_iter((first..first + 2000).map(&mut of));
            let count = |part: fn(&(usize, usize)) -> usize| logged.iter().map(part).sum::<usize>();
            assert_eq!(count(|of| of.0), MAX_USERS - 2, "minute {minute}");
            assert_eq!(count(|of| of.1), 1, "one note in minute {minute}");
            notes += of(first + 1999).1;
        }
        assert_eq!(notes, 0);
        assert_eq!(budget.judge(None, Level::INFO, 10), (true, None));
        // Its limit of bytes is one of the run.
        assert!(!budget.judge(Some(1), Level::WARN, 10).0);
        assert!(budget.spent.len() <= MAX_USERS);
    }

    #[test]
    fn full_log_has_no_note_about_too_many_users() {
        let mut budget = Budget::default();
        for uid in 0..1024 {
            assert!(budget.judge(Some(uid), Level::INFO, 7).0);
        }
        budget.bytes = 4 << 20;
        let judge = |budget: &mut Budget, level| {
            let (is_written, note) = budget.judge(Some(5000), level, 7);
            (is_written, note.is_some())
        };
        assert_eq!(judge(&mut budget, Level::INFO), (false, false));
        assert_eq!(judge(&mut budget, Level::WARN), (false, true));
        assert_eq!(judge(&mut budget, Level::WARN), (false, false));
    }

    #[test]
    fn notices_take_nothing_from_warnings() {
        let mut budget = Budget::default();
        for about in [Some(1), None] {
            for level in [Level::INFO, Level::WARN] {
                let (lines, notes) = written(&mut budget, about, level, 7, 1000);
                let most = if about.is_some() { 60 } else { 240 };
                assert_eq!((lines, notes), (most, 1), "{about:?} {level}");
            }
        }
        // Nor do errors about files.
        assert_eq!(written(&mut budget, Some(1), Level::ERROR, 7, 1), (0, 0));
        // The bytes of a run, too.
        for (about, bytes) in [(Some(2), 1 << 20), (None, 4 << 20)] {
            budget.add(about, bytes);
            let (is_written, note) = budget.judge(about, Level::INFO, 8);
            assert_eq!((is_written, note.is_some()), (false, about.is_some()));
            assert_eq!(budget.judge(about, Level::WARN, 8), (true, None));
        }
    }

    #[test]
    fn full_log_has_one_note_of_each_class() {
        let mut budget = Budget::default();
        let judge = |budget: &mut Budget, about| {
            let (is_written, note) = budget.judge(about, Level::WARN, 7);
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
