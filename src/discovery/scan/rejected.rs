// SPDX-License-Identifier: GPL-2.0-or-later

//! Cache of the rejected files in all directories, so that an unrelated file is checked once.

use super::is_starting;
use crate::base::file::{FILE_TIME_GRANULARITY, FileFacts, FileId, is_younger_than};
use crate::error::Rejection;
use crate::log;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::{Discriminant, discriminant};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;

/// Most entries: about 40 MB. Files beyond the limit are checked at each listing.
const MAX_FILES: usize = 1 << 17;
/// Entries that are reserved for files that are rings or may become rings.
const RESERVED_FOR_RINGS: usize = 1 << 14;
/// Entries that [`RejectedFiles::remove_next`] tests at a time.
const CHUNK: usize = 1024;

/// Number of a directory, and the identity of a file in it.
pub type Key = (u64, FileId);

/// A rejected file, in its state at the check.
#[derive(Debug)]
struct Rejected {
    name: OsString,
    size: u64,
    changed: (i64, i64),
    class: Class,
    /// True if another check of the unchanged file may come to another result.
    is_temporary: bool,
    /// Number of the last listing that found the file.
    last_listing: u64,
    /// Reasons that were counted and logged. Numbers in them are ignored, since the owner could change those without
    /// end.
    logged: Vec<Discriminant<Rejection>>,
}

/// Kind of a rejected file. The files of each kind are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Not a ring. Only a full listing checks it again while its name leads to the same inode.
    Unrelated,
    /// File of an agent that may be starting, or of an agent that has exited.
    Transient,
    /// A ring or store of a version that this build does not read.
    Unsupported,
    /// A ring or store of a version that this build reads.
    Ring,
}

impl Class {
    fn new(rejection: &Rejection, is_starting: bool) -> Self {
        match rejection {
            _ if is_starting => Class::Transient,
            Rejection::Exited => Class::Transient,
            rejection if rejection.is_unsupported() => Class::Unsupported,
            rejection if rejection.may_be_telemetry() => Class::Ring,
            _ => Class::Unrelated,
        }
    }
}

/// Cache of rejected files.
#[derive(Debug, Default)]
pub struct RejectedFiles {
    files: BTreeMap<Key, Rejected>,
    /// Number of files by [`Class`].
    counts: [usize; 4],
}

impl RejectedFiles {
    /// Caches and logs a rejection. `listing` is the number of the listing that found the file. Returns true if the
    /// reason is new for this file.
    pub fn reject(
        &mut self,
        directory: u64,
        path: &Path,
        facts: &FileFacts,
        rejection: &Rejection,
        listing: u64,
    ) -> bool {
        let starting = is_starting(facts, rejection);
        let key = (directory, facts.id);
        let mut logged = self.remove(key).unwrap_or_default();
        let most = match starting || rejection.may_be_telemetry() {
            true => MAX_FILES,
            false => MAX_FILES - RESERVED_FOR_RINGS,
        };
        let shown = || log::shown(path);
        if self.files.len() >= most {
            tracing::debug!(
                "{}: rejected, and not cached since the cache is full: {rejection}",
                shown()
            );
            return false;
        }
        // An empty header is normal while the agent is starting, so it is not logged.
        let new = !starting && !logged.contains(&discriminant(rejection));
        if new {
            logged.push(discriminant(rejection));
            if rejection.may_be_telemetry() {
                tracing::warn!("{}: rejected: {rejection}", shown());
            } else {
                tracing::debug!("{}: rejected: {rejection}", shown());
            }
        }
        let class = Class::new(rejection, starting);
        // A change in the same tick of the file time clock leaves the change time as it is. The factor 2: the check
        // itself may come up to one granularity after the stat(2).
        let is_young = is_younger_than(facts.changed, 2 * FILE_TIME_GRANULARITY);
        let rejected = Rejected {
            name: path.file_name().unwrap_or_default().to_owned(),
            size: facts.size,
            changed: facts.changed,
            class,
            is_temporary: starting || is_young || rejection.is_temporary(),
            last_listing: listing,
            logged,
        };
        self.counts[class as usize] += 1;
        self.files.insert(key, rejected);
        new
    }

    /// Marks a file of this name as met by a listing. Returns true if it is known as unrelated, so that it needs no
    /// stat(2), although the name may have been given to a new file with the same inode number.
    pub fn mark_listed_name(&mut self, key: Key, name: &OsStr, listing: u64) -> bool {
        match self.files.get_mut(&key) {
            Some(rejected) if rejected.name == name => {
                rejected.last_listing = listing;
                !rejected.is_temporary && rejected.class == Class::Unrelated
            }
            _ => false,
        }
    }

    /// Marks a file as found by a listing. Returns true if it is unchanged since its rejection and the reason is not
    /// temporary.
    pub fn mark_listed(&mut self, directory: u64, facts: &FileFacts, listing: u64) -> bool {
        let rejected = self.files.get_mut(&(directory, facts.id));
        rejected.is_some_and(|rejected| {
            rejected.last_listing = listing;
            let unchanged = (rejected.size, rejected.changed) == (facts.size, facts.changed);
            unchanged && !rejected.is_temporary
        })
    }

    /// Removes a file. Returns the reasons that were logged; `None` if it was not cached.
    pub fn remove(&mut self, key: Key) -> Option<Vec<Discriminant<Rejection>>> {
        let removed = self.files.remove(&key)?;
        self.counts[removed.class as usize] -= 1;
        Some(removed.logged)
    }

    /// Tests the next files after `behind`, at most 1024, and removes those for which `is_gone(directory, last
    /// listing)` is true. Returns the last file that was tested, or `None` if there are no more.
    pub fn remove_next(&mut self, behind: Key, is_gone: impl Fn(u64, u64) -> bool) -> Option<Key> {
        let next = self.files.range((Excluded(behind), Unbounded)).take(CHUNK);
        let next: Vec<(Key, u64)> = next
            .map(|(&key, rejected)| (key, rejected.last_listing))
            .collect();
        for &(key, last_listing) in &next {
            if is_gone(key.0, last_listing) {
                self.remove(key);
            }
        }
        next.last().map(|&(key, _)| key)
    }

    /// Number of files of a class.
    pub fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file;
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;

    fn facts_of_a_file() -> FileFacts {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("x"), "no ring").expect("written");
        let fd = open(dir.path(), OFlag::O_DIRECTORY, Mode::empty()).expect("there");
        file::facts(&fd, "x".as_ref()).expect("there")
    }

    fn key(directory: u64, ino: u64) -> Key {
        let dev = facts_of_a_file().id.dev;
        (directory, FileId { dev, ino })
    }

    #[test]
    fn full_cache_has_room_for_possible_rings_only() {
        let mut facts = facts_of_a_file();
        let mut files = RejectedFiles::default();
        let mut reject = |files: &mut RejectedFiles, directory, ino: usize, rejection| {
            facts.id.ino = ino as u64;
            files.reject(directory, "/d/x".as_ref(), &facts, &rejection, 1)
        };
        let no_ring = || Rejection::Size { size: 7 };
        let others = MAX_FILES - RESERVED_FOR_RINGS;
        for ino in 1..others {
            assert!(reject(&mut files, 1, ino, no_ring()));
        }
        // The same inode number in another directory is another file.
        assert!(reject(&mut files, 2, 1, no_ring()));
        assert!(!reject(&mut files, 1, others, no_ring()));
        assert!(!reject(&mut files, 2, 2, no_ring()));
        // A known file needs no new entry, and files that may be rings have reserved entries.
        assert!(!reject(&mut files, 1, 1, no_ring()));
        let ring = || Rejection::Capacity { capacity: 7 };
        for ino in 1..=RESERVED_FOR_RINGS {
            assert!(reject(&mut files, 3, ino, ring()));
        }
        assert!(!reject(&mut files, 4, 1, ring()));
        assert_eq!(
            (files.len(), files.count(Class::Ring)),
            (MAX_FILES, RESERVED_FOR_RINGS)
        );
        assert!(files.remove(key(3, 1)).is_some());
        assert!(reject(&mut files, 4, 1, ring()));
    }

    #[test]
    fn files_that_disappear_at_once_leave_the_cache_in_chunks() {
        let mut facts = facts_of_a_file();
        let mut files = RejectedFiles::default();
        let count = 3 * CHUNK;
        for ino in 0..count {
            facts.id.ino = ino as u64;
            // Every second file is found by one more listing.
            let listing = 1 + ino as u64 % 2;
            let rejection = Rejection::Size { size: 7 };
            files.reject(1, "/d/x".as_ref(), &facts, &rejection, listing);
        }
        let forget = |files: &mut RejectedFiles, listing| {
            let mut behind = Key::default();
            let pieces = std::iter::from_fn(|| {
                behind = files.remove_next(behind, |_, last_listing| last_listing < listing)?;
                Some(files.len())
            });
            pieces.collect::<Vec<_>>()
        };
        let half = CHUNK / 2;
        assert_eq!(
            forget(&mut files, 2),
            [count - half, count - 2 * half, count - 3 * half]
        );
        forget(&mut files, 3);
        assert_eq!((files.len(), files.count(Class::Unrelated)), (0, 0));
    }
}
