//! Which agents are forgotten: those whose files have been gone for long, and, where more are remembered than may be, those first
//! that were not seen for longest. What one has counted stays in the sums of the host; under its name an agent that comes then is
//! a new one, with another instance id.
//!
//! To forget one takes a record out of the state, a name out of pmdacache and ranges out of the instance domains. So a tick forgets
//! a few, and an answer none but those for which others have come.

use super::{AgentKey, Agents, Change};
use crate::agents::agent::{Agent, Now};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// So many are remembered beyond `max_agents`, if that is no more than three times as many.
pub(super) const REMEMBERED: usize = 1024;
/// So many are forgotten at a time.
const PIECE: usize = 16;
/// How often those are looked for that left long ago, unless they are remembered for less than that.
const PAUSE: Duration = Duration::from_secs(60);

/// An agent that may be forgotten, unless something happens to it before.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: AgentKey,
    last_seen: u64,
    active: bool,
}

impl Candidate {
    fn of(key: AgentKey, agent: &Agent) -> Option<Self> {
        let is_gone = !agent.has_files() && agent.stranger.is_none();
        is_gone.then_some(Self {
            key,
            last_seen: agent.entry.last_seen,
            active: agent.entry.active || agent.waits.is_some(),
        })
    }

    /// Whether it is the same agent, of which nothing was seen since.
    fn holds(&self, agent: &Agent) -> bool {
        Self::of(self.key, agent)
            .is_some_and(|now| (now.last_seen, now.active) == (self.last_seen, self.active))
    }
}

/// Who is being forgotten.
#[derive(Debug)]
pub(super) struct Forgetting {
    /// For how long those are remembered that have left.
    remember: Duration,
    /// Those that left before that, in no order.
    old: Vec<Candidate>,
    /// When those are looked for again; `None`: at once.
    next_look: Option<Instant>,
    /// Where too many are remembered, whom to forget, the first at the end.
    surplus: Vec<Candidate>,
    /// Whether there were too many, and not yet so few that there is room for some.
    crowded: bool,
}

impl Forgetting {
    pub fn new(remember: Duration) -> Self {
        Self {
            remember,
            old: Vec::new(),
            next_look: None,
            surplus: Vec::new(),
            crowded: false,
        }
    }

    /// They are remembered for so long from now on.
    pub fn remember(&mut self, remember: Duration) {
        *self = Self::new(remember);
    }
}

impl Agents {
    /// Forgets those for whom there is no room.
    pub(super) fn forget_surplus(&mut self, changes: &mut Vec<Change>) {
        let limit = self.max_records();
        self.forgetting.crowded |= self.agents.len() > limit;
        while self.agents.len() > limit && self.forget_next(changes) {}
    }

    /// Forgets a few of those that are to be forgotten.
    pub(super) fn forget_some(&mut self, now: Now, changes: &mut Vec<Change>) {
        let is_due = |next: Instant| now.instant >= next;
        // Whose file is still to be found has not left.
        if self.early.is_none() && self.forgetting.next_look.is_none_or(is_due) {
            let pause = self.forgetting.remember.min(PAUSE);
            self.forgetting.next_look = Some(now.instant + pause);
            self.forgetting.old = self.left_long_ago(now);
        }
        let mut left = PIECE;
        while left > 0 {
            let Some(candidate) = self.forgetting.old.pop() else {
                break;
            };
            left -= usize::from(self.forget_if_still(candidate, changes));
        }
        // Some more than needed, so that they are not to be looked for each time that one comes.
        let limit = self.max_records();
        let enough = limit - limit / 16;
        while self.forgetting.crowded && left > 0 {
            self.forgetting.crowded = self.agents.len() > enough && self.forget_next(changes);
            left -= 1;
        }
        if !self.forgetting.crowded {
            self.forgetting.surplus = Vec::new();
        }
    }

    /// Those that are no instances, have no file, and were not seen for longer than they are remembered.
    fn left_long_ago(&self, now: Now) -> Vec<Candidate> {
        let remember = self.forgetting.remember;
        let candidates = self.agents.iter();
        candidates
            .filter_map(|(key, agent)| Candidate::of(key, agent))
            .filter(|candidate| !candidate.active && now.since(candidate.last_seen) >= remember)
            .collect()
    }

    /// Forgets the next for whom there is no room; whether there was one.
    fn forget_next(&mut self, changes: &mut Vec<Change>) -> bool {
        loop {
            if self.forgetting.surplus.is_empty() {
                self.forgetting.surplus = self.surplus();
            }
            let Some(candidate) = self.forgetting.surplus.pop() else {
                return false;
            };
            if self.forget_if_still(candidate, changes) {
                return true;
            }
        }
    }

    fn forget_if_still(&mut self, candidate: Candidate, changes: &mut Vec<Change>) -> bool {
        let agent = self.agents.get(candidate.key);
        let is_still = agent.is_some_and(|agent| candidate.holds(agent));
        if is_still {
            self.forget_one(candidate.key, changes);
        }
        is_still
    }

    /// Whom to forget until there is room for some: of the user who has most, those first that are no instance, and were not seen
    /// for longest. The first is the last.
    fn surplus(&self) -> Vec<Candidate> {
        let mut counts: HashMap<_, usize> = HashMap::new();
        let mut gone: HashMap<_, Vec<Candidate>> = HashMap::new();
        for (key, agent) in self.agents.iter() {
            let owner = agent.name.owner;
            *counts.entry(owner).or_default() += 1;
            if let Some(candidate) = Candidate::of(key, agent) {
                gone.entry(owner).or_default().push(candidate);
            }
        }
        for gone in gone.values_mut() {
            gone.sort_unstable_by_key(|candidate| {
                Reverse((candidate.active, candidate.last_seen, candidate.key))
            });
        }
        let limit = self.max_records();
        let enough = limit - limit / 16;
        let mut left = self.agents.len();
        let count = |owner: &Option<u32>| counts.get(owner).copied().unwrap_or(0);
        let mut owners: BinaryHeap<_> = gone.keys().map(|owner| (count(owner), *owner)).collect();
        let mut surplus = Vec::new();
        while left > enough {
            let Some((count, owner)) = owners.pop() else {
                break;
            };
            if let Some(candidate) = gone.get_mut(&owner).and_then(Vec::pop) {
                surplus.push(candidate);
                left -= 1;
                owners.push((count - 1, owner));
            }
        }
        surplus.reverse();
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, DirectoryPattern};
    use crate::event::EventType;
    use std::fs;
    use std::path::Path;

    const LONG: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    /// A ring of two slots, v4, with so many bytes sent in its first.
    fn ring(path: &Path, bytes: u64) {
        let words = [1, 0, (4 << 32) | 4, 2, 1, 0, bytes, 0, 0_u64];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(path, bytes).expect("written");
    }

    fn agents(dir: &Path, remember: Duration, max_agents: usize) -> Agents {
        let mut agents = Agents::new(&Config {
            telemetry_dir: vec![DirectoryPattern {
                path: dir.to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            proc_facts: false,
            retain: Duration::ZERO,
            remember,
            max_agents,
            ..Config::default()
        });
        agents.early = None;
        agents
    }

    /// A tick, and whose names were forgotten in it.
    fn tick(agents: &mut Agents, now: Instant) -> Vec<String> {
        let mut changes = Vec::new();
        agents.scan(now, LONG);
        agents.drain_on(now, now, LONG, &mut changes);
        let names = changes.into_iter().filter_map(|change| match change {
            Change::Forgotten(name) => Some(name),
            _ => None,
        });
        names.collect()
    }

    /// Agents come and leave with their files; when all have left.
    fn come_and_go(agents: &mut Agents, dir: &Path, names: &[String], mut now: Instant) -> Instant {
        names.iter().for_each(|name| ring(&dir.join(name), 5));
        let shown = |agents: &Agents| agents.iter().filter(|agent| agent.shown).count();
        while shown(agents) < names.len() {
            now += SECOND;
            tick(agents, now);
        }
        names
            .iter()
            .for_each(|name| fs::remove_file(dir.join(name)).expect("there"));
        let files = |agents: &Agents| agents.iter().filter(|agent| agent.has_files()).count();
        while files(agents) + shown(agents) > 0 {
            now += SECOND;
            tick(agents, now);
        }
        now
    }

    #[test]
    fn who_left_is_remembered_for_its_time_and_then_only_in_the_sums() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 4096);
        let names: Vec<String> = (0..100).map(|number| format!("a{number}")).collect();
        let left = come_and_go(&mut agents, dir.path(), &names, Instant::now());
        // One that has its file goes on, and one that comes back has what it had.
        let mut now = left + LONG / 2;
        ring(&dir.path().join("stays"), 5);
        ring(&dir.path().join("a7"), 5);
        for _ in 0..10 {
            assert_eq!(tick(&mut agents, now), [""; 0]);
            now += SECOND;
        }
        assert_eq!(agents.agents.len(), 101);
        now = left + LONG;
        let mut forgotten = Vec::new();
        for _ in 0..100 {
            let some = tick(&mut agents, now);
            assert!(some.len() <= PIECE, "{} in one tick", some.len());
            forgotten.extend(some);
            now += SECOND;
        }
        forgotten.sort();
        let mut expected = names;
        expected.retain(|name| name != "a7");
        expected.sort();
        assert_eq!(forgotten, expected);
        let mut known: Vec<_> = agents
            .iter()
            .map(|agent| {
                (
                    agent.name.instance.as_str(),
                    agent.total(EventType::TxBytes),
                )
            })
            .collect();
        known.sort_unstable();
        assert_eq!(known, [("a7", Some(10)), ("stays", Some(5))]);
        assert_eq!(agents.host_total(EventType::TxBytes), 102 * 5);
        let highest = agents.agents.iter().map(|(key, _)| key.place()).max();
        assert_eq!(
            Some(agents.agents.places() - 1),
            highest,
            "what nobody has is not gone through"
        );
    }

    #[test]
    fn no_more_are_remembered_than_may_be_and_a_few_at_a_time_are_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 128);
        let limit = 128 + 3 * 128;
        assert_eq!(agents.max_records(), limit);
        let mut now = Instant::now();
        for round in 0..5 {
            let names: Vec<String> = (0..120).map(|number| format!("{round}-{number}")).collect();
            now = come_and_go(&mut agents, dir.path(), &names, now);
            assert!(agents.agents.len() <= limit);
        }
        for _ in 0..20 {
            now += SECOND;
            let some = tick(&mut agents, now);
            assert!(some.len() <= PIECE, "{} in one tick", some.len());
        }
        assert_eq!(agents.agents.len(), limit - limit / 16);
        assert!(
            agents
                .iter()
                .all(|agent| !agent.name.instance.starts_with("0-")),
            "the first have left first"
        );
        assert_eq!(agents.host_total(EventType::TxBytes), 600 * 5);
        // With no room left, one that comes costs one that has left its name, and no more than that in an answer.
        let mut changes = Vec::new();
        for number in 0..100 {
            ring(&dir.path().join(format!("last-{number}")), 5);
        }
        now += 10 * SECOND;
        agents.scan(now, LONG);
        let came = agents.agents.len();
        assert_eq!(came, limit - limit / 16 + 100);
        agents.drain(now, LONG, &mut changes);
        assert_eq!(agents.agents.len(), limit);
    }
}
