// SPDX-License-Identifier: GPL-2.0-or-later

//! Expires agents whose files have been gone for `remember`: their records are removed, and their totals stay in the
//! host totals. An agent that comes later under the name of an expired one is another agent, with another instance id.

use super::Collector;
use crate::agents::AgentKey;
use crate::shm;
use std::time::{Duration, Instant};

/// Number of records beyond `max_agents`, for agents without files; three times `max_agents` if that is less.
pub(super) const MORE_RECORDS: usize = 1024;
/// Number of agents that a tick expires. Each takes a write to the state file and a walk through the instance domains.
const PIECE: usize = 16;
/// Pause between two searches for agents to expire: `remember`, within these bounds.
const MAX_PAUSE: Duration = Duration::from_secs(60);
const MIN_PAUSE: Duration = Duration::from_secs(1);

impl Collector {
    /// Expires a few agents, if a search is due. At the end of a search, returns the memory of agents that have ceased
    /// to be instances to the kernel.
    pub(super) fn expire_some(&mut self, now: Instant) {
        let is_due = |next: Instant| now >= next;
        // The first scan may still find the file of an agent.
        if self.shared.in_first_scan || !self.next_expiry.is_none_or(is_due) {
            return;
        }
        let old = self.expirable(now);
        for &key in old.iter().take(PIECE) {
            self.expire(key);
        }
        // The next tick expires the others.
        let pause = self.remember().clamp(MIN_PAUSE, MAX_PAUSE);
        self.next_expiry = (old.len() <= PIECE).then_some(now + pause);
        if self.next_expiry.is_some() && std::mem::take(&mut self.has_freed_memory) {
            shm::trim_heap();
        }
    }

    /// Returns how long agents without files are remembered. At least `retain`, as nixl.conf(5) promises.
    fn remember(&self) -> Duration {
        self.shared.config.remember.max(self.shared.config.retain)
    }

    /// Returns the agents that are not instances and have had no file for `remember`.
    fn expirable(&mut self, now: Instant) -> Vec<AgentKey> {
        let remember = self.remember();
        let (agents, scanner) = (self.agents.iter_mut(), &self.scanner);
        let old = agents.filter_map(|(key, agent)| {
            if agent.has_files() {
                agent.without_file_since = None;
                return None;
            }
            let since = *agent.without_file_since.get_or_insert(now);
            let is_long_ago = now.saturating_duration_since(since) >= remember;
            let is_over = is_long_ago && agent.entry.lifecycle.is_dormant();
            (is_over && !agent.waits(scanner)).then_some(key)
        });
        old.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{Agent, Change};
    use crate::base::clock::Now;
    use crate::config::{Config, DirectoryPattern};
    use crate::event::EventType;
    use crate::ring::tests::bytes_of_ring;
    use std::fs;
    use std::path::Path;

    const LONG: Duration = Duration::from_secs(3600);
    const SECOND: Duration = Duration::from_secs(1);

    /// Makes a ring with so many bytes sent.
    fn ring(path: &Path, bytes: u64) {
        fs::write(path, bytes_of_ring(2, &[bytes])).expect("written");
    }

    fn agents(dir: &Path, remember: Duration, max_agents: usize) -> Collector {
        let mut agents = Collector::new(&Config {
            telemetry_dir: vec![DirectoryPattern::of(dir)],
            proc_facts: false,
            retain: Duration::ZERO,
            remember,
            max_agents,
            ..Config::default()
        });
        agents.shared.in_first_scan = false;
        agents
    }

    /// Runs a tick. Returns the names of the agents that expired in it.
    fn tick(agents: &mut Collector, now: Instant) -> Vec<String> {
        agents.scan(now, LONG);
        agents.drain(Some(now), now, LONG);
        let names = agents
            .take_changes()
            .into_iter()
            .filter_map(|change| match change {
                Change::Expired(name) => Some(name),
                _ => None,
            });
        names.collect()
    }

    /// Agents come and leave with their files; when all have left.
    fn come_and_go(
        agents: &mut Collector,
        dir: &Path,
        names: &[String],
        mut now: Instant,
    ) -> Instant {
        names.iter().for_each(|name| ring(&dir.join(name), 5));
        let shown = |agents: &Collector| agents.iter().filter(|agent| agent.is_published()).count();
        while shown(agents) < names.len() {
            now += SECOND;
            tick(agents, now);
        }
        names
            .iter()
            .for_each(|name| fs::remove_file(dir.join(name)).expect("there"));
        let files = |agents: &Collector| agents.iter().filter(|agent| agent.has_files()).count();
        while files(agents) + shown(agents) > 0 {
            now += SECOND;
            tick(agents, now);
        }
        now
    }

    #[test]
    fn expired_agent_stays_in_host_totals_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 4096);
        let names: Vec<String> = (0..100).map(|number| format!("a{number}")).collect();
        let mut left = come_and_go(&mut agents, dir.path(), &names, Instant::now());
        for _ in 0..MAX_PAUSE.as_secs() {
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
        now = left + LONG + MAX_PAUSE;
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
        let highest = agents.agents.iter().map(|(key, _)| key.index()).max();
        assert_eq!(
            Some(agents.agents.end() - 1),
            highest,
            "free indexes at the end are not visited"
        );
    }

    #[test]
    fn silent_agent_is_remembered_from_the_loss_of_its_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 4096);
        let path = dir.path().join("a");
        ring(&path, 5);
        let mut now = Instant::now();
        while agents
            .iter()
            .all(|agent| agent.entry.lifecycle.is_dormant())
        {
            now += SECOND;
            tick(&mut agents, now);
        }
        while agents
            .iter()
            .any(|agent| !agent.entry.lifecycle.is_dormant())
        {
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
    fn agent_was_last_seen_when_it_was_an_instance() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents(dir.path(), LONG, 4096);
        let path = dir.path().join("a");
        ring(&path, 5);
        let (begin, mut now) = (Now::read(), Instant::now());
        while agents.iter().all(|agent| !agent.is_published()) {
            now += SECOND;
            tick(&mut agents, now);
        }
        let seen = |agents: &Collector, at: &Now| {
            let lines = agents.ids(*at);
            assert_eq!((lines.len(), lines[0].id), (1, 7));
            assert_eq!(lines[0].name, "a");
            lines[0].seen
        };
        let key = agents.agents.iter().next().map(|(key, _)| key);
        agents.set_id(key.expect("a"), 7, Some(7));
        let later = begin.at(now + LONG);
        assert_eq!(seen(&agents, &later), later.seconds, "it is one");
        fs::remove_file(&path).expect("there");
        while agents.iter().any(|agent| agent.is_published()) {
            now += SECOND;
            tick(&mut agents, now);
        }
        let left = begin.at(now);
        for hours in 1..4 {
            let seen = seen(&agents, &begin.at(now + hours * LONG));
            let is_between = seen + 1 >= begin.seconds && seen <= left.seconds + 1;
            assert!(is_between, "{begin:?} {seen} {left:?}");
        }
    }

    #[test]
    fn no_more_agents_are_remembered_than_may_be() {
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
        assert_eq!(agents.agents.len(), limit);
        let of_first = |agent: &&Agent| agent.name.instance.starts_with("0-");
        let left = agents.iter().filter(of_first).count();
        assert_eq!(left, limit - 4 * 120, "the first have left first");
        assert_eq!(agents.host_total(EventType::TxBytes), 600 * 5);
    }
}
