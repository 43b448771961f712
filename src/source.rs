// SPDX-License-Identifier: GPL-2.0-or-later

//! Attached files with their readers: rings and stores.
//!
//! A [`Source`] is a [`TrackedFile`], which knows where the file is and whether a process still writes to it, and a
//! [`Reader`], which reads its telemetry. Begin with [`Source::drain`]; `ring/counting.rs` has the steps of
//! exactly-once. This module must not know the registry of agents: a [`DrainContext`] has what it needs of one agent.

use crate::base::file::{FileFacts, FileId};
use crate::error::{Rejection, RingFault};
use crate::procfs::liveness::Liveness;
use crate::procfs::process::Presence;
use crate::procfs::sharers::Sharers;
use crate::ring::candidate::RingCandidate;
use crate::ring::checkpoint::Checkpoint;
use crate::shm::{HeaderPoll, LeaseKind};
use crate::source::context::DrainContext;
use crate::stats::store_values::StoreValues;
use nix::sys::stat::fstat;
use ring::{Mode, RingReader};
use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::StoreReader;

pub mod context;
pub mod removal;
pub mod ring;
pub mod store;

/// An attached file: its identity, owner and path, and whether a process still writes to it.
#[derive(Debug)]
pub struct TrackedFile {
    /// The result of stat(2) when the file was opened.
    pub facts: FileFacts,
    /// The path under which the file was found.
    pub path: PathBuf,
    /// What is known of the processes that have the file open.
    pub liveness: Liveness,
    /// True if an attempt to remove the file failed for good, so that it is not tried again.
    pub is_unremovable: bool,
}

/// The reader of a file's telemetry.
#[derive(Debug)]
pub enum Reader {
    /// Reads a ring.
    Ring(Box<RingReader>),
    /// Reads a store.
    Store(Box<StoreReader>),
}

/// An attached file with its reader.
#[derive(Debug)]
pub struct Source {
    /// The attached file.
    pub file: TrackedFile,
    /// Reads the file's telemetry.
    pub reader: Reader,
}

impl Source {
    /// Returns the processes that write the ring at the same time; `None` if there are not several. A ring that is not
    /// drained here may have another consumer, which writes it too.
    pub(crate) fn sharers(&self) -> Option<&Sharers> {
        let is_drained = self.as_ring().is_some_and(|ring| ring.mode == Mode::Drain);
        self.file.liveness.sharers().filter(|_| is_drained)
    }

    /// Maps and locks a ring. `last_batch` is the last counted batch of the agent's rings, from this process or the one
    /// before. If it is of this ring, the next drain finds out what became of it.
    ///
    /// # Errors
    /// The file cannot be mapped.
    pub fn ring(
        candidate: RingCandidate,
        path: PathBuf,
        last_batch: Option<&Checkpoint>,
        now: Instant,
    ) -> Result<Self, Rejection> {
        let facts = candidate.facts;
        let reader = RingReader::attach(candidate, last_batch, now)?;
        Ok(Self::new(Reader::Ring(Box::new(reader)), facts, path, now))
    }

    /// Maps a store. Returns its values as well.
    ///
    /// # Errors
    /// The file cannot be mapped, or has changed since it was checked.
    pub fn store(
        candidate: crate::store::StoreCandidate,
        path: PathBuf,
        now: Instant,
    ) -> Result<(Self, StoreValues), Rejection> {
        let facts = candidate.facts;
        let (reader, values) = StoreReader::attach(candidate)?;
        let reader = Reader::Store(Box::new(reader));
        Ok((Self::new(reader, facts, path, now), values))
    }

    fn new(reader: Reader, facts: FileFacts, path: PathBuf, now: Instant) -> Self {
        let lease = match reader {
            Reader::Ring(_) => LeaseKind::Exclusive,
            Reader::Store(_) => LeaseKind::NoWriter,
        };
        let file = TrackedFile {
            liveness: Liveness::new(reader.descriptor(), &facts, lease, now),
            facts,
            path,
            is_unremovable: false,
        };
        Self { file, reader }
    }

    /// Device and inode of the file.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.file.facts.id
    }

    /// The reader of a ring. `None` for a store.
    #[must_use]
    pub fn as_ring(&self) -> Option<&RingReader> {
        match &self.reader {
            Reader::Ring(ring) => Some(ring),
            Reader::Store(_) => None,
        }
    }

    /// The reader of a store. `None` for a ring.
    #[must_use]
    pub fn as_store(&self) -> Option<&StoreReader> {
        match &self.reader {
            Reader::Ring(_) => None,
            Reader::Store(store) => Some(store),
        }
    }

    /// Counts what was written since the last drain. Returns what other processes do with the file: one writes it if
    /// events were counted, or if the producer restarted.
    ///
    /// # Errors
    /// The file is no longer what was attached.
    pub fn drain(&mut self, context: &mut DrainContext) -> Result<Presence, RingFault> {
        let (file, now) = (&mut self.file, context.now.instant);
        let found = match &mut self.reader {
            Reader::Ring(ring) => ring.drain(file, context),
            Reader::Store(store) => store.read(context),
        };
        match found {
            // The last values of a store whose writer has ended for good are not a sign of life.
            Ok(true) if self.as_ring().is_some() || !self.file.liveness.has_no_holder() => {
                let period = context.shared.check_period;
                self.file.liveness.saw_events(now, period);
                Ok(Presence::Writing)
            }
            Ok(_) => Ok(self.check(context)),
            // The producer restarted during the read. The slots now belong to the new ring, which is drained from its
            // start at the next tick.
            Err(RingFault::Restarted) => Ok(Presence::Writing),
            // stat(2) failed, so nothing is known and nothing was changed. The next tick recovers what was begun.
            Err(RingFault::StatFailed) => Ok(Presence::Held),
            Err(fault) => Err(fault),
        }
    }

    /// Checks which processes have a file without new events open.
    fn check(&mut self, context: &mut DrainContext) -> Presence {
        let Self { file, reader } = self;
        let (now, every) = (context.now.instant, context.shared.check_period);
        let has_started = file.liveness.check(reader.descriptor(), now, every);
        if let Reader::Ring(ring) = reader {
            let is_restart = has_started && ring.may_have_restarted();
            if is_restart && ring.producer_restarted(file, context).is_ok() {
                return Presence::Writing;
            }
        }
        file.liveness.presence(now)
    }

    /// True if the file is to be detached after a drain: nothing more will come. `presence` is what the drain has
    /// returned. The last values of a store are shown for as long as its agent is an instance, which is not so if
    /// `is_dormant`.
    #[must_use]
    pub fn is_over(&self, presence: Presence, is_dormant: bool) -> bool {
        let is_unlinked = self.file.liveness.is_unlinked();
        let is_gone = presence == Presence::Gone;
        presence < Presence::Held
            && match &self.reader {
                // Events that the last writer wrote after the drain and before its end are not counted yet. A ring with
                // a name may be written by the next start of its agent.
                Reader::Ring(ring) => is_unlinked && (is_dormant || (is_gone && ring.is_drained())),
                Reader::Store(_) => is_dormant && (is_unlinked || is_gone),
            }
    }

    /// Returns the file's facts if no event is pending and no other process has the file open now; with `even_if_held`,
    /// also if one has. The facts are from before that check, so that a later change of the file shows that its agent
    /// has started again.
    pub fn facts_if_drained(&mut self, now: Instant, even_if_held: bool) -> Option<FileFacts> {
        let facts = self.current_facts()?;
        // If the file has changed its format, the next drain finds that out.
        let may_detach = self.is_abandoned(now) || even_if_held;
        let is_drained = self.as_ring().is_none_or(RingReader::is_drained);
        (may_detach && is_drained).then_some(facts)
    }

    /// The result of fstat(2) now.
    #[must_use]
    pub fn current_facts(&self) -> Option<FileFacts> {
        Some(FileFacts::new(&fstat(self.reader.descriptor()).ok()?))
    }

    /// Asks the kernel. Returns true if no other process has the file open.
    pub fn is_abandoned(&mut self, now: Instant) -> bool {
        self.file
            .liveness
            .update_holder(self.reader.descriptor(), now)
    }

    /// For how long the kernel has reported that no other process has the file open. `None` if the file cannot be
    /// removed.
    #[must_use]
    pub fn abandoned_for(&self, now: Instant) -> Option<Duration> {
        let is_drained_here = self.as_ring()?.mode == Mode::Drain;
        let removable =
            is_drained_here && !self.file.is_unremovable && !self.file.liveness.is_unlinked();
        self.file.liveness.no_holder_for(now).filter(|_| removable)
    }

    /// The time until which a drain would find nothing new while a poll of the first words of the file finds no change.
    /// At that time the holders are checked again, every `check_period`. `None` if the next drain may find more.
    #[must_use]
    pub fn poll(&self, check_period: Duration) -> Option<(Instant, HeaderPoll)> {
        let poll = match &self.reader {
            Reader::Ring(ring) => ring.poll(),
            Reader::Store(store) => store.poll(),
        };
        Some((self.file.liveness.next_check(check_period), poll?))
    }
}

impl Reader {
    /// The descriptor that the file was mapped from.
    #[must_use]
    pub fn descriptor(&self) -> &File {
        match self {
            Reader::Ring(ring) => ring.ring.file(),
            Reader::Store(store) => &store.descriptor,
        }
    }
}
