//! Drains of all rings, one agent after the other.

use super::quiet::Quiet;
use super::{AgentKey, Agents, Change};
use crate::agents::agent::Agent;
use crate::base::clock::Now;
use crate::error::Refusal;
use crate::log;
use crate::producer::presence::check_every;
use crate::state::State;
use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How many agents in which nothing happens are passed over between two looks at the clock.
const LOOK_AT_CLOCK: usize = 64;

/// How a drain goes.
#[derive(Clone, Copy, Debug)]
struct Pass {
    now: Now,
    /// When it is cut off.
    end: Instant,
    /// Those that were drained to their end since then are passed over.
    since: Option<Instant>,
    /// Whether those have their turn as well whose user has had his share.
    all: bool,
}

/// What drains of several agents came to.
#[derive(Debug, Default)]
struct FoundOut {
    /// Files that are to be looked at anew.
    again: Vec<PathBuf>,
    /// Whether the state file turned out to be broken.
    broken: bool,
    /// Agents of which more waits than was taken.
    more: Vec<AgentKey>,
    /// Agents of users who have had their share of the time, for when the others have had theirs.
    later: Vec<AgentKey>,
    spent: Spent,
}

/// How long the agents of each user have taken, of one tick or answer.
#[derive(Debug, Default)]
pub(super) struct Spent {
    /// When the tick began.
    began: Option<Instant>,
    by_owner: HashMap<Option<u32>, Duration>,
    total: Duration,
}

/// How much more than the others a user may have had before his agents wait.
const AHEAD: Duration = Duration::from_millis(1);

impl Spent {
    /// Nothing yet; the room for users stays.
    fn begin(&mut self, began: Option<Instant>) {
        self.by_owner.clear();
        (self.began, self.total) = (began, Duration::ZERO);
    }

    fn add(&mut self, owner: Option<u32>, took: Duration) {
        *self.by_owner.entry(owner).or_default() += took;
        self.total += took;
    }

    /// Whether a user has had more than his share, where so many have agents.
    fn is_over(&self, owner: Option<u32>, owners: usize) -> bool {
        let own = self.by_owner.get(&owner).copied().unwrap_or_default();
        let owners = u32::try_from(owners).unwrap_or(u32::MAX).max(1);
        own > self.total / owners + AHEAD
    }
}

impl Agents {
    /// Counts the events that wait in the rings, and lets agents that have exited go when it is time. When the budget is
    /// used up, the rest has its turn first the next time; whether there is none.
    pub fn drain(&mut self, now: Instant, budget: Duration, changes: &mut Vec<Change>) -> bool {
        self.drain_since(None, now, budget, changes)
    }

    /// Goes on with a drain that was cut off, and began then: whoever had nothing more in it has no second turn.
    pub fn drain_on(
        &mut self,
        began: Instant,
        now: Instant,
        budget: Duration,
        changes: &mut Vec<Change>,
    ) -> bool {
        self.drain_since(Some(began), now, budget, changes)
    }

    fn drain_since(
        &mut self,
        since: Option<Instant>,
        now: Instant,
        budget: Duration,
        changes: &mut Vec<Change>,
    ) -> bool {
        let before = changes.len();
        changes.append(&mut self.gave_up);
        let end = Instant::now() + budget;
        let now = self.clock.at(now);
        self.books.check_every = check_every(self.seats.total());
        self.books.for_answer = since.is_none();
        let pass = Pass {
            now,
            end,
            since,
            all: false,
        };
        let mut found = FoundOut {
            more: std::mem::take(&mut self.more),
            ..FoundOut::default()
        };
        // A tick goes on in pieces.
        found.spent = std::mem::take(&mut self.spent);
        if since.is_none() || found.spent.began != since {
            found.spent.begin(since);
        }
        let (places, first) = (self.agents.places(), self.next_served);
        let first = if first < places { first } else { 0 };
        let mut in_time = [first..places, 0..first]
            .into_iter()
            .all(|range| self.drain_range(range, pass, &mut found, changes));
        let later = std::mem::take(&mut found.later);
        in_time = in_time
            && later.into_iter().all(|key| {
                let pass = Pass { all: true, ..pass };
                self.drain_range(key.place()..key.place() + 1, pass, &mut found, changes)
            });
        let pass = Pass { all: true, ..pass };
        // Those that hold more than a batch, in turn: who has more still is behind the last.
        let mut next = 0;
        while in_time && next < found.more.len() {
            let only = found.more[next].place();
            next += 1;
            in_time = self.drain_range(only..only + 1, pass, &mut found, changes);
        }
        found.more.clear();
        self.more = found.more;
        self.spent = found.spent;
        self.again = !found.again.is_empty();
        for path in found.again {
            if let (Some(directory), Some(name)) = (path.parent(), path.file_name()) {
                self.scanner.look_again(directory, name);
            }
        }
        if found.broken {
            self.give_state_up();
        }
        if self.retry.is_some_and(|retry| now.instant >= retry) {
            self.keep_all(now.instant);
        }
        self.forget_surplus(changes);
        if since.is_some() {
            self.forget_some(now.instant, changes);
        }
        self.freed(&changes[before..]);
        in_time
    }

    /// Drains the agents in these places, one after the other; whether that was done in time.
    fn drain_range(
        &mut self,
        places: Range<usize>,
        pass: Pass,
        found: &mut FoundOut,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Pass {
            now,
            end,
            since,
            all,
        } = pass;
        let owners = self.seats.owners();
        let mut started = Instant::now();
        for (number, place) in places.enumerate() {
            let quiet = self.agents.quiet(place);
            if since.is_some_and(|since| quiet.was_drained(since)) || quiet.holds(now.instant) {
                if number % LOOK_AT_CLOCK == 0 && Instant::now() >= end {
                    self.next_served = place + 1;
                    return false;
                }
                continue;
            }
            let Some((key, quiet, agent)) = self.agents.at(place) else {
                continue;
            };
            let owner = agent.name.owner;
            if !all && found.spent.is_over(owner, owners) {
                found.later.push(key);
                continue;
            }
            let _about = log::about(owner);
            let drained = catch_unwind(AssertUnwindSafe(|| agent.drain(now, end, &mut self.books)));
            let Ok(outcome) = drained else {
                self.set_apart(key);
                changes.extend(self.turn(key, now.instant));
                self.recount(key);
                self.next_served = place + 1;
                continue;
            };
            for id in outcome.gone {
                self.attached.remove(&id);
            }
            changes.extend(turned(key, agent, now.instant));
            changes.extend(agent.turn_ranges().then_some(Change::Ranges(key)));
            found.again.extend(outcome.again);
            let after = Instant::now();
            found.spent.add(owner, after - started);
            started = after;
            let in_time = after < end;
            let drained = (in_time && !outcome.more).then_some(now.instant);
            match outcome.unseen {
                // It waits for an answer, which is not kept for it for long.
                true => *quiet = Quiet::default(),
                false => quiet.renew(agent, &now, drained, &self.books),
            }
            found.broken |= outcome.broken;
            self.asks |= agent.asks();
            self.may_wait |= agent.wants_facts();
            found.more.extend(outcome.more.then_some(key));
            self.recount(key);
            self.next_served = place + 1;
            if !in_time {
                return false;
            }
        }
        true
    }

    pub(super) fn turn(&mut self, key: AgentKey, now: Instant) -> Option<Change> {
        turned(key, self.agents.get_mut(key)?, now)
    }

    /// Lets the files of an agent go over which pmdanixl has failed, until they change: a defect of ours costs no other agent
    /// anything. What the agent has counted is what the state file says, and the host's totals are added up again. Without a state
    /// file both stay as the failure left them.
    fn set_apart(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let kept = self.books.state.as_ref().zip(agent.record);
        if let Some(entry) = kept.and_then(|(state, record)| state.entry(record)) {
            agent.entry = entry;
        }
        let rings = std::mem::take(&mut agent.sources).into_iter();
        let mut files: Vec<_> = rings
            .map(|ring| (ring.id(), ring.path().to_owned(), ring.current_facts()))
            .collect();
        if let Some(store) = agent.store.take() {
            let facts = Some(store.facts());
            files.push((store.file_id(), store.path().to_owned(), facts));
        }
        for (id, path, facts) in files {
            self.attached.remove(&id);
            if let (Some(facts), Some(directory), Some(name)) =
                (facts, path.parent(), path.file_name())
            {
                self.scanner
                    .set_aside(directory, name, &facts, Refusal::Failed);
            }
        }
        self.agents.wake(key);
        if let Some(Ok(retired)) = self.books.state.as_ref().map(State::retired) {
            self.books.host = retired.totals;
            for agent in self.agents.values_mut() {
                self.books.host.add(&agent.entry.account.totals);
            }
        }
    }
}

/// An agent that is to be an instance and was none, or the reverse.
fn turned(key: AgentKey, agent: &mut Agent, now: Instant) -> Option<Change> {
    agent.turn(now).map(|is_instance| match is_instance {
        true => Change::Appeared(key),
        false => Change::Left { key, id: agent.id },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DirectoryPattern};
    use crate::event::EventType;
    use crate::state::StateFile;
    use std::fs;
    use std::path::Path;

    /// A ring of two slots, v4, with so many bytes sent in its first.
    fn ring(bytes: u64) -> Vec<u8> {
        let words = [1, 0, (4 << 32) | 4, 2, 1, 0, bytes, 0, 0_u64];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// The agents in a directory with these rings of 5 bytes sent.
    fn agents_of(dir: &Path, names: &[&str]) -> Agents {
        for name in names {
            fs::write(dir.join(name), ring(5)).expect("written");
        }
        Agents::new(&Config {
            telemetry_dir: vec![DirectoryPattern {
                path: dir.to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            proc_facts: false,
            ..Config::default()
        })
    }

    #[test]
    fn failure_after_a_commit_leaves_host_totals_right() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let mut agents = agents_of(dirs[0].path(), &["a", "bad"]);
        let file = StateFile::open(&dirs[1].path().join("nixl/state")).expect("ours");
        let found = State::take(&file, [1, 2]).expect("readable");
        agents.restore(found.expect("nobody else has it").state, Vec::new());
        let long = Duration::from_secs(3600);
        let (now, mut changes) = (Instant::now(), Vec::new());
        agents.scan(now, long);
        agents.drain(now, long, &mut changes);
        assert_eq!(agents.host_total(EventType::TxBytes), 10);
        for agent in agents.agents.values_mut() {
            agent.fails = agent.name.instance == "bad";
        }
        agents.drain(now + Duration::from_secs(60), long, &mut changes);
        let sent = agents.iter().map(|agent| agent.total(EventType::TxBytes));
        assert_eq!(sent.collect::<Vec<_>>(), [5, 10]);
        assert_eq!(agents.host_total(EventType::TxBytes), 15);
        assert_eq!(agents.scanner().refused(), 1);
    }

    #[test]
    fn a_failure_over_one_agent_costs_no_other_anything() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents_of(dir.path(), &["a", "bad", "c"]);
        let long = Duration::from_secs(3600);
        let (mut now, mut changes) = (Instant::now(), Vec::new());
        agents.scan(now, long);
        for agent in agents.agents.values_mut() {
            agent.fails = agent.name.instance == "bad";
        }
        agents.drain(now, long, &mut changes);
        let sent = |agents: &Agents, name: &str| {
            let mut all = agents.iter();
            let agent = all.find(|agent| agent.name.instance == name);
            agent.map(|agent| agent.total(EventType::TxBytes))
        };
        let all = |agents: &Agents| ["a", "bad", "c"].map(|name| sent(agents, name));
        assert_eq!(all(&agents), [Some(5), Some(0), Some(5)]);
        assert_eq!(agents.host_total(EventType::TxBytes), 10);
        // It is left alone from then on, until its file is another.
        for agent in agents.agents.values_mut() {
            agent.fails = false;
        }
        for _ in 0..5 {
            now += Duration::from_secs(10);
            agents.scan(now, long);
            agents.drain(now, long, &mut changes);
        }
        assert_eq!(all(&agents), [Some(5), Some(0), Some(5)]);
        assert_eq!(agents.scanner().refused(), 1);
        fs::remove_file(dir.path().join("bad")).expect("there");
        fs::write(dir.path().join("bad"), ring(7)).expect("written");
        for _ in 0..5 {
            now += Duration::from_secs(10);
            agents.scan(now, long);
            agents.drain(now, long, &mut changes);
        }
        assert_eq!(all(&agents), [Some(5), Some(7), Some(5)]);
        assert_eq!(agents.host_total(EventType::TxBytes), 17);
    }
}
