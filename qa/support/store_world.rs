//! Directories of rings and stores, the agents in them, and a clock that only the test moves: without pmcd.
#![allow(dead_code)] // each test binary uses a part of it

#[path = "store_writer.rs"]
pub mod store_writer;
#[path = "writer.rs"]
pub mod writer;

use pmdanixl::agents::agent::Agent;
use pmdanixl::agents::{AgentKey, Agents, Change};
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use pmdanixl::producer::life::Life;
use pmdanixl::state::{State, StateFile};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
#[allow(unused_imports)] // as above
pub use store_writer::{BACKEND, StoreWriter, TX_BYTES, Who, XFER_TIME};
#[allow(unused_imports)] // likewise
pub use writer::{Kind, Layout, RingWriter};

/// For what is not about time: no machine takes so long.
pub const LONG: Duration = Duration::from_secs(3600);
pub const SECOND: Duration = Duration::from_secs(1);

/// A host with one pmdanixl, which may be killed.
pub struct World {
    dir: tempfile::TempDir,
    pub config: Config,
    agents: Option<Agents>,
    now: Instant,
    ahead: Duration,
    instances: BTreeSet<AgentKey>,
}

fn pattern(path: &Path) -> Vec<DirectoryPattern> {
    vec![DirectoryPattern {
        path: path.to_str().expect("UTF-8").into(),
        label: None,
        literal: true,
    }]
}

impl World {
    /// Rings in one directory and stores in another.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["rings", "stores"] {
            fs::create_dir(dir.path().join(name)).expect("made");
        }
        let mut config = Config {
            telemetry_dir: pattern(&dir.path().join("rings")),
            multiproc_dir: pattern(&dir.path().join("stores")),
            // Nothing that takes time by itself.
            proc_facts: false,
            ..Config::default()
        };
        change(&mut config);
        let mut world = Self {
            dir,
            config,
            agents: None,
            now: Instant::now(),
            ahead: Duration::ZERO,
            instances: BTreeSet::new(),
        };
        world.start();
        world
    }

    /// Rings and stores lie in one directory from now on.
    pub fn in_one_directory(mut self) -> Self {
        self.config.telemetry_dir = pattern(&self.stores());
        self.restart();
        self
    }

    pub fn stores(&self) -> PathBuf {
        self.dir.path().join("stores")
    }

    pub fn rings(&self) -> PathBuf {
        PathBuf::from(&self.config.telemetry_dir[0].path)
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("nixl/state")
    }

    /// Kills pmdanixl, which does nothing more.
    pub fn kill(&mut self) {
        self.agents = None;
        self.instances.clear();
    }

    /// Starts it with what it had kept.
    pub fn start(&mut self) {
        let file = StateFile::open(&self.state()).expect("ours");
        let found = State::take(&file, [1, 2]).expect("readable");
        let found = found.expect("nobody else has it");
        assert_eq!(found.set_aside, None);
        let mut agents = Agents::new(&self.config);
        // What is new begins now, however long the test took to come here.
        self.now = self.now.max(Instant::now());
        let changes = agents.restore(found.state, found.records);
        self.agents = Some(agents);
        self.take(changes);
    }

    /// Has it look for stores elsewhere; where it did before.
    pub fn reconfigure(&mut self, stores: Vec<DirectoryPattern>) -> Vec<DirectoryPattern> {
        let before = std::mem::replace(&mut self.config.multiproc_dir, stores);
        let agents = self.agents.as_mut().expect("it runs");
        let changes = agents.configure(&self.config);
        self.take(changes);
        before
    }

    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// Lets time pass, with a look and a drain in each second.
    pub fn pass(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.now += SECOND;
            self.tick(LONG);
        }
    }

    /// The same with many short looks, each of which meets a file or two.
    pub fn pass_in_pieces(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.now += SECOND;
            (0..50).for_each(|_| self.tick(Duration::ZERO));
        }
    }

    /// Looks for as long as it may, and drains.
    pub fn tick(&mut self, budget: Duration) {
        self.ahead = self.now.saturating_duration_since(Instant::now());
        let agents = self.agents.as_mut().expect("it runs");
        let mut changes = Vec::new();
        agents.scan(self.now, budget);
        agents.drain(self.now, LONG, &mut changes);
        self.take(changes);
    }

    fn take(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Appeared(key) => assert!(self.instances.insert(key), "{key:?} twice"),
                Change::Left { key, .. } => assert!(self.instances.remove(&key), "{key:?}"),
                Change::Ranges(key) => assert!(self.instances.contains(&key), "{key:?}"),
                Change::Forgotten(_) => {}
            }
        }
    }

    /// The agent begins with a new store.
    pub fn store(&self, who: &Who) -> StoreWriter {
        StoreWriter::create(&self.stores(), who).expect("a store")
    }

    /// The agent begins with a ring, in place where its file is there.
    pub fn ring(&self, name: &str) -> RingWriter {
        RingWriter::create(&self.rings().join(name), Layout::V4, 64).expect("a ring")
    }

    /// Sends bytes, at the world's time.
    pub fn send(&self, store: &StoreWriter, bytes: u64) {
        store.count(TX_BYTES, bytes);
        let ahead = u64::try_from(self.ahead.as_nanos()).expect("short");
        store.flush_at(store_writer::monotonic() + ahead);
    }

    pub fn agents(&self) -> &Agents {
        self.agents.as_ref().expect("it runs")
    }

    pub fn shown(&self) -> impl Iterator<Item = &Agent> {
        let agents = self.agents();
        self.instances.iter().filter_map(|&key| agents.get(key))
    }

    pub fn agent(&self, instance: &str) -> &Agent {
        let mut all = self.shown();
        let found = all.find(|agent| agent.name.instance == instance);
        found.unwrap_or_else(|| panic!("{instance} is none of {:?}", self.sent()))
    }

    /// The instances with what they have sent.
    pub fn sent(&self) -> BTreeMap<String, u64> {
        let sent = |agent: &Agent| agent.total(EventType::TxBytes);
        let all = self.shown();
        all.map(|agent| (agent.name.instance.clone(), sent(agent)))
            .collect()
    }

    /// What the host has sent.
    pub fn host(&self) -> u64 {
        self.agents().host_total(EventType::TxBytes)
    }

    pub fn life(&self, instance: &str) -> Life {
        self.agent(instance).state
    }

    /// Compares the instances, and what they have sent, with these.
    #[track_caller]
    pub fn becomes(&self, expected: &[(&str, u64)]) {
        let expected: BTreeMap<String, u64> = expected
            .iter()
            .map(|(name, sent)| ((*name).to_owned(), *sent))
            .collect();
        assert_eq!(self.sent(), expected);
    }
}
