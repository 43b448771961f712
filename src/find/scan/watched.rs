//! One telemetry directory. A listing finds files that are new or changed, and rejected ones whose reason may have gone.

use super::refused::{RefusedFiles, Room};
use super::{Found, LONGEST_REST, PASS, REST};
use crate::base::file::{self, COARSE, FileFacts, FileId, LIST, is_younger_than};
use crate::error::Refusal;
use crate::find::directory::{self, Directory};
use crate::log;
use crate::store::is_owner_lock;
use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// While its modification time stands still, a directory is listed after so long for each of its names, ...
const SELDOM: Duration = Duration::from_micros(64);
/// ... but after this time at the latest.
const ANYWAY: Duration = Duration::from_secs(10);
/// A listing that checks the unrelated files as well, which an agent may have taken over in place, comes after so long for each
/// name, ...
const RARELY: Duration = Duration::from_millis(6);
/// ... but after this time at the latest.
const WHOLE: Duration = Duration::from_secs(600);
/// Resolution of modification times on a file system that keeps no more than whole seconds.
const SECONDS: Duration = Duration::from_secs(2);
/// Names that are taken from a listing at a time, in their order.
const CHUNK: usize = 256;

/// State of a directory that no pass has opened yet.
const NOT_OPENED: Errno = Errno::UnknownErrno;

/// A directory between two listings, or during one.
#[derive(Debug)]
pub struct Watched {
    /// Which one.
    pub directory: Directory,
    /// Its owner, if a pattern matched it.
    pub owner: Option<u32>,
    /// Number of the last pass that met it.
    pub met: u64,
    open: Result<OwnedFd, Errno>,
    /// Identity of the open directory.
    id: FileId,
    /// Modification time as of the last listing, if any later change shows in it.
    modified: Option<(i64, i64)>,
    /// Time before which it is not listed.
    not_before: Instant,
    /// Time at which it is listed even if its modification time stands still.
    relist: Instant,
    /// Time from which on the next listing checks the unrelated files as well.
    whole: Instant,
    /// Error of the last listing.
    unlisted: Option<Errno>,
    listing: Option<Listing>,
    /// Number of the last listing.
    number: u64,
    /// Names to check at the next scan, whatever is known of them.
    named: Vec<OsString>,
    /// Cache of the rejected files.
    pub refused: RefusedFiles,
}

/// A listing, which may go on in later ticks.
#[derive(Debug)]
struct Listing {
    /// `None` after the last name: the cache is then searched for files that are gone, ...
    names: Option<OwningIter>,
    /// ... behind this one.
    behind: FileId,
    /// True if it checks the unrelated files as well.
    is_whole: bool,
    /// Number of names until now.
    count: u32,
    /// Time that it took until now.
    took: Duration,
}

impl Watched {
    /// A directory that is not open yet.
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
            whole: now,
            unlisted: None,
            listing: None,
            number: 0,
            named: Vec::new(),
            refused: RefusedFiles::new(room),
        }
    }

    /// Opens the directory again, since its path may lead to another one now.
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

    /// The open directory.
    pub fn fd(&self) -> Option<&OwnedFd> {
        self.open.as_ref().ok()
    }

    /// Forgets what was rejected, and lists the directory at the next scan.
    pub fn check_all(&mut self) {
        self.refused.clear();
        self.modified = None;
    }

    /// Checks a file at the next scan.
    pub fn look_at(&mut self, name: &OsStr) {
        self.named.push(name.to_owned());
    }

    /// Caches and logs why a file is rejected. Returns true if the reason is new for this file.
    pub fn refuse(&mut self, name: &OsStr, facts: &FileFacts, refusal: &Refusal) -> bool {
        let path = self.directory.path.join(name);
        self.refused
            .refuse(&path, name, facts, refusal, self.number)
    }

    /// Lists the directory until `end` if a listing is due. Returns true unless the listing is to go on at the next scan.
    pub fn look(
        &mut self,
        now: Instant,
        end: Instant,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) -> bool {
        for name in std::mem::take(&mut self.named) {
            self.check(name, attached, found);
        }
        let going_on = self.listing.take();
        let Some(mut listing) = going_on.or_else(|| self.begin_listing(now)) else {
            return true;
        };
        let started = Instant::now();
        while self.list_chunk(&mut listing, attached, found) {
            if Instant::now() >= end {
                listing.took += started.elapsed();
                self.listing = Some(listing);
                return false;
            }
        }
        let took = listing.took + started.elapsed();
        self.not_before = now + (took * REST).min(LONGEST_REST);
        self.relist = now + (SELDOM * listing.count).clamp(PASS, ANYWAY);
        if listing.is_whole {
            self.whole = now + (RARELY * listing.count).min(WHOLE);
        }
        true
    }

    /// Begins to list the directory if it is time.
    fn begin_listing(&mut self, now: Instant) -> Option<Listing> {
        let modified = self.stat().ok()?.modified;
        // The header of an agent that is starting does not change the directory.
        let is_due =
            now >= self.relist || Some(modified) != self.modified || self.refused.has_starting();
        if now < self.not_before || !is_due {
            return None;
        }
        // Noted before the listing, since files may come during it. The kernel's clock for this is coarse: a time that is younger
        // than its ticks may stand for what comes after the listing as well.
        let tick = if modified.1 == 0 { SECONDS } else { COARSE };
        self.modified = Some(modified).filter(|&time| !is_younger_than(time, tick));
        match self.names() {
            Ok(names) => {
                self.unlisted = None;
                self.number += 1;
                Some(Listing {
                    names: Some(names),
                    behind: FileId::default(),
                    is_whole: now >= self.whole,
                    count: 0,
                    took: Duration::ZERO,
                })
            }
            Err(errno) => {
                self.cannot_list(errno);
                None
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
        let fd = self.open.as_ref().map_err(|&errno| errno)?;
        Ok(Dir::openat(fd, ".", LIST, Mode::empty())?.into_iter())
    }

    /// Checks the next names of a listing, or after the last one the next files of the cache. Returns false if there are no more.
    fn list_chunk(
        &mut self,
        listing: &mut Listing,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) -> bool {
        let Some(names) = &mut listing.names else {
            let last = self.refused.remove_unmet(self.number, listing.behind);
            listing.behind = last.unwrap_or_default();
            return last.is_some();
        };
        let mut chunk: Vec<(OsString, u64)> = Vec::with_capacity(CHUNK);
        for entry in names.take(CHUNK) {
            match entry {
                Ok(entry) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    chunk.push((name.to_owned(), entry.ino()));
                }
                Err(errno) => {
                    // What was not reached is not taken for gone.
                    self.cannot_list(errno);
                    return false;
                }
            }
        }
        if chunk.is_empty() {
            listing.names = None;
        }
        // So that each start goes the same way.
        chunk.sort_unstable();
        for (name, ino) in chunk {
            listing.count = listing.count.saturating_add(1);
            let id = FileId {
                dev: self.id.dev,
                ino,
            };
            // Where a directory tells other numbers than stat(2) (overlayfs), this only costs more.
            let is_known = attached.contains(&id)
                || self.refused.skips(id, &name, self.number) && !listing.is_whole;
            if !is_known && name != "." && name != ".." {
                self.check(name, attached, found);
            }
        }
        true
    }

    /// Adds a file to those that were found, unless it has an agent, is known as rejected, or is gone again.
    fn check(&mut self, name: OsString, attached: &HashSet<FileId>, found: &mut Vec<Found>) {
        let Some(Ok(facts)) = self.fd().map(|fd| file::facts(fd, &name)) else {
            return;
        };
        let is_known = attached.contains(&facts.id) || self.refused.knows(&facts, self.number);
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
