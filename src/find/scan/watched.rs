//! One telemetry directory: its names are listed when it changed, a part at a time, and no file in it is looked at twice for
//! nothing.

use super::refused::{RefusedFiles, Room};
use super::{Found, LONGEST_REST, PASS, REST};
use crate::base::file::{self, COARSE, FileFacts, FileId, is_younger_than};
use crate::error::Refusal;
use crate::find::directory::{self, Directory};
use crate::log;
use crate::store::is_owner_lock;
use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// A directory is listed this often even if its modification time stands still, in case that does not tell.
const ANYWAY: Duration = Duration::from_secs(10);
/// What a modification time may stand for on a file system that keeps no more than whole seconds.
const SECONDS: Duration = Duration::from_secs(2);
/// Names that are taken from a listing at a time, in their order.
const CHUNK: usize = 256;
/// Refused files that are looked at again in each pass although their directory stands still, or their names and numbers are
/// known: an agent may have taken one over in place. In a directory with more of them each has its turn, ...
const PATROL: usize = 64;
/// ... within so many passes: half an hour.
const ROUND: usize = 1000;

/// State of a directory that no pass has opened yet.
const NOT_OPENED: Errno = Errno::UnknownErrno;

/// A directory between two looks, or in the midst of one.
#[derive(Debug)]
pub struct Watched {
    /// Which one.
    pub directory: Directory,
    /// Whose it is, if a pattern matched it.
    pub owner: Option<u32>,
    /// Number of the pass that met it last.
    pub met: u64,
    open: Result<OwnedFd, Errno>,
    /// Which file the open directory is.
    id: FileId,
    modified: Option<(i64, i64)>,
    /// When it may be listed again.
    not_before: Instant,
    /// When it is listed in any case.
    relist: Instant,
    /// Why its names could not be had the last time.
    unlisted: Option<Errno>,
    listing: Option<Listing>,
    /// Whether a file could not be looked at, though it is there.
    missed: bool,
    /// Number of the last listing.
    look: u64,
    /// What is to be looked at again before the next pass.
    again: Vec<FileId>,
    /// Files that are to be looked at again although they were not refused.
    named: Vec<OsString>,
    patrolled: FileId,
    /// The files that were refused.
    pub refused: RefusedFiles,
}

/// A look through all names that goes on in later ticks.
#[derive(Debug)]
struct Listing {
    names: OwningIter,
    /// What it took until now.
    took: Duration,
}

impl Watched {
    /// Not looked at yet.
    pub fn new(directory: Directory, owner: Option<u32>, room: Room, now: Instant) -> Self {
        Self {
            directory,
            owner,
            met: 0,
            open: Err(NOT_OPENED),
            id: FileId::default(),
            modified: None,
            not_before: now,
            relist: now,
            unlisted: None,
            listing: None,
            missed: false,
            look: 0,
            again: Vec::new(),
            named: Vec::new(),
            patrolled: FileId::default(),
            refused: RefusedFiles::new(room),
        }
    }

    /// Opens the directory afresh, since another may have taken its name.
    pub fn reopen(&mut self) {
        let open = self.directory.open();
        let _about = self.directory.is_matched().then(|| log::about(None));
        let path = self.directory.path.display();
        match (&open, &self.open) {
            (Err(errno), before) if before.as_ref().err() != Some(errno) => {
                let why = directory::why_not(*errno);
                tracing::warn!(
                    "{path}: cannot be looked through: {why}; no agent is found there until it can"
                );
            }
            (Ok(_), Err(before)) if *before != NOT_OPENED => {
                tracing::info!("{path}: can be looked through again");
            }
            _ => {}
        }
        self.open = open;
        let id = self.stat().map(|facts| facts.id).unwrap_or_default();
        if id != self.id {
            self.id = id;
            (self.modified, self.listing) = (None, None);
        }
    }

    /// Files that are still to be looked at again.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.again.len()
    }

    /// The open directory.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.open.as_ref().ok()
    }

    /// Lists it at a time, if it is not listed before.
    pub fn list_at(&mut self, when: Instant) {
        self.relist = self.relist.min(when);
    }

    /// Looks at a file at the next look.
    pub fn look_at(&mut self, name: &OsStr) {
        self.named.push(name.to_owned());
    }

    /// Looks again at what may have changed unseen: the next pass has begun.
    pub fn begin_pass(&mut self) {
        if !self.again.is_empty() {
            // Those of the pass before have their turn first.
            return;
        }
        self.again = self.refused.passing();
        let files = self.refused.len();
        for _ in 0..files.min(PATROL.max(files / ROUND)) {
            if let Some((id, _)) = self.refused.next(self.patrolled) {
                self.patrolled = id;
                self.again.push(id);
            }
        }
    }

    /// Notes why a file is left alone; whether that is new.
    pub fn refuse(&mut self, name: &OsStr, facts: &FileFacts, refusal: Refusal) -> bool {
        let path = self.directory.path.join(name);
        self.refused.refuse(&path, name, facts, refusal, self.look)
    }

    /// Looks through what is due until `end`, and goes on from there the next time. Whether all was done.
    pub fn look(
        &mut self,
        now: Instant,
        end: Instant,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) -> bool {
        // Once they have all had their turn: there may be more of them than there is time for.
        if self.again.is_empty() {
            self.again.extend(self.refused.starting());
        }
        let first = found.len();
        let done = self.look_on(now, end, attached, found);
        // Both in its turn and in the listing.
        let mut met = HashSet::new();
        let new = found.split_off(first).into_iter();
        found.extend(new.filter(|new| met.insert(new.facts.id)));
        done
    }

    fn look_on(
        &mut self,
        now: Instant,
        end: Instant,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) -> bool {
        for name in std::mem::take(&mut self.named) {
            let facts = self.fd().map(|fd| file::facts(fd, &name));
            if let Some(Ok(facts)) = facts {
                self.meet(name, facts, attached, found);
            }
        }
        // No number of them takes the time that is for the names.
        let started = Instant::now();
        let half = started + end.saturating_duration_since(started) / 2;
        while let Some(id) = self.again.pop() {
            self.look_again(id, attached, found);
            if Instant::now() >= half {
                break;
            }
        }
        let seen = self.again.is_empty();
        if self.listing.is_none() && !self.begin_listing(now) {
            return self.sweep(end) && seen;
        }
        let started = Instant::now();
        let done = loop {
            if !self.list_chunk(attached, found) {
                break true;
            }
            if Instant::now() >= end {
                break false;
            }
        };
        let swept = self.sweep(end);
        let Some(listing) = &mut self.listing else {
            return swept && seen;
        };
        listing.took += started.elapsed();
        if done {
            self.not_before = now + (listing.took * REST).min(LONGEST_REST);
            self.listing = None;
            if std::mem::take(&mut self.missed) {
                self.list_at(now + PASS);
            }
        }
        done && swept && seen
    }

    /// Forgets files that are gone; whether none is left of them.
    fn sweep(&mut self, end: Instant) -> bool {
        while !self.refused.sweep() {
            if Instant::now() >= end {
                return false;
            }
        }
        true
    }

    fn look_again(&mut self, id: FileId, attached: &HashSet<FileId>, found: &mut Vec<Found>) {
        let (Ok(fd), Some(name)) = (&self.open, self.refused.name(id)) else {
            return;
        };
        let name = name.to_owned();
        match file::facts(fd, &name) {
            Ok(facts) => {
                if facts.id != id {
                    self.refused.remove(id);
                }
                self.meet(name, facts, attached, found);
            }
            Err(Errno::ENOENT) => {
                self.refused.remove(id);
            }
            // It has its turn again.
            Err(_) => {}
        }
    }

    /// Starts to list the directory if it is time.
    fn begin_listing(&mut self, now: Instant) -> bool {
        let Ok(facts) = self.stat() else { return false };
        if now < self.not_before || !(now >= self.relist || Some(facts.modified) != self.modified) {
            return false;
        }
        // Noted before the look, since more may come during it. The kernel's clock for this is coarse: a time that is younger
        // than its ticks may stand for what comes after the look as well.
        let tick = if facts.modified.1 == 0 {
            SECONDS
        } else {
            COARSE
        };
        self.modified = Some(facts.modified).filter(|&time| !is_younger_than(time, tick));
        self.relist = now + ANYWAY;
        match self.names() {
            Ok(names) => {
                self.unlisted = None;
                self.look += 1;
                self.listing = Some(Listing {
                    names,
                    took: Duration::ZERO,
                });
                true
            }
            Err(errno) => {
                self.cannot_list(errno);
                false
            }
        }
    }

    fn cannot_list(&mut self, errno: Errno) {
        if self.unlisted != Some(errno) {
            let _about = self.directory.is_matched().then(|| log::about(None));
            tracing::warn!(
                "{}: cannot be looked through: {errno}; no agent is found there until it can",
                self.directory.path.display()
            );
        }
        (self.unlisted, self.modified) = (Some(errno), None);
    }

    fn names(&self) -> nix::Result<OwningIter> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let fd = self.open.as_ref().map_err(|&errno| errno)?;
        Ok(Dir::openat(fd, ".", flags, Mode::empty())?.into_iter())
    }

    /// The next names of the listing; `false`: that was the last of them.
    fn list_chunk(&mut self, attached: &HashSet<FileId>, found: &mut Vec<Found>) -> bool {
        let mut names: Vec<(OsString, u64)> = Vec::with_capacity(CHUNK);
        let mut last = false;
        while let (Some(listing), true) = (&mut self.listing, names.len() < CHUNK) {
            match listing.names.next() {
                Some(Ok(entry)) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if name != "." && name != ".." {
                        names.push((name.to_owned(), entry.ino()));
                    }
                }
                Some(Err(errno)) => {
                    // What was not reached is not taken for gone.
                    self.cannot_list(errno);
                    return false;
                }
                None => {
                    last = true;
                    break;
                }
            }
        }
        // So that each start goes the same way.
        names.sort_unstable();
        for (name, ino) in names {
            let id = FileId {
                dev: self.id.dev,
                ino,
            };
            // Where a directory tells other numbers than stat(2) (overlayfs), this only costs more.
            if attached.contains(&id) || self.refused.skips(id, &name, self.look) {
                continue;
            }
            let Ok(fd) = &self.open else { return false };
            match file::facts(fd, &name) {
                Ok(facts) => self.meet(name, facts, attached, found),
                // Gone again since.
                Err(Errno::ENOENT) => {}
                Err(_) => self.missed = true,
            }
        }
        if last {
            self.refused.keep_met(self.look);
        }
        !last
    }

    fn meet(
        &mut self,
        name: OsString,
        facts: FileFacts,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) {
        let is_known = attached.contains(&facts.id) || self.refused.knows(&facts, self.look);
        let is_lock = facts.is_file() && is_owner_lock(&name, facts.size);
        if !is_known && !is_lock {
            found.push(Found {
                directory: self.directory.clone(),
                name,
                facts,
                when: Instant::now(),
            });
        }
    }

    fn stat(&self) -> nix::Result<FileFacts> {
        let fd = self.open.as_ref().map_err(|&errno| errno)?;
        Ok(FileFacts::new(&fstat(fd)?))
    }
}
