//! The files of a directory that were refused, so that none is looked at again for nothing.

use super::{COARSE, is_starting, is_younger_than};
use crate::error::Refusal;
use crate::find::discover::{FileFacts, FileId};
use crate::log;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::mem::{Discriminant, discriminant};
use std::ops::Bound::{Excluded, Unbounded};
use std::path::Path;

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

/// All of them.
#[derive(Debug, Default)]
pub struct RefusedFiles {
    files: BTreeMap<FileId, Refused>,
    /// Those that may be another at the next look, although neither size nor change time differ.
    passing: BTreeSet<FileId>,
    /// Those of agents that are starting: their headers may come at any moment.
    starting: BTreeSet<FileId>,
    /// Rings of a version that this build does not read.
    unsupported: BTreeSet<FileId>,
    /// Other rings that are refused.
    rings: BTreeSet<FileId>,
}

impl RefusedFiles {
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
        self.unsupported.remove(&id);
        self.rings.remove(&id);
        self.files.remove(&id)
    }

    /// Forgets the files that a whole look did not meet.
    pub fn keep_met(&mut self, look: u64) {
        self.retain(|refused| refused.look == look);
    }

    /// Forgets the files whose refusal is none any more, as far as can be told without looking.
    pub fn retain_reasons(&mut self, keep: impl Fn(&Refusal) -> bool) {
        self.retain(|refused| keep(&refused.refusal));
    }

    fn retain(&mut self, keep: impl Fn(&Refused) -> bool) {
        self.files.retain(|_, refused| keep(refused));
        let files = &self.files;
        for set in [
            &mut self.passing,
            &mut self.starting,
            &mut self.unsupported,
            &mut self.rings,
        ] {
            set.retain(|id| files.contains_key(id));
        }
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

    /// How many are rings of a version that this build does not read.
    pub fn unsupported(&self) -> usize {
        self.unsupported.len()
    }

    /// How many are other rings.
    pub fn rings(&self) -> usize {
        self.rings.len()
    }
}
