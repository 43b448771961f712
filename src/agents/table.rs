//! All agents that are known, in one slab: the one number that an agent has here is its place in it.

use super::quiet::Quiet;
use crate::agents::agent::Agent;
use slab::Slab;
use std::time::Instant;

/// Names an agent for as long as it is known; one that comes later may have the key of one that was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentKey(usize);

/// The agents, and apart from them what a drain looks at first.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Boxed: the slab keeps the room that its most agents took, and a box goes back.
    agents: Slab<Box<Agent>>,
    /// In the places of the agents, so that those in which nothing happens cost no look at more than this.
    quiet: Vec<Quiet>,
}

impl Table {
    /// Adds an agent; the next drain looks at all of it.
    pub fn insert(&mut self, agent: Agent) -> AgentKey {
        let key = AgentKey(self.agents.insert(Box::new(agent)));
        if self.quiet.len() <= key.0 {
            self.quiet.resize_with(key.0 + 1, Quiet::default);
        }
        self.wake(key);
        key
    }

    /// Has the next drain look at all of an agent.
    pub fn wake(&mut self, key: AgentKey) {
        self.quiet[key.0] = Quiet::default();
    }

    pub fn remove(&mut self, key: AgentKey) -> Option<Agent> {
        let agent = self.agents.try_remove(key.0)?;
        // It keeps the agent's ring mapped.
        self.wake(key);
        while !self.quiet.is_empty() && !self.agents.contains(self.quiet.len() - 1) {
            self.quiet.pop();
        }
        Some(*agent)
    }

    pub fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key.0).map(|agent| &**agent)
    }

    pub fn get_mut(&mut self, key: AgentKey) -> Option<&mut Agent> {
        self.agents.get_mut(key.0).map(|agent| &mut **agent)
    }

    /// An agent, and what tells whether it is due.
    pub fn at(&mut self, key: AgentKey) -> Option<(&mut Quiet, &mut Agent)> {
        let agent = self.agents.get_mut(key.0)?;
        Some((&mut self.quiet[key.0], agent))
    }

    /// The agents in which something happens.
    pub fn due(&self, now: Instant) -> impl Iterator<Item = (AgentKey, &Agent)> {
        let quiet = self.quiet.iter().enumerate();
        quiet
            .filter(move |(_, quiet)| !quiet.holds(now))
            .filter_map(|(place, _)| Some((AgentKey(place), &**self.agents.get(place)?)))
    }

    /// What tells whether the agent in this place is due.
    #[cfg(test)]
    pub fn quiet(&self, place: usize) -> &Quiet {
        &self.quiet[place]
    }

    /// Number of places. All agents are below.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.quiet.len()
    }

    pub fn len(&self) -> usize {
        self.agents.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (AgentKey, &Agent)> {
        self.agents
            .iter()
            .map(|(place, agent)| (AgentKey(place), &**agent))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (AgentKey, &mut Agent)> {
        self.agents
            .iter_mut()
            .map(|(place, agent)| (AgentKey(place), &mut **agent))
    }

    pub fn values(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().map(|(_, agent)| &**agent)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.agents.iter_mut().map(|(_, agent)| &mut **agent)
    }
}

#[cfg(test)]
impl AgentKey {
    /// The key of the agent in a place of the table.
    pub(super) fn of(place: usize) -> Self {
        Self(place)
    }

    /// Its place in the table.
    pub(super) fn place(self) -> usize {
        self.0
    }
}
