// SPDX-License-Identifier: GPL-2.0-or-later

//! Makes room where `max_agents`, or the limit on records, is reached. `agents::eviction` has the rule for who makes
//! room.

use super::Collector;
use super::new_names::NewNames;
use crate::agents::{Agent, AgentKey};
use crate::discovery::scan::Found;
use crate::error::{AgentLimit, Rejection};
use crate::log;
use crate::procfs::process::Presence;
use std::collections::HashSet;
use std::time::Instant;

/// Number of agents that expire for one new agent, after a reload has lowered the limit.
const EXPIRED_AT_ONCE: usize = 2;

/// Limits on agents, and the users that have reached them.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// Number of places: `max_agents`, or fewer if the process may not open so many files.
    pub places: usize,
    pub new_names: NewNames,
    /// Number of rejections since the start for lack of a place, or because of too many new names.
    pub rejections: u64,
    /// Users whose files were rejected for lack of a place among the files of this scan, and true if those files had
    /// events.
    pub rejected_users: HashSet<(u32, bool)>,
}

impl Collector {
    fn agent_limit(&self) -> AgentLimit {
        AgentLimit {
            places: self.limits.places,
            max_agents: self.shared.config.max_agents,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.agents.places().total() >= self.limits.places
    }

    /// Makes room for a file that was found, if there is none; `key` is its agent, if that is known. Returns false, and
    /// rejects the file, if there is no room now. A file with events counts as written. A file that no process has open
    /// does not evict any agent.
    pub(super) fn make_room_for(
        &mut self,
        now: Instant,
        key: Option<AgentKey>,
        presence: Presence,
        found: &Found,
    ) -> bool {
        let uid = found.facts.uid;
        let max_records = self.max_records();
        // Before another agent is evicted for it.
        if key.is_none() && !self.limits.new_names.admits(uid, max_records, now) {
            self.reject(found, Rejection::NewNames);
            self.limits.rejections += 1;
            return false;
        }
        let known = key.and_then(|key| self.agents.get(key));
        if self.is_full() && !known.is_some_and(Agent::has_free_place) {
            let has_events = presence == Presence::Writing;
            let may_evict = presence >= Presence::Held;
            let is_rejected = self.limits.rejected_users.contains(&(uid, has_events));
            if !may_evict || is_rejected || !self.evict_for(uid, has_events, now) {
                let has_exited = presence == Presence::Gone;
                self.reject(found, without_place(has_exited, self.agent_limit()));
                if may_evict {
                    self.limits.rejections += 1;
                    // No other file of this user would get a place now. The next listing finds them again.
                    self.limits.rejected_users.insert((uid, has_events));
                }
                return false;
            }
        }
        if key.is_none() {
            self.limits.new_names.add(uid, now);
        }
        true
    }

    /// True if there is certainly no place for a file, since another file of its owner was rejected in this scan.
    pub(super) fn is_user_rejected(&self, found: &Found) -> bool {
        let in_first_scan = self.shared.in_first_scan;
        // In the first scan, a store may be the present one of an agent that has a place, and agents are found to wait
        // for room.
        if in_first_scan && found.directory.kinds.stores {
            return false;
        }
        let known = || self.ring_agent(found, &found.name);
        self.limits
            .rejected_users
            .contains(&(found.facts.uid, true))
            && !known().is_some_and(|(_, agent)| in_first_scan || agent.has_free_place())
    }

    /// Evicts an agent for a file of this user, which has events or is only open. Returns false if none can be evicted.
    fn evict_for(&mut self, uid: u32, has_events: bool, now: Instant) -> bool {
        let all_found = !self.shared.in_first_scan;
        for (key, is_live) in self.agents.eviction_order(uid, all_found) {
            self.evict(key, is_live, has_events, now);
            // Its withdrawal is published before the new agent.
            self.agents.update(key);
            if !self.is_full() {
                return true;
            }
        }
        false
    }

    /// Detaches sources of an agent that may be evicted, and withdraws the agent if none is left. Files of an exited
    /// agent that a process has open are detached only for a file that `has_events`: a file that is only open does not
    /// replace its like.
    fn evict(&mut self, key: AgentKey, is_live: bool, has_events: bool, now: Instant) {
        let limit = self.agent_limit();
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let _span = log::span(Some(agent.name.owner));
        // A batch in flight is recovered first.
        if is_live && agent.entry.in_flight().is_some() {
            return;
        }
        let mut detached = agent.detach(is_live, now, has_events);
        for (source, facts) in &mut detached {
            if !is_live && source.as_store().is_some() {
                // What its process wrote after the last drain.
                agent.read_last(source, self.clock.at(now), &mut self.shared);
            }
            let name = source.file.path.file_name();
            if let Some(name) = name.filter(|_| !source.file.liveness.has_no_holder()) {
                agent.waiting = Some((name.to_owned(), facts.id));
            }
        }
        if !agent.entry.lifecycle.is_dormant() && !agent.has_files() {
            let (instance, uid) = (&agent.name.instance, agent.name.owner);
            match is_live {
                true => tracing::warn!(
                    "agent {instance}: evicted: {limit}, and uid {uid} has the most agents; {}",
                    limit.remedy()
                ),
                false => tracing::info!("agent {instance}: evicted: it has exited, and {limit}"),
            }
            agent.withdraw(now, &mut self.shared.journal);
        }
        // Polls keep its rings mapped.
        self.agents.end_poll(key);
        for (source, facts) in detached {
            let rejection = without_place(source.file.liveness.has_no_holder(), limit);
            self.scanner.reject(&source.file.path, &facts, rejection);
        }
    }

    /// Withdraws the agents that a lower limit has no places for, before the scan after a start or a reload. Their
    /// totals stay in their records.
    pub(super) fn evict_excess(&mut self, now: Instant) {
        let excess = self.agents.excess(self.limits.places);
        if excess.is_empty() {
            return;
        }
        let mut evicted = 0;
        for key in excess {
            if let Some(agent) = self.agents.get_mut(key) {
                agent.sources.clear();
                evicted += usize::from(!agent.entry.lifecycle.is_dormant());
                agent.withdraw(now, &mut self.shared.journal);
            }
            self.files_changed(key);
        }
        let (_span, limit) = (log::span(None), self.agent_limit());
        if evicted > 0 {
            tracing::warn!(
                "agents: {evicted} evicted: {limit}; those of users with the most agents first; {}",
                limit.remedy()
            );
        }
    }

    /// Where the limit on records is reached, expires one agent without places for each new agent.
    pub(super) fn make_room_for_record(&mut self) {
        for _ in 0..EXPIRED_AT_ONCE {
            if self.agents.len() < self.max_records() {
                return;
            }
            let is_open =
                |agent: &Agent| agent.entry.in_flight().is_some() || agent.waits(&self.scanner);
            // There is one, since fewer agents have places than there are records.
            let Some(key) = self.agents.next_to_expire(is_open) else {
                return;
            };
            self.expire(key);
        }
    }
}

/// Returns why a file is not attached for lack of a place. Only a file that certainly no process has, if `has_exited`,
/// is not found again before it changes.
fn without_place(has_exited: bool, limit: AgentLimit) -> Rejection {
    match has_exited {
        true => Rejection::Exited,
        false => Rejection::TooMany { limit },
    }
}
