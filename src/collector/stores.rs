// SPDX-License-Identifier: GPL-2.0-or-later

//! Attaches stores to agents.
//!
//! A ring belongs to its agent by directory, name and owner. A store is a new file at each start of a process, and
//! several processes may have agents of one name in one directory, so that [`StoreVerdict`] decides which agent a store
//! belongs to. An agent that writes a ring never gets a store.

use super::Collector;
use super::names::name_of;
use crate::agents::{Agent, AgentKey};
use crate::discovery::scan::Found;
use crate::error::Rejection;
use crate::journal::Journal;
use crate::log;
use crate::procfs::process::Presence;
use crate::source::Source;
use crate::stats::store_values::StoreValues;
use crate::store::{Description, StoreCandidate, StoreId, StoreReading};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::time::{Duration, Instant};

/// Part of an agent's identity that tells it from the agent of a ring of its name, and from other agents with stores:
/// the local rank, and a number among the agents of this name and rank.
fn part(number: usize, rank: &OsStr) -> String {
    format!("store:{number}:{}", rank.to_string_lossy())
}

/// Returns the local rank in a part; `None` for the agent of a ring.
pub(super) fn rank(part: &str) -> Option<&str> {
    part.splitn(3, ':').nth(2)
}

/// Number of agents of one name that are tested for one store. Each test is a system call, and one user may have as
/// many as `max_agents`.
const MAX_TESTED: usize = 64;
/// Seconds by which CLOCK_REALTIME may have been stepped since a file was changed.
const MAX_CLOCK_STEP: u64 = 3600;

/// Stores that may have been counted, although no record has them. Of the stores that one scan finds, each counts, in
/// whatever order: the limit is that of the begin of the scan, or of the first one.
#[derive(Debug, Default)]
pub(super) struct CountedStores {
    /// See [`Journal::stores_until`].
    until: Option<(i64, i64)>,
    /// Stores that records have lost since then.
    given_up: HashSet<StoreId>,
}

impl CountedStores {
    /// Notes the limit, unless one is known.
    pub fn begin(&mut self, until: (i64, i64)) {
        self.until.get_or_insert(until);
    }

    /// Adds a store that a record is about to lose.
    pub fn give_up(&mut self, id: StoreId, journal: &mut Journal) {
        self.given_up.insert(id);
        journal.give_up_store(id);
    }

    /// True if a store is one of these. Where the file system has no birth times, the change time stands for it: stores
    /// to a mapping of a tmpfs do not change that.
    fn may_have(&self, id: StoreId, changed: (i64, i64)) -> bool {
        let made = id.made().unwrap_or(changed);
        self.given_up.contains(&id) || self.until.is_some_and(|until| made <= until)
    }
}

/// A store that was found, and what it says.
#[derive(Debug)]
struct FoundStore {
    found: Found,
    id: StoreId,
    description: Description,
    source: Source,
    values: StoreValues,
}

impl FoundStore {
    /// True if certainly no process writes it.
    fn has_exited(&self) -> bool {
        self.source.file.liveness.has_no_holder()
    }
}

/// What is to be done with a store that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoreVerdict {
    /// Nothing: no process writes it, and it was counted before, or it was last updated more than `retain` ago.
    Over,
    /// Nothing yet: no agent has it, and the first scan is not over, which may find the present store of an agent of
    /// its name.
    Early,
    /// It is the present store of this agent.
    Present(AgentKey),
    /// This agent of its name and rank, whose present store no process writes, goes on with it. `None`: it is the first
    /// store of a new agent.
    Next(Option<AgentKey>),
}

impl Collector {
    /// Attaches a store to its agent, unless it is rejected.
    pub(super) fn attach_store(&mut self, found: Found, candidate: StoreCandidate, now: Instant) {
        let (id, description) = (candidate.id, candidate.description.clone());
        let (source, values) = match Source::store(candidate, found.path(), now) {
            Ok(opened) => opened,
            Err(rejection) => return self.reject(&found, rejection),
        };
        let store = FoundStore {
            found,
            id,
            description,
            source,
            values,
        };
        match self.judge_store(&store, now) {
            StoreVerdict::Over => self.reject(&store.found, Rejection::Exited),
            StoreVerdict::Early => {
                let waiting = (store.values.updated, store.found);
                self.candidates.waiting.push(waiting);
            }
            StoreVerdict::Present(key) => self.attach_present(key, store, now),
            StoreVerdict::Next(known) => {
                if self.make_room_for(now, known, Presence::Writing, &store.found) {
                    let key = known.unwrap_or_else(|| self.new_store_agent(&store, now));
                    self.begin_store(key, &store, now);
                    self.add_store(key, store, now);
                }
            }
        }
    }

    /// Attaches the present store of an agent.
    fn attach_present(&mut self, key: AgentKey, mut store: FoundStore, now: Instant) {
        let has_exited = store.has_exited();
        let presence = match has_exited {
            true => Presence::Gone,
            false => Presence::Writing,
        };
        // Nothing more will come, so that it is counted even if there is no room.
        if has_exited && !self.read_last(key, &mut store, now) {
            self.reject(&store.found, Rejection::Exited);
        } else if self.make_room_for(now, Some(key), presence, &store.found) {
            self.add_store(key, store, now);
        } else if let Some(agent) = self.agents.get_mut(key) {
            // No other store becomes this agent's while its present one waits for room.
            let file = (store.found.name, store.found.facts.id);
            agent.waiting = (!has_exited).then_some(file);
        }
    }

    /// Decides what is to be done with a store. Asks the kernel about processes.
    fn judge_store(&mut self, store: &FoundStore, now: Instant) -> StoreVerdict {
        let same_name = self.agents.named(&store.description.agent);
        let same_name = same_name.filter(|(_, agent)| agent.has_stores());
        let mut alike = Vec::new();
        for (key, agent) in same_name {
            let is_owner = agent.name.owner == store.found.facts.uid;
            let present = agent.entry.store.as_ref();
            if is_owner && present.is_some_and(|present| present.id == store.id) {
                return StoreVerdict::Present(key);
            }
            if is_alike(agent, store) {
                alike.push(key);
            }
        }
        if store.has_exited() && self.is_over(store, now) {
            return StoreVerdict::Over;
        }
        if self.shared.in_first_scan {
            return StoreVerdict::Early;
        }
        let mut tested = alike.into_iter().take(MAX_TESTED);
        StoreVerdict::Next(tested.find(|&key| self.is_free(key, store.id, now)))
    }

    /// True if a store was updated within `retain`, and since the host was started: CLOCK_MONOTONIC begins again then.
    fn is_recent(&self, store: &FoundStore, now: Instant) -> bool {
        // Since the begin of this tick, a process may have begun and ended.
        let now = self.clock.at(now.max(Instant::now()));
        let uptime = Duration::from_nanos(now.stamp).as_secs();
        let changed = u64::try_from(store.found.facts.changed.0).unwrap_or(0);
        let ago = now.stamp.checked_sub(store.values.updated);
        changed + MAX_CLOCK_STEP >= now.seconds.saturating_sub(uptime)
            && ago.is_some_and(|ago| Duration::from_nanos(ago) <= self.shared.config.retain)
    }

    /// True if nothing of a store without a process counts, which is not the present store of any agent.
    fn is_over(&self, store: &FoundStore, now: Instant) -> bool {
        self.may_be_counted(store) || !self.is_recent(store, now)
    }

    /// True if what a store has may have been counted, although no record has it.
    fn may_be_counted(&self, store: &FoundStore) -> bool {
        let counted = &self.candidates.counted_stores;
        counted.may_have(store.id, store.found.facts.changed)
    }

    /// True if, asked now, certainly no process writes the present store of an agent.
    fn is_free(&mut self, key: AgentKey, new: StoreId, now: Instant) -> bool {
        let all_found = self.candidates.all_found;
        self.agents.get_mut(key).is_some_and(|agent| {
            let reading = agent.entry.store.as_ref();
            // A new file may have the inode number of one that was removed.
            let is_gone = reading.is_some_and(|reading| reading.id.file == new.file);
            let mut sources = agent.sources.iter_mut();
            sources.all(|source| source.is_abandoned(now))
                && (is_gone || (!agent.waits(&self.scanner) && (agent.has_files() || all_found)))
        })
    }

    /// Counts what came to the present store of an agent before its process ended. Returns true if something did.
    fn read_last(&mut self, key: AgentKey, store: &mut FoundStore, now: Instant) -> bool {
        let now = self.clock.at(now);
        self.agents.get_mut(key).is_some_and(|agent| {
            let reading = agent.entry.store.as_ref();
            let has_more = reading
                .is_some_and(|reading| store.values.delta_since(&reading.values).has_counts());
            agent.read_last(&mut store.source, now, &mut self.shared);
            // No process writes it, so that another store may be the agent's next.
            agent.waiting = None;
            has_more
        })
    }

    /// Adds an agent for a store.
    fn new_store_agent(&mut self, store: &FoundStore, now: Instant) -> AgentKey {
        let (found, description) = (&store.found, &store.description);
        let mut name = name_of(found, &description.agent);
        let same_name = self.agents.named(&description.agent);
        let alike = same_name.filter(|(_, agent)| is_alike(agent, store));
        for number in alike.count().. {
            name.part = part(number, &description.rank);
            if self.agents.find(&name).is_none() {
                break;
            }
        }
        self.agent_of(&found.directory, name, now)
    }

    /// Makes a store the present one of an agent. The one before is counted to its end.
    fn begin_store(&mut self, key: AgentKey, store: &FoundStore, now: Instant) {
        // Such a store counts from now on. With another update time, the next drain takes the values that are not
        // counts.
        let reading = self.may_be_counted(store).then(|| StoreReading {
            id: store.id,
            values: StoreValues {
                updated: 0,
                ..store.values.clone()
            },
        });
        let now = self.clock.at(now);
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        if let Some(mut before) = agent.sources.pop() {
            agent.read_last(&mut before, now, &mut self.shared);
            if let Some(facts) = before.current_facts() {
                self.scanner
                    .reject(&before.file.path, &facts, Rejection::Exited);
            }
        }
        if let Some(before) = &agent.entry.store {
            let counted = &mut self.candidates.counted_stores;
            counted.give_up(before.id, &mut self.shared.journal);
        }
        agent.entry.is_counted = true;
        agent.started(now.stamp, &mut self.shared.journal);
        agent.entry.last_event = store.values.updated.min(now.stamp);
        agent.entry.store = Some(reading.unwrap_or_else(|| StoreReading::none(store.id)));
    }

    /// Adds the present store of an agent to its sources.
    fn add_store(&mut self, key: AgentKey, store: FoundStore, now: Instant) {
        let directory = &store.found.directory.path;
        self.scanner
            .remove_rejection(directory, store.found.facts.id);
        // Also if its process has ended meanwhile, so that its last values are seen. Where the kernel does not tell
        // which process has a file, an old store publishes no agent before it is updated.
        let is_visible = self.is_recent(&store, now)
            || store.source.file.liveness.presence(now) == Presence::Writing;
        let observes = self.observes();
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        tracing::info!(
            "agent {}: store of process {}, agent {} in it, {}",
            agent.name.instance,
            store.description.pid,
            store.description.instance,
            log::shown(&store.source.file.path)
        );
        agent.sources.push(store.source);
        if !observes {
            // Only the store tells its rank.
            agent.set_facts(Some(agent.facts_of_files(None)));
        }
        let facts = agent.facts.current();
        self.shared.journal.set_facts(agent.record, facts);
        self.source_added(key, is_visible, now);
    }
}

/// True if an agent has stores of the name, local rank, directory and owner of this one.
fn is_alike(agent: &Agent, store: &FoundStore) -> bool {
    let (name, found) = (&agent.name, &store.found);
    name.directory == found.directory.path
        && rank(&name.part) == Some(&*store.description.rank.to_string_lossy())
        && name.owner == found.facts.uid
}
