//! A ring or store of a version that this build does not read: nothing is known of it but who has it.

use crate::find::discover::{FileFacts, FileId};
use crate::producer::presence::{Presence, Seen};
use crate::producer::survey::Mappers;
use crate::shm::LeaseKind;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What is not read of it, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A ring of this version.
    Ring(i32),
    /// A store of this schema.
    Store(u32),
}

impl Version {
    /// What it is.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Ring(_) => "ring",
            Self::Store(_) => "store",
        }
    }

    /// The number alone.
    pub fn number(self) -> u32 {
        match self {
            Self::Ring(version) => version.unsigned_abs(),
            Self::Store(schema) => schema,
        }
    }
}

/// The file of such a ring or store, open to ask the kernel about it.
#[derive(Debug)]
pub struct Stranger {
    file: File,
    /// What it was like when it was met.
    pub facts: FileFacts,
    path: PathBuf,
    /// What its header says.
    pub version: Version,
    /// Who has it.
    pub presence: Presence,
    seen: Seen,
}

impl Stranger {
    /// Nothing is read of the file, and nothing written to it.
    pub fn new(
        file: File,
        facts: FileFacts,
        path: PathBuf,
        version: Version,
        now: Instant,
    ) -> Self {
        let lease = match version {
            Version::Ring(_) => LeaseKind::Alone,
            Version::Store(_) => LeaseKind::NoWriter,
        };
        let presence = Presence::new(&file, &facts, lease, now);
        let seen = match presence.is_abandoned() {
            true => Seen::Silent,
            false => Seen::Held,
        };
        Self {
            file,
            facts,
            path,
            version,
            presence,
            seen,
        }
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.facts.id
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds out who has it, if that was not asked for as long as `every`.
    pub fn check(&mut self, now: Instant, every: Duration) -> Seen {
        self.seen = self.presence.check(&self.file, now, every);
        self.seen
    }

    /// Whether somebody has it who may write to it.
    pub fn is_held(&self) -> bool {
        self.seen == Seen::Held
    }

    /// A survey of /proc begins that may show who writes.
    pub fn begin_survey(&mut self) {
        self.presence.begin_survey(&self.file);
    }

    /// Takes what it showed.
    pub fn end_survey(&mut self, mappers: &Mappers) {
        self.presence.end_survey(mappers, &self.facts, &self.path);
    }

    /// Whether its writer is to be asked for.
    pub fn asks(&self) -> bool {
        self.presence.asks()
    }
}
