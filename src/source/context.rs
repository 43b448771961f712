//! One agent's account while its rings are drained: what is counted is in the state file before any slot is given back.

use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::config::Config;
use crate::event::{Events, Totals};
use crate::journal::record::Entry;
use crate::journal::{Journal, RecordId};
use crate::ring::checkpoint::Checkpoint;
use crate::stats::windows::Windows;
use std::time::Duration;

/// What the accounts of all agents have in common.
#[derive(Debug, Default)]
pub struct Shared {
    /// The configuration.
    pub config: Config,
    /// Where the entries are kept.
    pub journal: Journal,
    /// Sums over all agents that ever were.
    pub host: Totals,
    /// How often the rings of agents that are forgotten were found full.
    pub expired_overflows: u64,
    /// How often it is asked who has a file in which nothing happens.
    pub check_period: Duration,
    /// Room for the events of a batch, which its reader takes and puts back: a drain allocates nothing.
    pub scratch: Events,
    /// Whether the first look at everything is not over.
    pub in_first_scan: bool,
    /// Whether somebody waits for what is counted.
    pub is_for_answer: bool,
    /// How many events were counted since the start.
    pub counted_events: u64,
    /// How many batches were taken for counted although their ring may have been restarted since.
    pub doubtful_batches: u64,
}

/// The account of one agent.
#[derive(Debug)]
pub struct DrainContext<'a> {
    /// What is known of the agent.
    pub entry: &'a mut Entry,
    /// How its transfers of the last minute are distributed.
    pub windows: &'a mut Windows,
    /// The record that the entry is kept in; `None`: in memory only.
    pub record: Option<RecordId>,
    /// The moment of this drain.
    pub now: Now,
    /// What all agents have in common.
    pub shared: &'a mut Shared,
}

impl DrainContext<'_> {
    /// Counts a start of the producer: what is known of the one before is not of this one.
    pub fn add_start(&mut self) {
        self.entry.add_start(self.now.stamp);
        self.shared.journal.set_facts(self.record, None);
    }

    /// Writes that a batch, and all that was applied, is counted: from here on a kill does not lose it, and a restart does not
    /// count it again.
    pub fn commit(&mut self, checkpoint: Checkpoint) {
        self.entry.checkpoint = Some(checkpoint);
        self.write_entry();
    }

    /// The ring whose batch was counted last, while it is not known that its slots were given back.
    #[must_use]
    pub fn in_flight(&self) -> Option<FileId> {
        let checkpoint = self.entry.checkpoint.filter(Checkpoint::is_in_flight);
        checkpoint.map(|checkpoint| checkpoint.ring.id)
    }

    /// Notes that the slots of the last batch were given back, if that was of this ring.
    pub fn note_released(&mut self, ring: FileId) {
        let checkpoint = self.entry.checkpoint.as_mut();
        let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.ring.id == ring) else {
            return;
        };
        checkpoint.released = true;
        self.shared.journal.note_released(self.record);
    }

    /// Writes the entry as it is.
    pub fn write_entry(&mut self) {
        self.shared.journal.commit(self.record, self.entry);
    }
}
