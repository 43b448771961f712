// SPDX-License-Identifier: GPL-2.0-or-later

//! State file: takes its lock, restores the agents, and replaces the file if it was removed or truncated.

use super::Server;
use crate::base::clock::Now;
use std::time::{Duration, Instant};

/// Time between two checks that the state file is still in place.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which an unreadable state file with totals is tried again. Events wait in their rings meanwhile.
/// If they were counted, the totals of the file could not be continued: its batches in flight would count twice.
const READ_PATIENCE: Duration = Duration::from_secs(60);

/// Whether this process drains, and what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There was no valid configuration yet. No state is restored or written, and no directory is scanned.
    NoConfiguration,
    /// The lock on the state file was not tried yet.
    Start,
    /// Another process has the lock.
    Waiting,
    /// The state file has totals and cannot be read now.
    Unreadable { since: Instant },
    /// This process has the lock, or drains without a state file.
    Serving,
}

impl Server {
    /// Takes the lock on the state file and restores the agents from it. Returns true if this process drains. Without a
    /// valid configuration it does neither. Without a usable state file it drains as well, and totals end with the
    /// process. Before that it tries to read a file that has totals for [`READ_PATIENCE`].
    pub(super) fn start_serving(&mut self) -> bool {
        match self.phase {
            Phase::Serving => return true,
            Phase::NoConfiguration => return false,
            _ => {}
        }
        let shown = self.journal.path().display().to_string();
        let mut records = Vec::new();
        match self.journal.start() {
            Ok(None) => {
                if self.phase == Phase::Start {
                    tracing::warn!(
                        "{shown}: locked by another pmdanixl; this one waits until the other ends"
                    );
                }
                self.phase = Phase::Waiting;
                return false;
            }
            Ok(Some(found)) => {
                if let Some(why) = found.rejection {
                    tracing::warn!("{shown}: {why}");
                }
                records = found.records;
            }
            Err(err) if self.journal.has_totals() && self.is_patient() => {
                if !matches!(self.phase, Phase::Unreadable { .. }) {
                    tracing::warn!(
                        "{shown}: the state file cannot be used: {err}; it has totals, and no ring is drained until it can be read, for a minute at most"
                    );
                    let since = Instant::now();
                    self.phase = Phase::Unreadable { since };
                }
                return false;
            }
            Err(err) => {
                tracing::warn!(
                    "{shown}: the state file cannot be used: {err}; totals begin at zero after a restart of pmdanixl"
                );
            }
        }
        let journal = std::mem::take(&mut self.journal);
        self.collector.restore(journal, records);
        let instances = self.collector.iter().filter(|agent| agent.is_published());
        let instances = instances.count();
        if instances > 0 {
            tracing::info!("{shown}: totals of {instances} instances restored");
        }
        if self.phase == Phase::Waiting {
            tracing::info!("the other pmdanixl has ended; this one drains the rings now");
        }
        self.phase = Phase::Serving;
        let next = self.collector.next_id();
        self.ids.load(&self.collector.ids(Now::read()), next);
        self.note_in_state();
        self.update_indoms();
        self.update_role_times();
        true
    }

    /// True unless the state file could not be read for [`READ_PATIENCE`].
    fn is_patient(&self) -> bool {
        match self.phase {
            Phase::Unreadable { since } => since.elapsed() < READ_PATIENCE,
            _ => true,
        }
    }

    /// Checks every ten seconds that the state file is in place and whole. Replaces it if not.
    pub(super) fn check_state_file(&mut self, now: Instant) {
        if now.duration_since(self.state_checked) < CHECK_INTERVAL {
            return;
        }
        self.state_checked = now;
        self.collector.check_state();
        self.note_in_state();
    }

    /// Writes to the state file what is not of one agent.
    fn note_in_state(&mut self) {
        self.collector.set_next_id(self.ids.next());
        self.collector.set_config_times(self.control.config_times);
    }
}
