//! Counts the events of a ring that another process drains.

use super::super::TrackedFile;
use super::{OVERFLOW_PERIOD, RingReader};
use crate::error::RingFault;
use crate::procfs::agent_state::AgentState;
use crate::ring::BATCH;
use crate::ring::checkpoint::Checkpoint;
use crate::ring::protocol::Consumer;
use crate::source::context::DrainContext;
use std::time::Instant;

impl RingReader {
    /// Counts what a ring holds that another process drains.
    pub(super) fn follow(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<bool, RingFault> {
        self.has_more = false;
        if !self.checkpoint.followed {
            self.recover(file, context)?;
        }
        let (read_pos, write_pos) = self.ring.positions()?;
        self.pending = self.ring.between(read_pos, write_pos);
        if write_pos == self.checkpoint.end {
            // As long as it stands so, its agent loses what comes.
            if self.is_new_overflow(context) && file.liveness.state(true) != AgentState::Exited {
                let capacity = self.ring.capacity();
                context.entry.note_pending(self.pending, capacity);
                context.write_entry();
            }
            return Ok(false);
        }
        let ring = self.identity()?;
        // Where the one that drains it is ahead of it, the producer has gone round: in a new ring nobody can be.
        let is_behind = write_pos < read_pos;
        let checkpoint = &self.checkpoint;
        let is_restarted = |now: Consumer<_>| checkpoint.is_restarted(&now, &ring, write_pos);
        if !is_behind && self.ring.read(is_restarted)? {
            // That is no proof where the same bytes come again and again. What lies before `write_pos` was written since in
            // either case, and is counted; from `read_pos` on it may have been already.
            self.resume_after_restart(Some(0), ring, file, context)?;
        }
        let from = self.checkpoint.end;
        let new = self.ring.between(from, write_pos);
        self.check_allocated(new)?;
        let limit = new.min(BATCH);
        self.has_more = new > limit;
        let mut events = std::mem::take(&mut context.shared.scratch);
        let batch = self
            .ring
            .read(|ring| ring.follow(from, limit, &mut events))??;
        self.checkpoint = Checkpoint::of(&batch, ring, true);
        let is_full = self.pending + 1 == self.ring.capacity();
        let pending = match is_full && !self.is_new_overflow(context) {
            true => 0,
            false => self.pending,
        };
        self.apply(events, new, pending, file, context);
        context.commit(self.checkpoint);
        if is_full {
            self.gaps.add(write_pos);
        }
        Ok(true)
    }

    /// Whether it is full and is to be counted so: once, however many batches it takes to follow, and again as long as it stays so.
    fn is_new_overflow(&mut self, context: &DrainContext) -> bool {
        let now = context.now.instant;
        let is_full = self.pending + 1 == self.ring.capacity();
        let is_due = |counted: Instant| now.saturating_duration_since(counted) >= OVERFLOW_PERIOD;
        let is_new = is_full && self.overflow_counted.is_none_or(is_due);
        if is_new {
            self.overflow_counted = Some(now);
        } else if !is_full {
            self.overflow_counted = None;
        }
        is_new
    }
}
