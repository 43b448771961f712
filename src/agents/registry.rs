//! All agents that are known: by key and by name, and what they take.
//!
//! An agent is in one slab: its key is its place there. Whoever has changed an agent's files or life calls
//! [`Registry::settle`], so that what is counted of all agents cannot disagree with them.

use super::poll::Quiet;
use crate::agents::Agent;
use crate::base::file::FileId;
use crate::journal::record::Name;
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::Instant;

/// Names an agent for as long as it is known; one that comes later may have the key of one that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentKey(usize);

/// What is counted of an agent.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    places: usize,
    files: Vec<FileId>,
}

/// How many places the agents of each user take.
#[derive(Debug, Default)]
pub(crate) struct Places {
    by_owner: HashMap<u32, usize>,
    total: usize,
}

impl Places {
    fn change(&mut self, owner: u32, before: usize, after: usize) {
        let count = self.by_owner.entry(owner).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            self.by_owner.remove(&owner);
        }
        self.total = (self.total + after).saturating_sub(before);
    }

    /// Those of all users.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Those of one user.
    pub(crate) fn of(&self, owner: u32) -> usize {
        self.by_owner.get(&owner).copied().unwrap_or(0)
    }

    /// Those of the user who has most.
    pub(crate) fn most(&self) -> usize {
        self.by_owner.values().copied().max().unwrap_or(0)
    }
}

/// The agents, and apart from them what a drain looks at first.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Boxed: the slab keeps the room that its most agents took, and a box goes back.
    agents: Slab<Box<Agent>>,
    /// In the places of the agents, so that those in which nothing happens cost no look at more than this.
    quiet: Vec<Quiet>,
    by_name: HashMap<OsString, Vec<AgentKey>>,
    instances: HashSet<String>,
    attached: HashSet<FileId>,
    places: Places,
}

impl Registry {
    /// Adds an agent; the next drain looks at all of it.
    pub(crate) fn insert(&mut self, agent: Agent) -> AgentKey {
        let raw = agent.name.raw.clone();
        self.instances.insert(agent.name.instance.clone());
        let key = AgentKey(self.agents.insert(Box::new(agent)));
        if self.quiet.len() <= key.0 {
            self.quiet.resize_with(key.0 + 1, Quiet::default);
        }
        self.by_name.entry(raw).or_default().push(key);
        self.wake(key);
        self.settle(key);
        key
    }

    /// Brings what is counted of all agents up to date with one that has changed.
    pub(crate) fn settle(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get_mut(key.0) else {
            return;
        };
        let (owner, places) = (agent.name.owner, agent.places());
        let mut counted = std::mem::take(&mut agent.counted);
        let files = || agent.attached().map(|(id, _)| id);
        if !files().eq(counted.files.iter().copied()) {
            for id in &counted.files {
                self.attached.remove(id);
            }
            counted.files = files().collect();
            self.attached.extend(&counted.files);
        }
        if counted.places != places {
            self.places.change(owner, counted.places, places);
            counted.places = places;
        }
        agent.counted = counted;
    }

    /// The agent of this name, if it is known; the instance is not compared.
    pub(crate) fn find(&self, name: &Name) -> Option<(AgentKey, &Agent)> {
        self.named(&name.raw).find(|(_, agent)| {
            let known = &agent.name;
            (known.owner, &known.part, &known.directory)
                == (name.owner, &name.part, &name.directory)
        })
    }

    /// The agents of this name, in any directory.
    pub(crate) fn named(&self, raw: &OsStr) -> impl Iterator<Item = (AgentKey, &Agent)> {
        let keys = self.by_name.get(raw).into_iter().flatten();
        keys.filter_map(|&key| Some((key, self.get(key)?)))
    }

    /// True if an agent is called so in the instance domain.
    pub(crate) fn has_instance(&self, name: &str) -> bool {
        self.instances.contains(name)
    }

    /// The files that are attached.
    pub(crate) fn attached(&self) -> &HashSet<FileId> {
        &self.attached
    }

    /// How many places the agents of each user take.
    pub(crate) fn places(&self) -> &Places {
        &self.places
    }

    /// Has the next drain look at all of an agent.
    pub(crate) fn wake(&mut self, key: AgentKey) {
        self.quiet[key.0] = Quiet::default();
    }

    pub(crate) fn remove(&mut self, key: AgentKey) -> Option<Agent> {
        let agent = self.agents.try_remove(key.0)?;
        self.places
            .change(agent.name.owner, agent.counted.places, 0);
        for id in &agent.counted.files {
            self.attached.remove(id);
        }
        self.instances.remove(&agent.name.instance);
        if let Some(same) = self.by_name.get_mut(&agent.name.raw) {
            same.retain(|&other| other != key);
            if same.is_empty() {
                self.by_name.remove(&agent.name.raw);
            }
        }
        // It keeps the agent's ring mapped.
        self.wake(key);
        while !self.quiet.is_empty() && !self.agents.contains(self.quiet.len() - 1) {
            self.quiet.pop();
        }
        Some(*agent)
    }

    pub(crate) fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key.0).map(|agent| &**agent)
    }

    pub(crate) fn get_mut(&mut self, key: AgentKey) -> Option<&mut Agent> {
        self.agents.get_mut(key.0).map(|agent| &mut **agent)
    }

    /// An agent, and what tells whether it is due.
    pub(crate) fn at(&mut self, key: AgentKey) -> Option<(&mut Quiet, &mut Agent)> {
        let agent = self.agents.get_mut(key.0)?;
        Some((&mut self.quiet[key.0], agent))
    }

    /// The agents in which something happens.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = (AgentKey, &Agent)> {
        let quiet = self.quiet.iter().enumerate();
        quiet
            .filter(move |(_, quiet)| !quiet.holds(now))
            .filter_map(|(place, _)| Some((AgentKey(place), &**self.agents.get(place)?)))
    }

    /// What tells whether the agent in this place is due.
    #[cfg(test)]
    pub(crate) fn quiet(&self, place: usize) -> &Quiet {
        &self.quiet[place]
    }

    /// More than the place of any agent.
    #[cfg(test)]
    pub(crate) fn end(&self) -> usize {
        self.quiet.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.agents.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AgentKey, &Agent)> {
        self.agents
            .iter()
            .map(|(place, agent)| (AgentKey(place), &**agent))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (AgentKey, &mut Agent)> {
        self.agents
            .iter_mut()
            .map(|(place, agent)| (AgentKey(place), &mut **agent))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().map(|(_, agent)| &**agent)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.agents.iter_mut().map(|(_, agent)| &mut **agent)
    }
}

#[cfg(test)]
impl AgentKey {
    /// The key of the agent in a place of the table.
    pub(crate) fn of(place: usize) -> Self {
        Self(place)
    }

    /// Its place in the table.
    pub(crate) fn place(self) -> usize {
        self.0
    }
}
