//! The files of a directory that were refused, so that none is looked at again for nothing.

use super::is_starting;
use crate::base::file::{COARSE, FileFacts, FileId, is_younger_than};
use crate::error::Refusal;
use crate::log;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::mem::{Discriminant, discriminant};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;
use std::rc::Rc;

/// A file that was refused, as it was then.
#[derive(Debug)]
pub struct Refused {
    /// What it was called.
    pub name: OsString,
    size: u64,
    changed: (i64, i64),
    refusal: Refusal,
    /// The number of the last look that met it.
    look: u64,
    /// Reasons that were counted and logged. The numbers in them are a stranger's, who could change them for ever.
    said: Vec<Discriminant<Refusal>>,
}

/// How many files are remembered, in all directories: about 40 MB. What more there are is looked at anew each time, for as long as
/// a look may take.
const MOST: usize = 1 << 17;
/// Of these, how many are left for files that are, or may be, rings.
const FOR_RINGS: usize = 1 << 14;

/// Files of which it is found out at a time whether they are to be forgotten.
const CHUNK: usize = 1024;

/// Room for files that are remembered, of all directories together.
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

    /// How much of it is taken.
    pub fn taken(&self) -> usize {
        MOST - self.0.get()
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct RefusedFiles {
    room: Room,
    files: BTreeMap<FileId, Refused>,
    /// Those that may be another at the next look, although neither size nor change time differ.
    passing: BTreeSet<FileId>,
    /// Those of agents that are starting: their headers may come at any moment.
    starting: BTreeSet<FileId>,
    /// Rejected rings of a version that this build reads.
    rings: BTreeSet<FileId>,
    /// Rings and stores of a version that this build does not read.
    unsupported: BTreeSet<FileId>,
    sweep: Option<Sweep>,
}

/// Files that a whole look did not meet are being forgotten, some at a time: a stranger's may all go at once.
#[derive(Debug)]
struct Sweep {
    /// The number of that look.
    look: u64,
    /// How far it has come.
    after: Option<FileId>,
    /// Whether a later look has ended since it began, so that it is to begin once more.
    again: bool,
}

impl Drop for RefusedFiles {
    fn drop(&mut self) {
        self.room.give_back(self.files.len());
    }
}

impl RefusedFiles {
    /// None yet, in the room that others have as well.
    pub fn new(room: Room) -> Self {
        let mut files = Self::default();
        files.room = room;
        files
    }

    /// Remembers and logs a refusal that was met in a look; whether it is a new one.
    pub fn refuse(
        &mut self,
        path: &Path,
        name: &OsStr,
        facts: &FileFacts,
        refusal: Refusal,
        look: u64,
    ) -> bool {
        let starting = is_starting(facts, &refusal);
        let before = self.remove(facts.id);
        if !self.room.take(starting || refusal.concerns_a_ring()) {
            tracing::debug!(
                "{}: refused, and not remembered: {refusal}",
                log::shown(path)
            );
            return false;
        }
        let mut said = before.map_or(Vec::new(), |before| before.said);
        let new = !said.contains(&discriminant(&refusal));
        // An empty header is nothing to speak of while its agent may be starting.
        if new && !starting {
            said.push(discriminant(&refusal));
            let path = log::shown(path);
            if refusal.concerns_a_ring() {
                tracing::warn!("{path}: refused: {refusal}");
            } else {
                tracing::debug!("{path}: refused: {refusal}");
            }
        }
        if starting {
            self.starting.insert(facts.id);
        }
        if refusal.is_unsupported() {
            self.unsupported.insert(facts.id);
        } else if refusal.concerns_a_ring() && !starting {
            self.rings.insert(facts.id);
        }
        // The clock of change times is coarse: what comes in the same tick as the look leaves no trace. It may have been as long
        // ago as a file is not looked at anew.
        if refusal.may_pass() || starting || is_younger_than(facts.changed, 2 * COARSE) {
            self.passing.insert(facts.id);
        }
        let refused = Refused {
            name: name.to_owned(),
            size: facts.size,
            changed: facts.changed,
            refusal,
            look,
            said,
        };
        self.files.insert(facts.id, refused);
        new && !starting
    }

    /// Whether a name of this file was refused as none of a ring, so that it need not be looked at, though it may be another of
    /// the same name and number; the look has met it.
    pub fn skips(&mut self, id: FileId, name: &OsStr, look: u64) -> bool {
        match self.files.get_mut(&id) {
            Some(refused) if refused.name == name => {
                refused.look = look;
                let may_be_a_ring =
                    refused.refusal.concerns_a_ring() || refused.refusal == Refusal::Exited;
                !may_be_a_ring && !self.passing.contains(&id)
            }
            _ => false,
        }
    }

    /// Whether the file was refused as it is now, for a reason that lasts; the look has met it.
    pub fn knows(&mut self, facts: &FileFacts, look: u64) -> bool {
        self.files.get_mut(&facts.id).is_some_and(|refused| {
            refused.look = look;
            let unchanged = (refused.size, refused.changed) == (facts.size, facts.changed);
            unchanged && !self.passing.contains(&facts.id)
        })
    }

    /// Forgets a file.
    pub fn remove(&mut self, id: FileId) -> Option<Refused> {
        self.passing.remove(&id);
        self.starting.remove(&id);
        self.rings.remove(&id);
        self.unsupported.remove(&id);
        let removed = self.files.remove(&id);
        self.room.give_back(usize::from(removed.is_some()));
        removed
    }

    /// Has the files forgotten that a whole look did not meet, by [`RefusedFiles::sweep`].
    pub fn keep_met(&mut self, look: u64) {
        let (after, again) = match &self.sweep {
            Some(sweep) => (sweep.after, true),
            None => (None, false),
        };
        self.sweep = Some(Sweep { look, after, again });
    }

    /// Forgets some of these files; whether no more are to be.
    pub fn sweep(&mut self) -> bool {
        let Some(mut sweep) = self.sweep.take() else {
            return true;
        };
        let from = sweep.after.map_or(Unbounded, Excluded);
        let next = self.files.range((from, Unbounded)).take(CHUNK);
        let next: Vec<(FileId, bool)> = next
            .map(|(&id, refused)| (id, refused.look < sweep.look))
            .collect();
        for (id, _) in next.iter().filter(|(_, is_gone)| *is_gone) {
            self.remove(*id);
        }
        let is_last = next.len() < CHUNK;
        if is_last && !sweep.again {
            return true;
        }
        sweep.after = next.last().map(|(id, _)| *id).filter(|_| !is_last);
        sweep.again &= !is_last;
        self.sweep = Some(sweep);
        false
    }

    /// Forgets all files.
    pub fn clear(&mut self) {
        let empty = Self::new(self.room.clone());
        drop(std::mem::replace(self, empty));
    }

    /// The next file behind one in the order of their numbers; the first behind the last.
    pub fn next(&self, last: FileId) -> Option<(FileId, &OsStr)> {
        let behind = self.files.range((Excluded(last), Unbounded)).next();
        let (&id, refused) = behind.or_else(|| self.files.iter().next())?;
        Some((id, &refused.name))
    }

    /// The files that are looked at again in each pass.
    pub fn passing(&self) -> Vec<FileId> {
        self.passing.iter().copied().collect()
    }

    /// The files that are looked at again in each tick.
    pub fn starting(&self) -> Vec<FileId> {
        self.starting.iter().copied().collect()
    }

    /// What a file was called when it was refused.
    pub fn name(&self, id: FileId) -> Option<&OsStr> {
        self.files.get(&id).map(|refused| refused.name.as_os_str())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Number of rejected rings of a version that this build reads.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }

    /// Number of rings and stores of a version that this build does not read.
    pub fn unsupported(&self) -> usize {
        self.unsupported.len()
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
            files.refuse("/d/x".as_ref(), "x".as_ref(), &facts, refusal, 1)
        };
        let no_ring = || Refusal::Size { size: 7 };
        assert!(refuse(&mut one, 1, no_ring()) && refuse(&mut other, 2, no_ring()));
        assert!(refuse(&mut one, 3, no_ring()));
        assert!(!refuse(&mut one, 4, no_ring()) && !refuse(&mut other, 5, no_ring()));
        // The same again takes no more, and what may be a ring has room of its own.
        assert!(!refuse(&mut one, 1, no_ring()));
        let ring = || Refusal::Capacity { capacity: 7 };
        assert!(refuse(&mut other, 6, ring()));
        assert_eq!((one.len(), other.len()), (2, 2));
        one.remove(FileId { ino: 3, ..facts.id });
        assert_eq!(room.0.get(), FOR_RINGS);
        one.keep_met(2);
        assert!(one.sweep());
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
            files.refuse("/d/x".as_ref(), "x".as_ref(), &facts, refusal, look);
        }
        files.keep_met(2);
        assert!(!files.sweep());
        assert_eq!(files.len(), count - CHUNK / 2);
        // A look that ends meanwhile has all that it did not meet forgotten, also those that had their turn.
        files.keep_met(3);
        let mut steps = 0;
        while !files.sweep() {
            steps += 1;
            assert!(steps < 10, "it comes to an end");
        }
        assert_eq!((files.len(), room.taken()), (0, 0));
    }
}
