//! Cache of a directory's rejected files, so that an unrelated file is checked once.

use super::is_starting;
use crate::base::file::{COARSE, FileFacts, FileId, is_younger_than};
use crate::error::Refusal;
use crate::log;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::mem::{Discriminant, discriminant};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;
use std::rc::Rc;

/// A rejected file, as it was when it was checked.
#[derive(Debug)]
pub struct Refused {
    name: OsString,
    size: u64,
    changed: (i64, i64),
    class: Class,
    /// True if another check of the unchanged file would come to the same result.
    lasts: bool,
    /// Number of the last listing that met the file.
    met: u64,
    /// Reasons that were counted and logged. Their numbers are left out, since the file's owner can change them without end.
    said: Vec<Discriminant<Refusal>>,
}

/// Kind of a rejected file. The files of each kind are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Not a ring. Not checked again while its name leads to the same inode, except by a whole listing.
    Unrelated,
    /// Belongs to an agent that may be starting: its header may come at any moment.
    Starting,
    /// A ring that was detached to make room, or a store whose values are counted.
    Exited,
    /// A ring or store of a version that this build does not read.
    Unsupported,
    /// A ring or store of a version that this build reads.
    Ring,
}

impl Class {
    const COUNT: usize = 5;

    fn new(refusal: &Refusal, is_starting: bool) -> Self {
        match refusal {
            _ if is_starting => Class::Starting,
            Refusal::Exited => Class::Exited,
            refusal if refusal.is_unsupported() => Class::Unsupported,
            refusal if refusal.concerns_a_ring() => Class::Ring,
            _ => Class::Unrelated,
        }
    }
}

/// Most entries of all directories together: about 40 MB. Further files are checked by each listing.
const MOST: usize = 1 << 17;
/// Entries of these that only files which are, or may become, rings can take.
const FOR_RINGS: usize = 1 << 14;

/// Entries that are compared with the last listing at a time.
const CHUNK: usize = 1024;

/// Room for entries, shared by all directories.
#[derive(Clone, Debug)]
pub struct Room(Rc<Cell<usize>>);

impl Default for Room {
    fn default() -> Self {
        Self(Rc::new(Cell::new(MOST)))
    }
}

impl Room {
    fn take(&self, may_be_a_ring: bool) -> bool {
        let least = if may_be_a_ring { 0 } else { FOR_RINGS };
        let has_some = self.0.get() > least;
        if has_some {
            self.0.set(self.0.get() - 1);
        }
        has_some
    }

    fn give_back(&self, files: usize) {
        self.0.set(self.0.get() + files);
    }

    /// Number of entries.
    pub fn taken(&self) -> usize {
        MOST - self.0.get()
    }
}

/// The cache of one directory.
#[derive(Debug, Default)]
pub struct RefusedFiles {
    room: Room,
    files: BTreeMap<FileId, Refused>,
    /// Number of files by [`Class`].
    counts: [usize; Class::COUNT],
}

impl Drop for RefusedFiles {
    fn drop(&mut self) {
        self.room.give_back(self.files.len());
    }
}

impl RefusedFiles {
    /// An empty cache.
    pub fn new(room: Room) -> Self {
        let mut files = Self::default();
        files.room = room;
        files
    }

    /// Caches and logs a rejection during a listing. Returns true if the reason is new for this file.
    pub fn refuse(
        &mut self,
        path: &Path,
        name: &OsStr,
        facts: &FileFacts,
        refusal: &Refusal,
        listing: u64,
    ) -> bool {
        let starting = is_starting(facts, refusal);
        let before = self.remove(facts.id);
        if !self.room.take(starting || refusal.concerns_a_ring()) {
            tracing::debug!(
                "{}: refused, and not remembered: {refusal}",
                log::shown(path)
            );
            return false;
        }
        let mut said = before.map_or(Vec::new(), |before| before.said);
        // An empty header is not worth a line while its agent may be starting.
        let new = !starting && !said.contains(&discriminant(refusal));
        if new {
            said.push(discriminant(refusal));
            let path = log::shown(path);
            if refusal.concerns_a_ring() {
                tracing::warn!("{path}: refused: {refusal}");
            } else {
                tracing::debug!("{path}: refused: {refusal}");
            }
        }
        let class = Class::new(refusal, starting);
        // The clock of change times is coarse: a change in the same tick as the check leaves no trace. The check may be as long
        // after stat(2) as its result is used.
        let is_young = is_younger_than(facts.changed, 2 * COARSE);
        let refused = Refused {
            name: name.to_owned(),
            size: facts.size,
            changed: facts.changed,
            class,
            lasts: !(starting || is_young || refusal.may_pass()),
            met: listing,
            said,
        };
        self.counts[class as usize] += 1;
        self.files.insert(facts.id, refused);
        new
    }

    /// Marks a file of this name as met by a listing. Returns true if it is known as unrelated, so that it needs no stat(2),
    /// although the name may have been given to a new file with the same inode number.
    pub fn skips(&mut self, id: FileId, name: &OsStr, listing: u64) -> bool {
        match self.files.get_mut(&id) {
            Some(refused) if refused.name == name => {
                refused.met = listing;
                refused.lasts && refused.class == Class::Unrelated
            }
            _ => false,
        }
    }

    /// Marks a file as met by a listing. Returns true if it is unchanged since its rejection, and the reason lasts.
    pub fn knows(&mut self, facts: &FileFacts, listing: u64) -> bool {
        self.files.get_mut(&facts.id).is_some_and(|refused| {
            refused.met = listing;
            let unchanged = (refused.size, refused.changed) == (facts.size, facts.changed);
            unchanged && refused.lasts
        })
    }

    /// Removes a file.
    pub fn remove(&mut self, id: FileId) -> Option<Refused> {
        let removed = self.files.remove(&id)?;
        self.counts[removed.class as usize] -= 1;
        self.room.give_back(1);
        Some(removed)
    }

    /// Of the next files behind one, removes those that a complete listing did not meet. Returns the last of them, or `None` if
    /// there are no more.
    pub fn remove_unmet(&mut self, listing: u64, behind: FileId) -> Option<FileId> {
        let next = self.files.range((Excluded(behind), Unbounded)).take(CHUNK);
        let next: Vec<(FileId, u64)> = next.map(|(&id, refused)| (id, refused.met)).collect();
        for (id, _) in next.iter().filter(|(_, met)| *met < listing) {
            self.remove(*id);
        }
        next.last().map(|(id, _)| *id)
    }

    /// Removes all files.
    pub fn clear(&mut self) {
        *self = Self::new(self.room.clone());
    }

    /// True if a file's agent may be starting.
    pub fn has_starting(&self) -> bool {
        self.count(Class::Starting) > 0
    }

    /// Number of rings and stores of a version that this build reads.
    pub fn rings(&self) -> usize {
        self.count(Class::Ring)
    }

    /// Number of rings and stores of a version that this build does not read.
    pub fn unsupported(&self) -> usize {
        self.count(Class::Unsupported)
    }

    fn count(&self, class: Class) -> usize {
        self.counts[class as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file;
    use nix::fcntl::{OFlag, open};
    use nix::sys::stat::Mode;

    #[test]
    fn no_more_files_are_remembered_than_there_is_room_for_in_all_directories() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("x"), "no ring").expect("written");
        let fd = open(dir.path(), OFlag::O_DIRECTORY, Mode::empty()).expect("there");
        let mut facts = file::facts(&fd, "x".as_ref()).expect("there");
        let room = Room::default();
        room.0.set(FOR_RINGS + 3);
        let (mut one, mut other) = (
            RefusedFiles::new(room.clone()),
            RefusedFiles::new(room.clone()),
        );
        let mut refuse = |files: &mut RefusedFiles, ino, refusal| {
            facts.id.ino = ino;
            files.refuse("/d/x".as_ref(), "x".as_ref(), &facts, &refusal, 1)
        };
        let no_ring = || Refusal::Size { size: 7 };
        assert!(refuse(&mut one, 1, no_ring()) && refuse(&mut other, 2, no_ring()));
        assert!(refuse(&mut one, 3, no_ring()));
        assert!(!refuse(&mut one, 4, no_ring()) && !refuse(&mut other, 5, no_ring()));
        // The same again takes no more, and what may be a ring has room of its own.
        assert!(!refuse(&mut one, 1, no_ring()));
        let ring = || Refusal::Capacity { capacity: 7 };
        assert!(refuse(&mut other, 6, ring()));
        assert_eq!((one.files.len(), other.files.len()), (2, 2));
        one.remove(FileId { ino: 3, ..facts.id });
        assert_eq!(room.0.get(), FOR_RINGS);
        one.remove_unmet(2, FileId::default());
        drop(other);
        assert_eq!(room.0.get(), FOR_RINGS + 3);
    }

    #[test]
    fn files_that_go_all_at_once_are_forgotten_some_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("x"), "no ring").expect("written");
        let fd = open(dir.path(), OFlag::O_DIRECTORY, Mode::empty()).expect("there");
        let mut facts = file::facts(&fd, "x".as_ref()).expect("there");
        let room = Room::default();
        let mut files = RefusedFiles::new(room.clone());
        let count = 3 * CHUNK;
        for ino in 0..count {
            facts.id.ino = ino as u64;
            // Each other one is met once more.
            let look = 1 + ino as u64 % 2;
            let refusal = Refusal::Size { size: 7 };
            files.refuse("/d/x".as_ref(), "x".as_ref(), &facts, &refusal, look);
        }
        let forget = |files: &mut RefusedFiles, listing| {
            let mut behind = FileId::default();
            let pieces = std::iter::from_fn(|| {
                behind = files.remove_unmet(listing, behind)?;
                Some(files.files.len())
            });
            pieces.collect::<Vec<_>>()
        };
        let half = CHUNK / 2;
        assert_eq!(
            forget(&mut files, 2),
            [count - half, count - 2 * half, count - 3 * half]
        );
        forget(&mut files, 3);
        assert_eq!((files.files.len(), room.taken()), (0, 0));
    }
}
