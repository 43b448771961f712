//! One telemetry directory. A listing finds files that are new or changed, and rejected ones whose reason may have gone.

use super::rejected::RejectedFiles;
use super::{Found, MAX_PAUSE, PASS_INTERVAL, PAUSE_FACTOR};
use crate::base::file::{
    self, FILE_TIME_GRANULARITY, FileFacts, FileId, LIST_FLAGS, is_younger_than,
};
use crate::find::directory::{self, Directory};
use crate::log;
use crate::store::is_owner_lock;
use nix::dir::{Dir, Entry, OwningIter};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// While its modification time stands still, a directory is listed after so long for each of its names, ...
const RELIST_PER_NAME: Duration = Duration::from_micros(64);
/// ... but after this time at the latest.
const RELIST_MAX: Duration = Duration::from_secs(10);
/// A listing that checks the unrelated files as well, which an agent may have taken over in place, comes after so long for each
/// name, ...
const FULL_LISTING_PER_NAME: Duration = Duration::from_millis(6);
/// ... but after this time at the latest.
const FULL_LISTING_MAX: Duration = Duration::from_secs(600);
/// Names that are taken from a listing at a time, in their order.
const CHUNK: usize = 256;

/// A directory between two listings, or during one.
#[derive(Debug, Default)]
pub struct Watched {
    /// Which one.
    pub directory: Directory,
    /// Its owner, if a pattern matched it.
    pub owner: Option<u32>,
    /// Its number, in the order in which directories are met.
    pub number: u64,
    /// Number of the last pass that met it.
    pub pass: u64,
    /// `None` if it cannot be opened.
    pub fd: Option<OwnedFd>,
    /// Identity of the open directory.
    id: FileId,
    /// Error of the last try to open or list it.
    error: Option<Errno>,
    /// Modification time as of the last listing, if any later change shows in it. `None`: it is to be listed.
    pub modified: Option<(i64, i64)>,
    /// Time before which it is not listed.
    not_before: Option<Instant>,
    /// Time at which it is listed even if its modification time stands still.
    relist_at: Option<Instant>,
    /// Time from which on the next listing checks the unrelated files as well.
    full_listing_at: Option<Instant>,
    listing: Option<Listing>,
    /// Number of the listing that began last.
    pub begun: u64,
    /// Number of the last listing that met all files.
    pub complete: u64,
    /// Names to check at the next scan, whatever is known of them.
    pub to_recheck: Vec<OsString>,
}

/// A listing, which may go on in later ticks.
#[derive(Debug)]
struct Listing {
    names: OwningIter,
    /// True if it checks the unrelated files as well.
    is_full: bool,
    /// Number of names until now.
    count: u32,
    /// Time that it took until now.
    took: Duration,
}

/// What a listing fills in and compares with.
pub struct Files<'a> {
    /// Rings and stores that have an agent.
    pub attached: &'a HashSet<FileId>,
    /// Cache of rejected files.
    pub rejected: &'a mut RejectedFiles,
    /// All other files.
    pub found: Vec<Found>,
}

impl Watched {
    /// Opens the directory again, since its path may lead to another one now.
    pub fn reopen(&mut self) {
        self.fd = match self.directory.open() {
            Ok(fd) => Some(fd),
            Err(errno) => {
                self.fail(errno);
                None
            }
        };
        let id = self.stat().map(|facts| facts.id).unwrap_or_default();
        if id != self.id {
            self.id = id;
            (self.modified, self.listing) = (None, None);
        }
    }

    /// Lists the directory until `end` if a listing is due. Returns true unless the listing is to go on at the next scan.
    pub fn scan(&mut self, now: Instant, end: Instant, files: &mut Files) -> bool {
        for name in std::mem::take(&mut self.to_recheck) {
            self.check(name, files);
        }
        let going_on = self.listing.take();
        let Some(mut listing) = going_on.or_else(|| self.begin_listing(now)) else {
            return true;
        };
        let started = Instant::now();
        while self.list_chunk(&mut listing, files) {
            if Instant::now() >= end {
                listing.took += started.elapsed();
                self.listing = Some(listing);
                return false;
            }
        }
        let took = listing.took + started.elapsed();
        self.not_before = Some(now + (took * PAUSE_FACTOR).min(MAX_PAUSE));
        self.relist_at =
            Some(now + (RELIST_PER_NAME * listing.count).clamp(PASS_INTERVAL, RELIST_MAX));
        if listing.is_full {
            self.full_listing_at =
                Some(now + (FULL_LISTING_PER_NAME * listing.count).min(FULL_LISTING_MAX));
        }
        true
    }

    /// Begins to list the directory if it is time.
    fn begin_listing(&mut self, now: Instant) -> Option<Listing> {
        let modified = self.stat()?.modified;
        let is_past = |time: Option<Instant>| time.is_none_or(|time| now >= time);
        let is_due = is_past(self.relist_at) || Some(modified) != self.modified;
        if !is_past(self.not_before) || !is_due {
            return None;
        }
        // Noted before the listing, since files may come during it. The kernel's clock for this is coarse: a time that is younger
        // than its ticks may stand for what comes after the listing as well.
        self.modified =
            Some(modified).filter(|&time| !is_younger_than(time, FILE_TIME_GRANULARITY));
        match Dir::openat(self.fd.as_ref()?, ".", LIST_FLAGS, Mode::empty()) {
            Ok(dir) => {
                if self.error.take().is_some() {
                    let path = self.directory.path.display();
                    tracing::info!("{path}: can be looked through again");
                }
                self.begun += 1;
                Some(Listing {
                    names: dir.into_iter(),
                    is_full: is_past(self.full_listing_at),
                    count: 0,
                    took: Duration::ZERO,
                })
            }
            Err(errno) => {
                self.fail(errno);
                None
            }
        }
    }

    /// Logs why the directory cannot be opened or listed.
    fn fail(&mut self, errno: Errno) {
        if self.error != Some(errno) {
            let _about = self.directory.is_matched().then(|| log::about(None));
            let (path, why) = (self.directory.path.display(), directory::open_error(errno));
            tracing::warn!(
                "{path}: cannot be looked through: {why}; no agent is found there until it can"
            );
        }
        (self.error, self.modified) = (Some(errno), None);
    }

    /// Checks the next names of a listing. Returns false if there are no more.
    fn list_chunk(&mut self, listing: &mut Listing, files: &mut Files) -> bool {
        let chunk = listing.names.by_ref().take(CHUNK);
        let chunk: nix::Result<Vec<Entry>> = chunk.collect();
        let mut chunk = match chunk {
            Ok(chunk) if chunk.is_empty() => {
                self.complete = self.begun;
                return false;
            }
            Ok(chunk) => chunk,
            Err(errno) => {
                // What was not reached is not taken for gone.
                self.fail(errno);
                return false;
            }
        };
        // So that each start goes the same way.
        chunk.sort_unstable_by(|one, other| one.file_name().cmp(other.file_name()));
        for entry in chunk {
            listing.count = listing.count.saturating_add(1);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            // Where a directory tells other numbers than stat(2) (overlayfs), this only costs more.
            let id = FileId {
                dev: self.id.dev,
                ino: entry.ino(),
            };
            let key = (self.number, id);
            let is_known = files.attached.contains(&id)
                || files.rejected.is_known_unrelated(key, name, self.begun) && !listing.is_full;
            if !is_known && name != "." && name != ".." {
                self.check(name.to_owned(), files);
            }
        }
        true
    }

    /// Adds a file to those that were found, unless it has an agent, is known as rejected, or is gone again.
    fn check(&mut self, name: OsString, files: &mut Files) {
        let Some(Ok(facts)) = self.fd.as_ref().map(|fd| file::facts(fd, &name)) else {
            return;
        };
        let is_known = files.attached.contains(&facts.id)
            || files.rejected.is_known(self.number, &facts, self.begun);
        let is_lock = facts.is_file() && is_owner_lock(&name, facts.size);
        if !is_known && !is_lock {
            files.found.push(Found {
                directory: self.directory.clone(),
                name,
                facts,
                when: Instant::now(),
            });
        }
    }

    fn stat(&self) -> Option<FileFacts> {
        let stat = fstat(self.fd.as_ref()?).ok()?;
        Some(FileFacts::new(&stat))
    }
}
