// SPDX-License-Identifier: GPL-2.0-or-later

//! All agents by key and by name, with the files and places that they have.
//!
//! The code that has changed an agent's sources or lifecycle calls [`Registry::update`], so that the sums over all
//! agents and the instance domain agree with the agents.

use super::poll::AgentPoll;
use crate::agents::role_times::{AddedTimes, RoleTimes};
use crate::agents::{Agent, Change};
use crate::base::file::FileId;
use crate::base::per_user::Counts;
use crate::entry::Name;
use crate::stats::histogram::Bounds;
use slab::Slab;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::time::Instant;

/// Key of an agent in the registry. A later agent may get the key of one that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentKey(usize);

/// The places and files of an agent that are included in the sums over all agents, and whether it is an instance.
#[derive(Debug, Default)]
pub(crate) struct Included {
    places: usize,
    files: Vec<FileId>,
    is_published: bool,
}

/// The agents, and separate from them their polls, which each tick reads.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    /// Boxed, since a slab never shrinks.
    agents: Slab<Box<Agent>>,
    /// At the index of the agent.
    polls: Vec<AgentPoll>,
    by_name: HashMap<OsString, Vec<AgentKey>>,
    instances: HashSet<String>,
    attached: HashSet<FileId>,
    places: Counts,
    /// Transfers by time, summed over the agents of each role, as of the last [`Registry::add_times`].
    role_times: RoleTimes,
    /// Changes of the instance domain, in their order, until the collector takes them.
    pub changes: Vec<Change>,
}

impl Registry {
    /// Adds an agent. The next tick drains it.
    pub(crate) fn insert(&mut self, agent: Agent) -> AgentKey {
        let raw = agent.name.raw.clone();
        self.instances.insert(agent.name.instance.clone());
        let key = AgentKey(self.agents.insert(Box::new(agent)));
        if self.polls.len() <= key.0 {
            self.polls.resize_with(key.0 + 1, AgentPoll::default);
        }
        self.by_name.entry(raw).or_default().push(key);
        self.end_poll(key);
        self.update(key);
        key
    }

    /// Updates the sums over all agents and the instance domain after a change of one.
    pub(crate) fn update(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get_mut(key.0) else {
            return;
        };
        let (owner, places) = (agent.name.owner, agent.places());
        let mut included = std::mem::take(&mut agent.included);
        let files = || agent.attached().map(|(file, _)| file.id);
        if !files().eq(included.files.iter().copied()) {
            for id in &included.files {
                self.attached.remove(id);
            }
            included.files = files().collect();
            self.attached.extend(&included.files);
        }
        if included.places != places {
            self.places.change(owner, included.places, places);
            included.places = places;
        }
        let (was_published, is_published) = (included.is_published, agent.is_published());
        // An instance without ids for its histograms is published again, which gives it some.
        let lacks_buckets = agent.id.is_some() && agent.entry.stats.bucket_base.is_none();
        let is_renewed = was_published && is_published && lacks_buckets;
        if was_published && (!is_published || is_renewed) {
            self.changes.push(Change::Withdrawn { key, id: agent.id });
        }
        if is_published && (!was_published || is_renewed) {
            self.changes.push(Change::Published(key));
        }
        included.is_published = is_published;
        agent.included = included;
    }

    /// Returns the agent with this name, whatever its instance name is.
    pub(crate) fn find(&self, name: &Name) -> Option<(AgentKey, &Agent)> {
        self.named(&name.raw).find(|(_, agent)| {
            let known = &agent.name;
            (known.owner, &known.part, &known.directory)
                == (name.owner, &name.part, &name.directory)
        })
    }

    /// Returns the agents of this name in all directories.
    pub(crate) fn named(&self, raw: &OsStr) -> impl Iterator<Item = (AgentKey, &Agent)> {
        let keys = self.by_name.get(raw).into_iter().flatten();
        keys.filter_map(|&key| Some((key, self.get(key)?)))
    }

    /// True if an agent has this instance name.
    pub(crate) fn has_instance(&self, name: &str) -> bool {
        self.instances.contains(name)
    }

    /// Returns the attached files.
    pub(crate) fn attached(&self) -> &HashSet<FileId> {
        &self.attached
    }

    /// Returns the number of places that the agents of each user take.
    pub(crate) fn places(&self) -> &Counts {
        &self.places
    }

    /// Ends the poll of an agent, so that the next tick drains it.
    pub(crate) fn end_poll(&mut self, key: AgentKey) {
        self.polls[key.0] = AgentPoll::default();
    }

    /// Removes an agent, which expires.
    pub(crate) fn remove(&mut self, key: AgentKey) -> Option<Agent> {
        let mut agent = self.agents.try_remove(key.0)?;
        self.role_times.add(&mut agent);
        if agent.included.is_published {
            self.changes.push(Change::Withdrawn { key, id: agent.id });
        }
        let instance = agent.name.instance.clone();
        self.changes.push(Change::Expired(instance));
        self.places
            .change(agent.name.owner, agent.included.places, 0);
        for id in &agent.included.files {
            self.attached.remove(id);
        }
        self.instances.remove(&agent.name.instance);
        if let Some(same) = self.by_name.get_mut(&agent.name.raw) {
            same.retain(|&other| other != key);
            if same.is_empty() {
                self.by_name.remove(&agent.name.raw);
            }
        }
        // The poll keeps the agent's files mapped.
        self.end_poll(key);
        while !self.polls.is_empty() && !self.agents.contains(self.polls.len() - 1) {
            self.polls.pop();
        }
        Some(*agent)
    }

    /// Adds what the agents have counted since the last call to the sums by role.
    pub(crate) fn add_times(&mut self) {
        for (_, agent) in &mut self.agents {
            self.role_times.add(agent);
        }
    }

    /// Begins the sums by role at zero if the bounds are others.
    pub(crate) fn set_bounds(&mut self, bounds: &Bounds) {
        if self.role_times.set_bounds(bounds) {
            for (_, agent) in &mut self.agents {
                agent.added_times = AddedTimes::of(&agent.entry.stats);
            }
        }
    }

    /// Returns the sums by role.
    pub(crate) fn role_times(&self) -> &RoleTimes {
        &self.role_times
    }

    pub(crate) fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key.0).map(|agent| &**agent)
    }

    pub(crate) fn get_mut(&mut self, key: AgentKey) -> Option<&mut Agent> {
        self.agents.get_mut(key.0).map(|agent| &mut **agent)
    }

    /// Returns an agent with its poll.
    pub(crate) fn at(&mut self, key: AgentKey) -> Option<(&mut AgentPoll, &mut Agent)> {
        let agent = self.agents.get_mut(key.0)?;
        Some((&mut self.polls[key.0], agent))
    }

    /// Returns the agents in which something happens.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = (AgentKey, &Agent)> {
        let polls = self.polls.iter().enumerate();
        polls
            .filter(move |(_, poll)| !poll.is_idle(now))
            .filter_map(|(index, _)| Some((AgentKey(index), &**self.agents.get(index)?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.agents.len()
    }

    pub(crate) fn keys(&self) -> Vec<AgentKey> {
        self.iter().map(|(key, _)| key).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (AgentKey, &Agent)> {
        self.agents
            .iter()
            .map(|(index, agent)| (AgentKey(index), &**agent))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (AgentKey, &mut Agent)> {
        self.agents
            .iter_mut()
            .map(|(index, agent)| (AgentKey(index), &mut **agent))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().map(|(_, agent)| &**agent)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Agent> {
        self.agents.iter_mut().map(|(_, agent)| &mut **agent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl AgentKey {
        /// Returns the key of the agent at an index.
        pub(crate) fn of(index: usize) -> Self {
            Self(index)
        }

        /// Returns the index of the agent.
        pub(crate) fn index(self) -> usize {
            self.0
        }
    }

    impl Registry {
        /// Returns the poll at an index.
        pub(crate) fn poll(&self, index: usize) -> &AgentPoll {
            &self.polls[index]
        }

        /// Returns a number above the index of any agent.
        pub(crate) fn end(&self) -> usize {
            self.polls.len()
        }
    }
}
