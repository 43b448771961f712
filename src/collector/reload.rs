// SPDX-License-Identifier: GPL-2.0-or-later

//! Applies a configuration to the agents: at the start to those of the state file, at a reload to all that are known.
//!
//! Both leave the same state. [`Agent::apply`] is what a configuration changes of an agent. The first scan decides all
//! else.

use super::Collector;
use super::attach::Candidates;
use super::descriptors::Descriptors;
use crate::agents::Agent;
use crate::config::Config;
use crate::discovery::directory;
use crate::journal::Journal;
use crate::source::Source;
use crate::source::ring::Mode;
use std::time::Instant;

impl Collector {
    /// Applies another configuration, and begins the first scan again. Detaches files that it leaves out.
    pub fn configure(&mut self, config: &Config) {
        let now = Instant::now();
        self.shared.config = config.clone();
        let room = Descriptors::of(config);
        self.limits.places = room.rings;
        self.next_expiry = None;
        self.process_scans.last_full = None;
        self.candidates = Candidates::new(now);
        self.shared.in_first_scan = true;
        self.scanner.configure(room.limit(config));
        for agent in self.agents.values_mut() {
            agent.apply(config, now, &mut self.shared.journal);
        }
        self.agents.set_bounds(&config.bounds);
        for key in self.agents.keys() {
            self.files_changed(key);
        }
        self.evict_excess(now);
        self.configure_transports();
    }

    /// Detaches files in directories that `max_directories` leaves out, at the end of the first scan. A start does not
    /// attach them.
    pub(super) fn detach_left_out(&mut self) {
        let scanner = &self.scanner;
        let mut detached = Vec::new();
        for (key, agent) in self.agents.iter_mut() {
            let before = agent.sources.len();
            // No scan finds an unlinked ring again.
            agent.sources.retain(|source| {
                source.file.liveness.is_unlinked() || !scanner.leaves_out(&source.file.path)
            });
            detached.extend((agent.sources.len() < before).then_some(key));
        }
        for key in detached {
            self.files_changed(key);
        }
    }
}

impl Agent {
    /// Applies a configuration. Withdraws the agent if its files are not read any more, since its liveness is not known
    /// then.
    pub(super) fn apply(&mut self, config: &Config, now: Instant, journal: &mut Journal) {
        self.waiting = None;
        self.sources.retain(|source| reads(config, source));
        let has_other_bounds = !self.has_stores() && self.entry.stats.set_bounds(&config.bounds);
        if !is_read(config, self) {
            self.sources.clear();
            if !self.entry.lifecycle.is_dormant() {
                self.withdraw(now, journal);
            }
        }
        if !config.proc_facts {
            // What process scans have found must not be shown any more, not even after a restart. A store tells its
            // rank by itself.
            let facts = self.store().map(|_| self.facts_of_files(None));
            journal.set_facts(self.record, facts.as_ref());
            self.set_facts(facts);
        }
        if has_other_bounds {
            journal.commit(self.record, &self.entry);
        }
    }
}

/// True if a configuration names the directory and the owner of an agent's files.
fn is_read(config: &Config, agent: &Agent) -> bool {
    let patterns = match agent.has_stores() {
        true => &config.multiproc_dir,
        false => &config.telemetry_dir,
    };
    let owners = config.owners.as_ref();
    directory::is_configured(patterns, &agent.name.directory)
        && owners.is_none_or(|owners| owners.contains(&agent.name.owner))
}

/// True if a source stays attached with another configuration. A ring that is not drained is attached again, since it
/// may be possible to drain it now. A store without a process is not: all of it is counted.
fn reads(config: &Config, source: &Source) -> bool {
    match source.as_ring() {
        Some(ring) => {
            let is_drained = !config.observe && ring.mode == Mode::Drain;
            let capacity = ring.checkpoint.ring.capacity;
            is_drained && capacity <= config.max_capacity
        }
        None => !source.file.liveness.has_no_holder(),
    }
}
