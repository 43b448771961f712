//! What happens where `max_agents`, or the limit on remembered agents, is reached.
//!
//! One rule: an exited agent of the user with most agents makes room. If there is none, that user's newest live agent does,
//! provided that the user has at least two more than the newcomer's user. So one user may have all places, and many users cannot
//! keep another one out. No exited agent makes room for a user who has more than its own.

use super::newcomers::Newcomers;
use super::{AgentKey, Agents};
use crate::agents::agent::Agent;
use crate::discovery::scan::Found;
use crate::error::Refusal;
use crate::log;
use crate::procfs::agent_state::AgentState;
use crate::procfs::process::Holder;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// How many agents are asked whether they can be evicted for one newcomer: each is a question to the kernel.
const MOST_ASKED: usize = 64;
/// How many agents are forgotten for one that comes, where a reload has made the limit smaller.
const FORGOTTEN_AT_ONCE: usize = 2;

/// How many agents there may be, and whom there was no place for.
#[derive(Debug, Default)]
pub(super) struct Limits {
    /// `max_agents`, or as many as there are descriptors for.
    pub rings: usize,
    pub newcomers: Newcomers,
    /// How often there was no place for a file.
    pub refused: u64,
    /// Users for whose files there was no place, with or without events, in this pass through what was found.
    pub turned_away: HashSet<(u32, bool)>,
}

impl Agent {
    /// The number of places that it takes: one while it is an instance, and one for each attached file beyond the first.
    pub(super) fn places(&self) -> usize {
        self.sources
            .len()
            .max(self.entry.lifecycle.is_awake().into())
    }

    /// True if another file of it needs no further place: it is an instance without one.
    fn has_place(&self) -> bool {
        self.sources.len() < self.places()
    }
}

impl Agents {
    pub(super) fn is_full(&self) -> bool {
        self.agents.places().total() >= self.limits.rings
    }

    /// Makes room for a file that was found, if there is none; `key` is its agent, if that is known. Returns false if the file
    /// cannot be taken now; then it is set aside. A file without events that no process has open evicts none.
    pub(super) fn has_room(
        &mut self,
        now: Instant,
        key: Option<AgentKey>,
        has_events: bool,
        holder: impl FnOnce() -> Holder,
        found: &Found,
    ) -> bool {
        let uid = found.facts.uid;
        let known = key.and_then(|key| self.agents.get(key));
        if self.is_full() && !known.is_some_and(Agent::has_place) {
            let holder = if has_events {
                Holder::Present
            } else {
                holder()
            };
            if holder != Holder::Present {
                self.set_aside(found, without_place(holder, self.limits.rings));
                return false;
            }
            if self.limits.turned_away.contains(&(uid, has_events))
                || !self.evict_for(uid, has_events, now)
            {
                self.set_aside(found, without_place(holder, self.limits.rings));
                self.limits.refused += 1;
                // Other files of this user would find no place either: they are found again by the next listing.
                self.limits.turned_away.insert((uid, has_events));
                return false;
            }
        }
        if key.is_none() && !self.limits.newcomers.admit(uid, self.max_records(), now) {
            // Names that are known are not among those that come too fast.
            self.set_aside(found, Refusal::Newcomers);
            self.limits.refused += 1;
            return false;
        }
        true
    }

    /// True if there is certainly no place for a file, since one of the same user was turned away in this look.
    pub(super) fn is_turned_away(&self, found: &Found) -> bool {
        let known = || self.ring_agent(found, &found.name);
        self.limits.turned_away.contains(&(found.facts.uid, true))
            && !known().is_some_and(|(_, agent)| agent.has_place())
    }

    /// Evicts an agent for one of this user's, which has events or is only open. Returns false if none can be evicted.
    fn evict_for(&mut self, uid: u32, has_events: bool, now: Instant) -> bool {
        let (places, all_found) = (self.agents.places(), !self.books.early);
        let (own, most) = (places.of(uid), places.most());
        let mut exited: Vec<_> = Vec::new();
        let mut live: Vec<_> = Vec::new();
        for (key, agent) in self.agents.iter().filter(|(_, agent)| agent.places() > 0) {
            let (count, entry) = (places.of(agent.name.owner), &agent.entry);
            let is_live = entry.lifecycle.is_awake() && entry.lifecycle.exited_since().is_none();
            if !is_live || (all_found && !agent.has_files()) {
                let is_instance = entry.lifecycle.is_awake();
                let order = (Reverse(count), is_instance, entry.last_seen);
                exited.extend((count >= own).then_some((order, key)));
            } else if count == most && most >= own + 2 {
                live.push((Reverse((entry.first_seen, agent.id)), key));
            }
        }
        exited.sort_unstable();
        live.sort_unstable();
        let exited = exited.into_iter().map(|(_, key)| (key, false));
        let live = live.into_iter().map(|(_, key)| (key, true));
        for (key, is_live) in exited.take(MOST_ASKED).chain(live.take(MOST_ASKED)) {
            self.evict(key, is_live, has_events, now);
            self.agents.settle(key);
            if !self.is_full() {
                return true;
            }
        }
        false
    }

    /// Detaches an agent's files, if it is still what it was taken for, and ends its instance. A live one with several rings
    /// loses the first only: all but the last were replaced. Exited files that a process has open, to read them, are detached only if
    /// they `may_be_held`: what is open itself does not evict its like.
    fn evict(&mut self, key: AgentKey, is_live: bool, may_be_held: bool, now: Instant) {
        let max_rings = self.limits.rings;
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let _about = log::about(Some(agent.name.owner));
        // What became of a batch in flight is found out first.
        let commit = agent.entry.commit;
        if is_live && commit.is_some_and(|commit| commit.is_in_flight()) {
            return;
        }
        let last = if is_live { 1 } else { agent.sources.len() };
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for (at, mut source) in std::mem::take(&mut agent.sources).into_iter().enumerate() {
            let facts = match is_live {
                true => source.current_facts(),
                false => source.spent(now, may_be_held),
            };
            match facts.filter(|_| at < last) {
                Some(facts) => {
                    if !is_live && source.as_store().is_some() {
                        // What its process wrote before it ended, and after the last drain.
                        agent.read_last(&mut source, self.clock.at(now), &mut self.books);
                    }
                    let holder = match source.file.liveness.has_no_holder() {
                        true => Holder::Absent,
                        false => Holder::Unknown,
                    };
                    let name = source
                        .file
                        .path
                        .file_name()
                        .filter(|_| holder != Holder::Absent);
                    agent.waiting = name
                        .map(|name| (name.to_owned(), facts.id))
                        .or(agent.waiting.take());
                    let refusal = without_place(holder, max_rings);
                    left.push((source.file, facts, refusal));
                }
                None => kept.push(source),
            }
        }
        agent.sources = kept;
        if agent.entry.lifecycle.is_awake() && !agent.has_files() {
            let was_published = agent.is_published();
            agent.withdraw(now);
            let (instance, uid) = (&agent.name.instance, agent.name.owner);
            match is_live {
                true => tracing::warn!(
                    "agent {instance}: is let go, since another user needs its place: uid {uid} has most of the {max_rings} places; raise max_agents"
                ),
                false => {
                    tracing::info!("agent {instance}: has exited, and another needs its place")
                }
            }
            // Before another is an instance in its place.
            self.changes.extend(agent.change_since(was_published, key));
            self.books.journal.commit(agent.record, &agent.entry);
        }
        // What it lets go is not kept mapped.
        self.agents.wake(key);
        for (file, facts, refusal) in left {
            if let Some(name) = file.path.file_name() {
                self.scanner.reject(file.directory(), name, &facts, refusal);
            }
        }
    }

    /// Where as many agents are remembered as may be, forgets one without files for each that comes: of the user with most agents
    /// who has such, the one that was not seen for longest.
    pub(super) fn make_room_for_record(&mut self) {
        for _ in 0..FORGOTTEN_AT_ONCE {
            if self.agents.len() < self.max_records() {
                return;
            }
            let mut counts: HashMap<u32, usize> = HashMap::new();
            for agent in self.agents.values() {
                *counts.entry(agent.name.owner).or_default() += 1;
            }
            // There is one, since fewer agents have places than are remembered.
            let gone = self.agents.iter().filter(|(_, agent)| agent.places() == 0);
            let oldest = gone.min_by_key(|(key, agent)| {
                let count = counts.get(&agent.name.owner).copied();
                // Whatever came to these files since would be counted from their beginning.
                let in_flight = agent
                    .entry
                    .commit
                    .is_some_and(|commit| commit.is_in_flight());
                let is_open = in_flight || agent.waits(&self.scanner);
                let has_exited = agent.entry.life == AgentState::Exited;
                (
                    Reverse(count),
                    is_open,
                    !has_exited,
                    agent.entry.last_seen,
                    *key,
                )
            });
            let Some((key, _)) = oldest else {
                return;
            };
            self.forget_one(key);
        }
    }
}

/// Why a file is not attached while there is no room for it. Only one whose agent has certainly exited need not be looked at
/// again before its file changes.
fn without_place(holder: Holder, max_agents: usize) -> Refusal {
    match holder {
        Holder::Absent => Refusal::Exited,
        _ => Refusal::TooMany { max_agents },
    }
}
