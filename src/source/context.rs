//! One agent's account while its rings are drained: what is counted is in the state file before any slot is given back.

use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::config::Config;
use crate::event::{Events, Totals};
use crate::journal::record::Entry;
use crate::journal::{Journal, RecordId};
use crate::ring::checkpoint::Commit;
use crate::stats::windows::Windows;
use std::time::Duration;

/// What the accounts of all agents have in common.
#[derive(Debug, Default)]
pub struct Books {
    /// The configuration.
    pub config: Config,
    /// Where the entries are kept.
    pub journal: Journal,
    /// Sums over all agents that ever were.
    pub host: Totals,
    /// How often the rings of agents that are forgotten were found full.
    pub forgotten_full: u64,
    /// How often it is asked who has a file in which nothing happens.
    pub check_period: Duration,
    /// Room for the events of a batch, which its reader takes and puts back: a drain allocates nothing.
    pub room: Events,
    /// Whether the first look at everything is not over.
    pub early: bool,
    /// Whether somebody waits for what is counted.
    pub for_answer: bool,
    /// How many events were counted since the start.
    pub counted: u64,
    /// How many batches were taken for counted although their ring may have been restarted since.
    pub doubtful: u64,
}

/// The account of one agent.
#[derive(Debug)]
pub struct Ledger<'a> {
    /// What is known of the agent.
    pub entry: &'a mut Entry,
    /// How its transfers of the last minute are distributed.
    pub windows: &'a mut Windows,
    /// The record that the entry is kept in; `None`: in memory only.
    pub record: Option<RecordId>,
    /// The moment of this drain.
    pub now: Now,
    /// What all agents have in common.
    pub books: &'a mut Books,
}

impl Ledger<'_> {
    /// Counts a start of the producer: what is known of the one before is not of this one.
    pub fn add_start(&mut self) {
        self.entry.add_start(self.now.stamp);
        self.books.journal.set_facts(self.record, None);
    }

    /// Writes that a batch, and all that was applied, is counted: from here on a kill does not lose it, and a restart does not
    /// count it again.
    pub fn commit(&mut self, commit: Commit) {
        self.entry.commit = Some(commit);
        self.keep();
    }

    /// The ring whose batch was counted last, while it is not known that its slots were given back.
    #[must_use]
    pub fn in_flight(&self) -> Option<FileId> {
        let commit = self.entry.commit.filter(Commit::is_in_flight);
        commit.map(|commit| commit.ring.id)
    }

    /// Notes that the slots of the last batch were given back, if that was of this ring.
    pub fn released(&mut self, ring: FileId) {
        let commit = self.entry.commit.as_mut();
        let Some(commit) = commit.filter(|commit| commit.ring.id == ring) else {
            return;
        };
        commit.released = true;
        self.books.journal.released(self.record);
    }

    /// Writes the entry as it is.
    pub fn keep(&mut self) {
        self.books.journal.commit(self.record, self.entry);
    }
}
