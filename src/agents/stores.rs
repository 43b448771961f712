//! Which stores are attached, and to which agents.
//!
//! A ring is its agent's by name and directory, for ever. A store is a new file at each start, and several processes may have
//! agents of one name in one directory, so that its agent is found: the one that had this very store; else one of the same name
//! and local rank in the same directory that has none now; else it is new. An agent that writes a ring is never one that has
//! stores.

use super::look::PATIENCE;
use super::{AgentKey, Agents, Place};
use crate::agents::agent::{Agent, Waiting};
use crate::error::Refusal;
use crate::find::directory::Directory;
use crate::find::scan::Found;
use crate::log;
use crate::producer::facts::Facts;
use crate::producer::writer::Holder;
use crate::source::Source;
use crate::source::store::StoreReader;
use crate::store::{Candidate, Description, Seen, StoreId};
use crate::totals::values::Values;
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

/// The number in that.
fn number(part: &str) -> usize {
    let number = part.split(':').nth(1);
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or(usize::MAX)
}

/// How many agents of one name are asked whether they are free for a store.
const MOST_ASKED: usize = 64;
/// Seconds that clocks may be apart.
const HOUR: u64 = 3600;

/// Whether an agent that began with a store has those of this directory and local rank.
fn has_rank(agent: &Agent, directory: &Directory, description: &Description) -> bool {
    let name = &agent.name;
    let own = rank(&name.part);
    name.directory == directory.path && own == Some(&*description.rank.to_string_lossy())
}

impl Agents {
    pub(super) fn look_at_store(&mut self, found: Found, candidate: Candidate, now: Instant) {
        let facts = candidate.facts;
        let attached = StoreReader::attach(candidate);
        let looked_at = attached.and_then(|store| match store.values() {
            Ok(values) => Ok((store, values)),
            Err(_) => Err(Refusal::Replaced),
        });
        let (mut store, values) = match looked_at {
            Ok(looked_at) => looked_at,
            Err(refusal) => return self.set_aside(&found, refusal),
        };
        let path = found.directory.path.join(&found.name);
        let file = store.track(facts, path, now);
        let same = self.agents.named(&store.description.agent);
        let known = same.iter().copied().find(|&key| {
            let agent = self.agents.get(key).filter(|agent| agent.has_stores());
            agent.is_some_and(|agent| agent.had(store.id))
        });
        let exited = file.presence.is_abandoned();
        if exited && self.is_counted(&same, known, &found, &store, &values, now) {
            if let Some(key) = known {
                self.note_end(key, &values);
            }
            return self.set_aside(&found, Refusal::Exited);
        }
        if let Some(key) = known.filter(|_| exited) {
            // No more comes, so that it needs no place to be counted: nothing is left that could wait for one.
            self.count_end(key, &mut store, now);
        }
        let had = known.or_else(|| self.free_agent(&same, &found, &store, now));
        if !self.has_room(now, had, true, || Holder::Somebody, &found) {
            // It is still this one's, as what was counted of it is: no other comes in its place while it waits for its turn.
            if let Some(agent) = known.and_then(|key| self.agents.get_mut(key)) {
                let waiting = || Waiting::new(&file.path, facts.id);
                agent.waits = (!agent.entry.lifecycle.is_awake() && !exited).then(waiting);
            }
            return;
        }
        self.scanner.taken(&found.directory.path, facts.id);
        let key = known.unwrap_or_else(|| {
            let key = had.unwrap_or_else(|| self.new_agent(&found, &store, same.len(), now));
            self.start(key, &store, &values, now);
            key
        });
        if let Some(agent) = self.agents.get(key) {
            // An earlier version's state did not say whose it was.
            let owner = Some(facts.uid);
            let place = Place {
                owner,
                ..Place::of(&agent.name)
            };
            self.give_to(key, place);
        }
        let is_recent = self
            .age(&values, now)
            .is_some_and(|age| age <= self.books.lifetimes.retain);
        self.give(key, store.into_source(file), is_recent, now);
    }

    /// Whether there is nothing to learn from a store whose agent has exited: all of it is counted, or it ended too long ago for
    /// anybody to look for it.
    fn is_counted(
        &self,
        same: &[AgentKey],
        known: Option<AgentKey>,
        found: &Found,
        store: &StoreReader,
        values: &Values,
        now: Instant,
    ) -> bool {
        if let Some(agent) = known.and_then(|key| self.agents.get(key)) {
            let seen = agent.entry.store.as_ref();
            return seen.is_none_or(|seen| !values.since(&seen.values).has_counts());
        }
        let ago = self.age(values, now);
        if ago.is_none_or(|ago| ago > self.books.lifetimes.retain)
            || self.is_of_another_boot(found, now)
        {
            return true;
        }
        let mut had = same
            .iter()
            .filter_map(|&key| self.agents.get(key))
            .filter(|agent| agent.is_of(found.facts.uid))
            .filter(|agent| has_rank(agent, &found.directory, &store.description));
        had.any(|agent| agent.entry.store_retired >= values.updated)
    }

    /// A store is counted, and nobody has it: it waits for nothing. Notes its time, which may have come after the last values,
    /// while nobody looked.
    fn note_end(&mut self, key: AgentKey, values: &Values) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.waits = None;
        if let Some(seen) = &mut agent.entry.store {
            seen.values.updated = values.updated;
        }
        self.books.journal.commit(agent.record, &agent.entry);
    }

    /// Counts what an agent left that has exited.
    fn count_end(&mut self, key: AgentKey, store: &mut StoreReader, now: Instant) {
        let now = self.clock.at(now);
        if let Some(agent) = self.agents.get_mut(key) {
            agent.look_at_end(store, now, &mut self.books);
        }
    }

    /// How long ago a store was updated last. After a restart of the host the times of an old one may be still to come.
    fn age(&self, values: &Values, now: Instant) -> Option<Duration> {
        let stamp = self.clock.at(now).stamp;
        stamp.checked_sub(values.updated).map(Duration::from_nanos)
    }

    /// Whether a store that nobody has was written before the host was started.
    fn is_of_another_boot(&self, found: &Found, now: Instant) -> bool {
        let now = self.clock.at(now);
        let up = Duration::from_nanos(now.stamp).as_secs();
        // The clock of people may have been set since.
        let (changed, _) = found.facts.changed;
        u64::try_from(changed).unwrap_or(0) + HOUR < now.seconds.saturating_sub(up)
    }

    /// An agent that the store may belong to and that has none now.
    fn free_agent(
        &mut self,
        same: &[AgentKey],
        found: &Found,
        store: &StoreReader,
        now: Instant,
    ) -> Option<AgentKey> {
        let fits = |key: &AgentKey| {
            let agent = self.agents.get(*key)?;
            // Another user's is another agent, whatever it calls itself.
            let fits = agent.is_of(found.facts.uid)
                && has_rank(agent, &found.directory, &store.description);
            fits.then(|| (number(&agent.name.part), *key))
        };
        let mut fitting: Vec<_> = same.iter().filter_map(fits).collect();
        fitting.sort_unstable();
        // Each is a question to the kernel, and a stranger may have as many as he likes.
        let mut fitting = fitting.into_iter().map(|(_, key)| key).take(MOST_ASKED);
        fitting.find(|&key| {
            let agent = self.agents.get_mut(key);
            agent.is_some_and(|agent| agent.is_free(now, &self.scanner))
        })
    }

    /// A new agent, of whose name there are `same` already.
    fn new_agent(
        &mut self,
        found: &Found,
        store: &StoreReader,
        same: usize,
        now: Instant,
    ) -> AgentKey {
        let description = &store.description;
        let mut numbers = same..;
        let place = loop {
            let part = part(numbers.next().unwrap_or(usize::MAX), &description.rank);
            let place = Place {
                directory: found.directory.path.clone(),
                raw: description.agent.clone(),
                part,
                owner: Some(found.facts.uid),
            };
            if self.agents.known_at(&place).is_none() {
                break place;
            }
        };
        self.agent_at(&found.directory, place, now)
    }

    /// The agent has started with this store, of which nothing is counted yet.
    fn start(&mut self, key: AgentKey, store: &StoreReader, values: &Values, now: Instant) {
        let now = self.clock.at(now);
        // An earlier version let an agent that wrote a ring go over to stores: what that had of this one is counted.
        let same = self.agents.named(&store.description.agent);
        let mut same = same.iter().filter_map(|&key| self.agents.get(key));
        let seen = same.find(|agent| agent.had(store.id));
        let seen = seen.and_then(|agent| agent.entry.store.clone());
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.let_store_go(now, &mut self.books);
        agent.started(now.stamp, &mut self.books.journal);
        agent.entry.last_event = values.updated.min(now.stamp);
        agent.entry.store = seen.or_else(|| Some(Seen::nothing(store.id)));
    }

    /// `is_recent`: it was updated a short time ago.
    fn give(&mut self, key: AgentKey, source: Source, is_recent: bool, now: Instant) {
        let (Some(agent), Some(store)) = (self.agents.get_mut(key), source.as_store()) else {
            return;
        };
        let (description, presence) = (&store.description, &source.file.presence);
        tracing::info!(
            "agent {}: store of process {}, agent {} in it, {}",
            agent.name.instance,
            description.pid,
            description.instance,
            log::shown(&source.file.path)
        );
        agent.waits = None;
        // Also one that has exited since the last look: its last values are to be seen. But where the kernel does not tell who has
        // a file, an old one is nobody's until something comes.
        if is_recent || presence.is_held() {
            let is_asked = self.process_scans.enabled && !presence.is_abandoned();
            let patience = if is_asked { PATIENCE } else { Duration::ZERO };
            agent.entry.lifecycle.wake(now + patience);
        }
        agent.sources.push(source);
        if !self.process_scans.enabled {
            // Nobody else will tell of which rank it is.
            agent.set_facts(Some(agent.facts_of_files(None)));
        }
        let journal = &mut self.books.journal;
        journal.commit(agent.record, &agent.entry);
        journal.set_facts(agent.record, agent.own_facts());
        self.wake(key);
    }
}

impl Agent {
    /// Whether its files, as far as that is known, are this user's.
    fn is_of(&self, uid: u32) -> bool {
        self.name.owner.is_none_or(|owner| owner == uid)
    }

    /// True if it has stores, and no ring.
    pub(crate) fn has_stores(&self) -> bool {
        !self.name.part.is_empty()
    }

    /// True if this store was the last that it had.
    fn had(&self, id: StoreId) -> bool {
        let seen = self.entry.store.as_ref();
        seen.is_some_and(|seen| seen.id == id)
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
