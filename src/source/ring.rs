// SPDX-License-Identifier: GPL-2.0-or-later

//! The reader of a ring: drains it, or only looks at it while another process drains it.
//!
//! `counting` has the steps of a drain, and `recovery` finds out what became of a batch.
//! `crate::ring::checkpoint` decides what proves a restart.

use super::TrackedFile;
use crate::error::{Rejection, RingFault};
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::checkpoint::{Checkpoint, RingIdentity};
use crate::ring::gaps::Gaps;
use crate::ring::layout::Layout;
use crate::ring::{Ring, sparse};
use crate::shm::{self, HeaderPoll};
use crate::source::context::DrainContext;
use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

mod counting;
mod recovery;

/// Period of attempts to lock a ring that another process drains.
const LOCK_RETRY: Duration = Duration::from_secs(1);

/// The reader of a ring.
#[derive(Debug)]
pub struct RingReader {
    /// The mapped ring.
    pub(crate) ring: Ring,
    /// Whether the ring is drained.
    pub(crate) mode: Mode,
    /// The last counted batch. The next batch begins at its end.
    pub(crate) checkpoint: Checkpoint,
    /// Positions of reader and producer at the last drain.
    positions: (u64, u64),
    /// True if more events were pending than fit into a batch.
    pub(crate) has_more: bool,
    /// Number of pending events that may be of any age. `None` before the first batch.
    old_pending: Option<u64>,
    /// Positions before which events may be missing.
    gaps: Gaps,
    /// Time of the next attempt to lock the file, if another process has a lock on it.
    next_try: Option<Instant>,
}

/// Whether a ring is drained. Of one that is not, nothing is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It is: events are counted, and their slots released.
    Drain,
    /// It is not: another process has locked the ring to drain it.
    Locked,
    /// It is not: the ring cannot be written to, or the configuration forbids it.
    Observe(Access),
}

/// Locks the file of a ring. Returns the mode, and the time of the next attempt. A ring that another process has locked
/// for writing is not drained. A lock for reading, which another user may have, only prevents the lock: no process
/// drains the ring then, so it is drained here.
fn lock(file: &File, now: Instant) -> (Mode, Option<Instant>) {
    match shm::lock(file) {
        // On a file system without locks a second daemon cannot be recognised.
        Ok(true) | Err(_) => (Mode::Drain, None),
        Ok(false) => match shm::is_locked(file) {
            Ok(true) => (Mode::Locked, Some(now + LOCK_RETRY)),
            _ => (Mode::Drain, Some(now + LOCK_RETRY)),
        },
    }
}

impl RingReader {
    /// Maps and locks a ring, see [`super::Source::ring`].
    pub(super) fn attach(
        candidate: RingCandidate,
        last_batch: Option<&Checkpoint>,
        now: Instant,
    ) -> Result<Self, Rejection> {
        let RingCandidate {
            file,
            header,
            layout,
            access,
            ..
        } = candidate;
        let is_read_only = access != Access::Write;
        let ring =
            Ring::map(file, &header, layout, is_read_only).map_err(Rejection::io("mapped"))?;
        let identity = RingIdentity::of(&ring).map_err(Rejection::io("checked"))?;
        let (mode, next_try) = match access {
            Access::Write => lock(ring.file(), now),
            access => (Mode::Observe(access), None),
        };
        let checkpoint = match last_batch {
            Some(batch) if batch.ring.is_same_file(&identity) => *batch,
            _ => recovery::empty_checkpoint(&ring, identity).map_err(|_| Rejection::Replaced)?,
        };
        let mut gaps = Gaps::default();
        if recovery::had_overflow(&ring, &checkpoint) {
            // The position of the gap was not stored: it is the slot before the batch.
            gaps.add(ring.between(1, checkpoint.from));
        }
        // In the midst of a restart of the producer there are none.
        let positions = ring.positions().unwrap_or_default();
        Ok(Self {
            ring,
            mode,
            checkpoint,
            positions,
            has_more: false,
            old_pending: None,
            gaps,
            next_try,
        })
    }

    /// The number of events that were pending at the last drain.
    pub(crate) fn pending(&self) -> u64 {
        let (read_pos, write_pos) = self.positions;
        self.ring.between(read_pos, write_pos)
    }

    /// The version in the header.
    pub(crate) fn version(&self) -> u32 {
        self.ring.shape.layout.version().unsigned_abs()
    }

    /// True if the producer may have restarted without a trace in the ring: all positions are 0 as in a new ring.
    /// Elsewhere the positions show a restart.
    pub(super) fn may_have_restarted(&self) -> bool {
        self.mode == Mode::Drain && self.checkpoint.end == 0 && self.is_drained()
    }

    /// Begins with the ring again, since its producer restarted.
    pub(super) fn producer_restarted(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let identity = self.identity()?;
        self.resume_after_restart(identity, file, context)
    }

    /// True if all events were counted, and their slots released.
    pub(super) fn is_drained(&self) -> bool {
        let end = self.checkpoint.end;
        self.ring.positions() == Ok((end, end))
    }

    /// Layout of the mapped file.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.ring.shape.layout
    }

    /// See [`super::Source::poll`].
    pub(super) fn poll(&self) -> Option<HeaderPoll> {
        let (read_pos, write_pos) = self.positions;
        let is_unchanged = match self.mode {
            Mode::Drain => self.checkpoint.released && self.pending() == 0,
            // Each answer tries to lock it.
            Mode::Locked => false,
            Mode::Observe(_) => true,
        };
        let poll = self.ring.header_poll(read_pos, write_pos);
        poll.filter(|_| is_unchanged)
    }

    fn check_allocated(&self, pending: u64) -> Result<(), RingFault> {
        match sparse::has_blocks_for(self.ring.file(), self.ring.shape.layout, pending) {
            true => Ok(()),
            false => Err(RingFault::Sparse),
        }
    }

    fn identity(&self) -> Result<RingIdentity, RingFault> {
        RingIdentity::of(&self.ring).map_err(|err| match err.kind() {
            io::ErrorKind::InvalidData => RingFault::Reformatted,
            _ => RingFault::StatFailed,
        })
    }
}
