//! Attached files: rings that are drained or followed, and stores that are read.
//!
//! [`TrackedFile`] is what both are: a file of somebody, somewhere, that a process may or may not write to. [`Reader`] is how its
//! telemetry is read.

use crate::base::file::{FileFacts, FileId};
use crate::error::{Refusal, RingFault};
use crate::procfs::liveness::{HolderCheck, Liveness};
use crate::ring::candidate::RingCandidate;
use crate::ring::checkpoint::Checkpoint;
use crate::shm::{HeaderPoll, LeaseKind};
use crate::source::context::DrainContext;
use crate::stats::store_values::StoreValues;
use nix::sys::stat::fstat;
use ring::{Mode, RingReader};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::StoreReader;

pub mod context;
pub mod removal;
pub mod ring;
pub mod store;

/// An attached file: which one, whose and where it is, and whether a process still writes to it.
#[derive(Debug)]
pub struct TrackedFile {
    /// What stat(2) said when it was opened.
    pub facts: FileFacts,
    /// Where it is.
    pub path: PathBuf,
    /// Whether a process still writes to it.
    pub liveness: Liveness,
    /// True if it cannot be removed, so that it is not tried again.
    pub is_unremovable: bool,
}

impl TrackedFile {
    fn new(
        descriptor: &File,
        facts: FileFacts,
        path: PathBuf,
        lease: LeaseKind,
        now: Instant,
    ) -> Self {
        Self {
            liveness: Liveness::new(descriptor, &facts, lease, now),
            facts,
            path,
            is_unremovable: false,
        }
    }

    /// The directory that it is in.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }
}

/// How the telemetry in a file is read.
#[derive(Debug)]
pub enum Reader {
    /// It is a ring.
    Ring(Box<RingReader>),
    /// It is a store.
    Store(Box<StoreReader>),
}

/// An attached file, and how it is read.
#[derive(Debug)]
pub struct Source {
    /// The file.
    pub file: TrackedFile,
    /// How it is read.
    pub reader: Reader,
}

/// What a drain found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Events.
    Events,
    /// Nothing, but somebody has the file who may still write some.
    IdleWithHolder,
    /// Nothing, and nobody is known who could write.
    IdleWithoutWriter,
    /// Nothing, and certainly nobody who could write, and the file is unlinked: nothing will ever come.
    Finished,
    /// It is no longer what was attached.
    Fault(RingFault),
}

impl Source {
    /// Maps a candidate and locks it. `before` is the last batch that was counted of the agent's rings, before now or before
    /// the daemon was started: if it is of this ring, what became of it is decided at the next drain.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    pub fn ring(
        candidate: RingCandidate,
        path: PathBuf,
        last_batch: Option<&Checkpoint>,
        now: Instant,
    ) -> Result<Self, Refusal> {
        let facts = candidate.facts;
        let reader = RingReader::attach(candidate, last_batch, now)?;
        Ok(Self {
            file: TrackedFile::new(reader.descriptor(), facts, path, LeaseKind::Exclusive, now),
            reader: Reader::Ring(Box::new(reader)),
        })
    }

    /// Maps a candidate that is a store. Returns also its values.
    ///
    /// # Errors
    /// Why it cannot be mapped, or that it is not what it was a moment ago.
    pub fn store(
        candidate: crate::store::StoreCandidate,
        path: PathBuf,
        now: Instant,
    ) -> Result<(Self, StoreValues), Refusal> {
        let facts = candidate.facts;
        let (reader, values) = StoreReader::attach(candidate)?;
        let source = Self {
            file: TrackedFile::new(reader.descriptor(), facts, path, LeaseKind::NoWriter, now),
            reader: Reader::Store(Box::new(reader)),
        };
        Ok((source, values))
    }

    /// Which file it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.file.facts.id
    }

    /// Its ring; `None`: it is a store.
    #[must_use]
    pub fn as_ring(&self) -> Option<&RingReader> {
        match &self.reader {
            Reader::Ring(ring) => Some(ring),
            Reader::Store(_) => None,
        }
    }

    /// Its store; `None`: it is a ring.
    #[must_use]
    pub fn as_store(&self) -> Option<&StoreReader> {
        match &self.reader {
            Reader::Ring(_) => None,
            Reader::Store(store) => Some(store),
        }
    }

    /// Counts what came since the last time.
    pub fn drain(&mut self, context: &mut DrainContext) -> Drained {
        let (file, now) = (&mut self.file, context.now.instant);
        let found = match &mut self.reader {
            Reader::Ring(ring) => ring.drain(file, context),
            Reader::Store(store) => store.read(context),
        };
        match found {
            // What a store's agent had to say before its end, which is for good, is no sign of life.
            Ok(true) if self.as_ring().is_some() || !self.file.liveness.has_no_holder() => {
                self.file.liveness.saw_events(now);
                Drained::Events
            }
            Ok(_) => self.check(context),
            // What the producer left there is the producer's; the new ring is drained from its start at the next tick.
            Err(RingFault::Restarted) => Drained::Events,
            // Nothing is known, so that nothing has changed: what was begun is settled at the next tick.
            Err(RingFault::Unseen) => Drained::IdleWithHolder,
            Err(fault) => Drained::Fault(fault),
        }
    }

    /// Finds out who has a file in which nothing happens.
    fn check(&mut self, context: &mut DrainContext) -> Drained {
        let Self { file, reader } = self;
        let (now, every) = (context.now.instant, context.shared.check_period);
        match (file.liveness.check(reader.descriptor(), now, every), reader) {
            (HolderCheck::ProducerStarted, Reader::Ring(ring)) if ring.may_have_restarted() => {
                let restarted = ring.producer_restarted(file, context);
                restarted.map_or(Drained::IdleWithHolder, |()| Drained::Events)
            }
            (HolderCheck::Held | HolderCheck::ProducerStarted, _) => Drained::IdleWithHolder,
            // What its last writer wrote before it ended, and after it was looked at here.
            (HolderCheck::Gone, Reader::Ring(ring)) if ring.is_drained() == Ok(true) => {
                Drained::Finished
            }
            (HolderCheck::Gone | HolderCheck::NoWriter, _) => Drained::IdleWithoutWriter,
        }
    }

    /// Whether nothing waits and, asked now, nobody has the file, or somebody may: then the file's facts, from before that was
    /// asked, by which a later start of its agent can be told.
    pub fn facts_if_drained(&mut self, now: Instant, even_if_held: bool) -> Option<FileFacts> {
        let facts = self.current_facts()?;
        // A ring that is no longer what it was is for the next drain to find out.
        let may_detach = self.is_abandoned(now) || even_if_held;
        (may_detach && self.reader.is_drained()).then_some(facts)
    }

    /// The file's facts as they are now.
    #[must_use]
    pub fn current_facts(&self) -> Option<FileFacts> {
        Some(FileFacts::new(&fstat(self.reader.descriptor()).ok()?))
    }

    /// Whether, asked now, nobody else has the file.
    pub fn is_abandoned(&mut self, now: Instant) -> bool {
        self.file
            .liveness
            .update_holder(self.reader.descriptor(), now)
    }

    /// True if it may be written to again, as far as the kernel tells: a ring by its agent's next start.
    #[must_use]
    pub fn may_return(&self) -> bool {
        let liveness = &self.file.liveness;
        !liveness.is_unlinked() && (self.as_ring().is_some() || !liveness.has_no_holder())
    }

    /// For how long the kernel has said that nobody else has the file, if it can be removed as far as is known.
    #[must_use]
    pub fn abandoned_for(&self, now: Instant) -> Option<Duration> {
        let is_drained_here = self.as_ring()?.mode == Mode::Drain;
        let removable =
            is_drained_here && !self.file.is_unremovable && !self.file.liveness.is_unlinked();
        self.file.liveness.no_holder_for(now).filter(|_| removable)
    }

    /// Counts all events that wait; whether none is left.
    ///
    /// # Errors
    /// It is no longer the ring that was attached.
    pub fn drain_to_end(&mut self, context: &mut DrainContext) -> Result<bool, RingFault> {
        match &mut self.reader {
            Reader::Ring(ring) => ring.drain_to_end(&mut self.file, context),
            Reader::Store(_) => Ok(true),
        }
    }

    /// Until when a drain would find what the last one found, unless something happens in the file, where it is asked so often
    /// who has it; `None`: it may find more.
    #[must_use]
    pub fn unchanged_until(&self, check_period: Duration) -> Option<Instant> {
        let next = self.file.liveness.next_check(check_period);
        match &self.reader {
            Reader::Ring(ring) => ring.unchanged_until(next),
            Reader::Store(_) => Some(next),
        }
    }

    /// By which it can be seen whether anything happens in it.
    #[must_use]
    pub fn header_poll(&self) -> Option<HeaderPoll> {
        match &self.reader {
            Reader::Ring(ring) => ring.header_poll(),
            Reader::Store(store) => store.header_poll(),
        }
    }
}

impl Reader {
    /// The descriptor that the file is mapped from.
    #[must_use]
    pub fn descriptor(&self) -> &File {
        match self {
            Reader::Ring(ring) => ring.descriptor(),
            Reader::Store(store) => store.descriptor(),
        }
    }

    /// Whether nothing waits.
    fn is_drained(&self) -> bool {
        match self {
            Reader::Ring(ring) => ring.is_drained() == Ok(true),
            Reader::Store(_) => true,
        }
    }
}
