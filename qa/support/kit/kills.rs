// SPDX-License-Identifier: GPL-2.0-or-later

//! Kills of a daemon, and what its state file then has.

use super::Core;
use pmdanixl::journal::ExpiredTotals;
use pmdanixl::journal::record::SavedAgent;
use pmdanixl::ring::checkpoint::Checkpoint;
use std::fs;
use std::os::unix::fs::FileExt;

impl Core {
    /// Kills the daemon.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Kills the daemon after the commit of the last batch of its first agent, before it notes that the slots were released.
    /// Returns the checkpoint of the batch. To kill it before the release, the test also sets `read_pos` back.
    pub fn kill_before_release(&mut self) -> Checkpoint {
        self.kill();
        let (mut journal, found) = self.journal();
        let (record, mut saved) = found.records.into_iter().next().expect("an agent");
        let checkpoint = saved.entry.checkpoint.as_mut().expect("a batch");
        checkpoint.released = false;
        let checkpoint = *checkpoint;
        journal.commit(Some(record), &saved.entry);
        checkpoint
    }

    /// Kills the daemon, and makes its state file one without the table of counted stores, as an earlier version leaves it.
    pub fn kill_without_counted_stores(&mut self) {
        self.kill();
        let state = fs::File::options().write(true).open(&self.home.state);
        let state = state.expect("ours");
        // Word of the header with the flag (src/journal/records.rs), and the table (src/journal/counted_stores.rs).
        for (word, words) in [(4, 1), (95, 1 + 8 * 180)] {
            let written = state.write_all_at(&vec![0; 8 * words], 8 * word);
            written.expect("ours");
        }
    }

    /// Kills the daemon before the release of its last batch, and merges two records as 0.1.0 did when an agent changed between
    /// ring and store: `kept` gets the totals of both.
    pub fn kill_with_one_record(&mut self, kept: &str, gone: &str) {
        self.kill();
        let (mut journal, found) = self.journal();
        let of = |name: &str| {
            let mut records = found.records.iter();
            let record = records.find(|(_, saved)| saved.name.instance == name);
            record.expect("an agent of that name").clone()
        };
        let ((kept, mut saved), (gone, other)) = (of(kept), of(gone));
        saved.entry.stats.totals.add(&other.entry.stats.totals);
        saved.entry.store = saved.entry.store.or(other.entry.store);
        saved.entry.checkpoint = saved.entry.checkpoint.or(other.entry.checkpoint);
        if let Some(checkpoint) = &mut saved.entry.checkpoint {
            checkpoint.released = false;
        }
        journal.commit(Some(kept), &saved.entry);
        journal.expire(Some(gone), &Default::default());
    }

    /// Kills the daemon, and reads the agents and the sums of expired agents in its state file.
    pub fn kill_and_read(&mut self) -> (Vec<SavedAgent>, ExpiredTotals) {
        self.kill();
        let (mut journal, found) = self.journal();
        let saved = found.records.into_iter().map(|(_, saved)| saved);
        (saved.collect(), journal.expired().expect("a state file"))
    }
}
