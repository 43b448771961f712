// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds the files of NIXL agents, drains them and keeps each agent's totals.
//!
//! The event loop calls, in each tick:
//!
//! | call | what it does | file |
//! | --- | --- | --- |
//! | [`Collector::scan`] | scans the directories and attaches files to agents | `attach`, `stores`, `names`, `limits` |
//! | [`Collector::drain`] | drains all agents, withdraws those that have exited, expires old ones | `drain`, `round_robin`, `expiry` |
//! | [`Collector::maintain`] | process scans, scans of sockets, transfers in flight, removal of files | `process_scans`, `transports`, `traces`, `stalls`, `file_removal` |
//! | [`Collector::take_changes`] | the changes of the instance domains | |
//!
//! `noted` records in the timeline what concerns no single agent, `records` has what concerns the state file, `reload`
//! applies another configuration.

use crate::agents::role_times::{AddedTimes, RoleTimes};
use crate::agents::{Agent, AgentKey, Change, Registry};
use crate::base::clock::Now;
use crate::config::Config;
use crate::discovery::scan::Scanner;
use crate::entry::Lifecycle;
use crate::event::EventType;
use crate::ids::cache_file::CacheLine;
use crate::journal::record::SavedAgent;
use crate::journal::{ConfigTimes, Journal, RecordId};
use crate::observer::client::ObserverHandle;
use crate::procfs::liveness::check_period;
use crate::procfs::process::Usage;
use crate::source::context::Shared;
use crate::stats::histogram::Bounds;
use crate::transport::Transports;
use crate::transport::ids::ClockIds;
use crate::transport::traced::Traced;
use attach::Candidates;
use descriptors::Descriptors;
use limits::Limits;
use process_scans::ProcessScans;
use round_robin::RoundRobin;
use stalls::Stalls;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Instant;
use stores::CountedStores;

mod attach;
pub mod counts;
pub mod descriptors;
mod drain;
mod expiry;
mod file_removal;
mod limits;
mod names;
mod new_names;
mod noted;
mod process_scans;
mod records;
mod reload;
mod round_robin;
mod stalls;
mod stores;
#[cfg(test)]
mod tests;
mod traces;
mod transports;

/// The agents, and what finds and drains their files. The default has no configuration: it finds nothing, and is not to
/// be drained.
#[derive(Debug, Default)]
pub struct Collector {
    scanner: Scanner,
    candidates: Candidates,
    shared: Shared,
    limits: Limits,
    /// When files of exited agents may be removed again. `None`: in the next tick.
    next_removal: Option<Instant>,
    /// What looks at other processes. Not running: it was not started, or has ended.
    observer: ObserverHandle,
    process_scans: ProcessScans,
    transports: Transports,
    traced: Traced,
    stalls: Stalls,
    /// What the observer and its workers use, as of the last scan.
    observer_usage: Usage,
    /// True if the timeline has that the observer does not answer.
    is_observer_lost: bool,
    /// Ids of processes that use NIXL and of peers.
    clock_ids: ClockIds,
    turns: RoundRobin,
    agents: Registry,
    /// True if the last drain has found files that the next scan has to check.
    wants_rescan: bool,
    /// When agents to expire are searched for again. `None`: in the next tick.
    next_expiry: Option<Instant>,
    /// True if an agent ceased to be an instance since memory was returned to the kernel.
    has_freed_memory: bool,
    /// A moment on all clocks, to convert between them.
    clock: Now,
}

impl Collector {
    /// Returns a collector without agents and without a state file.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let room = Descriptors::of(config);
        let mut agents = Registry::default();
        agents.set_bounds(&config.bounds);
        Self {
            agents,
            scanner: Scanner::new(room.limit(config)),
            candidates: Candidates::new(Instant::now()),
            shared: Shared {
                config: config.clone(),
                check_period: check_period(0),
                in_first_scan: true,
                ..Shared::default()
            },
            limits: Limits {
                places: room.rings,
                ..Limits::default()
            },
            ..Self::default()
        }
    }

    /// Gives the collector what looks at other processes. Without it, none are looked at.
    pub fn set_observer(&mut self, observer: ObserverHandle) {
        self.observer = observer;
    }

    /// True if the last drain has found that files were replaced or re-initialised, so that a scan should follow.
    #[must_use]
    pub fn wants_rescan(&self) -> bool {
        self.wants_rescan
    }

    /// Restores the agents from the records of a journal. Those that were instances are published.
    pub fn restore(&mut self, mut journal: Journal, mut records: Vec<(RecordId, SavedAgent)>) {
        let expired = journal.expired().unwrap_or_default();
        (self.shared.host, self.shared.expired_overflows) = (expired.totals, expired.overflows);
        self.shared.journal = journal;
        self.candidates.counted_stores = CountedStores::default();
        let (mut ids, now) = (HashSet::new(), Instant::now());
        let deadline = attach::label_deadline(&self.clock, now, self.observes());
        // Of two agents with one id or name, the one that was last seen keeps it.
        records.sort_by_key(|(_, saved)| {
            let entry = &saved.entry;
            (entry.lifecycle.is_dormant(), Reverse(entry.last_seen))
        });
        for (record, mut saved) in records {
            saved.id = saved.id.filter(|&id| ids.insert(id));
            self.shared.host.add(&saved.entry.stats.totals);
            let is_known = self.agents.find(&saved.name).is_some();
            if is_known || self.agents.has_instance(&saved.name.instance) {
                self.remove_record(Some(record), &saved.entry);
                continue;
            }
            let mut agent = Agent::new(saved.name, saved.entry, now);
            (agent.record, agent.id) = (Some(record), saved.id);
            agent.set_facts(saved.facts);
            agent.take_as_noted();
            agent.apply(&self.shared.config, now, &mut self.shared.journal);
            // An agent that was waiting for its labels gets the time of a new one.
            if let Lifecycle::AwaitingLabels { .. } = agent.entry.lifecycle {
                agent.entry.lifecycle.activate(deadline);
            }
            // The sums by role begin at zero with the daemon.
            agent.added_times = AddedTimes::of(&agent.entry.stats);
            self.agents.insert(agent);
        }
        self.evict_excess(now);
    }

    /// Runs process scans, reads sockets, finds stalled agents, and removes files of exited agents until `end`. Returns
    /// true unless the result of a process scan is left to apply, which the next call does.
    pub fn maintain(&mut self, now: Instant, end: Instant) -> bool {
        let is_done = self.scan_processes(now, end);
        self.note_observer();
        self.read_transports(now);
        self.trace(now);
        self.check_stalls(now);
        self.remove_exited_files(now, end);
        is_done
    }

    /// Returns the changes of the instance domains since the last call, in their order.
    #[must_use]
    pub fn take_changes(&mut self) -> Vec<Change> {
        let changes = std::mem::take(&mut self.agents.changes);
        let is_freed = |change: &Change| !matches!(change, Change::Published(_));
        self.has_freed_memory |= changes.iter().any(is_freed);
        changes
    }

    /// True if all totals survive a restart of the daemon.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.shared.journal.is_persistent(self.agents.len())
    }

    /// Returns the instance ids with the agents' names and the times when they were last seen.
    #[must_use]
    pub fn ids(&self, now: Now) -> Vec<CacheLine> {
        let line = |agent: &Agent| {
            let unseen = match agent.is_published() {
                true => 0,
                false => now.since(agent.entry.last_seen).as_secs(),
            };
            Some(CacheLine {
                id: agent.id?,
                seen: now.seconds.saturating_sub(unseen),
                name: agent.name.instance.clone(),
            })
        };
        self.agents.values().filter_map(line).collect()
    }

    /// Returns all numbers in use: instance ids, and bases of histogram ids.
    #[must_use]
    pub fn taken_ids(&self) -> HashSet<u32> {
        let both = |agent: &Agent| [agent.id, agent.entry.stats.bucket_base];
        self.agents.values().flat_map(both).flatten().collect()
    }

    /// Returns the limit on records.
    #[must_use]
    pub fn max_records(&self) -> usize {
        let max_agents = self.shared.config.max_agents;
        max_agents + expiry::MORE_RECORDS.min(3 * max_agents)
    }

    /// Returns a number above all instance ids that were ever assigned, as far as the state file tells.
    #[must_use]
    pub fn next_id(&mut self) -> u32 {
        let next = self.shared.journal.next_id();
        let ids = self.taken_ids().into_iter();
        ids.fold(next, |next, id| next.max(id + 1))
    }

    /// Notes a number above all instance ids that were ever assigned.
    pub fn set_next_id(&mut self, next: u32) {
        self.shared.journal.set_next_id(next);
    }

    /// Notes in the state file when the configuration was last read, and when one was last rejected.
    pub fn set_config_times(&mut self, times: ConfigTimes) {
        self.shared.journal.set_config_times(times);
    }

    /// Notes the instance id of an agent, and the base of its histogram ids, before they are published.
    pub fn set_id(&mut self, key: AgentKey, id: u32, bucket_base: Option<u32>) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.id = Some(id);
        let is_new = agent.entry.stats.bucket_base != bucket_base;
        agent.entry.stats.bucket_base = bucket_base;
        self.shared.journal.set_id(agent.record, id);
        if is_new {
            self.shared.journal.commit(agent.record, &agent.entry);
        }
    }

    /// Returns the sum of all values of one event type over all agents, including expired ones.
    #[must_use]
    pub fn host_total(&self, event: EventType) -> u64 {
        self.shared.host.get(event)
    }

    /// Adds what the agents have counted since the last call to the sums by role.
    pub fn add_times(&mut self) {
        self.agents.add_times();
    }

    /// Returns the sums by role, as of the last [`Collector::add_times`].
    #[must_use]
    pub fn role_times(&self) -> &RoleTimes {
        self.agents.role_times()
    }

    /// Returns the configured bounds of the histograms of times.
    #[must_use]
    pub fn time_bounds(&self) -> &Bounds {
        &self.shared.config.bounds
    }

    /// Returns all known agents, instances or not.
    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// Returns a known agent, instance or not.
    #[must_use]
    pub fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key)
    }

    /// Notes that an agent may have another file: the next tick drains it, and the next process scan looks for its
    /// process.
    fn files_changed(&mut self, key: AgentKey) {
        self.agents.end_poll(key);
        if let Some(agent) = self.agents.get_mut(key) {
            agent.without_file_since = None;
        }
        self.process_scans.asks = true;
        self.agents.update(key);
    }
}
