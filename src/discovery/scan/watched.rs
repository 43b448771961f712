// SPDX-License-Identifier: GPL-2.0-or-later

//! Listings of one telemetry directory. A listing finds new and changed files, and rejected files with a temporary
//! reason.

use super::rejected::RejectedFiles;
use super::{Found, MAX_PAUSE, PASS_INTERVAL, PAUSE_FACTOR};
use crate::base::file::{
    self, FILE_TIME_GRANULARITY, FileFacts, FileId, LIST_FLAGS, is_younger_than,
};
use crate::base::text;
use crate::discovery::directory::{self, Directory};
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
use tracing::span::EnteredSpan;

/// Interval between listings of a directory with an unchanged modification time, for each name in it.
const RELIST_PER_NAME: Duration = Duration::from_micros(64);
/// Longest interval between listings of a directory.
const RELIST_MAX: Duration = Duration::from_secs(10);
/// Interval between full listings, for each name in the directory. A full listing checks unrelated files as well, since
/// an agent may have taken over such a file.
const FULL_LISTING_PER_NAME: Duration = Duration::from_millis(6);
/// Longest interval between full listings.
const FULL_LISTING_MAX: Duration = Duration::from_secs(600);
/// Names that are read from a listing at a time, and sorted.
const CHUNK: usize = 256;

/// A directory, and the state of its listings.
#[derive(Debug, Default)]
pub struct Watched {
    /// Path, label and kinds of files.
    pub directory: Directory,
    /// Its owner, if a pattern matched it.
    pub owner: Option<u32>,
    /// Number of the directory, in the order in which directories were added.
    pub number: u64,
    /// Number of the last pass that found it.
    pub pass: u64,
    /// `None` if it cannot be opened.
    pub fd: Option<OwnedFd>,
    /// Identity of the open directory.
    id: FileId,
    /// Error of the last attempt to open or list it.
    error: Option<Errno>,
    /// Modification time at the last listing, if every later change alters it. `None`: a listing is due.
    pub modified: Option<(i64, i64)>,
    /// End of the pause after the last listing.
    not_before: Option<Instant>,
    /// Time at which it is listed even if its modification time is unchanged.
    relist_at: Option<Instant>,
    /// Time from which the next listing is a full one.
    full_listing_at: Option<Instant>,
    listing: Option<Listing>,
    /// Number of the last listing that began.
    pub last_begun: u64,
    /// Number of the last listing that reached all files.
    pub last_complete: u64,
    /// Names of files to check at the next scan.
    pub to_recheck: Vec<OsString>,
}

/// An unfinished listing, which later ticks continue.
#[derive(Debug)]
struct Listing {
    names: OwningIter,
    /// True if it checks unrelated files as well.
    is_full: bool,
    /// Number of names that were read.
    count: u32,
    /// Time that earlier ticks spent on it.
    took: Duration,
}

/// Files that a listing skips, and those that it finds.
pub struct Files<'a> {
    /// Attached rings and stores.
    pub attached: &'a HashSet<FileId>,
    /// Cache of rejected files.
    pub rejected: &'a mut RejectedFiles,
    /// Files that were found, in the order of the listing.
    pub found: Vec<Found>,
}

impl Watched {
    /// Opens the directory again, since its path may lead to another directory now.
    pub fn reopen(&mut self) {
        let opened = self.directory.open();
        self.fd = opened.map_err(|errno| self.fail(errno)).ok();
        let id = self.stat().map(|facts| facts.id).unwrap_or_default();
        if id != self.id {
            self.id = id;
            (self.modified, self.listing) = (None, None);
        }
    }

    /// Lists the directory until `end` if a listing is due. Returns false if the listing goes on at the next scan.
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

    /// Begins a listing if one is due.
    fn begin_listing(&mut self, now: Instant) -> Option<Listing> {
        let modified = self.stat()?.modified;
        // `None` is less than any time.
        let now = Some(now);
        let is_due = self.relist_at <= now || self.modified != Some(modified);
        if self.not_before > now || !is_due {
            return None;
        }
        // The time is read before the listing, since files may appear during it. A time younger than a tick of the
        // kernel's clock is not kept: a file that appears after the listing may leave the directory with the same time.
        self.modified =
            Some(modified).filter(|&time| !is_younger_than(time, FILE_TIME_GRANULARITY));
        let opened = Dir::openat(self.fd.as_ref()?, ".", LIST_FLAGS, Mode::empty());
        let dir = opened.map_err(|errno| self.fail(errno)).ok()?;
        if self.error.take().is_some() {
            let _span = self.span();
            let path = text::printable(&self.directory.path);
            tracing::info!("{path}: can be scanned again");
        }
        self.last_begun += 1;
        Some(Listing {
            names: dir.into_iter(),
            is_full: self.full_listing_at <= now,
            count: 0,
            took: Duration::ZERO,
        })
    }

    /// Counts lines against the limits of the owner, if a pattern matched the directory.
    fn span(&self) -> Option<EnteredSpan> {
        self.owner.map(|uid| log::span(Some(uid)))
    }

    /// Logs why the directory cannot be opened or listed.
    fn fail(&mut self, errno: Errno) {
        if self.error != Some(errno) {
            let _span = self.span();
            let path = text::printable(&self.directory.path);
            let why = directory::open_error(errno);
            tracing::warn!(
                "{path}: cannot be scanned: {why}; no agent is found there until this is fixed"
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
                self.last_complete = self.last_begun;
                return false;
            }
            Ok(chunk) => chunk,
            Err(errno) => {
                // `last_complete` stays, so that the files that were not reached are not considered gone.
                self.fail(errno);
                return false;
            }
        };
        // Sorted, so that agents of one name get the same instance names at each start.
        chunk.sort_unstable_by(|one, other| one.file_name().cmp(other.file_name()));
        for entry in chunk {
            listing.count = listing.count.saturating_add(1);
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            // On overlayfs readdir(3) and stat(2) may return different inode numbers; the file is then checked by name
            // each time.
            let id = FileId {
                dev: self.id.dev,
                ino: entry.ino(),
            };
            let key = (self.number, id);
            let is_known = files.attached.contains(&id)
                || files.rejected.mark_listed_name(key, name, self.last_begun) && !listing.is_full;
            if !is_known && name != "." && name != ".." {
                self.check(name.to_owned(), files);
            }
        }
        true
    }

    /// Adds a file to those that were found, unless it is attached, rejected, NIXL's lock, or gone.
    fn check(&mut self, name: OsString, files: &mut Files) {
        let Some(Ok(facts)) = self.fd.as_ref().map(|fd| file::facts(fd, &name)) else {
            return;
        };
        let is_known = files.attached.contains(&facts.id)
            || files
                .rejected
                .mark_listed(self.number, &facts, self.last_begun);
        let is_lock = facts.is_file() && is_owner_lock(&name, facts.size);
        if !is_known && !is_lock {
            files.found.push(Found {
                directory: self.directory.clone(),
                name,
                facts,
            });
        }
    }

    fn stat(&self) -> Option<FileFacts> {
        let stat = fstat(self.fd.as_ref()?).ok()?;
        Some(FileFacts::new(&stat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DirectoryPattern};
    use crate::discovery::directory::Expansion;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown};
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    /// Moves a directory away and back. Returns the lines about it, each with the owner whose limits it is counted
    /// against.
    fn lines_of_a_return(path: &Path, pattern: DirectoryPattern) -> Vec<String> {
        let mut expansion = Expansion::new(Config {
            telemetry_dir: vec![pattern],
            ..Config::default()
        })
        .flatten();
        let (directory, owner) = expansion.next().expect("it is found");
        let mut watched = Watched {
            directory,
            owner,
            ..Watched::default()
        };
        let mut files = Files {
            attached: &HashSet::new(),
            rejected: &mut RejectedFiles::default(),
            found: Vec::new(),
        };
        let lines = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&lines);
        let add = move |event: &str| {
            seen.lock().expect("one thread").push(event.to_owned());
        };
        log::tests::with_events(add, || {
            let away = path.with_file_name(".away");
            fs::rename(path, &away).expect("moved");
            watched.reopen();
            fs::rename(&away, path).expect("moved");
            watched.reopen();
            let now = Instant::now();
            watched.scan(now, now + RELIST_MAX, &mut files);
        });
        std::mem::take(&mut lines.lock().expect("one thread"))
    }

    #[test]
    fn lines_about_a_matched_directory_are_its_owners() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pod\n\u{202e}");
        fs::create_dir(&path).expect("made");
        // Only root may.
        let _ = chown(&path, Some(1234), None);
        let uid = fs::metadata(&path).expect("there").uid();
        for (pattern, owner) in [(dir.path().join("*"), Some(uid)), (path.clone(), None)] {
            let lines = lines_of_a_return(&path, DirectoryPattern::of(pattern));
            let [gone, back] = &lines[..] else {
                panic!("{lines:?}");
            };
            let begin = log::tests::begin_of_event(owner);
            for (line, end) in [
                (gone, ": cannot be scanned: ENOENT"),
                (back, ": can be scanned again"),
            ] {
                let shown = format!(r#"/pod\n\u{{202e}}"{end}"#);
                assert!(line.starts_with(&begin) && line.contains(&shown), "{line}");
            }
        }
    }
}
