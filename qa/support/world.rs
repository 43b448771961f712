//! Agents over time that the test sets, without pmcd.
#![allow(dead_code)] // each test binary uses a part of it

#[path = "memory.rs"]
mod memory;

use super::writer::{Kind, Layout, RingWriter};
use pmdanixl::agents::{AgentKey, Agents, Change};
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// For what is not about time: no machine takes so long.
pub const LONG: Duration = Duration::from_secs(3600);
pub const SECOND: Duration = Duration::from_secs(1);

/// One directory, the agents in it, and a clock that only the test moves.
pub struct World {
    pub dir: tempfile::TempDir,
    pub config: Config,
    pub agents: Agents,
    pub now: Instant,
    pub instances: BTreeSet<AgentKey>,
    /// Instance names of agents that are not remembered any more.
    pub forgotten: Vec<String>,
}

impl World {
    pub fn new(change: impl FnOnce(&mut Config)) -> Self {
        Self::at(tempfile::tempdir().expect("a directory"), change)
    }

    /// In a file system in memory, where reading a hole through a mapping fills it.
    pub fn in_memory() -> Self {
        // Also rings of more slots than are taken otherwise.
        Self::at(memory::in_memory(), |config| config.max_capacity = 1 << 36)
    }

    fn at(dir: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config {
            telemetry_dir: vec![DirectoryPattern {
                path: dir.path().to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            // Nothing that takes time by itself.
            proc_facts: false,
            ..Config::default()
        };
        change(&mut config);
        let mut agents = Agents::new(&config);
        agents.set_patience(LONG);
        Self {
            agents,
            dir,
            config,
            now: Instant::now(),
            instances: BTreeSet::new(),
            forgotten: Vec::new(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The agent of that name begins, in place where its file is there.
    pub fn ring(&self, name: &str) -> RingWriter {
        RingWriter::create(&self.path(name), Layout::V4, 16).expect("a ring")
    }

    /// Lets time pass, with a look and a drain in each second.
    pub fn pass(&mut self, seconds: u32) {
        self.tick(seconds, SECOND, LONG);
    }

    /// So many ticks at an interval, which may look and drain for as long as the budget says.
    pub fn tick(&mut self, ticks: u32, interval: Duration, budget: Duration) {
        for _ in 0..ticks {
            self.now += interval;
            let mut changes = Vec::new();
            self.agents.scan(self.now, budget);
            let now = self.now;
            self.agents.drain_on(now, now, budget, &mut changes);
            // What /proc shows of a ring takes time of its own.
            while self.agents.is_asking() {
                self.agents.drain_on(now, now, budget, &mut changes);
            }
            self.follow(changes);
        }
    }

    /// A drain for somebody who asks; no time passes.
    pub fn answer(&mut self) {
        let mut changes = Vec::new();
        self.agents.drain(self.now, LONG, &mut changes);
        while self.agents.is_asking() {
            self.agents.drain(self.now, LONG, &mut changes);
        }
        self.follow(changes);
    }

    /// Has the agents take the configuration as it is now.
    pub fn configure(&mut self) {
        let changes = self.agents.configure(&self.config);
        self.follow(changes);
    }

    fn follow(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Appeared(key) => assert!(self.instances.insert(key), "{key:?} twice"),
                Change::Left { key, .. } => assert!(self.instances.remove(&key), "{key:?}"),
                Change::Ranges(key) => panic!("{key:?} has a ring"),
                Change::Forgotten(name) => self.forgotten.push(name),
            }
        }
    }

    /// Bytes, resets and foreign reads of the only agent.
    pub fn account(&self) -> [u64; 3] {
        let agent = self.agents.iter().next().expect("an agent");
        let entry = &agent.entry;
        [
            agent.total(EventType::TxBytes),
            entry.resets,
            entry.foreign_reads,
        ]
    }

    /// The instances with what they have sent.
    pub fn sent(&self) -> BTreeMap<&str, u64> {
        let agents = self
            .instances
            .iter()
            .filter_map(|&key| self.agents.get(key));
        agents
            .map(|agent| {
                (
                    agent.name.instance.as_str(),
                    agent.total(EventType::TxBytes),
                )
            })
            .collect()
    }
}

/// One transfer's bytes.
pub fn push(ring: &mut RingWriter, value: u64) {
    assert!(ring.push(Kind::TxBytes, value));
}

/// The same, of a ring that is at hand.
pub fn push_to(mut ring: RingWriter, value: u64) -> RingWriter {
    push(&mut ring, value);
    ring
}
