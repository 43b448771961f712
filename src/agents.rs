//! The NIXL agents of this host.
//!
//! `look` and `stores` find their files, `place` says whose they are;
//! `drain` counts their events, and `quiet` says whom it passes over; `keep` keeps what is known of them in the state file,
//! `process_scans` finds out who they are, `exited` removes what they have left, `limits` evicts where there are too many, `forget` ends
//! records after `remember`, and `counts` says how many they are. `reload` takes another configuration.

use crate::agents::agent::Agent;
use crate::base::clock::Now;
use crate::config::Config;
use crate::discovery::scan::Scanner;
use crate::event::EventType;
use crate::ids::cache_file::CacheLine;
use crate::journal::ledger::Books;
use crate::journal::record::Saved;
use crate::journal::{Journal, RecordId};
use crate::procfs::liveness::check_period;
use counted_stores::CountedStores;
use descriptors::Descriptors;
use forget::Forgetting;
use limits::Limits;
use look::Candidates;
use process_scans::ProcessScans;
use registry::Registry;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::{Duration, Instant};
use turns::Turns;

pub mod agent;
mod counted_stores;
pub mod counts;
mod descriptors;
mod drain;
mod exited;
mod forget;
mod keep;
mod limits;
mod look;
mod newcomers;
mod place;
mod process_scans;
mod quiet;
mod registry;
mod reload;
pub mod removal;
mod stores;
mod turns;
pub use registry::AgentKey;

/// The instance domain changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An agent is an instance from now on.
    Appeared(AgentKey),
    /// An agent is no instance any more; it may be forgotten.
    Left {
        /// The agent.
        key: AgentKey,
        /// Its instance id, if it had one.
        id: Option<u32>,
    },
    /// The agent of this instance name is not remembered any more: one that comes under it is another.
    Forgotten(String),
}

/// All agents.
#[derive(Debug)]
pub struct Agents {
    scanner: Scanner,
    candidates: Candidates,
    counted_stores: CountedStores,
    books: Books,
    limits: Limits,
    /// When files of exited agents are looked for again, to remove them.
    next_removal: Instant,
    process_scans: ProcessScans,
    turns: Turns,
    agents: Registry,
    /// What the instance domains were not told yet.
    changes: Vec<Change>,
    /// Whether the last drain has found files that are to be looked at anew.
    again: bool,
    forgetting: Forgetting,
    /// A moment on all clocks.
    clock: Now,
}

impl Agents {
    /// No agents yet, and no state: they are forgotten at the end.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let clock = Now::read();
        let now = clock.instant;
        let room = Descriptors::of(config);
        Self {
            scanner: Scanner::new(room.limit(config)),
            candidates: Candidates::new(now),
            counted_stores: CountedStores::default(),
            books: Books {
                config: config.clone(),
                check_period: check_period(0),
                early: true,
                ..Books::default()
            },
            limits: Limits {
                rings: room.rings,
                ..Limits::default()
            },
            next_removal: now,
            process_scans: ProcessScans::default(),
            turns: Turns::default(),
            agents: Registry::default(),
            changes: Vec::new(),
            again: false,
            forgetting: Forgetting::default(),
            clock,
        }
    }

    /// Whether the last drain has found that rings are not what they were: another look finds what they are now.
    #[must_use]
    pub fn is_to_look_again(&self) -> bool {
        self.again
    }

    /// Goes on from a journal that was started: its agents are known again, and those that were instances are.
    pub fn restore(&mut self, mut journal: Journal, mut records: Vec<(RecordId, Saved)>) {
        let retired = journal.retired().unwrap_or_default();
        (self.books.host, self.books.forgotten_full) = (retired.totals, retired.full);
        self.counted_stores = CountedStores::until(journal.stores_counted_until());
        self.books.journal = journal;
        let (mut ids, now) = (HashSet::new(), Instant::now());
        // An id that was given away after its agent was long gone belongs to the one that was seen last.
        records.sort_by_key(|(_, saved)| {
            Reverse((saved.entry.lifecycle.is_awake(), saved.entry.last_seen))
        });
        for (record, mut saved) in records {
            saved.id = saved.id.filter(|&id| ids.insert(id));
            self.books.host.add(&saved.entry.stats.totals);
            let is_known = self.agents.find(&saved.name).is_some();
            if is_known || self.agents.has_instance(&saved.name.instance) {
                self.retire(Some(record), &saved.entry);
                continue;
            }
            let mut agent = Agent::new(saved.name, saved.entry, now);
            if !agent.has_stores() {
                agent.entry.stats.set_bounds(&self.books.config.bounds);
            }
            (agent.record, agent.id) = (Some(record), saved.id);
            agent.set_facts(saved.facts);
            // It was an instance, and is one at once.
            let is_published = agent.is_published();
            let key = self.agents.insert(agent);
            self.changes
                .extend(is_published.then_some(Change::Appeared(key)));
        }
    }

    /// What changed in the instance domains since the last call, in its order.
    #[must_use]
    pub fn take_changes(&mut self) -> Vec<Change> {
        let changes = std::mem::take(&mut self.changes);
        self.forgetting.add_freed(&changes);
        changes
    }

    /// Whether what is counted now will be known after a restart of the daemon.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.books.journal.is_persistent(self.agents.len())
    }

    /// The instance ids that agents have, with their names and when they were last seen, at `now`.
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

    /// All numbers that agents have: instance ids, and bases of the ids of histograms.
    #[must_use]
    pub fn taken_ids(&self) -> HashSet<u32> {
        let both = |agent: &Agent| [agent.id, agent.entry.stats.bucket_base];
        self.agents.values().flat_map(both).flatten().collect()
    }

    /// How many agents are remembered at most, once their rings are gone.
    #[must_use]
    pub fn max_records(&self) -> usize {
        let max_agents = self.books.config.max_agents;
        max_agents + forget::REMEMBERED.min(3 * max_agents)
    }

    /// More than any instance id that was given before, as far as the state and its records say.
    #[must_use]
    pub fn next_id(&mut self) -> u32 {
        let next = self.books.journal.next_id();
        let ids = self.taken_ids().into_iter();
        ids.fold(next, |next, id| next.max(id + 1))
    }

    /// Notes what is more than any that was given.
    pub fn set_next_id(&mut self, next: u32) {
        self.books.journal.set_next_id(next);
    }

    /// Notes in the state file when the configuration was last read, in time since the epoch.
    pub fn set_config_read(&mut self, when: Duration) {
        self.books.journal.set_config_read(when);
    }

    /// Notes the instance id that an agent has, and the base of the ids of its histograms of times: before anybody sees them.
    pub fn set_id(&mut self, key: AgentKey, id: u32, bucket_base: Option<u32>) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.id = Some(id);
        let is_new = agent.entry.stats.bucket_base != bucket_base;
        agent.entry.stats.bucket_base = bucket_base;
        self.books.journal.set_id(agent.record, id);
        if is_new {
            self.books.journal.commit(agent.record, &agent.entry);
        }
    }

    /// Sum of all values of one event type over all agents that ever were.
    #[must_use]
    pub fn host_total(&self, event: EventType) -> u64 {
        self.books.host.get(event)
    }

    /// The scanner's counts.
    #[must_use]
    pub fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// All that are known, instances or not.
    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// An agent that is there, instance or not.
    #[must_use]
    pub fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key)
    }

    /// Has the next drain look at all of an agent, and the next process scan ask about it: it has a file that it had not.
    fn wake(&mut self, key: AgentKey) {
        self.agents.wake(key);
        if let Some(agent) = self.agents.get_mut(key) {
            agent.bare_since = None;
        }
        self.process_scans.asks = true;
        self.agents.settle(key);
    }
}
