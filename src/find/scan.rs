//! Looks through the telemetry directories and says which rings are new and which files are refused.

use crate::base::file::{self, FILE_TIME_GRANULARITY, FileFacts, FileId, is_younger_than};
use crate::config::{Places, Terms};
use crate::error::Refusal;
use crate::find::directory::{Directory, Expansion, FileKinds};
use crate::find::discover;
use crate::log;
use crate::ring::candidate::Candidate;
use crate::store;
use rejected::{Class, Key, RejectedFiles};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watched::{Files, Watched};

mod rejected;
#[cfg(test)]
mod tests;
mod watched;

/// The directories are opened and listed this often, even if their modification times stand still: a file that was not finished,
/// or that an agent of the same name takes over, leaves them as they are.
const PASS_INTERVAL: Duration = Duration::from_secs(2);
/// Where a listing takes long, the directory is left alone this many times as long, but not longer than an agent may be late.
const PAUSE_FACTOR: u32 = 20;
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// How long a file whose header is empty may still belong to an agent that is starting.
const STARTUP_TIME: Duration = Duration::from_secs(10);

/// A file that is worth a look: it has no agent yet, and was not refused as it is now.
#[derive(Debug)]
pub struct Found {
    /// Where it was found.
    pub directory: Directory,
    /// The file's name, which is the agent's if it is a ring.
    pub name: OsString,
    /// What stat(2) says of it.
    pub facts: FileFacts,
    /// When it said so.
    pub when: Instant,
}

/// A file that is an agent's, open.
#[derive(Debug)]
pub enum Opened {
    /// A ring.
    Ring(Candidate),
    /// A store.
    Store(Box<store::Candidate>),
}

/// Opens a file in a directory and checks that it is one of what is looked for there.
///
/// # Errors
/// Why it is left alone.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    kinds: FileKinds,
    terms: &Terms,
) -> Result<Opened, Refusal> {
    let is_store = kinds.stores && (!kinds.rings || store::is_store_name(name));
    if is_store {
        let candidate = super::store::open(directory, name, facts, terms)?;
        Ok(Opened::Store(Box::new(candidate)))
    } else {
        discover::open(directory, name, facts, terms).map(Opened::Ring)
    }
}

/// The directories that are scanned, and the rejected files in them. Of the directories that patterns match there are at most
/// `max_directories`. Where there are more, a user takes the place of one of the user with most, provided that this user has at
/// least two more.
#[derive(Debug, Default)]
pub struct Scanner {
    places: Places,
    terms: Terms,
    directories: BTreeMap<PathBuf, Watched>,
    /// Number of directories that were met until now.
    last_number: u64,
    /// Number of directories that patterns match, by owner.
    counts: BTreeMap<u32, usize>,
    /// Directory that had the last turn.
    last_scanned: PathBuf,
    rejected: RejectedFiles,
    rejections: u64,
    /// Number of the last pass, which opens all directories again, since their paths may lead to other ones.
    pass_number: u64,
    current_pass: Option<Pass>,
    /// `None`: a pass is due.
    next_pass: Option<Instant>,
    /// Number of directories for which the last pass had no room.
    left_out: u32,
    /// The cache is searched for files that are gone, behind this one. `None` after the last.
    cleanup_cursor: Option<Key>,
    /// True if the last scan did all that was due.
    is_done: bool,
}

/// A pass, which may go on in later ticks.
#[derive(Debug)]
struct Pass {
    expansion: Expansion,
    left_out: u32,
}

impl Scanner {
    /// No directory is known before the first [`Scanner::scan`].
    #[must_use]
    pub fn new(places: Places, terms: Terms) -> Self {
        Self {
            places,
            terms,
            is_done: true,
            ..Self::default()
        }
    }

    /// Takes another configuration. The next scan begins a pass, and checks all files again.
    pub fn configure(&mut self, places: Places, terms: Terms) {
        (self.places, self.terms) = (places, terms);
        (self.current_pass, self.next_pass) = (None, None);
        self.rejected = RejectedFiles::default();
        let directories = self.directories.values_mut();
        directories.for_each(|watched| watched.modified = None);
    }

    /// Rejections since the start, each file and reason once.
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

    /// Number of rejected files in the cache.
    #[must_use]
    pub fn cached_rejections(&self) -> usize {
        self.rejected.len()
    }

    /// Number of directories that are open, of those for which there is no room, and of those, and patterns, that cannot be opened.
    #[must_use]
    pub fn directories(&self) -> (usize, u32, usize) {
        let all = self.directories.values();
        let open = all.filter(|watched| watched.fd.is_some()).count();
        (open, self.left_out, self.directories.len() - open)
    }

    /// One of the directories, open.
    #[must_use]
    pub fn directory(&self, path: &Path) -> Option<&OwnedFd> {
        self.directories.get(path)?.fd.as_ref()
    }

    /// Opens a file that was found and checks that it is a ring or a store. A rejection is cached. `found` is brought up to date
    /// if that was a while ago and its agent may have been about to give it its size.
    ///
    /// # Errors
    /// Why it is rejected.
    pub fn open(&mut self, found: &mut Found) -> Result<Opened, Refusal> {
        let fd = self.directory(&found.directory.path);
        let fd = fd.ok_or(Refusal::Replaced)?;
        let ago = found.when.elapsed();
        if ago >= FILE_TIME_GRANULARITY
            && is_younger_than(found.facts.changed, FILE_TIME_GRANULARITY + ago)
        {
            found.facts = file::facts(fd, &found.name).map_err(|_| Refusal::Replaced)?;
        }
        let kinds = found.directory.kinds;
        let opened = open(fd, &found.name, &found.facts, kinds, &self.terms);
        if let Err(refusal) = &opened {
            let path = &found.directory.path;
            self.reject(path, &found.name, &found.facts, refusal.clone());
        }
        opened
    }

    /// Checks a file at the next [`Scanner::scan`]: its ring is not what it was.
    pub fn recheck(&mut self, directory: &Path, name: &OsStr) {
        if let Some(watched) = self.directories.get_mut(directory) {
            watched.to_recheck.push(name.to_owned());
        }
    }

    /// Caches why a file has no agent. Unless the reason may pass, it is not found again before it changes.
    pub fn reject(&mut self, directory: &Path, name: &OsStr, facts: &FileFacts, refusal: Refusal) {
        let Some(watched) = self.directories.get_mut(directory) else {
            return;
        };
        if is_starting(facts, &refusal) {
            // Its header does not change the directory when it comes.
            watched.modified = None;
        }
        let (number, path) = (watched.number, directory.join(name));
        let is_new = self
            .rejected
            .reject(number, &path, facts, &refusal, watched.begun);
        self.rejections += u64::from(is_new);
    }

    /// Removes a file from the cache: it has an agent now.
    pub fn remove_rejection(&mut self, directory: &Path, id: FileId) {
        if let Some(watched) = self.directories.get(directory) {
            self.rejected.remove((watched.number, id));
        }
    }

    /// True if a file in this directory was rejected for lack of room, and is still there.
    #[must_use]
    pub fn is_left_out(&self, directory: &Path, id: FileId) -> bool {
        self.directories.get(directory).is_some_and(|watched| {
            let name = self.rejected.left_out((watched.number, id));
            let is_there = |fd, name| file::facts(fd, name).is_ok_and(|facts| facts.id == id);
            let fd = watched.fd.as_ref();
            name.is_some_and(|name| fd.is_none_or(|fd| is_there(fd, name)))
        })
    }

    /// Returns true if the last scan did all that was due.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Scans what is due until `end`. The next call goes on from there. `attached` are the files that have an agent.
    pub fn scan(&mut self, now: Instant, end: Instant, attached: &HashSet<FileId>) -> Vec<Found> {
        let started = Instant::now();
        // The other half is for what is in the directories.
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
        // Of two agents of one name, that in the directory that is configured first keeps the plain name. Of several stores that an
        // agent has had, each counts before the next takes its place.
        found.sort_by_cached_key(|found| {
            let watched = self.directories.get(&found.directory.path);
            let age = found.directory.kinds.stores.then_some(found.facts.changed);
            (watched.map(|watched| watched.number), age)
        });
        self.remove_gone_rejections(end);
        found
    }

    /// After a pass, removes the rejected files that are gone from the cache, until `end`.
    fn remove_gone_rejections(&mut self, end: Instant) {
        while let Some(behind) = self.cleanup_cursor {
            let all = self.directories.values();
            let complete: HashMap<u64, u64> = all.map(|one| (one.number, one.complete)).collect();
            let is_gone = |directory, met| complete.get(&directory).is_none_or(|&last| met < last);
            self.cleanup_cursor = self.rejected.remove_next(behind, is_gone);
            if Instant::now() >= end {
                return;
            }
        }
    }

    /// Opens all directories again until `end`, if a pass is due. Returns true unless the pass is to go on at the next scan.
    fn run_pass(&mut self, now: Instant, end: Instant) -> bool {
        if self.current_pass.is_none() && self.next_pass.is_some_and(|next| now < next) {
            return true;
        }
        let mut pass = self.current_pass.take().unwrap_or_else(|| {
            self.pass_number += 1;
            Pass {
                expansion: Expansion::new(self.places.clone()),
                left_out: 0,
            }
        });
        while let Some(step) = pass.expansion.next() {
            if let Some((directory, owner)) = step {
                pass.left_out += u32::from(!self.add_directory(directory, owner));
            }
            if Instant::now() >= end {
                self.current_pass = Some(pass);
                return false;
            }
        }
        self.end_pass(pass.left_out);
        self.next_pass = Some(now + PASS_INTERVAL);
        true
    }

    /// Opens a directory. Returns false if there is no room for it.
    fn add_directory(&mut self, directory: Directory, owner: Option<u32>) -> bool {
        let path = directory.path.clone();
        let known = self.directories.get(&path);
        // It may have been given to another user, or be another directory of the same name.
        if known.is_none_or(|known| known.directory != directory || known.owner != owner) {
            self.remove(&path);
            if !self.make_room(owner) {
                return false;
            }
            if let Some(owner) = owner {
                *self.counts.entry(owner).or_default() += 1;
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
        true
    }

    /// Returns true if there is room for one more directory of this user, after one was removed if need be.
    fn make_room(&mut self, owner: Option<u32>) -> bool {
        let Some(owner) = owner else { return true };
        let most = self.places.most;
        if self.counts.values().sum::<usize>() < most {
            return true;
        }
        let has = self.counts.get(&owner).copied().unwrap_or(0);
        let greediest = self.counts.iter().max_by_key(|(_, count)| **count);
        let Some((&greediest, _)) = greediest.filter(|(_, count)| **count >= has + 2) else {
            return false;
        };
        let all = self.directories.values();
        let newest = all
            .filter(|watched| watched.owner == Some(greediest))
            .max_by_key(|watched| watched.number);
        let Some(path) = newest.map(|newest| newest.directory.path.clone()) else {
            return false;
        };
        let _about = log::about(Some(greediest));
        tracing::warn!(
            "{}: is looked through no more, since another user needs its place: uid {greediest} has most of the {most} that patterns may match; raise max_directories",
            log::shown(&path),
        );
        self.remove(&path);
        true
    }

    fn remove(&mut self, path: &Path) {
        let gone = self.directories.remove(path);
        let owner = gone.and_then(|gone| gone.owner);
        if let Some(count) = owner.and_then(|owner| self.counts.get_mut(&owner)) {
            *count -= 1;
        }
        self.counts.retain(|_, count| *count > 0);
    }

    /// Removes the directories that the pass did not meet.
    fn end_pass(&mut self, left_out: u32) {
        if left_out > 0 && self.left_out == 0 {
            let _about = log::about(None);
            tracing::warn!(
                "patterns match {left_out} directories more than are looked through; raise max_directories, which is {}",
                self.places.most
            );
        }
        self.left_out = left_out;
        self.cleanup_cursor.get_or_insert_default();
        let unmet = self.directories.values();
        let unmet = unmet.filter(|watched| watched.pass != self.pass_number);
        let gone: Vec<PathBuf> = unmet
            .map(|watched| watched.directory.path.clone())
            .collect();
        gone.iter().for_each(|path| self.remove(path));
    }
}

/// Whether a refusal is for a file without its size, or without a header, that an agent may be about to write.
#[must_use]
pub fn is_starting(facts: &FileFacts, refusal: &Refusal) -> bool {
    match refusal {
        // Also of a size that no ring of today has: a later NIXL may be starting.
        Refusal::Uninitialised { .. } | Refusal::Blank { .. } => {
            is_younger_than(facts.changed, STARTUP_TIME)
        }
        // It gets its size right after it was made.
        Refusal::Size { size: 0 } => is_younger_than(facts.changed, 2 * FILE_TIME_GRANULARITY),
        _ => false,
    }
}
