// SPDX-License-Identifier: GPL-2.0-or-later

//! Exactly-once counting of the events of a ring that this process drains, whatever its producer, other readers and
//! kills do meanwhile.
//!
//! Begin with `RingReader::consume_batch`, which has the five steps: read, apply, commit, release, note the release.
//! `drain` calls it, and `recovery` finds out what became of a batch after a kill or a failed release.

use super::super::TrackedFile;
use super::recovery::empty_checkpoint;
use super::{Mode, RingReader, lock};
use crate::error::RingFault;
use crate::event::Events;
use crate::ring::BATCH;
use crate::ring::checkpoint::Checkpoint;
use crate::source::context::DrainContext;
use crate::stats::window;
use crate::stats::windows::Windows;

/// How far a batch came with the pending events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Nothing,
    /// Events were counted, or the batch before was recovered instead.
    Some,
    /// All pending events were counted except the one in the last slot of the ring, which is a batch of its own.
    AllButLastSlot,
}

impl RingReader {
    /// Counts the pending events. Returns true if there were any, or if the batch before was recovered instead.
    pub(in crate::source) fn drain(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let now = context.now.instant;
        // An answer has all events. The process with the lock may be the pmdanixl before this one, which has just
        // ended.
        let is_wanted = context.shared.is_for_answer && self.mode == Mode::Locked;
        if self.next_try.is_some_and(|next| is_wanted || now >= next) {
            let before = self.mode;
            (self.mode, self.next_try) = lock(self.ring.file(), now);
            if before != Mode::Drain && self.mode == Mode::Drain {
                self.begin(context)?;
            }
        }
        match self.mode {
            Mode::Drain => self.consume(file, context),
            Mode::Locked | Mode::Observe(_) => self.look(context),
        }
    }

    /// Begins to drain a ring that was not drained before. If nothing of it was ever counted, its first event is the
    /// one that is pending.
    fn begin(&mut self, context: &mut DrainContext) -> Result<(), RingFault> {
        let counted = context.entry.checkpoint.map(|last| last.ring.id);
        if counted != Some(self.checkpoint.ring.id) {
            if counted.is_some() {
                context.add_start();
            }
            context.entry.is_counted = true;
            self.checkpoint = empty_checkpoint(&self.ring, self.identity()?)?;
            context.commit(self.checkpoint);
        }
        Ok(())
    }

    /// Looks at a ring that is not drained here. Returns true if its agent has written to it.
    fn look(&mut self, context: &mut DrainContext) -> Result<bool, RingFault> {
        self.has_more = false;
        let (_, before) = self.positions;
        self.positions = self.ring.positions()?;
        let is_written = self.positions.1 != before;
        if is_written {
            self.identity()?;
            let now = context.now.stamp;
            (context.entry.last_event, context.entry.last_seen) = (now, now);
            context.write_entry();
        }
        Ok(is_written)
    }

    /// Counts a batch of the pending events. Returns true if none is left.
    pub(in crate::source) fn drain_rest(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        self.consume(file, context)?;
        Ok(self.is_drained())
    }

    /// Drains one batch. Returns true if it counted events, or if it recovered the batch before instead.
    fn consume(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let progress = self.consume_batch(file, context)?;
        if progress == Progress::AllButLastSlot {
            // Only once: a process that may write to the ring can put its end anywhere, again and again.
            self.consume_batch(file, context)?;
        }
        Ok(progress != Progress::Nothing)
    }

    /// Counts one batch. Each of its events is counted once, even if this process, pmcd or the producer is killed at
    /// any instruction.
    ///
    /// The record in the state file decides whether the batch is counted, and `commit` changes that with one store.
    /// What a kill leaves:
    ///
    /// - before that store: the batch is not counted, and its slots still hold it. The next daemon reads it again.
    /// - after that store: the batch is counted, and it is not known whether its slots were released. The next daemon
    ///   finds that out from the positions and bytes of the ring (`recover`), releases the slots if they were not, and
    ///   never reads them again.
    /// - after `note_released`: nothing has to be found out.
    ///
    /// If the ring does not show what happened, the batch is taken for counted: when in doubt, lose a batch rather than
    /// count it twice.
    fn consume_batch(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<Progress, RingFault> {
        if let Some(progress) = self.find_pending(file, context)? {
            return Ok(progress);
        }
        let progress = self.read(&mut context.shared.events, context.shared.is_for_answer)?;
        self.apply(file, context);
        context.commit(self.checkpoint);
        if self.release(file, context)? {
            self.note_released(context);
        }
        self.find_gap();
        Ok(progress)
    }

    /// Recovers the previous batch if its release is not known, then counts the pending events. Returns `None` if there
    /// are some to read.
    fn find_pending(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<Option<Progress>, RingFault> {
        self.has_more = false;
        let (mut read_pos, mut write_pos) = self.ring.positions()?;
        // Also after a kill between the commit and the note that the slots were released.
        let needs_recovery = read_pos != self.checkpoint.end || !self.checkpoint.released;
        if needs_recovery {
            self.recover(file, context)?;
            (read_pos, write_pos) = self.ring.positions()?;
            if read_pos != self.checkpoint.end || !self.checkpoint.released {
                // Another process moves the position meanwhile. The next drain goes on.
                return Ok(Some(Progress::Some));
            }
        }
        self.positions = (read_pos, write_pos);
        let nothing = if needs_recovery {
            Progress::Some
        } else {
            Progress::Nothing
        };
        Ok((self.pending() == 0).then_some(nothing))
    }

    /// Reads a batch of the pending events, by loads only, and makes it the checkpoint.
    fn read(&mut self, events: &mut Events, is_for_answer: bool) -> Result<Progress, RingFault> {
        // The identity is read before the slots: a restart of the producer from here on changes it.
        let identity = self.identity()?;
        self.check_allocated(self.pending())?;
        // Not more than was checked: later events may lie in a hole of a sparse file.
        let limit = self.pending().min(BATCH);
        self.has_more = self.pending() > limit;
        // No batch ends at slot 0, since a release to 0 looks like a restart of the producer. The last slot of the ring
        // begins the next batch: in the next drain if the ring is half full, when more events follow; else now, as a
        // batch of its own. An answer has to include all events, so that the slot does not wait if the file would show
        // a restart.
        let end = self.checkpoint.end + limit;
        let is_shortened = limit > 1 && self.ring.between(0, end) == 0;
        let batch = self
            .ring
            .read(|ring| ring.read_batch(limit - u64::from(is_shortened), events))??;
        if batch.from != self.checkpoint.end {
            return Err(RingFault::Restarted);
        }
        // A restart during the copy may have left positions that fit, but slots that were overwritten after they were
        // copied.
        let is_unchanged = identity.is_unchanged(&self.identity()?);
        if !is_unchanged
            && self
                .ring
                .read(|ring| ring.fingerprint(batch.from, batch.end))?
                != batch.fingerprint
        {
            return Err(RingFault::Restarted);
        }
        self.checkpoint = Checkpoint::of(&batch, identity);
        let is_busy = self.pending() >= self.ring.capacity() / 2;
        let may_wait = is_busy && !(is_for_answer && is_unchanged);
        Ok(match is_shortened && !may_wait {
            true => Progress::AllButLastSlot,
            false => Progress::Some,
        })
    }

    /// Adds the events of the batch that was just read to the totals in memory.
    fn apply(&mut self, file: &TrackedFile, context: &mut DrainContext) {
        let (now, may_be_old) = (context.now, self.take_old_pending(file, context));
        let DrainContext {
            entry,
            windows,
            shared,
            ..
        } = context;
        let mut discarded_windows = may_be_old.then(|| Windows::new(now.instant));
        let windows = discarded_windows.as_mut().unwrap_or(windows);
        let last_ring = entry.checkpoint.map(|checkpoint| checkpoint.ring.id);
        if last_ring != Some(self.checkpoint.ring.id) {
            // The batch before was of another ring of the agent.
            entry.stats.note_gap();
        }
        let gaps = self.gaps.remove_in(&self.checkpoint);
        let (stats, events) = (&mut entry.stats, &shared.events);
        stats.apply(events, gaps, &shared.config.bounds, now.seconds, windows);
        if let Some(limit) = shared.config.slow_transfer_us.filter(|_| !may_be_old) {
            shared.slow_transfers.add(events.list(), limit);
        }
        entry.note_pending(self.pending(), self.checkpoint.ring.capacity);
        // Also for an agent that had no file for a while: its process has started since.
        (entry.last_event, entry.last_seen) = (now.stamp, now.stamp);
        // Host totals are not in the state file: the next daemon adds them up from the entries.
        shared.host.add(events.totals());
        shared.counted_events += events.list().len() as u64;
    }

    /// Releases the slots of the counted batch. Returns false if the release failed or proved nothing, since it was
    /// from 0: then the batch was recovered, and the result is noted already.
    fn release(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        let Checkpoint { from, end, .. } = self.checkpoint;
        let is_certain = self.ring.release(from, end)?.is_ok() && from != 0;
        if !is_certain {
            self.recover(file, context)?;
        }
        Ok(is_certain)
    }

    /// Adds a gap if the producer filled the ring before the slots of the last batch were released. Events are missing
    /// from the slot where it had to stop.
    fn find_gap(&mut self) {
        let Checkpoint { from, end, .. } = self.checkpoint;
        let (_, write_pos) = self.ring.positions().unwrap_or((end, end));
        let pending = self.ring.between(from, end) + self.ring.between(end, write_pos);
        // After a producer restart the batch is empty.
        if from != end && pending >= self.ring.capacity() - 1 {
            self.gaps.add(self.ring.between(1, from));
        }
    }

    /// Notes that the slots of the last batch were released.
    pub(super) fn note_released(&mut self, context: &mut DrainContext) {
        self.checkpoint.released = true;
        context.note_released(self.checkpoint.ring.id);
    }

    /// Takes the batch off the events that were pending when the ring was attached. Returns true if there were such
    /// events, and the file was made or re-initialised more than a minute ago. The ring does not show when such events
    /// were written, so they do not count in the percentiles of the last minute.
    fn take_old_pending(&mut self, file: &TrackedFile, context: &DrainContext) -> bool {
        let (len, pending) = (
            self.ring.between(self.checkpoint.from, self.checkpoint.end),
            self.pending(),
        );
        let old_pending = self.old_pending.get_or_insert_with(|| {
            let changed = u64::try_from(file.facts.changed.0).unwrap_or(0);
            match context.now.seconds.saturating_sub(changed) > window::LENGTH.as_secs() {
                true => pending,
                false => 0,
            }
        });
        let may_be_old = *old_pending > 0;
        *old_pending = old_pending.saturating_sub(len);
        may_be_old
    }
}
