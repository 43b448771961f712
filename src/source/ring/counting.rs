//! How the events of a ring are counted: each once, whatever its producer, other readers and kills of this process do meanwhile.

use super::super::TrackedFile;
use super::{Mode, RingReader, lock};
use crate::error::RingFault;
use crate::event::Events;
use crate::ring::checkpoint::{Checkpoint, RingIdentity};
use crate::ring::{BATCH, sparse};
use crate::source::context::DrainContext;
use crate::stats::window;
use crate::stats::windows::Windows;
use std::io;

/// What a batch has taken of what waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// Events, or there was a change that took their place.
    Some,
    /// All but the last before the ring's end, which is a batch of its own.
    AllButLastSlot,
}

impl RingReader {
    /// Counts the events that wait. Returns true if there were any, or a change that took their place.
    pub(in crate::source) fn drain(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let now = context.now.instant;
        if self.next_try.is_some_and(|next| now >= next) {
            (self.mode, self.next_try) = lock(self.ring.file(), now);
        }
        match self.mode {
            Mode::Drain => self.consume(file, context),
            Mode::Locked | Mode::Observe(_) => self.follow(file, context),
        }
    }

    pub(in crate::source) fn drain_to_end(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        // Nobody adds to it, so that this comes to an end.
        for _ in 0..=self.ring.capacity() / BATCH + 1 {
            if !self.consume(file, context)? {
                break;
            }
        }
        self.is_drained()
    }

    /// Whether there were events, or a change that took their place.
    fn consume(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let progress = self.consume_batch(file, context)?;
        if progress == Progress::AllButLastSlot {
            // Once: whoever may write to the ring can put its end anywhere, again and again.
            self.consume_batch(file, context)?;
        }
        Ok(progress != Progress::Nothing)
    }

    /// Counts one batch, each of its events once, whatever ends this process, pmcd or the producer, and at whatever instruction.
    ///
    /// The record says whether the batch is counted, and `commit` changes that in one step. What a kill leaves:
    ///
    /// - before `commit` has changed the record: the batch is not counted and its slots still hold it: the next start reads it;
    /// - after that: the batch is counted, and whether its slots were released is open. The next start finds that out from the
    ///   ring's positions and bytes (`recover`), releases them if they were not, and never reads them again;
    /// - after `released`: nothing is open.
    ///
    /// Where the ring does not tell, the batch is taken for counted: rather is one lost than counted twice.
    fn consume_batch(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<Progress, RingFault> {
        if let Some(progress) = self.find_pending(file, context)? {
            return Ok(progress);
        }
        let mut events = std::mem::take(&mut context.shared.scratch);
        let progress = self.read(&mut events, context.shared.is_for_answer)?;
        self.apply(events, self.pending, self.pending, file, context);
        context.commit(self.checkpoint);
        if self.release(file, context)? {
            self.note_released(context);
        }
        self.find_gap();
        Ok(progress)
    }

    /// Settles the batch before, if that is open, and looks how many events wait. `None`: some do.
    fn find_pending(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<Option<Progress>, RingFault> {
        self.has_more = false;
        let (mut read_pos, mut write_pos) = self.ring.positions()?;
        // Also after a kill that came before the slots were known to have been released.
        let moved = read_pos != self.checkpoint.end || !self.checkpoint.released;
        if moved {
            self.recover(file, context)?;
            (read_pos, write_pos) = self.ring.positions()?;
            if read_pos != self.checkpoint.end {
                // It moves while it is looked at: more of it at the next tick.
                return Ok(Some(Progress::Some));
            }
        }
        self.pending = self.ring.between(read_pos, write_pos);
        let nothing = if moved {
            Progress::Some
        } else {
            Progress::Nothing
        };
        Ok((self.pending == 0).then_some(nothing))
    }

    /// Reads a batch of those that wait, by loads only, and remembers which.
    fn read(&mut self, events: &mut Events, is_for_answer: bool) -> Result<Progress, RingFault> {
        // Before the slots are copied: a restart from here on changes it.
        let ring = self.identity()?;
        self.check_allocated(self.pending)?;
        // Not more than was checked: later events may lie in a hole.
        let limit = self.pending.min(BATCH);
        self.has_more = self.pending > limit;
        // A batch that begins at 0 is the one of which it may be hard to tell whether its slots were released in a new ring. So
        // none ends there but one of a single event, and where the ring was half full, that waits for the next drain, by which
        // more have come; but for an answer, which has all, if it would be seen that the ring was set up anew.
        let end = self.checkpoint.end + limit;
        let is_shortened = limit > 1 && self.ring.between(0, end) == 0;
        let batch = self
            .ring
            .read(|ring| ring.read_batch(limit - u64::from(is_shortened), events))??;
        if batch.from != self.checkpoint.end {
            return Err(RingFault::Restarted);
        }
        // A restart in the midst of the copy may have left positions that fit, but not the slots that were copied first.
        let after = self.identity()?;
        let is_same = ring.shows_changes && after.changed == ring.changed;
        if !is_same
            && self
                .ring
                .read(|ring| ring.fingerprint(batch.from, batch.end))?
                != batch.fingerprint
        {
            return Err(RingFault::Restarted);
        }
        self.checkpoint = Checkpoint::of(&batch, ring, false);
        let is_busy = self.pending >= self.ring.capacity() / 2;
        let has_time = is_busy && !(is_for_answer && is_same);
        Ok(match is_shortened && !has_time {
            true => Progress::AllButLastSlot,
            false => Progress::Some,
        })
    }

    /// Adds the events of the batch that was read to the totals in memory. `waits` is how many of them waited to be read, and
    /// `pending` how many the ring is to have held when it was looked at.
    pub(super) fn apply(
        &mut self,
        events: Events,
        unread: u64,
        pending: u64,
        file: &TrackedFile,
        context: &mut DrainContext,
    ) {
        let (now, is_aged) = (context.now, self.is_aged(unread, file, context));
        let DrainContext {
            entry,
            windows,
            shared,
            ..
        } = context;
        let mut discarded_windows = is_aged.then(|| Windows::new(now.instant));
        let windows = discarded_windows.as_mut().unwrap_or(windows);
        let last_ring = entry.checkpoint.map(|checkpoint| checkpoint.ring.id);
        if last_ring != Some(self.checkpoint.ring.id) {
            // Of another ring of the agent's.
            entry.stats.note_gap();
        }
        let gaps = self.gaps.remove_in(&self.checkpoint);
        let stats = &mut entry.stats;
        stats.apply(&events, gaps, &shared.config.bounds, now.seconds, windows);
        entry.note_pending(pending, self.checkpoint.ring.capacity);
        // Also where it was away: the process that writes it had started by then.
        (entry.last_event, entry.last_seen) = (now.stamp, now.stamp);
        // Not kept: at the next start it is added up from the entries.
        shared.host.add(events.totals());
        shared.counted_events += events.list().len() as u64;
        shared.scratch = events;
    }

    /// Gives the slots of the batch that was counted back to the producer. `false`: it was found out what became of them, and
    /// that is noted.
    fn release(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let Checkpoint { from, end, .. } = self.checkpoint;
        if self.ring.release(from, end)?.is_err() {
            self.recover(file, context)?;
            return Ok(false);
        }
        // A restart sets the position to 0 as well, so that there the swap may have met the new ring.
        if from == 0 {
            self.recover(file, context).inspect_err(|&fault| {
                // In the midst of a restart: whatever the new ring will be, it begins at 0.
                if fault != RingFault::Unseen {
                    let _ = self.ring.release(end, 0);
                }
            })?;
            return Ok(false);
        }
        Ok(true)
    }

    /// The producer may have filled the ring before it got the slots of the last batch: from where it stood then, events are
    /// missing.
    fn find_gap(&mut self) {
        let Checkpoint { from, end, .. } = self.checkpoint;
        let (_, write_pos) = self.ring.positions().unwrap_or((end, end));
        let pending = self.ring.between(from, end) + self.ring.between(end, write_pos);
        // A ring that was found to have begun anew has an empty batch.
        if from != end && pending >= self.ring.capacity() - 1 {
            self.gaps.add(self.ring.between(1, from));
        }
    }

    /// The slots of the last batch are the producer's again.
    pub(super) fn note_released(&mut self, context: &mut DrainContext) {
        self.checkpoint.released = true;
        context.note_released(self.checkpoint.ring.id);
    }

    /// Whether the batch has events that waited when the ring was found, of a file that was made, or started anew, before those
    /// of which the last minute's percentiles are: nothing tells when they came. So many wait now.
    fn is_aged(&mut self, unread: u64, file: &TrackedFile, context: &DrainContext) -> bool {
        let len = self.ring.between(self.checkpoint.from, self.checkpoint.end);
        let aged_pending = self.aged_pending.get_or_insert_with(|| {
            let changed = u64::try_from(file.facts.changed.0).unwrap_or(0);
            match context.now.seconds.saturating_sub(changed) > window::LENGTH.as_secs() {
                true => unread,
                false => 0,
            }
        });
        let is_aged = *aged_pending > 0;
        *aged_pending = aged_pending.saturating_sub(len);
        is_aged
    }

    pub(super) fn check_allocated(&self, pending: u64) -> Result<(), RingFault> {
        match sparse::has_blocks_for(self.ring.file(), self.ring.shape.layout, pending) {
            true => Ok(()),
            false => Err(RingFault::Sparse),
        }
    }

    pub(super) fn identity(&self) -> Result<RingIdentity, RingFault> {
        RingIdentity::of(&self.ring).map_err(|err| match err.kind() {
            io::ErrorKind::InvalidData => RingFault::Reformatted,
            _ => RingFault::Unseen,
        })
    }
}
