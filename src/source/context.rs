// SPDX-License-Identifier: GPL-2.0-or-later

//! The context of a drain: the totals and the record of one agent, and what all agents share.
//!
//! It has the part of exactly-once that concerns the state file: [`DrainContext::commit`] writes totals and checkpoint
//! before the reader releases any slot. It must not know how a file is read.

use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::config::Config;
use crate::entry::Entry;
use crate::event::{Events, Totals};
use crate::journal::{Journal, RecordId};
use crate::ring::checkpoint::Checkpoint;
use crate::stats::slow_transfers::SlowTransfers;
use crate::stats::windows::Windows;
use crate::timeline::Timeline;
use std::time::Duration;

/// State that the drains of all agents share.
#[derive(Debug, Default)]
pub struct Shared {
    /// The current configuration.
    pub config: Config,
    /// Writes entries to the state file.
    pub journal: Journal,
    /// Host totals: sums over all agents since the host booted, expired ones included.
    pub host: Totals,
    /// Overflows of the rings of expired agents.
    pub expired_overflows: u64,
    /// Period of the check which processes have a file without new events open.
    pub check_period: Duration,
    /// The events of the batch that is counted. The buffer stays, so that a drain allocates nothing.
    pub events: Events,
    /// The transfers of this agent's batches that took longer than `slow_transfer_us`.
    pub slow_transfers: SlowTransfers,
    /// What happened. To record an event can neither fail nor block.
    pub timeline: Timeline,
    /// True until the first scan of all directories has ended and its files are attached.
    pub in_first_scan: bool,
    /// True if the drain is for an answer to pmcd, which has to include all pending events.
    pub is_for_answer: bool,
    /// Events that were counted since the daemon started.
    pub counted_events: u64,
    /// Batches that were taken for counted although their producer may have restarted, see [`Checkpoint::is_doubtful`].
    pub doubtful_batches: u64,
}

/// The context of the drain of one agent.
#[derive(Debug)]
pub struct DrainContext<'a> {
    /// The totals and the checkpoint of the agent.
    pub entry: &'a mut Entry,
    /// Distributions of the agent's transfers of the last minute.
    pub windows: &'a mut Windows,
    /// The agent's record in the state file. `None` if the entry is in memory only.
    pub record: Option<RecordId>,
    /// Time of this drain.
    pub now: Now,
    /// State that all agents share.
    pub shared: &'a mut Shared,
}

impl DrainContext<'_> {
    /// Counts a start of the producer, and removes the process facts from the record: they are of the process before.
    pub fn add_start(&mut self) {
        self.entry.add_start(self.now.stamp);
        self.shared.journal.set_facts(self.record, None);
    }

    /// Commits a batch and the totals with its events. From here on a kill does not lose the batch, and a restart of
    /// the daemon does not count it again.
    pub fn commit(&mut self, checkpoint: Checkpoint) {
        self.entry.checkpoint = Some(checkpoint);
        self.write_entry();
    }

    /// Notes that the slots of the last batch were released, if the batch is of this ring.
    pub fn note_released(&mut self, ring: FileId) {
        let checkpoint = self.entry.checkpoint.as_mut();
        let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.ring.id == ring) else {
            return;
        };
        checkpoint.released = true;
        self.shared.journal.note_released(self.record);
    }

    /// Writes the entry to the state file as it is.
    pub fn write_entry(&mut self) {
        self.shared.journal.commit(self.record, self.entry);
    }
}
