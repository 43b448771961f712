// SPDX-License-Identifier: GPL-2.0-or-later

//! The order in which agents are drained: round-robin over users, then over the agents of each user.

use crate::agents::AgentKey;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

/// Number of users whose empty queues are kept, so that a tick does not allocate.
const KEPT_USERS: usize = 64;

/// Agents to drain, by user. A turn drains one batch of each ring of one agent.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    /// Begin of the tick for which agents were queued last.
    began: Option<Instant>,
    users: VecDeque<u32>,
    agents: HashMap<u32, VecDeque<AgentKey>>,
    queued: HashSet<AgentKey>,
}

impl RoundRobin {
    /// Returns true if agents are to be queued: a tick begins, or no agent is left of the last one.
    pub fn begin(&mut self, began: Option<Instant>) -> bool {
        let begins = began.is_none() || self.began != began || self.is_empty();
        self.began = began;
        begins
    }

    /// Appends an agent to the queue of its owner, unless it is queued.
    pub fn push(&mut self, owner: u32, key: AgentKey) {
        if !self.queued.insert(key) {
            return;
        }
        let agents = self.agents.entry(owner).or_default();
        if agents.is_empty() {
            self.users.push_back(owner);
        }
        agents.push_back(key);
    }

    /// True if no agent is queued.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Removes the next agent, and returns it with its owner, whose next turn comes after those of all other users.
    pub fn pop(&mut self) -> Option<(u32, AgentKey)> {
        let owner = self.users.pop_front()?;
        let agents = self.agents.get_mut(&owner)?;
        let key = agents.pop_front()?;
        if !agents.is_empty() {
            self.users.push_back(owner);
        } else if self.agents.len() > KEPT_USERS {
            self.agents.remove(&owner);
        }
        self.queued.remove(&key);
        Some((owner, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_their_turns_one_after_the_other() {
        let mut turns = RoundRobin::default();
        for number in [0, 1, 2, 0] {
            turns.push(1, AgentKey::of(number));
        }
        turns.push(2, AgentKey::of(9));
        turns.push(0, AgentKey::of(8));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop()).collect();
        let expected = [(1, 0), (2, 9), (0, 8), (1, 1), (1, 2)];
        assert_eq!(
            order,
            expected.map(|(owner, key)| (owner, AgentKey::of(key)))
        );
        // An agent with more events is behind the others of its user.
        turns.push(1, AgentKey::of(0));
        turns.push(1, AgentKey::of(1));
        assert_eq!(turns.pop(), Some((1, AgentKey::of(0))));
        turns.push(1, AgentKey::of(0));
        assert_eq!(turns.pop(), Some((1, AgentKey::of(1))));
        assert_eq!(turns.pop(), Some((1, AgentKey::of(0))));
        assert_eq!(turns.pop(), None);
    }
}
