//! Which agents are forgotten: those whose files have been gone for long, and, where more are remembered than may be, those first
//! that were not seen for longest. What one has counted stays in the sums of the host; under its name an agent that comes then is
//! a new one, with another instance id.
//!
//! To forget one takes a record out of the state, a name out of pmdacache and ranges out of the instance domains. So a tick forgets
//! a few, and an answer no more than have come since.

use super::{AgentKey, Agents, Change};
use crate::agents::agent::Agent;
use crate::config::Config;
use crate::shm;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

/// So many are remembered beyond `max_agents`, if that is no more than three times as many.
pub(super) const REMEMBERED: usize = 1024;
/// So many are forgotten at a time.
const PIECE: usize = 16;
/// How often those are looked for that left long ago, unless they are remembered for less than that, and no more often than this.
const PAUSE: Duration = Duration::from_secs(60);
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// An agent that may be forgotten, unless something happens to it before.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: AgentKey,
    last_seen: u64,
    active: bool,
}

impl Candidate {
    fn of(key: AgentKey, agent: &Agent) -> Option<Self> {
        (!agent.has_files()).then_some(Self {
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

/// Memory is given back when so many have left or were forgotten, and no more often than that.
const MANY: usize = 64;
const GIVE_BACK: Duration = Duration::from_secs(10);

/// Who is being forgotten.
#[derive(Debug)]
pub(super) struct Forgetting {
    /// How many have left or were forgotten since memory was given back, and when that was.
    freed: usize,
    gave_back: Option<Instant>,
    /// For how long those are remembered that have left, once their files are gone. Not before they are no instances any more:
    /// a store's agent gives its place up earlier, and its record tells what of the store is counted.
    remember: Duration,
    /// How many were known after the last drain.
    known: usize,
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
    /// As the configuration has it, where so many are known.
    pub fn new(config: &Config, known: usize) -> Self {
        Self {
            freed: 0,
            gave_back: None,
            remember: config.remember.max(config.retain),
            known,
            old: Vec::new(),
            next_look: None,
            surplus: Vec::new(),
            crowded: false,
        }
    }

    /// So many are known: they have not come since.
    pub fn known(&mut self, known: usize) {
        self.known = known;
    }
}

impl Agents {
    /// Gives the memory of many that have left back to the host.
    pub(super) fn give_back(&mut self, now: Instant) {
        let is_due = |before: Instant| now.saturating_duration_since(before) >= GIVE_BACK;
        let Forgetting {
            freed, gave_back, ..
        } = &mut self.forgetting;
        if *freed >= MANY && gave_back.is_none_or(is_due) {
            (*freed, *gave_back) = (0, Some(now));
            shm::give_back();
        }
    }

    /// Notes for how many there is less to keep.
    pub(super) fn freed(&mut self, changes: &[Change]) {
        let is_less =
            |change: &&Change| matches!(change, Change::Left { .. } | Change::Forgotten(_));
        self.forgetting.freed += changes.iter().filter(is_less).count();
    }

    /// Makes room for those that have come since the last drain.
    pub(super) fn forget_surplus(&mut self, changes: &mut Vec<Change>) {
        let (limit, known) = (self.max_records(), self.agents.len());
        self.forgetting.crowded |= known > limit;
        let mut came = known.saturating_sub(self.forgetting.known);
        while came > 0 && self.agents.len() > limit && self.forget_next(changes) {
            came -= 1;
        }
        self.forgetting.known = self.agents.len();
    }

    /// Forgets a few of those that are to be forgotten.
    pub(super) fn forget_some(&mut self, now: Instant, changes: &mut Vec<Change>) {
        let is_due = |next: Instant| now >= next;
        // Whose file is still to be found has not left.
        if self.early.is_none() && self.forgetting.next_look.is_none_or(is_due) {
            let pause = self.forgetting.remember.clamp(LEAST_PAUSE, PAUSE);
            self.forgetting.next_look = Some(now + pause);
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
        self.forgetting.known = self.agents.len();
    }

    /// Those that are no instances, and have had no file for longer than they are remembered.
    fn left_long_ago(&mut self, now: Instant) -> Vec<Candidate> {
        let remember = self.forgetting.remember;
        let is_over = |(key, agent): (AgentKey, &mut Agent)| {
            let Some(candidate) = Candidate::of(key, agent) else {
                agent.bare_since = None;
                return None;
            };
            let since = *agent.bare_since.get_or_insert(now);
            let is_long_ago = now.saturating_duration_since(since) >= remember;
            (is_long_ago && !candidate.active).then_some(candidate)
        };
        self.agents.iter_mut().filter_map(is_over).collect()
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
        let mut left = come_and_go(&mut agents, dir.path(), &names, Instant::now());
        for _ in 0..PAUSE.as_secs() {
            left += SECOND;
            assert_eq!(tick(&mut agents, left), [""; 0]);
        }
        // One that has its file goes on, and one that comes back has what it had.
        let mut now = left + LONG / 2;
        ring(&dir.path().join("stays"), 5);
        ring(&dir.path().join("a7"), 5);
        for _ in 0..10 {
            assert_eq!(tick(&mut agents, now), [""; 0]);
            now += SECOND;
        }
        assert_eq!(agents.agents.len(), 101);
        now = left + LONG + PAUSE;
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
        assert_eq!(known, [("a7", 10), ("stays", 5)]);
        assert_eq!(agents.host_total(EventType::TxBytes), 102 * 5);
        let highest = agents.agents.iter().map(|(key, _)| key.place()).max();
        assert_eq!(
            Some(agents.agents.places() - 1),
            highest,
            "what nobody has is not gone through"
        );
    }

    #[test]
    fn who_is_silent_for_long_is_remembered_for_his_time_once_his_file_is_gone() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 4096);
        let path = dir.path().join("a");
        ring(&path, 5);
        let mut now = Instant::now();
        while agents.iter().all(|agent| !agent.entry.active) {
            now += SECOND;
            tick(&mut agents, now);
        }
        while agents.iter().any(|agent| agent.entry.active) {
            now += SECOND;
            tick(&mut agents, now);
        }
        // NIXL leaves the file behind, and somebody clears it away long after.
        now += 3 * LONG;
        tick(&mut agents, now);
        fs::remove_file(&path).expect("there");
        for _ in 0..200 {
            now += SECOND;
            assert_eq!(tick(&mut agents, now), [""; 0]);
        }
        assert!(agents.iter().all(|agent| !agent.has_files()));
        ring(&path, 7);
        for _ in 0..10 {
            now += SECOND;
            tick(&mut agents, now);
        }
        let total = |agent: &Agent| agent.total(EventType::TxBytes);
        assert_eq!(agents.iter().map(total).collect::<Vec<_>>(), [12]);
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
