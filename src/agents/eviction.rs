// SPDX-License-Identifier: GPL-2.0-or-later

//! Which agent makes room for another.
//!
//! One rule, for places and for records: an exited agent of the user with the most agents makes room. If there is none,
//! that user's newest live agent does, provided that the user has at least two more than the owner of the new agent. So
//! one user may have all places, and many users cannot keep another one out. An exited agent never makes room for a
//! user who has more agents than its owner.

use super::{Agent, AgentKey, Registry};
use crate::base::per_user::{self, Counts};
use crate::procfs::agent_state::AgentState;
use std::cmp::Reverse;

/// Number of exited, and of live, agents that are tested for one new agent. Each test is a system call.
const MAX_TESTED: usize = 64;

impl Agent {
    /// Returns the number of places that the agent takes: one while it is published or about to be, and one for each
    /// source beyond the first.
    pub(crate) fn places(&self) -> usize {
        let is_dormant = self.entry.lifecycle.is_dormant();
        self.sources.len().max(usize::from(!is_dormant))
    }

    /// True if another source of the agent needs no further place.
    pub(crate) fn has_free_place(&self) -> bool {
        self.sources.len() < self.places()
    }
}

impl Registry {
    /// Returns the agents that may make room for an agent of this user, in the order in which they do, each with true
    /// if a process writes its files, or may. `all_found`: the first scan is over, so that an agent without a file has
    /// none.
    pub(crate) fn eviction_order(
        &self,
        uid: u32,
        all_found: bool,
    ) -> impl Iterator<Item = (AgentKey, bool)> + use<> {
        let (own, most) = (self.places().of(uid), self.places().most());
        let (mut exited, mut live) = (Vec::new(), Vec::new());
        for (key, agent) in self.iter().filter(|(_, agent)| agent.places() > 0) {
            let (count, lifecycle) = (self.places().of(agent.name.owner), agent.entry.lifecycle);
            let is_dormant = lifecycle.is_dormant();
            let is_live = !is_dormant && lifecycle.exited_since().is_none();
            if !is_live || (all_found && !agent.has_files()) {
                // An agent that is not an instance goes first.
                let order = (Reverse(count), !is_dormant, agent.entry.last_seen);
                exited.extend((count >= own).then_some((order, key)));
            } else if count == most && most >= own + 2 {
                live.push((Reverse((agent.entry.first_seen, agent.id)), key));
            }
        }
        exited.sort_unstable();
        live.sort_unstable();
        let exited = exited.into_iter().take(MAX_TESTED);
        let live = live.into_iter().take(MAX_TESTED);
        let exited = exited.map(|(_, key)| (key, false));
        exited.chain(live.map(|(_, key)| (key, true)))
    }

    /// Returns the agents that have no place if there are only so many: those that are not instances, then exited ones,
    /// then live ones; of these, always one of the user with the most agents, the newest one if it is live. One with an
    /// unlinked ring keeps its place, since no scan would find what is left in the ring.
    pub(crate) fn excess(&self, mut places: usize) -> Vec<AgentKey> {
        if self.places().total() <= places {
            return Vec::new();
        }
        let class = |agent: &Agent| {
            let mut sources = agent.sources.iter();
            let is_unlinked = sources.any(|source| source.file.liveness.is_unlinked());
            let lifecycle = agent.entry.lifecycle;
            let has_exited = lifecycle.exited_since().is_some();
            (!is_unlinked, lifecycle.is_dormant(), has_exited)
        };
        let with_places = self.iter().filter(|(_, agent)| agent.places() > 0);
        let mut all = Vec::from_iter(with_places);
        all.sort_unstable_by_key(|&(key, agent)| {
            let (class, entry) = (class(agent), &agent.entry);
            let exited = class.2.then_some(Reverse(entry.last_seen));
            (class, exited, entry.first_seen, agent.id, key)
        });
        // The first agents of all users stay before the second of any.
        let mut all = per_user::numbered(all, |(_, agent)| agent.name.owner);
        all.sort_by_key(|&(number, (_, agent))| (class(agent), number));
        all.retain(|&(_, (_, agent))| {
            let left = places.checked_sub(agent.places());
            places = left.unwrap_or(places);
            let (is_found, ..) = class(agent);
            left.is_none() && is_found
        });
        all.into_iter().map(|(_, (key, _))| key).collect()
    }

    /// Returns the agent without places whose record makes room for another: of the user with the most agents that has
    /// such an agent, the one that was last seen longest ago. `is_open`: what comes to a file of the agent before it is
    /// found again may be lost, or counted from the beginning of the file.
    pub(crate) fn next_to_expire(&self, is_open: impl Fn(&Agent) -> bool) -> Option<AgentKey> {
        let counts: Counts = self.values().map(|agent| agent.name.owner).collect();
        let without_places = self.iter().filter(|(_, agent)| agent.places() == 0);
        let next = without_places.min_by_key(|(key, agent)| {
            let count = counts.of(agent.name.owner);
            let may_live = agent.entry.agent_state != AgentState::Exited;
            let last_seen = agent.entry.last_seen;
            (Reverse(count), is_open(agent), may_live, last_seen, *key)
        });
        next.map(|(key, _)| key)
    }
}
