//! Which stores are attached, and to which agents.
//!
//! A ring is its agent's by name and directory, for ever. A store is a new file at each start, and several processes may have
//! agents of one name in one directory, so that its agent is found: the one that had this very store; else one of the same name
//! and local rank in the same directory, whose store no process writes any more; else it is new. An agent that writes a ring is
//! never one that has stores.

use super::look::PATIENCE;
use super::place::name_of;
use super::{AgentKey, Agents};
use crate::agents::agent::Agent;
use crate::base::file::FileFacts;
use crate::discovery::scan::Found;
use crate::error::Refusal;
use crate::log;
use crate::procfs::agent_state::AgentState;
use crate::procfs::facts::Facts;
use crate::procfs::process::Holder;
use crate::source::Source;
use crate::stats::store_values::StoreValues;
use crate::store::{Candidate, Description, Seen, StoreId};
use std::ffi::OsStr;
use std::time::{Duration, Instant};

/// What makes the agent of a store another one than that of a ring of the same name in the same directory, or of another store:
/// the first, second, ... of this local rank.
fn part(number: usize, rank: &OsStr) -> String {
    format!("store:{number}:{}", rank.to_string_lossy())
}

/// The local rank in that; `None`: a ring's agent.
pub(super) fn rank(part: &str) -> Option<&str> {
    part.splitn(3, ':').nth(2)
}

/// How many agents of one name are asked whether they are free for a store: each is a question to the kernel, and one user may
/// have as many as there are.
const MOST_ASKED: usize = 64;
/// Seconds by which CLOCK_REALTIME may have been stepped since a file was changed.
const HOUR: u64 = 3600;

impl Agents {
    pub(super) fn look_at_store(&mut self, found: Found, candidate: Candidate, now: Instant) {
        let (id, description) = (candidate.id, candidate.description.clone());
        let path = found.directory.path.join(&found.name);
        let (mut source, values) = match Source::store(candidate, path, now) {
            Ok(opened) => opened,
            Err(refusal) => return self.set_aside(&found, refusal),
        };
        let same = || self.agents.named(&description.agent);
        let known = same().find(|(_, agent)| agent.has_stores() && agent.seen(id).is_some());
        let known = known.map(|(key, _)| key);
        // 0.1.0 let an agent that wrote a ring go over to stores: what that had of this one is counted.
        let seen = same().find_map(|(_, agent)| agent.seen(id).cloned());
        let alike = same().filter(|(_, agent)| is_alike(agent, &found, &description));
        let alike: Vec<AgentKey> = alike.map(|(key, _)| key).collect();
        let has_exited = source.file.liveness.has_no_holder();
        let is_recent = self.is_recent(&found.facts, &values, now);
        let is_over = has_exited
            && match known {
                // Nothing more comes, so that it is counted whether there is a place for it or not.
                Some(key) => !self.read_last(key, &mut source, &values, now),
                None => !is_recent || self.is_counted(&alike, id, values.updated),
            };
        if is_over {
            return self.set_aside(&found, Refusal::Exited);
        }
        if known.is_none() && self.books.early {
            return self.candidates.unknown.push((values.updated, found));
        }
        let key = known.or_else(|| {
            let mut asked = alike.iter().copied().take(MOST_ASKED);
            asked.find(|&key| self.is_free(key, id, now))
        });
        let has_news = known.is_none() || !has_exited;
        if !self.has_room(now, key, has_news, || Holder::Absent, &found) {
            // What was counted of the store is this agent's: no other store takes its place while this one waits for room.
            if let Some(agent) = known.and_then(|key| self.agents.get_mut(key)) {
                agent.waiting = (!has_exited).then_some((found.name, found.facts.id));
            }
            return;
        }
        self.scanner
            .remove_rejection(&found.directory.path, found.facts.id);
        let key = key.unwrap_or_else(|| self.new_agent(&found, &description, alike.len(), now));
        if known.is_none() {
            let seen = seen.unwrap_or_else(|| Seen::nothing(id));
            self.start(key, seen, &values, now);
        }
        self.give(key, source, &description, is_recent, now);
    }

    /// Counts what came to a known store that no process writes any more. Returns true if something did.
    fn read_last(
        &mut self,
        key: AgentKey,
        source: &mut Source,
        values: &StoreValues,
        now: Instant,
    ) -> bool {
        let now = self.clock.at(now);
        self.agents.get_mut(key).is_some_and(|agent| {
            let seen = agent.entry.store.as_ref();
            let is_new = seen.is_some_and(|seen| values.delta_since(&seen.values).has_counts());
            agent.read_last(source, now, &mut self.books);
            // No process writes to it, so that another store may be the agent's next.
            agent.waiting = None;
            is_new
        })
    }

    /// True if a store was updated within `retain`, and since the host was started. After that the times of an older one may be
    /// still to come.
    fn is_recent(&self, facts: &FileFacts, values: &StoreValues, now: Instant) -> bool {
        let now = self.clock.at(now);
        let up = Duration::from_nanos(now.stamp).as_secs();
        let changed = u64::try_from(facts.changed.0).unwrap_or(0);
        let ago = now.stamp.checked_sub(values.updated);
        changed + HOUR >= now.seconds.saturating_sub(up)
            && ago.is_some_and(|ago| Duration::from_nanos(ago) <= self.books.config.retain)
    }

    /// True if a store that no process writes was counted to its end, though none of these agents, which may have had it, knows it.
    fn is_counted(&mut self, alike: &[AgentKey], id: StoreId, updated: u64) -> bool {
        let mut agents = alike.iter().filter_map(|&key| self.agents.get(key));
        if agents.any(|agent| agent.stores_before >= updated) {
            self.counted_stores.add(id, updated);
        }
        self.counted_stores.has(id, updated)
    }

    /// True if, asked now, certainly no process writes to the store of an agent, so that a new one may be its next.
    fn is_free(&mut self, key: AgentKey, new: StoreId, now: Instant) -> bool {
        self.agents.get_mut(key).is_some_and(|agent| {
            let seen = agent.entry.store.as_ref();
            // The new file may have the inode number of one that is gone.
            let is_gone = seen.is_some_and(|seen| seen.id.file == new.file);
            let mut sources = agent.sources.iter_mut();
            sources.all(|source| source.is_abandoned(now))
                && (is_gone || !agent.waits(&self.scanner))
        })
    }

    /// A new agent, of which there are so many already.
    fn new_agent(
        &mut self,
        found: &Found,
        description: &Description,
        alike: usize,
        now: Instant,
    ) -> AgentKey {
        let mut name = name_of(found, &description.agent, String::new());
        for number in alike.. {
            name.part = part(number, &description.rank);
            if self.agents.find(&name).is_none() {
                break;
            }
        }
        self.agent_of(&found.directory, name, now)
    }

    /// Begins a new store of an agent, of which `seen` is counted already.
    fn start(&mut self, key: AgentKey, seen: Seen, values: &StoreValues, now: Instant) {
        let now = self.clock.at(now);
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        if let Some(mut before) = agent.sources.pop() {
            agent.read_last(&mut before, now, &mut self.books);
        }
        if let Some(before) = agent.entry.retire_store(now.stamp) {
            self.counted_stores.add(before.id, before.values.updated);
        }
        agent.started(now.stamp, &mut self.books.journal);
        agent.entry.last_event = values.updated.min(now.stamp);
        agent.entry.store = Some(seen);
    }

    /// Attaches a store to its agent. `is_recent`: it was updated a short time ago.
    fn give(
        &mut self,
        key: AgentKey,
        source: Source,
        description: &Description,
        is_recent: bool,
        now: Instant,
    ) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.waiting = None;
        let liveness = &source.file.liveness;
        tracing::info!(
            "agent {}: store of process {}, agent {} in it, {}",
            agent.name.instance,
            description.pid,
            description.instance,
            log::shown(&source.file.path)
        );
        // Also one that has exited meanwhile, so that its last values are seen. But where the kernel does not tell which process has
        // a file, an old one is no instance until something comes.
        if is_recent || liveness.state(false) == AgentState::Live {
            let is_asked = self.books.config.proc_facts && !liveness.has_no_holder();
            let patience = if is_asked { PATIENCE } else { Duration::ZERO };
            agent.entry.lifecycle.wake(now + patience);
        }
        agent.sources.push(source);
        if !self.books.config.proc_facts {
            // Nothing else will tell of which rank it is.
            agent.set_facts(Some(agent.facts_of_files(None)));
        }
        let journal = &mut self.books.journal;
        journal.commit(agent.record, &agent.entry);
        journal.set_facts(agent.record, agent.own_facts());
        self.wake(key);
    }
}

/// True if an agent has stores of this name, local rank and directory. Another user's is another agent.
fn is_alike(agent: &Agent, found: &Found, description: &Description) -> bool {
    let name = &agent.name;
    name.directory == found.directory.path
        && rank(&name.part) == Some(&*description.rank.to_string_lossy())
        && name.owner == found.facts.uid
}

impl Agent {
    /// True if it has stores, and no ring.
    pub(crate) fn has_stores(&self) -> bool {
        !self.name.part.is_empty()
    }

    /// What is counted of this store, if it was the last that the agent had.
    fn seen(&self, id: StoreId) -> Option<&Seen> {
        self.entry.store.as_ref().filter(|seen| seen.id == id)
    }

    /// What its files tell of it.
    pub(crate) fn facts_of_files(&self, user: Option<&str>) -> Facts {
        let facts = Facts::of_file(user, &self.name.raw, &self.name.directory);
        match self.store() {
            Some(store) => store.description.facts().merge(&facts),
            None => facts,
        }
    }
}
