//! One attached ring: its mapping, its file, and whether somebody still writes to it.

use crate::discover::{Candidate, FileFacts, FileId};
use crate::error::{Refusal, RingFault};
use crate::event::Totals;
use crate::ring::Ring;
use crate::writer::{self, Holder};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::fs::File;
use std::time::{Duration, Instant};

/// How often a ring without new events is asked for its writer.
const CHECK: Duration = Duration::from_secs(1);
/// How long a ring is taken for live after its last event where the kernel does not tell who has it.
const BENEFIT_OF_DOUBT: Duration = Duration::from_secs(60);

/// A ring that is drained.
#[derive(Debug)]
pub struct Source {
    ring: Ring,
    /// The descriptor that the mapping came from: a lease on another one would find the mapping in its way.
    file: File,
    facts: FileFacts,
    holder: Holder,
    unlinked: bool,
    last_check: Instant,
    last_event: Instant,
}

/// What a drain found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Events, or somebody who may still write some.
    Live,
    /// Nothing, and nobody who could write.
    Silent,
    /// Nothing, nobody who could write, and the file is unlinked: nothing will ever come.
    Gone,
    /// It is no longer the ring that was attached.
    Broken(RingFault),
}

impl Source {
    /// Maps a candidate.
    ///
    /// # Errors
    /// The file's facts, and why it cannot be mapped.
    pub fn attach(candidate: Candidate, now: Instant) -> Result<Self, (FileFacts, Refusal)> {
        let Candidate {
            file,
            facts,
            header,
            layout,
        } = candidate;
        let ring = Ring::map(&file, &header, layout).map_err(|err| {
            let errno = err.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw);
            (
                facts,
                Refusal::Io {
                    what: "mapped",
                    errno,
                },
            )
        })?;
        let holder = writer::holder(&file);
        Ok(Self {
            ring,
            file,
            facts,
            holder,
            unlinked: false,
            last_check: now,
            last_event: now,
        })
    }

    /// Which file it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.facts.id
    }

    /// The file's owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.facts.uid
    }

    /// Whether the kernel says that nobody else has the file.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.holder == Holder::Nobody
    }

    /// Adds all events that wait to `totals`.
    pub fn drain(&mut self, now: Instant, totals: &mut Totals) -> Drained {
        match self.consume(totals) {
            Ok(true) => {
                (self.last_event, self.holder) = (now, Holder::Somebody);
                Drained::Live
            }
            Ok(false) => self.check_writer(now),
            // What the producer left there is the producer's; the new ring is drained from its start at the next tick.
            Err(RingFault::Restarted) => Drained::Live,
            Err(fault) => Drained::Broken(fault),
        }
    }

    /// Unmaps the ring; the file's facts after that, so that a later change can be told.
    #[must_use]
    pub fn detach(self) -> Option<FileFacts> {
        drop(self.ring);
        fstat(&self.file).ok().map(|stat| FileFacts::new(&stat))
    }

    /// Whether there were events.
    fn consume(&self, totals: &mut Totals) -> Result<bool, RingFault> {
        if self.ring.is_empty()? {
            return Ok(false);
        }
        let batch = self.ring.take()?;
        // Released before it is counted: what another reader took meanwhile is not counted as well.
        if self.ring.release(&batch)? {
            totals.add(&batch.totals);
        }
        Ok(true)
    }

    fn check_writer(&mut self, now: Instant) -> Drained {
        if now.duration_since(self.last_check.max(self.last_event)) >= CHECK {
            self.last_check = now;
            self.holder = writer::holder(&self.file);
            self.unlinked = fstat(&self.file).is_ok_and(|stat| stat.st_nlink == 0);
        }
        match self.holder {
            Holder::Somebody => Drained::Live,
            Holder::Unknown if now.duration_since(self.last_event) < BENEFIT_OF_DOUBT => {
                Drained::Live
            }
            Holder::Nobody | Holder::Unknown if self.unlinked => Drained::Gone,
            Holder::Nobody | Holder::Unknown => Drained::Silent,
        }
    }
}
