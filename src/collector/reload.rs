// SPDX-License-Identifier: GPL-2.0-or-later

//! Applies another configuration.

use super::Collector;
use super::attach::Candidates;
use super::descriptors::Descriptors;
use crate::agents::AgentKey;
use crate::config::Config;
use crate::discovery::directory;
use crate::source::ring::Mode;
use std::time::Instant;

impl Collector {
    /// Applies another configuration, and begins the first scan again. Detaches files that it leaves out. An agent whose files are all
    /// detached is withdrawn, since its liveness is no longer known.
    pub fn configure(&mut self, config: &Config) {
        self.shared.config = config.clone();
        let room = Descriptors::of(config);
        self.limits.places = room.rings;
        self.next_expiry = None;
        self.process_scans.last_full = None;
        self.candidates = Candidates::new(Instant::now());
        self.shared.in_first_scan = true;
        self.scanner.configure(room.limit(config));
        let keys: Vec<AgentKey> = self.agents.iter().map(|(key, _)| key).collect();
        for (key, agent) in self.agents.iter_mut() {
            let was_published = agent.is_published();
            let had_files = agent.has_files();
            let mut is_to_be_found = false;
            let patterns = match agent.has_stores() {
                true => &config.multiproc_dir,
                false => &config.telemetry_dir,
            };
            let is_configured = directory::is_configured(patterns, &agent.name.directory);
            if !config.proc_facts {
                // What process scans have found must not be shown any more, not even after a restart.
                agent.set_facts(Some(agent.facts_of_files(None)));
                let journal = &mut self.shared.journal;
                journal.set_facts(agent.record, agent.facts.current());
            }
            if !agent.has_stores() {
                agent.entry.stats.set_bounds(&config.bounds);
            }
            self.changes.extend(agent.renew_buckets(key));
            agent.sources.retain(|source| {
                let owners = config.owners.as_ref();
                // A ring that is only followed is attached again, since it may be possible to drain it now.
                let same = source
                    .as_ring()
                    .is_none_or(|ring| !config.observe && ring.mode == Mode::Drain);
                let is_wanted = is_configured
                    && source
                        .as_ring()
                        .is_none_or(|ring| config.reads(ring.layout()))
                    && owners.is_none_or(|owners| owners.contains(&source.file.facts.uid));
                is_to_be_found |= is_wanted && !same;
                same && is_wanted
            });
            if had_files && !is_to_be_found && !agent.has_files() {
                agent.withdraw(Instant::now());
                self.shared.journal.commit(agent.record, &agent.entry);
                self.changes.extend(agent.change_since(was_published, key));
            }
        }
        for key in keys {
            self.files_changed(key);
        }
        self.configure_transports();
    }
}
