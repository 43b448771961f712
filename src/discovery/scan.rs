// SPDX-License-Identifier: GPL-2.0-or-later

//! Scan of the telemetry directories: finds new and changed files, and caches the rejected ones.
//!
//! [`Scanner::scan`] works for a limited time and goes on at the next call. A pass opens all directories again, every 2
//! s.

use crate::base::file::{self, FILE_TIME_GRANULARITY, FileFacts, FileId, is_younger_than};
use crate::base::per_user::Counts;
use crate::config::Config;
use crate::discovery::directory::{Directory, Expansion, open_error};
use crate::error::Rejection;
use crate::log;
pub use found::{Found, Opened, open};
use nix::errno::Errno;
use rejected::{Class, Key, RejectedFiles};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watched::{Files, Watched};

mod found;
mod rejected;
#[cfg(test)]
mod tests;
mod watched;

/// Interval at which all directories are opened and listed, even if their modification times are unchanged. Those do
/// not change when an agent completes a file, or takes over an old file of its name.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after a listing, as a multiple of the time that the listing took.
const PAUSE_FACTOR: u32 = 20;
/// Longest pause after a listing. It bounds how late an agent is found.
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Time after its last change in which a file with an empty header may belong to an agent that is starting.
const STARTUP_TIME: Duration = Duration::from_secs(10);

/// The directories that are scanned, and the rejected files in them.
///
/// At most `max_directories` directories come from patterns. If there are more, a directory of the user with the most
/// is removed for another user that has at least two fewer.
#[derive(Debug, Default)]
pub struct Scanner {
    config: Config,
    directories: BTreeMap<PathBuf, Watched>,
    /// Number of the last directory that was added.
    last_number: u64,
    /// Directory that the last scan ended in. The next scan begins with its successor.
    last_scanned: PathBuf,
    rejected: RejectedFiles,
    rejections: u64,
    /// Owner and description of unsupported files that were not taken yet.
    new_unsupported: Vec<(u32, String)>,
    /// Number of the last pass. A pass opens all directories again, since a path may lead to another directory now.
    pass_number: u64,
    /// An unfinished pass, which later ticks continue.
    current_pass: Option<Expansion>,
    /// `None`: a pass is due.
    next_pass: Option<Instant>,
    /// Number of directories that the last pass left out because of `max_directories`.
    left_out: usize,
    /// Number of directories that the last pass left out because their file system may not answer.
    served: usize,
    /// Last cached rejection that was tested for a file that is gone. `None`: all were tested.
    cleanup_cursor: Option<Key>,
    /// True if the last scan had enough time for everything that was due.
    is_done: bool,
}

impl Scanner {
    /// Returns a scanner. It knows no directory before the first [`Scanner::scan`].
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            is_done: true,
            ..Self::default()
        }
    }

    /// Begins again with another configuration.
    pub fn configure(&mut self, config: Config) {
        *self = Self {
            rejections: self.rejections,
            ..Self::new(config)
        };
    }

    /// Number of rejections since the start. Each pair of file and reason counts once.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.rejections
    }

    /// Number of rejected rings and stores of a version that this build reads.
    #[must_use]
    pub fn rejected(&self) -> usize {
        self.rejected.count(Class::Ring)
    }

    /// Number of rings and stores of a version that this build does not read.
    #[must_use]
    pub fn unsupported(&self) -> usize {
        self.rejected.count(Class::Unsupported)
    }

    /// Returns owner and description of the unsupported files that were found since the last call.
    pub fn take_new_unsupported(&mut self) -> Vec<(u32, String)> {
        std::mem::take(&mut self.new_unsupported)
    }

    /// Number of rejected files in the cache.
    #[must_use]
    pub fn cached_rejections(&self) -> usize {
        self.rejected.len()
    }

    /// Returns three numbers: open directories, directories left out because of `max_directories`, and directories or
    /// patterns that cannot be opened.
    #[must_use]
    pub fn directories(&self) -> (usize, usize, usize) {
        let all = self.directories.values();
        let open = all.filter(|watched| watched.fd.is_some()).count();
        (open, self.left_out, self.directories.len() - open)
    }

    /// Returns the number of directories that patterns match and that are left out because their file system may not
    /// answer.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served
    }

    /// Returns the descriptor of a directory; `None` if it is not scanned or cannot be opened.
    #[must_use]
    pub fn directory(&self, path: &Path) -> Option<&OwnedFd> {
        self.directories.get(path)?.fd.as_ref()
    }

    /// True if `max_directories` leaves out the directory of a file, as of the last pass.
    #[must_use]
    pub fn leaves_out(&self, path: &Path) -> bool {
        let is_scanned = |directory| self.directories.contains_key(directory);
        self.left_out > 0 && !path.parent().is_some_and(is_scanned)
    }

    /// Opens a file that was found and checks that it is a ring or a store. A rejection is cached.
    ///
    /// `found` gets a new stat(2), since the file may have been found before its agent set its size.
    ///
    /// # Errors
    /// The rejection of the file.
    pub fn open(&mut self, found: &mut Found) -> Result<Opened, Rejection> {
        let fd = self.directory(&found.directory.path);
        let fd = fd.ok_or(Rejection::Replaced)?;
        found.facts = file::facts(fd, &found.name).map_err(|_| Rejection::Replaced)?;
        let kinds = found.directory.kinds;
        let opened = open(fd, &found.name, &found.facts, kinds, &self.config);
        if let Err(rejection) = &opened {
            self.reject(&found.path(), &found.facts, rejection.clone());
        }
        opened
    }

    /// Makes the next [`Scanner::scan`] check a file, since its ring has changed.
    pub fn recheck(&mut self, path: &Path) {
        if let Some((watched, name)) = self.watched(path).zip(path.file_name()) {
            watched.to_recheck.push(name.to_owned());
        }
    }

    /// Caches the rejection of a file. Unless the reason is temporary, the file is not found again before it changes.
    pub fn reject(&mut self, path: &Path, facts: &FileFacts, rejection: Rejection) {
        let Some(watched) = self.watched(path) else {
            return;
        };
        if is_starting(facts, &rejection) {
            // Writing the header will not change the modification time of the directory.
            watched.modified = None;
        }
        let (number, listing) = (watched.number, watched.last_begun);
        let is_new = self
            .rejected
            .reject(number, path, facts, &rejection, listing);
        self.rejections += u64::from(is_new);
        if is_new && rejection.is_unsupported() {
            let text = format!("{}: not read: {rejection}", log::shown(path));
            self.new_unsupported.push((facts.uid, text));
        }
    }

    /// Returns the directory of a file.
    fn watched(&mut self, path: &Path) -> Option<&mut Watched> {
        self.directories.get_mut(path.parent()?)
    }

    /// Removes the rejection of a file that is attached now.
    pub fn remove_rejection(&mut self, directory: &Path, id: FileId) {
        if let Some(watched) = self.directories.get(directory) {
            self.rejected.remove((watched.number, id));
        }
    }

    /// Returns true if the last scan did all that was due.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Scans everything that is due until `end`; the next call goes on from there. Files in `attached` are skipped.
    pub fn scan(&mut self, now: Instant, end: Instant, attached: &HashSet<FileId>) -> Vec<Found> {
        let started = Instant::now();
        // The pass opens directories in the first half of the time; the second half is for listing them.
        let half = started + end.saturating_duration_since(started) / 2;
        self.is_done = self.run_pass(now, half);
        let mut files = Files {
            attached,
            rejected: &mut self.rejected,
            found: Vec::new(),
        };
        let last = std::mem::take(&mut self.last_scanned);
        'turns: for turn in [(Excluded(&last), Unbounded), (Unbounded, Included(&last))] {
            for (path, watched) in self.directories.range_mut::<PathBuf, _>(turn) {
                if !watched.scan(now, end, &mut files) {
                    (self.last_scanned, self.is_done) = (path.clone(), false);
                    break 'turns;
                }
            }
        }
        let mut found = files.found;
        // Of two agents of one name, that in the directory that is configured first keeps the plain name. Of several
        // stores that an agent has had, each counts before the next replaces it.
        found.sort_by_cached_key(|found| {
            let watched = self.directories.get(&found.directory.path);
            let age = found.directory.kinds.stores.then_some(found.facts.changed);
            (watched.map(|watched| watched.number), age)
        });
        self.remove_gone_rejections(end);
        found
    }

    /// Removes the rejections of files that are gone, until `end`. A pass starts it.
    fn remove_gone_rejections(&mut self, end: Instant) {
        while let Some(behind) = self.cleanup_cursor {
            let all = self.directories.values();
            let complete: HashMap<u64, u64> =
                all.map(|one| (one.number, one.last_complete)).collect();
            let is_gone = |directory, last_listing| {
                complete
                    .get(&directory)
                    .is_none_or(|&last| last_listing < last)
            };
            self.cleanup_cursor = self.rejected.remove_next(behind, is_gone);
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Opens all directories again until `end`, if a pass is due. Returns false if the pass goes on at the next scan.
    fn run_pass(&mut self, now: Instant, end: Instant) -> bool {
        if self.current_pass.is_none() && self.next_pass.is_some_and(|next| now < next) {
            return true;
        }
        let mut pass = self.current_pass.take().unwrap_or_else(|| {
            self.pass_number += 1;
            Expansion::new(self.config.clone())
        });
        while let Some(step) = pass.next() {
            if let Some((directory, owner)) = step {
                self.add_directory(directory, owner);
            }
            if Instant::now() >= end {
                self.current_pass = Some(pass);
                return false;
            }
        }
        self.note_served(&pass.served);
        self.end_pass(pass.found());
        self.next_pass = Some(now + PASS_INTERVAL);
        true
    }

    /// Opens a directory that the pass found, if there is room for it.
    fn add_directory(&mut self, directory: Directory, owner: Option<u32>) {
        let path = directory.path.clone();
        let known = self.directories.get(&path);
        // The directory may have another owner now, or be another directory of the same name.
        if known.is_none_or(|known| known.directory != directory || known.owner != owner) {
            self.directories.remove(&path);
            if !self.make_room(owner) {
                return;
            }
            self.last_number += 1;
            let mut watched = Watched::default();
            (watched.directory, watched.owner, watched.number) =
                (directory, owner, self.last_number);
            self.directories.insert(path.clone(), watched);
        }
        if let Some(watched) = self.directories.get_mut(&path) {
            watched.reopen();
            watched.pass = self.pass_number;
        }
    }

    /// Makes room for one more directory of this user, and removes another directory if necessary. Returns false if
    /// there is no room.
    fn make_room(&mut self, owner: Option<u32>) -> bool {
        let Some(owner) = owner else { return true };
        let most = self.config.max_directories;
        let owners = self.directories.values().filter_map(|known| known.owner);
        let counts: Counts = owners.collect();
        if counts.total() < most {
            return true;
        }
        let Some(greediest) = counts.giver(owner) else {
            return false;
        };
        let all = self.directories.values();
        let theirs = all.filter(|watched| watched.owner == Some(greediest));
        let Some(newest) = theirs.max_by_key(|watched| watched.number) else {
            return false;
        };
        let path = newest.directory.path.clone();
        let _span = log::span(Some(greediest));
        tracing::warn!(
            "{}: no longer scanned: max_directories ({most}) is reached and uid {greediest} has the most directories; raise it in nixl.conf",
            log::shown(&path),
        );
        self.directories.remove(&path).is_some()
    }

    /// Logs directories that are left out since their file system may not answer, if there was none before.
    fn note_served(&mut self, served: &[PathBuf]) {
        if let Some(first) = served.first().filter(|_| self.served == 0) {
            let _span = log::span(None);
            tracing::warn!(
                "patterns: {} matching directories are not scanned, such as {}: {}",
                served.len(),
                log::shown(first),
                open_error(Errno::EREMOTE)
            );
        }
        self.served = served.len();
    }

    /// Removes the directories that the pass did not find. `found` is the number of those that it did.
    fn end_pass(&mut self, found: usize) {
        self.directories
            .retain(|_, watched| watched.pass == self.pass_number);
        let left_out = found - self.directories.len();
        if left_out > 0 && self.left_out == 0 {
            let _span = log::span(None);
            tracing::warn!(
                "patterns: {left_out} matching directories are not scanned: max_directories ({}) is reached; raise it in nixl.conf",
                self.config.max_directories
            );
        }
        self.left_out = left_out;
        self.cleanup_cursor.get_or_insert_default();
    }
}

/// True if the rejected file has no size or header yet, and is so new that an agent may be about to write them.
#[must_use]
pub fn is_starting(facts: &FileFacts, rejection: &Rejection) -> bool {
    match rejection {
        // A blank file of any size: a later NIXL may have rings of other sizes.
        Rejection::Uninitialised { .. } | Rejection::Blank { .. } => {
            is_younger_than(facts.changed, STARTUP_TIME)
        }
        // NIXL sets the size right after it creates the file.
        Rejection::Size { size: 0 } => is_younger_than(facts.changed, 2 * FILE_TIME_GRANULARITY),
        _ => false,
    }
}
