// SPDX-License-Identifier: GPL-2.0-or-later

//! Kills of a daemon, and what its state file then has.

use super::Core;
use super::writer::HEADER;
use pmdanixl::journal::ExpiredTotals;
use pmdanixl::journal::record::SavedAgent;
use pmdanixl::ring::checkpoint::Checkpoint;
use std::fs::File;
use std::os::unix::fs::FileExt;

impl Core {
    /// Sets the read position of the ring `agent`, as another reader does. Other than a store to a mapping, it changes
    /// the times of the file.
    pub fn set_read_pos(&self, position: u64) {
        let file = File::options().write(true).open(self.path("agent"));
        let at = 8 * HEADER.read_pos;
        let written = file.and_then(|file| file.write_all_at(&position.to_le_bytes(), at));
        written.expect("there");
    }

    /// Kills the daemon.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Kills the daemon after the commit of the last batch of its first agent, before it notes that the slots were
    /// released. Returns the checkpoint of the batch. To kill it before the release, the test also sets `read_pos`
    /// back.
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

    /// Kills the daemon, and reads the agents and the sums of expired agents in its state file.
    pub fn kill_and_read(&mut self) -> (Vec<SavedAgent>, ExpiredTotals) {
        self.kill();
        let (mut journal, found) = self.journal();
        let saved = found.records.into_iter().map(|(_, saved)| saved);
        (saved.collect(), journal.expired().expect("a state file"))
    }
}
