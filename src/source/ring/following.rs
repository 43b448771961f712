// SPDX-License-Identifier: GPL-2.0-or-later

//! Counting of the events of a ring without releasing them: another process drains it, or it may not be written to.

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
    /// Counts the pending events of a ring that another process drains. Returns true if there were any.
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
            // While the ring stays full, its agent loses the events that it writes.
            if self.note_overflow(context) && file.liveness.state(true) != AgentState::Exited {
                let capacity = self.ring.capacity();
                context.entry.note_pending(self.pending, capacity);
                context.write_entry();
            }
            return Ok(false);
        }
        let identity = self.identity()?;
        // In a new ring no reader can be ahead of the producer.
        let has_gone_round = write_pos < read_pos;
        let is_restarted = |ring: Consumer<_>| {
            let positions = (read_pos, write_pos);
            let evidence = self.checkpoint.evidence(positions, &identity, &ring);
            self.checkpoint.may_be_restarted(&evidence)
        };
        if !has_gone_round && self.ring.read(is_restarted)? {
            // With events that are all alike this does not prove a restart. The events before `write_pos` were written since in
            // either case and are counted. Those from `read_pos` on may have been counted before.
            self.resume_after_restart(Some(0), identity, file, context)?;
        }
        let from = self.checkpoint.end;
        let new = self.ring.between(from, write_pos);
        self.check_allocated(new)?;
        let limit = new.min(BATCH);
        self.has_more = new > limit;
        let batch = self
            .ring
            .read(|ring| ring.read_from(from, limit, &mut context.shared.events))??;
        self.checkpoint = Checkpoint::of(&batch, identity, true);
        let is_full = self.pending + 1 == self.ring.capacity();
        let pending = match is_full && !self.note_overflow(context) {
            true => 0,
            false => self.pending,
        };
        self.apply(new, pending, file, context);
        context.commit(self.checkpoint);
        if is_full {
            self.gaps.add(write_pos);
        }
        Ok(true)
    }

    /// Notes whether the ring is full, and returns true if that counts as an overflow: once, however many batches the following takes, and again every
    /// [`OVERFLOW_PERIOD`] while it stays full.
    fn note_overflow(&mut self, context: &DrainContext) -> bool {
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
