// SPDX-License-Identifier: GPL-2.0-or-later

//! Test kit: the daemon without pmcd, in the process of the test, with its own directories and a test clock.
//!
//! Only this module of `qa` names the types of `src` that make up a daemon. Tests of one layer name that layer.

pub mod clock;
pub mod kills;
pub mod layers;
pub mod log;
#[path = "../memory.rs"]
pub mod memory;
pub mod snapshot;
pub mod stats;
#[path = "../store_writer.rs"]
pub mod store_writer;
pub mod values;
// By path, so that rustc finds its submodule beside it, as for the sample producer.
#[path = "../writer.rs"]
pub mod writer;

use pmdanixl::agents::Agent;
use pmdanixl::agents::{AgentKey, Change};
use pmdanixl::collector::Collector;
use pmdanixl::config::{self, Config};
use pmdanixl::error::ConfigError;
use pmdanixl::ids::Ids;
use pmdanixl::journal::{Journal, StateContents};
use pmdanixl::observer::client::ObserverHandle;
use pmdanixl::rights::Rights;
use pmdanixl::rights::privilege::of_reader;
use pmdanixl::shm::guard_against_sigbus;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store_writer::{StoreWriter, TX_BYTES, Who};
use tempfile::TempDir;
use writer::{Kind, Layout, RingWriter};

/// Time budget that never runs out.
pub const LONG: Duration = Duration::from_secs(3600);
pub const SECOND: Duration = Duration::from_secs(1);

/// A running daemon without pmcd. Dropping it is like SIGKILL.
#[derive(Debug)]
pub struct Core {
    home: Home,
    /// Keys of nixl.conf, one on each line.
    settings: String,
    /// Test clock, which only the test advances.
    now: Instant,
    /// Time of the last update of a store, in nanoseconds.
    last_update: Cell<u64>,
    /// `None` if the daemon was killed.
    running: Option<Running>,
    /// Names of expired agents, oldest first.
    pub forgotten: Vec<String>,
    /// True if it has an observer with `proc_facts = true`. To start one takes most of the time of a start.
    is_observed: bool,
}

/// Paths of the files of a daemon.
#[derive(Debug)]
struct Home {
    rings: PathBuf,
    /// Directory of stores. `None` if stores are not scanned.
    stores: Option<PathBuf>,
    state: PathBuf,
    /// Temporary directory, removed when this is dropped.
    dir: Option<TempDir>,
}

/// State that a kill loses.
#[derive(Debug)]
struct Running {
    agents: Collector,
    ids: Ids,
    /// Instances and their ids. `None` if an instance was withdrawn before it got an id.
    instances: BTreeMap<AgentKey, Option<u32>>,
}

impl Core {
    /// Starts a daemon with these keys of nixl.conf, one on each line. By default, it scans a directory of rings and
    /// one of stores, both of this test, and does not scan processes.
    pub fn new(settings: &str) -> Self {
        Self::inside(tempfile::tempdir().expect("a directory"), settings)
    }

    /// Starts a daemon on a tmpfs, where a read of a hole through a mapping allocates it.
    pub fn in_memory(settings: &str) -> Self {
        // The rings of these tests are larger than the default limit.
        let settings = format!("max_capacity = {}\n{settings}", 1_u64 << 36);
        Self::inside(memory::in_memory(), &settings)
    }

    /// Starts a daemon without an observer on a directory of rings and a state file that outlive it.
    pub fn on(rings: &Path, state: &Path, settings: &str) -> Self {
        let home = Home {
            rings: rings.to_owned(),
            stores: None,
            state: state.to_owned(),
            dir: None,
        };
        Self::started(home, settings)
    }

    fn inside(dir: TempDir, settings: &str) -> Self {
        let [rings, stores] = ["rings", "stores"].map(|name| dir.path().join(name));
        for path in [&rings, &stores] {
            fs::create_dir(path).expect("made");
        }
        let home = Home {
            rings,
            stores: Some(stores),
            state: dir.path().join("nixl/state"),
            dir: Some(dir),
        };
        Self::started(home, settings)
    }

    fn started(home: Home, settings: &str) -> Self {
        guard_against_sigbus().expect("a handler");
        let mut core = Self {
            is_observed: home.dir.is_some(),
            home,
            settings: settings.to_owned(),
            now: Instant::now(),
            last_update: Cell::default(),
            running: None,
            forgotten: Vec::new(),
        };
        core.start();
        core
    }

    /// Restarts the daemon with an observer.
    pub fn observe(&mut self) {
        self.is_observed = true;
        self.restart();
    }

    /// Restarts the daemon with rings and stores in one directory, the one for stores.
    pub fn in_one_directory(mut self) -> Self {
        self.home.rings = self.stores();
        self.restart();
        self
    }

    /// Directory of rings.
    pub fn rings(&self) -> PathBuf {
        self.home.rings.clone()
    }

    /// Directory of stores.
    pub fn stores(&self) -> PathBuf {
        self.home.stores.clone().expect("a directory of stores")
    }

    /// Path of a file in the directory of rings.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.rings.join(name)
    }

    /// Starts an agent with a ring of 16 slots, in place if its file exists.
    pub fn ring(&self, name: &str) -> RingWriter {
        self.ring_of(name, 16)
    }

    /// Starts an agent with a ring of so many slots, in place if its file exists.
    pub fn ring_of(&self, name: &str, slots: u64) -> RingWriter {
        self.ring_as(Layout::V4, name, slots)
    }

    /// Starts an agent with a ring of this layout and of so many slots, in place if its file exists.
    pub fn ring_as(&self, layout: Layout, name: &str, slots: u64) -> RingWriter {
        RingWriter::create(&self.path(name), layout, slots).expect("a ring")
    }

    /// Starts an agent with a new store.
    pub fn store(&self, identity: &Who) -> StoreWriter {
        StoreWriter::create(&self.stores(), identity).expect("a store")
    }

    /// Starts an agent with a new store, and sends bytes from it.
    pub fn sender(&self, identity: &Who, bytes: u64) -> StoreWriter {
        let store = self.store(identity);
        self.send(&store, bytes);
        store
    }

    /// Sends bytes from the agent of a store, at the time of the test clock.
    pub fn send(&self, store: &StoreWriter, bytes: u64) {
        store.count(TX_BYTES, bytes);
        self.flush(store);
    }

    /// Ends a flush of a store at the time of the test clock.
    pub fn flush(&self, store: &StoreWriter) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).expect("short");
        // The machine's clock is read first, so that the update time is not after the test clock.
        let (stamp, read) = (store_writer::monotonic(), Instant::now());
        let ahead = nanoseconds(self.now.saturating_duration_since(read));
        let behind = nanoseconds(read.saturating_duration_since(self.now));
        // Each update is later than the one before.
        let next = self.last_update.get() + 1;
        let updated = next.max(stamp + ahead - behind - 1_000_000);
        self.last_update.set(updated);
        store.flush_at(updated);
    }

    fn config(&self) -> Config {
        let parsed = self.parsed(&self.settings);
        parsed.unwrap_or_else(|err| panic!("{err}: {}", self.settings))
    }

    /// Configuration with these keys of nixl.conf.
    fn parsed(&self, settings: &str) -> Result<Config, ConfigError> {
        let mut text = "[nixl]\n".to_owned();
        let mut default = |key: &str, value: String| {
            let is_set = |line: &str| line.split('=').next().is_some_and(|set| set.trim() == key);
            if !settings.lines().any(is_set) {
                writeln!(text, "{key} = {value}").expect("memory");
            }
        };
        default("telemetry_dir", format!("{:?}", self.home.rings));
        if let Some(stores) = &self.home.stores {
            default("multiproc_dir", format!("{stores:?}"));
        }
        // A process scan in each second of the test clock would take most of the time of a test.
        default("proc_facts", "false".into());
        text += settings;
        let loaded = config::parse(Path::new("nixl.conf"), &text)?;
        Ok(loaded.config)
    }

    /// Reloads with these keys of nixl.conf. Returns the error if they are invalid.
    pub fn try_configure(&mut self, settings: &str) -> Option<String> {
        let error = self.parsed(settings).err();
        if error.is_none() {
            self.configure(settings);
        }
        error.map(|error| error.to_string())
    }

    /// Reloads with these keys of nixl.conf, which must be valid.
    pub fn configure(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
        let config = self.config();
        self.running_mut().agents.configure(&config);
        self.publish();
    }

    /// Sets the keys of nixl.conf that the next start reads.
    pub fn set(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    /// Locks and reads the state file that the last daemon left.
    fn journal(&self) -> (Journal, StateContents) {
        let mut journal = Journal::open(&self.home.state);
        let found = journal.start().expect("readable");
        (journal, found.expect("an unlocked state file"))
    }

    /// Starts a daemon with the state file of the last one.
    pub fn start(&mut self) {
        let config = self.config();
        // Examples have no such program, and need none.
        let program =
            option_env!("CARGO_BIN_EXE_pmdanixl").filter(|_| self.is_observed && config.proc_facts);
        // Before the state file is locked: until it has closed its descriptors, a new process has the lock, too.
        let observer =
            program.map(|program| ObserverHandle::start(Path::new(program), &of_reader()));
        let (journal, found) = self.journal();
        assert_eq!(found.rejection, None);
        let mut agents = Collector::new(&config);
        if let Some(observer) = observer {
            agents.set_observer(observer.expect("it starts"));
        }
        // A new state file begins at the time of the test clock, not of the machine's clock.
        self.now = self.now.max(Instant::now());
        agents.restore(journal, found.records);
        // Without a state file.
        let mut ids = Ids::default();
        ids.load(&[], agents.next_id());
        agents.set_next_id(ids.next());
        self.running = Some(Running {
            agents,
            ids,
            instances: BTreeMap::new(),
        });
        self.publish();
    }

    /// Kills the daemon and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.start();
    }

    /// All agents.
    pub fn agents(&self) -> &Collector {
        &self.running.as_ref().expect("it runs").agents
    }

    fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().expect("it runs")
    }

    /// Updates the instances, and assigns ids to new ones.
    fn publish(&mut self) {
        let running = self.running.as_mut().expect("it runs");
        for change in running.agents.take_changes() {
            match change {
                Change::Published(key) => {
                    let id = running.number(key);
                    let before = running.instances.insert(key, id);
                    assert_eq!(before, None, "{key:?} twice");
                }
                Change::Withdrawn { key, .. } => {
                    let before = running.instances.remove(&key);
                    assert!(before.is_some(), "{key:?} is not an instance");
                }
                Change::Expired(name) => self.forgotten.push(name),
            }
        }
    }
}

impl Running {
    /// Assigns an instance id to an agent, and a base to its buckets, unless they have one. Returns the id, or `None`
    /// if the agent has expired.
    fn number(&mut self, key: AgentKey) -> Option<u32> {
        let agent = self.agents.get(key)?;
        let name = agent.name.instance.clone();
        let (had, base) = (agent.id, agent.entry.stats.bucket_base);
        let taken = || self.agents.taken_ids();
        let id = had.or_else(|| self.ids.assign(&name, taken));
        let id = id.expect("an id is left");
        let first = had.is_none().then_some(id);
        let base = base.or(first).or_else(|| self.ids.allocate(taken));
        self.agents.set_next_id(self.ids.next());
        self.agents.set_id(key, id, base);
        Some(id)
    }

    fn instance(&self, name: &str) -> Option<(u32, &Agent)> {
        let mut all = self.instances();
        all.find(|(_, agent)| agent.name.instance == name)
    }

    fn instances(&self) -> impl Iterator<Item = (u32, &Agent)> {
        let all = self.instances.iter();
        all.filter_map(|(&key, &id)| Some((id?, self.agents.get(key)?)))
    }
}

/// Checks that a daemon of root that runs with these keys of nixl.conf may take over others.
pub fn is_reload_allowed(before: &str, after: &str) -> Result<(), String> {
    let [before, after] = [before, after].map(|keys| {
        let loaded = config::parse(Path::new("nixl.conf"), &format!("[nixl]\n{keys}"));
        loaded.expect("valid keys").config
    });
    let allowed = Rights::of(&before, 0, caps::all()).allow(&after);
    allowed.map_err(|err| err.to_string())
}

/// Pushes one event of so many bytes.
pub fn push(ring: &mut RingWriter, value: u64) {
    assert!(ring.push(Kind::TxBytes, value));
}

/// Pushes one event of so many bytes to a new ring.
pub fn push_to(mut ring: RingWriter, value: u64) -> RingWriter {
    push(&mut ring, value);
    ring
}
