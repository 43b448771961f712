//! A ring that is drained, or followed while another process drains it.

use super::TrackedFile;
use crate::error::{Refusal, RingFault};
use crate::ring::Ring;
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::checkpoint::{Checkpoint, RingIdentity};
use crate::ring::gaps::Gaps;
use crate::shm::{self, HeaderPoll};
use crate::source::context::DrainContext;
use std::fs::File;
use std::time::{Duration, Instant};

mod counting;
mod following;
mod recovery;

/// How often a ring that another process drains is tried for its lock.
const LOCK_RETRY: Duration = Duration::from_secs(1);
/// How often one that is full, and that another should drain, is counted as full.
const OVERFLOW_PERIOD: Duration = Duration::from_secs(1);

/// A ring that is drained, or followed.
#[derive(Debug)]
pub struct RingReader {
    /// The mapped ring.
    pub(crate) ring: Ring,
    /// What is done with its events.
    pub(crate) mode: Mode,
    /// The last batch that was counted; it ends where the next batch begins.
    pub(crate) checkpoint: Checkpoint,
    /// Events that waited at the last look.
    pub(crate) pending: u64,
    /// True if more waited than a batch has.
    pub(crate) has_more: bool,
    /// When it was last counted as full, of one that another drains.
    overflow_counted: Option<Instant>,
    /// How many events wait that may be of any age; `None`: that was not looked at yet.
    aged_pending: Option<u64>,
    /// Where events may be missing.
    gaps: Gaps,
    /// When the lock is tried again: another process has it, or a lock for reading is in the way.
    next_try: Option<Instant>,
}

/// What is done with a ring's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are counted, and their slots given back.
    Drain,
    /// They are counted only: another process has locked the ring to drain it.
    Locked,
    /// They are counted only: the ring may not be written to, or is not to be.
    Observe(Access),
}

/// Locks the file of a ring. Returns what is done with its events, and when the lock is to be tried again: a ring that another
/// process has locked for writing is followed. While another user's lock for reading is in the way, no process has the lock, and
/// the ring is drained.
fn lock(file: &File, now: Instant) -> (Mode, Option<Instant>) {
    match shm::lock(file) {
        // Where there are no locks, a second daemon cannot be recognised.
        Ok(true) | Err(_) => (Mode::Drain, None),
        Ok(false) => match shm::is_locked(file) {
            Ok(true) => (Mode::Locked, Some(now + LOCK_RETRY)),
            _ => (Mode::Drain, Some(now + LOCK_RETRY)),
        },
    }
}

impl RingReader {
    /// Maps a candidate and locks it, as [`super::Source::ring`].
    pub(super) fn attach(
        candidate: RingCandidate,
        last_batch: Option<&Checkpoint>,
        now: Instant,
    ) -> Result<Self, Refusal> {
        let RingCandidate {
            file,
            header,
            layout,
            access,
            ..
        } = candidate;
        let is_read_only = access != Access::Write;
        let ring = Ring::map(file, &header, layout, is_read_only).map_err(Refusal::io("mapped"))?;
        let identity = RingIdentity::of(&ring).map_err(Refusal::io("looked at"))?;
        let (mode, next_try) = match access {
            Access::Write => lock(ring.file(), now),
            access => (Mode::Observe(access), None),
        };
        let checkpoint = match last_batch {
            Some(batch) if batch.ring.is_same_file(&identity) => *batch,
            _ => recovery::empty_checkpoint(&ring, None, identity, mode)
                .map_err(|_| Refusal::Replaced)?,
        };
        let mut gaps = Gaps::default();
        if recovery::had_overflow(&ring, &checkpoint) {
            // Nobody has kept where.
            gaps.add(ring.between(1, checkpoint.from));
        }
        Ok(Self {
            ring,
            mode,
            checkpoint,
            pending: 0,
            has_more: false,
            overflow_counted: None,
            aged_pending: None,
            gaps,
            next_try,
        })
    }

    pub(super) fn descriptor(&self) -> &File {
        self.ring.file()
    }

    /// The version in its header.
    pub(crate) fn version(&self) -> u32 {
        self.ring.shape.layout.version().unsigned_abs()
    }

    /// True if its producer may have been started anew without a sign in the ring. Of one that begins elsewhere the positions tell.
    pub(super) fn may_have_restarted(&self) -> bool {
        self.checkpoint.end == 0 && self.is_drained() == Ok(true)
    }

    /// Its producer was started anew.
    pub(super) fn producer_restarted(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let ring = self.identity()?;
        self.resume_after_restart(None, ring, file, context)
    }

    pub(super) fn is_drained(&self) -> Result<bool, RingFault> {
        let end = self.checkpoint.end;
        Ok(self.ring.positions()? == (end, end))
    }

    /// As [`super::Source::unchanged_until`]; `next` is when it is asked who has the file.
    pub(super) fn unchanged_until(&self, next_check: Instant) -> Option<Instant> {
        if self.mode == Mode::Drain {
            return (self.checkpoint.released && self.pending == 0).then_some(next_check);
        }
        let next_overflow = self
            .overflow_counted
            .map(|counted| counted + OVERFLOW_PERIOD);
        let times = [next_overflow, self.next_try].into_iter().flatten();
        self.checkpoint
            .followed
            .then(|| times.fold(next_check, Instant::min))
    }

    pub(super) fn header_poll(&self) -> Option<HeaderPoll> {
        let end = self.checkpoint.end;
        // Of one that is drained here nothing waits.
        self.ring
            .header_poll(self.ring.between(self.pending, end), end)
    }
}
