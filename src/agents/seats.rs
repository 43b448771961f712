//! Who has how many of the places for agents, and who makes room for whom.
//!
//! There are `max_agents` places, or as many as there are descriptors for. An agent takes one while it is an instance, and one
//! for each file of it that is open beyond the first. What is there for all users is not for one alone: where all places are
//! taken, whoever has less than his share (all places, divided by the users who have any) gets one from the user who has most.

use super::{AgentKey, Agents, Change};
use crate::agents::agent::{Agent, Waiting};
use crate::error::Refusal;
use crate::find::scan::Found;
use crate::log;
use crate::producer::writer::Holder;
use crate::shm::Broken;
use crate::store::Store;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Instant;

/// How many are asked whether they can do without their place, for one that comes.
const MOST_ASKED: usize = 64;

/// How much a file that was found is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Events wait in it.
    Events,
    /// Somebody has it.
    Held,
    /// It has nothing to say, and takes nobody's place.
    None {
        /// Whether certainly nobody has it.
        exited: bool,
    },
}

impl Need {
    /// That of a file in which nothing waits.
    pub fn of(holder: Holder) -> Self {
        match holder {
            Holder::Somebody => Self::Held,
            holder => Self::None {
                exited: holder == Holder::Nobody,
            },
        }
    }
}

/// Whose an agent is; `None`: an earlier version's state did not say.
type Owner = Option<u32>;

/// How many places each user has.
#[derive(Debug, Default)]
pub(super) struct Seats {
    by_owner: HashMap<Owner, usize>,
    total: usize,
}

impl Seats {
    /// Somebody has another number of places than he had.
    fn change(&mut self, owner: Owner, before: usize, after: usize) {
        let count = self.by_owner.entry(owner).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            self.by_owner.remove(&owner);
        }
        self.total = (self.total + after).saturating_sub(before);
    }

    /// All that are taken.
    pub fn total(&self) -> usize {
        self.total
    }

    fn of(&self, owner: Owner) -> usize {
        self.by_owner.get(&owner).copied().unwrap_or(0)
    }

    /// What each has a right to, if this one comes as well.
    fn share(&self, owner: Owner, most: usize) -> usize {
        let is_new = !self.by_owner.contains_key(&owner);
        (most / (self.by_owner.len() + usize::from(is_new)).max(1)).max(1)
    }
}

/// How little is lost when an agent gives its place up; the least comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Loss {
    /// It is no instance any more, only watched for its return.
    Left,
    /// It is an instance for a while yet, with nobody who writes.
    Exited,
    /// It lives.
    Alive,
}

impl Loss {
    /// `all_found`: whether the files of all have been looked for since the start.
    fn of(agent: &Agent, all_found: bool) -> Option<Self> {
        if agent.seats() == 0 {
            None
        } else if !agent.entry.active {
            Some(Self::Left)
        } else if agent.entry.silent_since.is_some() || (all_found && agent.files() == 0) {
            Some(Self::Exited)
        } else {
            Some(Self::Alive)
        }
    }
}

impl Agent {
    /// How many places it takes.
    fn seats(&self) -> usize {
        self.files().max(self.entry.active.into())
    }

    fn files(&self) -> usize {
        self.attached().count()
    }

    /// Whether it needs no place for another file that it does not have already: none, if it had a store and leaves it for a ring.
    fn has_seat_for_one(&self) -> bool {
        self.files() < self.seats()
    }
}

impl Agents {
    /// Brings the count of places after an agent that has another number of files, or became an instance, or none.
    pub(super) fn recount(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let counts = (agent.name.owner, agent.seats());
        let before = std::mem::replace(&mut agent.seats_counted, counts);
        if before != counts {
            self.seats.change(before.0, before.1, 0);
            self.seats.change(counts.0, 0, counts.1);
        }
    }

    /// The same after one that is forgotten.
    pub(super) fn uncount(&mut self, agent: &Agent) {
        let (owner, seats) = agent.seats_counted;
        self.seats.change(owner, seats, 0);
    }

    pub(super) fn is_full(&self) -> bool {
        self.seats.total() >= self.max_rings
    }

    /// Whether there is a place for what was found, of this agent if it is known, after one was made if need be; else the file
    /// is set aside. `need` says how much it is wanted.
    pub(super) fn has_room(
        &mut self,
        now: Instant,
        key: Option<AgentKey>,
        need: impl FnOnce() -> Need,
        found: &Found,
    ) -> bool {
        let uid = found.facts.uid;
        let known = key.and_then(|key| self.agents.get(key));
        if self.is_full() && !known.is_some_and(Agent::has_seat_for_one) {
            let need = need();
            if let Need::None { exited } = need {
                self.set_aside(found, without_place(exited, self.max_rings));
                return false;
            }
            let is_known_full = need == Need::Held && self.held_turned_away.contains(&uid);
            if is_known_full || !self.make_room(Some(uid), need, now) {
                if need == Need::Held {
                    // One that has something to say may find a place all the same.
                    self.held_turned_away.insert(uid);
                    self.set_aside(found, without_place(false, self.max_rings));
                    self.refused_places += 1;
                    self.scanner.find_again();
                    return false;
                }
                self.turn_away(found, without_place(false, self.max_rings));
                return false;
            }
        }
        if key.is_none() && !self.newcomers.admit(uid, self.max_records(), now) {
            // Names that are known are not among those that come too fast.
            self.set_aside(found, Refusal::Newcomers);
            self.refused_places += 1;
            return false;
        }
        true
    }

    fn turn_away(&mut self, found: &Found, refusal: Refusal) {
        self.set_aside(found, refusal);
        self.refused_places += 1;
        // His others would find no place either: they are looked at again at the next pass.
        self.turned_away.insert(found.facts.uid);
        self.scanner.find_again();
    }

    /// Whether there is certainly no place for what was found, since one of the same user's was turned away in this look.
    pub(super) fn is_turned_away(&self, found: &Found) -> bool {
        // All but those that have a place.
        let place = super::Place::of_ring(&found.directory.path, &found.name, found.facts.uid);
        let known = self.known_at(&place).and_then(|key| self.agents.get(key));
        self.turned_away.contains(&found.facts.uid) && !known.is_some_and(Agent::has_seat_for_one)
    }

    /// Makes room for somebody's agent, at the cost of whom that costs least, the user who has most first; whether there is.
    fn make_room(&mut self, owner: Owner, need: Need, now: Instant) -> bool {
        let share = self.seats.share(owner, self.max_rings);
        let has_less = self.seats.of(owner) < share;
        let most = self.seats.by_owner.values().copied().max().unwrap_or(0);
        let may_go = |agent: &Agent, loss: Loss| {
            let count = self.seats.of(agent.name.owner);
            match loss {
                Loss::Left => true,
                Loss::Exited => agent.name.owner == owner || count > share,
                Loss::Alive => has_less && count > share && count == most,
            }
        };
        let all_found = self.early.is_none();
        let agents = self.agents.iter();
        let mut candidates: Vec<_> = agents
            .filter_map(|(key, agent)| {
                let loss = Loss::of(agent, all_found).filter(|&loss| may_go(agent, loss))?;
                let count = self.seats.of(agent.name.owner);
                let entry = &agent.entry;
                // Of those that live, who came last has most to win by waiting.
                let when = match loss {
                    Loss::Alive => (entry.last_event, Reverse(entry.first_seen)),
                    _ => (entry.last_seen, Reverse(0)),
                };
                Some(((loss == Loss::Alive, Reverse(count), loss, when), key))
            })
            .collect();
        candidates.sort_unstable();
        // What somebody has open may only be read, by a backup say; that gives way to what certainly is written to. The living
        // come last.
        let (alive, rest): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .map(|((.., loss, _), key)| (loss, key))
            .partition(|(loss, _)| *loss == Loss::Alive);
        let ways: &[(&[_], bool)] = match need {
            Need::Events => &[(&rest, false), (&rest, true), (&alive, false)],
            _ => &[(&rest, false), (&alive, false)],
        };
        for &(candidates, also_held) in ways {
            let mut asked = HashMap::new();
            for &(loss, key) in candidates {
                // Each is a question to the kernel.
                let asked: &mut usize = asked.entry(loss).or_default();
                *asked += 1;
                if *asked > MOST_ASKED {
                    continue;
                }
                self.give_up(key, loss, also_held, now);
                self.recount(key);
                if !self.is_full() {
                    return true;
                }
            }
        }
        false
    }

    /// Lets an agent's files go, and the agent be no instance, if it is still what it was taken for.
    fn give_up(&mut self, key: AgentKey, loss: Loss, also_held: bool, now: Instant) {
        let max_rings = self.max_rings;
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let _about = log::about(agent.name.owner);
        let is_alive = loss == Loss::Alive;
        // What became of a batch in flight is found out first.
        let commit = agent.entry.commit;
        if is_alive && commit.is_some_and(|commit| commit.is_in_flight()) {
            return;
        }
        // What is known of a store is kept, for when there is room.
        let is_over =
            |store: &mut Store| loss != Loss::Exited || also_held || store.is_abandoned(now);
        let mut waiting = None;
        if let Some(store) = agent.store.take_if(is_over) {
            self.attached.remove(&store.file_id());
            waiting = Some(Waiting::new(store.path(), store.file_id()));
        }
        // Of a living one's several rings all but the last were replaced, so that the first is enough.
        let last = if is_alive { 1 } else { agent.sources.len() };
        let (mut kept, mut left) = (Vec::new(), Vec::new());
        for (at, mut source) in std::mem::take(&mut agent.sources).into_iter().enumerate() {
            let facts = match is_alive {
                true => source.current_facts(),
                false => source.spent(now, also_held),
            };
            match facts.filter(|_| at < last) {
                Some(facts) => {
                    self.attached.remove(&source.id());
                    waiting.get_or_insert_with(|| Waiting::new(source.path(), source.id()));
                    let refusal = without_place(source.presence.is_abandoned(), max_rings);
                    left.push((source.path().to_owned(), facts, refusal));
                }
                None => kept.push(source),
            }
        }
        agent.sources = kept;
        if agent.entry.active && !agent.has_files() {
            agent.waits = waiting.filter(|_| is_alive);
            agent.leave(now);
            if is_alive {
                let (instance, owner) = (&agent.name.instance, agent.name.owner);
                let owner = owner.map_or_else(|| "?".into(), |uid| uid.to_string());
                tracing::warn!(
                    "agent {instance}: is let go, since another user needs its place: uid {owner} has most of the {max_rings} places; raise max_agents"
                );
            } else {
                let instance = &agent.name.instance;
                tracing::info!("agent {instance}: has exited, and another needs its place");
            }
            // Before another is an instance in its place.
            if agent.turn(now) == Some(false) {
                let id = agent.id;
                self.gave_up.push(Change::Left { key, id });
            }
            if let (Some(state), Some(record)) = (&self.books.state, agent.record) {
                if state.replace(record, &agent.entry) == Err(Broken) {
                    self.give_state_up();
                }
            }
        }
        // What it lets go is not kept mapped.
        self.agents.wake(key);
        for (path, facts, refusal) in left {
            if let Some((directory, name)) = path.parent().zip(path.file_name()) {
                self.scanner.set_aside(directory, name, &facts, refusal);
            }
        }
    }
}

/// Why a ring is not attached while there is no room for it. Only one whose agent has certainly exited need not be looked at
/// again before its file changes.
fn without_place(exited: bool, max_agents: usize) -> Refusal {
    if exited {
        Refusal::Exited
    } else {
        Refusal::TooMany { max_agents }
    }
}
