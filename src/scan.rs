//! Looks through the telemetry directories and says which rings are new and which files are refused.

use crate::config::DirectoryPattern;
use crate::directory::{self, Directory};
use crate::discover::{self, Candidate, FileFacts, FileId};
use crate::error::Refusal;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// Directories are looked through this often even if their modification time stands still: a file that was not finished, or
/// that an agent of the same name takes over, leaves it as it is.
const RESCAN: Duration = Duration::from_secs(2);
/// A directory that takes long to look through is left alone this many times as long.
const REST: u32 = 20;
/// How long a file whose header is empty may still belong to an agent that is starting.
const STARTING: Duration = Duration::from_secs(10);

/// A ring that no agent has yet.
#[derive(Debug)]
pub struct Found {
    /// Where it was found.
    pub directory: Directory,
    /// The file's name, which is the agent's.
    pub name: OsString,
    /// The ring.
    pub candidate: Candidate,
}

/// A file that was refused, as it was then.
#[derive(Debug)]
struct Refused {
    size: u64,
    changed: (i64, i64),
    refusal: Refusal,
}

/// A directory between two looks.
#[derive(Debug)]
struct Watched {
    directory: Directory,
    open: Result<OwnedFd, Errno>,
    modified: Option<(i64, i64)>,
    not_before: Instant,
    refused: HashMap<FileId, Refused>,
}

/// All directories and what is known of the files in them.
#[derive(Debug)]
pub struct Scanner {
    patterns: Vec<DirectoryPattern>,
    owners: Option<Vec<u32>>,
    watched: Vec<Watched>,
    next_rescan: Instant,
    refusals: u64,
}

impl Scanner {
    /// Starts with nothing known; the first [`Scanner::scan`] looks everywhere.
    #[must_use]
    pub fn new(patterns: Vec<DirectoryPattern>, owners: Option<Vec<u32>>) -> Self {
        Self {
            patterns,
            owners,
            watched: Vec::new(),
            next_rescan: Instant::now(),
            refusals: 0,
        }
    }

    /// Takes another configuration; what is refused is looked at anew.
    pub fn configure(&mut self, patterns: Vec<DirectoryPattern>, owners: Option<Vec<u32>>) {
        let refusals = self.refusals;
        *self = Self {
            refusals,
            ..Self::new(patterns, owners)
        };
    }

    /// Refusals since the start, each file and reason once.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Files that are rings of a version this build does not read.
    #[must_use]
    pub fn unsupported(&self) -> usize {
        let refused = self
            .watched
            .iter()
            .flat_map(|watched| watched.refused.values());
        refused
            .filter(|refused| matches!(refused.refusal, Refusal::Unsupported { .. }))
            .count()
    }

    /// Looks everywhere at the next [`Scanner::scan`].
    pub fn hurry(&mut self) {
        self.next_rescan = Instant::now();
    }

    /// Notes why a ring that was found, or was attached until now, has no agent. Unless the refusal may pass, it is not
    /// offered again before it changes.
    pub fn set_aside(
        &mut self,
        directory: &Directory,
        name: &OsStr,
        facts: &FileFacts,
        refusal: Refusal,
    ) {
        if let Some(watched) = self
            .watched
            .iter_mut()
            .find(|watched| watched.directory.path == directory.path)
        {
            let path = directory.path.join(name);
            self.refusals += u64::from(watched.refuse(facts, refusal, &path));
        }
    }

    /// Looks through the directories that changed, or all of them if it is time. `attached` are the rings that have an agent.
    pub fn scan(&mut self, now: Instant, attached: &HashSet<FileId>) -> Vec<Found> {
        let all = now >= self.next_rescan;
        if all {
            self.open_directories(now);
            self.next_rescan = now + RESCAN.max(now.elapsed() * REST);
        }
        let mut found = Vec::new();
        for watched in &mut self.watched {
            let modified = watched
                .open
                .as_ref()
                .ok()
                .and_then(|fd| fstat(fd).ok())
                .map(|s| (s.st_mtime, s.st_mtime_nsec));
            if now < watched.not_before || !(all || modified != watched.modified) {
                continue;
            }
            // Noted before the look: what comes in during it changes the time once more.
            watched.modified = modified;
            let started = Instant::now();
            let (new, refusals) = watched.look(attached, self.owners.as_deref());
            found.extend(new);
            self.refusals += refusals;
            watched.not_before = now + started.elapsed() * REST;
        }
        found
    }

    /// Opens all directories afresh, since one may have been replaced under its name.
    fn open_directories(&mut self, now: Instant) {
        let mut before = std::mem::take(&mut self.watched);
        for directory in directory::expand(&self.patterns) {
            let known = before
                .iter()
                .position(|watched| watched.directory == directory);
            let mut watched = match known {
                Some(at) => before.swap_remove(at),
                None => Watched {
                    directory,
                    open: Err(Errno::UnknownErrno),
                    modified: None,
                    not_before: now,
                    refused: HashMap::new(),
                },
            };
            let open = watched.directory.open();
            if let (Err(errno), path) = (&open, watched.directory.path.display()) {
                if watched.open.as_ref().err() != Some(errno) {
                    tracing::warn!(
                        "{path}: cannot be looked through: {errno}; no agent is found there until it can"
                    );
                }
            }
            watched.open = open;
            self.watched.push(watched);
        }
    }
}

impl Watched {
    /// One look: rings that are new, and how many files were refused that were not before.
    fn look(&mut self, attached: &HashSet<FileId>, owners: Option<&[u32]>) -> (Vec<Found>, u64) {
        let mut found = Vec::new();
        let mut refusals = 0;
        let Ok(fd) = &self.open else {
            return (found, refusals);
        };
        let names = directory::names(fd).unwrap_or_default();
        let mut seen = HashSet::with_capacity(names.len());
        for name in names {
            let Ok(fd) = &self.open else { break };
            // Gone again since.
            let Ok(facts) = discover::facts(fd, &name) else {
                continue;
            };
            seen.insert(facts.id);
            if attached.contains(&facts.id) || self.knows(&facts) {
                continue;
            }
            match discover::open(fd, &name, &facts, owners) {
                Ok(candidate) => {
                    self.refused.remove(&facts.id);
                    found.push(Found {
                        directory: self.directory.clone(),
                        name,
                        candidate,
                    });
                }
                Err(refusal) => {
                    let path = self.directory.path.join(&name);
                    refusals += u64::from(self.refuse(&facts, refusal, &path));
                }
            }
        }
        self.refused.retain(|id, _| seen.contains(id));
        (found, refusals)
    }

    /// Whether the file was refused as it is now, for a reason that lasts.
    fn knows(&self, facts: &FileFacts) -> bool {
        self.refused.get(&facts.id).is_some_and(|refused| {
            let unchanged = (refused.size, refused.changed) == (facts.size, facts.changed);
            let starting = refused.refusal == Refusal::Uninitialised && is_recent(facts.changed);
            unchanged && !starting && !refused.refusal.may_pass()
        })
    }

    /// Remembers and logs a refusal; whether it is new.
    fn refuse(&mut self, facts: &FileFacts, refusal: Refusal, path: &Path) -> bool {
        let before = self.refused.get(&facts.id).map(|refused| &refused.refusal);
        let new = before != Some(&refusal);
        if new {
            // Debug quotes what could break a line of the log.
            if refusal.concerns_a_ring() && refusal != Refusal::Uninitialised {
                tracing::warn!("{path:?}: refused: {refusal}");
            } else {
                tracing::debug!("{path:?}: refused: {refusal}");
            }
        }
        self.refused.insert(
            facts.id,
            Refused {
                size: facts.size,
                changed: facts.changed,
                refusal,
            },
        );
        new
    }
}

/// Whether a file changed so lately that its agent may still be starting.
fn is_recent(changed: (i64, i64)) -> bool {
    let Ok(seconds) = u64::try_from(changed.0) else {
        return false;
    };
    let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    SystemTime::now()
        .duration_since(changed)
        .map_or(true, |age| age < STARTING)
}
