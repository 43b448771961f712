// SPDX-License-Identifier: GPL-2.0-or-later

//! What outlives the daemon of an agent: its [`Name`], and an [`Entry`] with totals, lifecycle and checkpoints.
//!
//! `journal` writes both to the state file. Another number of words is another format; where only their meaning
//! changes, raise the number in `FORMAT` there. This module must not know how they are committed.

use crate::base::file::FileId;
use crate::base::words::words;
use crate::procfs::agent_state::AgentState;
use crate::ring::checkpoint::Checkpoint;
use crate::stats::agent_stats::AgentStats;
use crate::store::StoreReading;

mod lifecycle;
mod name;
pub use lifecycle::Lifecycle;
pub use name::Name;

/// Highest instance id of an agent. Ids of its histograms begin at 64 times this id, and ids in PCP have 31 bits.
pub const HIGHEST_ID: u32 = (1 << 25) - 1;

/// What changes of an agent: totals, lifecycle, and the checkpoints of its ring and its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Totals, histograms and last values of its events.
    pub stats: AgentStats,
    /// True once its events are counted. Before that it has no totals: nothing of a ring that may not be drained is
    /// counted.
    pub is_counted: bool,
    /// Whether the agent is an instance.
    pub lifecycle: Lifecycle,
    /// Whether a process writes to its files, as of the last drain.
    pub agent_state: AgentState,
    /// When the agent was last seen: nanoseconds of CLOCK_MONOTONIC.
    pub last_seen: u64,
    /// When its last event was counted, or its last start was found: nanoseconds of CLOCK_MONOTONIC.
    pub last_event: u64,
    /// When the agent was first seen: seconds since 1970.
    pub first_seen: u64,
    /// Number of starts of its producer.
    pub starts: u64,
    /// Number of producer restarts on the same file.
    pub resets: u64,
    /// Events that another reader released before they were counted here.
    pub foreign_reads: u64,
    /// Number of times that its ring was found full.
    pub overflows: u64,
    /// The most events that were found pending.
    pub highwater: u64,
    /// The last batch that the totals include.
    pub checkpoint: Option<Checkpoint>,
    /// The last reading of its store that the totals include.
    pub store: Option<StoreReading>,
}
words!(Entry:
    stats, is_counted, lifecycle, agent_state, last_seen, last_event, first_seen, starts, resets,
    foreign_reads, overflows, highwater, checkpoint, store
);

impl Entry {
    /// The entry as it was read from the state file. `is_released`: the file says that the slots of the last batch were
    /// released. `None` if the checkpoint is impossible.
    pub(crate) fn restored(mut self, is_released: bool) -> Option<Self> {
        self.stats.bucket_base = self.stats.bucket_base.filter(|&base| base <= HIGHEST_ID);
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.released |= is_released;
            // The positions are written to the ring when the slots are released, so they must lie within it.
            let capacity = checkpoint.ring.capacity;
            let positions = [
                checkpoint.from,
                checkpoint.end,
                checkpoint.producer.write_pos,
            ];
            if !capacity.is_power_of_two() || positions.iter().any(|&pos| pos >= capacity) {
                return None;
            }
        }
        Some(self)
    }

    /// The ring of the last counted batch, if it is not known that the batch's slots were released.
    #[must_use]
    pub fn in_flight(&self) -> Option<FileId> {
        let checkpoint = self.checkpoint.as_ref()?;
        checkpoint.is_in_flight().then_some(checkpoint.ring.id)
    }

    /// Counts a producer restart. The count saturates, since a state file may hold any number.
    pub fn add_reset(&mut self) {
        self.resets = self.resets.saturating_add(1);
        self.stats.producer_restarted();
    }

    /// Counts a start of the producer at `stamp`, from which on it is idle. Memory that was registered and transfers
    /// that were begun before it are gone.
    pub fn add_start(&mut self, stamp: u64) {
        self.starts = self.starts.saturating_add(1);
        (self.last_event, self.last_seen) = (stamp, stamp);
        self.stats.producer_restarted();
    }

    /// Counts events that another reader released. Events before them do not pair with events after them.
    pub fn add_foreign_reads(&mut self, events: u64) {
        self.foreign_reads = self.foreign_reads.saturating_add(events);
        self.stats.note_gap();
    }

    /// Notes the number of pending events in a ring of `capacity` slots. A full ring counts as an overflow: its
    /// producer loses the next event.
    pub fn note_pending(&mut self, pending: u64, capacity: u64) {
        self.highwater = self.highwater.max(pending);
        if pending + 1 == capacity {
            self.overflows = self.overflows.saturating_add(1);
        }
    }
}
