// SPDX-License-Identifier: GPL-2.0-or-later

//! Drains the rings and reads the stores of all agents, within the budget of a tick.

use super::Collector;
use crate::agents::AgentKey;
use crate::base::clock::Now;
use crate::error::Rejection;
use crate::log;
use crate::procfs::liveness::check_period;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

impl Collector {
    /// Drains the rings and stores of all agents in which something happens, at least one agent, until the budget is
    /// used up. The next call goes on with the agents that are left. Returns true if none is left. `tick`: the begin of
    /// the tick, or `None` for an answer to pmcd.
    pub fn drain(&mut self, tick: Option<Instant>, now: Instant, budget: Duration) -> bool {
        let end = Instant::now() + budget;
        let now = self.clock.at(now);
        self.shared.check_period = check_period(self.agents.places().total());
        self.shared.is_for_answer = tick.is_none();
        if self.turns.begin(tick) {
            for (key, agent) in self.agents.due(now.instant) {
                self.turns.push(agent.name.owner, key);
            }
        }
        // A span costs up to a fifth of a drain, so there is a new one for another user only.
        let mut span = None;
        while let Some((owner, key)) = self.turns.pop() {
            if span.as_ref().is_none_or(|(uid, _)| *uid != owner) {
                drop(span.take());
                span = Some((owner, log::span(Some(owner))));
            }
            self.drain_agent(key, now, end);
            if Instant::now() >= end {
                break;
            }
        }
        drop(span);
        if tick.is_some() {
            self.expire_some(now.instant);
        }
        self.turns.is_empty()
    }

    /// Drains a batch of each ring of an agent, and its store.
    fn drain_agent(&mut self, key: AgentKey, now: Now, end: Instant) {
        let Some((poll, agent)) = self.agents.at(key) else {
            return;
        };
        let owner = agent.name.owner;
        let drained = catch_unwind(AssertUnwindSafe(|| agent.drain(now, end, &mut self.shared)));
        let Ok(outcome) = drained else {
            return self.reject_after_panic(key);
        };
        for path in outcome.changed {
            // Several drains may come before the next scan.
            self.wants_rescan = true;
            self.scanner.recheck(&path);
        }
        let is_complete = !outcome.more && Instant::now() < end;
        poll.reset(agent, &now, is_complete, &self.shared);
        if outcome.more {
            self.turns.push(owner, key);
        }
        self.process_scans.asks |= agent.asks();
        self.agents.update(key);
    }

    /// Rejects the files of an agent whose drain or process scan has panicked, until they change: a defect of the
    /// daemon costs this agent only. The totals of the agent are read from its record, and the host totals are computed
    /// again. Without a record both stay as the panic left them, so that a batch may count twice.
    pub(super) fn reject_after_panic(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        if let Some(entry) = self.shared.journal.entry(agent.record) {
            agent.entry = entry;
        }
        for source in std::mem::take(&mut agent.sources) {
            let facts = source.current_facts();
            if let Some((facts, name)) = facts.zip(source.file.path.file_name()) {
                self.scanner
                    .reject(&source.file.path, &facts, Rejection::Failed);
                // No other store becomes the agent's while its process may write this one.
                agent.waiting = Some((name.to_owned(), facts.id));
            }
        }
        self.agents.end_poll(key);
        self.agents.update(key);
        if let Some(expired) = self.shared.journal.expired() {
            self.shared.host = expired.totals;
            for agent in self.agents.values_mut() {
                self.shared.host.add(&agent.entry.stats.totals);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Change;
    use crate::base::file::{FILE_TIME_GRANULARITY, is_younger_than};
    use crate::config::{Config, DirectoryPattern};
    use crate::event::EventType;
    use crate::journal::Journal;
    use crate::ring::tests::bytes_of_ring;
    use std::fs::{self, File};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    /// Drains, and panics while the ring of the agent `bad` is found to have changed.
    fn drain_and_fail(agents: &mut Collector, now: Instant, bad: &File) {
        bad.write_all_at(&[9], 16).expect("written");
        // A young file is checked again, and is of an unsupported version.
        let changed = || bad.metadata().map(|meta| (meta.ctime(), meta.ctime_nsec()));
        while is_younger_than(changed().expect("open"), 2 * FILE_TIME_GRANULARITY) {
            std::thread::sleep(FILE_TIME_GRANULARITY / 4);
        }
        let fail = |event: &str| assert!(!event.contains("agent bad: its ring"), "a defect");
        log::tests::with_events(fail, || agents.drain(None, now, Duration::from_secs(3600)));
    }

    fn open(path: &Path) -> File {
        File::options().write(true).open(path).expect("there")
    }

    /// The agents in a directory with these rings of 5 bytes sent.
    fn agents_of(dir: &Path, names: &[&str]) -> Collector {
        for name in names {
            fs::write(dir.join(name), bytes_of_ring(2, &[5])).expect("written");
        }
        Collector::new(&Config {
            telemetry_dir: vec![DirectoryPattern::of(dir)],
            proc_facts: false,
            ..Config::default()
        })
    }

    #[test]
    fn panic_after_a_commit_leaves_host_totals_right() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let mut agents = agents_of(dirs[0].path(), &["a", "bad"]);
        let mut journal = Journal::open(&dirs[1].path().join("nixl/state"));
        journal.start().expect("readable");
        agents.restore(journal, Vec::new());
        let long = Duration::from_secs(3600);
        let now = Instant::now();
        agents.scan(now, long);
        agents.drain(None, now, long);
        assert_eq!(agents.host_total(EventType::TxBytes), 10);
        // A second ring of the agent, and an event in the first, which is drained before it.
        let path = dirs[0].path().join("bad");
        let first = open(&path);
        fs::remove_file(&path).expect("there");
        fs::write(&path, bytes_of_ring(2, &[5])).expect("written");
        let later = now + Duration::from_secs(60);
        agents.scan(later, long);
        agents.drain(None, later, long);
        assert_eq!(agents.host_total(EventType::TxBytes), 15);
        first
            .write_all_at(&7_u64.to_le_bytes(), 8 * 8)
            .expect("written");
        first.write_all_at(&[0], 0).expect("written");
        drain_and_fail(&mut agents, later, &open(&path));
        let sent = agents.iter().map(|agent| agent.total(EventType::TxBytes));
        assert_eq!(sent.collect::<Vec<_>>(), [5, 17]);
        assert_eq!(agents.host_total(EventType::TxBytes), 22);
    }

    #[test]
    fn panic_over_an_agent_without_labels_does_not_publish_it() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let mut agents = agents_of(dirs[0].path(), &["bad"]);
        agents.shared.config.proc_facts = true;
        let mut journal = Journal::open(&dirs[1].path().join("nixl/state"));
        journal.start().expect("readable");
        agents.restore(journal, Vec::new());
        let bad = open(&dirs[0].path().join("bad"));
        let now = Instant::now();
        agents.scan(now, Duration::from_secs(3600));
        drain_and_fail(&mut agents, now, &bad);
        assert_eq!(agents.activity().rejected_files, 1);
        assert_eq!(agents.take_changes(), []);
        // Its file is detached, so that no process scan can tell its labels.
        agents.drain(
            None,
            now + Duration::from_secs(1),
            Duration::from_secs(3600),
        );
        let changes = agents.take_changes();
        assert!(matches!(changes[..], [Change::Published(_)]), "{changes:?}");
    }

    #[test]
    fn panic_over_one_agent_costs_the_others_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut agents = agents_of(dir.path(), &["a", "bad", "c"]);
        let long = Duration::from_secs(3600);
        let mut now = Instant::now();
        agents.scan(now, long);
        let bad = open(&dir.path().join("bad"));
        drain_and_fail(&mut agents, now, &bad);
        let sent = |agents: &Collector, name: &str| {
            let mut all = agents.iter();
            let agent = all.find(|agent| agent.name.instance == name);
            agent.map(|agent| agent.total(EventType::TxBytes))
        };
        let all = |agents: &Collector| ["a", "bad", "c"].map(|name| sent(agents, name));
        assert_eq!(all(&agents), [Some(5), Some(0), Some(5)]);
        assert_eq!(agents.host_total(EventType::TxBytes), 10);
        // Its file is skipped until it is replaced.
        for _ in 0..5 {
            now += Duration::from_secs(10);
            agents.scan(now, long);
            agents.drain(None, now, long);
        }
        assert_eq!(all(&agents), [Some(5), Some(0), Some(5)]);
        assert_eq!(agents.activity().rejected_files, 1);
        fs::remove_file(dir.path().join("bad")).expect("there");
        fs::write(dir.path().join("bad"), bytes_of_ring(2, &[7])).expect("written");
        for _ in 0..5 {
            now += Duration::from_secs(10);
            agents.scan(now, long);
            agents.drain(None, now, long);
        }
        assert_eq!(all(&agents), [Some(5), Some(7), Some(5)]);
        assert_eq!(agents.host_total(EventType::TxBytes), 17);
    }
}
