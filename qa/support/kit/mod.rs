//! The test kit: the daemon without pmcd, in the process of the test, on directories and a clock of the test's own.
//!
//! The only place in `qa` that names the types of `src` that a daemon is made of. Tests of one layer name that layer.
#![allow(dead_code)] // each test binary uses a part of it

pub mod clock;
pub mod layers;
pub mod log;
#[path = "../memory.rs"]
pub mod memory;
pub mod snapshot;
pub mod stats;
#[path = "../store_writer.rs"]
pub mod store_writer;
pub mod values;
// By path, so that its own module is looked for beside it, as it is for the sample producer.
#[path = "../writer.rs"]
pub mod writer;

use pmdanixl::agents::Agent;
use pmdanixl::agents::{AgentKey, Change};
use pmdanixl::collector::Collector;
use pmdanixl::config::{self, Config};
use pmdanixl::error::ConfigError;
use pmdanixl::ids::Ids;
use pmdanixl::journal::{Journal, StateContents};
use pmdanixl::shm::guard_against_sigbus;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store_writer::{StoreWriter, TX_BYTES, Who};
use tempfile::TempDir;
use writer::{Kind, Layout, RingWriter};

/// A budget that no machine uses up.
pub const LONG: Duration = Duration::from_secs(3600);
pub const SECOND: Duration = Duration::from_secs(1);

/// A daemon without pmcd. It runs from the start, and ends with the value as by SIGKILL.
#[derive(Debug)]
pub struct Core {
    home: Home,
    /// Keys of nixl.conf, one a line.
    settings: String,
    /// The test clock. It moves only when the test says so.
    now: Instant,
    /// How far the test clock was ahead of the machine's at the last tick.
    ahead: Duration,
    /// `None`: killed.
    running: Option<Running>,
    /// Names of agents that were forgotten, in that order.
    pub forgotten: Vec<String>,
}

/// Where a daemon's files are.
#[derive(Debug)]
struct Home {
    rings: PathBuf,
    /// `None`: no stores are looked for.
    stores: Option<PathBuf>,
    state: PathBuf,
    /// Removed with the value.
    dir: Option<TempDir>,
}

/// What a kill takes away.
#[derive(Debug)]
struct Running {
    agents: Collector,
    ids: Ids,
    /// The instances, and their ids; `None`: it was withdrawn before it had one.
    instances: BTreeMap<AgentKey, Option<u32>>,
}

impl Core {
    /// Starts a daemon on directories for rings and stores, with these keys of nixl.conf, one a line. Directories are
    /// those of the test, and processes are not asked for, unless the settings say otherwise.
    pub fn new(settings: &str) -> Self {
        Self::inside(tempfile::tempdir().expect("a directory"), settings)
    }

    /// Starts a daemon on a file system in memory, where reading a hole through a mapping fills it.
    pub fn in_memory(settings: &str) -> Self {
        // Larger rings than are accepted by default.
        let settings = format!("max_capacity = {}\n{settings}", 1_u64 << 36);
        Self::inside(memory::in_memory(), &settings)
    }

    /// Starts a daemon on a directory of rings and a state file that are there before and after it.
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
            home,
            settings: settings.to_owned(),
            now: Instant::now(),
            ahead: Duration::ZERO,
            running: None,
            forgotten: Vec::new(),
        };
        core.start();
        core
    }

    /// Restarts with rings and stores in one directory, that of the stores.
    pub fn in_one_directory(mut self) -> Self {
        self.home.rings = self.stores();
        self.restart();
        self
    }

    /// The directory of rings.
    pub fn rings(&self) -> PathBuf {
        self.home.rings.clone()
    }

    /// The directory of stores.
    pub fn stores(&self) -> PathBuf {
        self.home.stores.clone().expect("it has one")
    }

    /// A file in the directory of rings.
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.rings.join(name)
    }

    /// Starts the agent of that name with a ring of 16 slots, in place where its file is there.
    pub fn ring(&self, name: &str) -> RingWriter {
        self.ring_of(name, 16)
    }

    /// Starts the agent of that name with a ring of so many slots.
    pub fn ring_of(&self, name: &str, slots: u64) -> RingWriter {
        RingWriter::create(&self.path(name), Layout::V4, slots).expect("a ring")
    }

    /// Starts an agent with a new store.
    pub fn store(&self, who: &Who) -> StoreWriter {
        StoreWriter::create(&self.stores(), who).expect("a store")
    }

    /// Sends bytes from the agent of a store, at the time of the test clock.
    pub fn send(&self, store: &StoreWriter, bytes: u64) {
        store.count(TX_BYTES, bytes);
        let ahead = u64::try_from(self.ahead.as_nanos()).expect("short");
        store.flush_at(store_writer::monotonic() + ahead);
    }

    /// Ends a flush of a store at the time of the test clock, whatever the machine's is.
    pub fn flush(&self, store: &StoreWriter) {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).expect("short");
        // In this order, so that the time is not after that of the test clock.
        let (stamp, read) = (store_writer::monotonic(), Instant::now());
        let ahead = nanoseconds(self.now.saturating_duration_since(read));
        let behind = nanoseconds(read.saturating_duration_since(self.now));
        store.flush_at(stamp + ahead - behind);
    }

    fn config(&self) -> Config {
        let parsed = self.parsed(&self.settings);
        parsed.unwrap_or_else(|err| panic!("{err}: {}", self.settings))
    }

    /// What keys of nixl.conf come to.
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
        // All of /proc in each of the seconds, which pass fast here, would take most of the time.
        default("proc_facts", "false".into());
        text += settings;
        let loaded = config::parse(Path::new("nixl.conf"), &text)?;
        Ok(loaded.config)
    }

    /// Reloads with these keys of nixl.conf if they can be taken; why they cannot.
    pub fn try_configure(&mut self, settings: &str) -> Option<String> {
        let error = self.parsed(settings).err();
        if error.is_none() {
            self.configure(settings);
        }
        error.map(|error| error.to_string())
    }

    /// Reloads with these keys of nixl.conf instead of those before.
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

    /// Kills the daemon, which does nothing more.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Kills the daemon as it has committed the last batch of its first agent, and not yet released the slots of this ring from
    /// a position on.
    pub fn kill_before_release(&mut self, ring: &RingWriter, from: u64) {
        self.kill();
        ring.set_read_pos(from);
        // The word of the record that names the generation (src/journal/record.rs).
        let state = fs::File::options().write(true).open(&self.home.state);
        let at = layers::RECORD + 8 * 4;
        let written = state.and_then(|file| file.write_all_at(&u64::MAX.to_ne_bytes(), at as u64));
        written.expect("ours");
    }

    /// Kills the daemon as it has not yet released the slots of its last batch, and leaves what 0.1.0 left of one agent that had
    /// gone over from a ring to a store, or back: `kept` has what both instances had.
    pub fn kill_with_one_record(&mut self, kept: &str, gone: &str) {
        self.kill();
        let (mut journal, found) = self.journal();
        let of = |name: &str| {
            let mut records = found.records.iter();
            let record = records.find(|(_, saved)| saved.name.instance == name);
            record.expect("an agent of that name").clone()
        };
        let ((kept, mut saved), (gone, other)) = (of(kept), of(gone));
        saved.entry.stats.totals.add(&other.entry.stats.totals);
        saved.entry.store = saved.entry.store.or(other.entry.store);
        saved.entry.checkpoint = saved.entry.checkpoint.or(other.entry.checkpoint);
        if let Some(checkpoint) = &mut saved.entry.checkpoint {
            checkpoint.released = false;
        }
        journal.commit(Some(kept), &saved.entry);
        journal.expire(Some(gone), &Default::default());
    }

    /// Locks and reads the state file that the last daemon left.
    fn journal(&self) -> (Journal, StateContents) {
        let mut journal = Journal::open(&self.home.state);
        let found = journal.start().expect("readable");
        (journal, found.expect("nothing else has it locked"))
    }

    /// Starts the daemon with the state file that the last one left.
    pub fn start(&mut self) {
        let (journal, found) = self.journal();
        assert_eq!(found.rejection, None);
        let mut agents = Collector::new(&self.config());
        // What is new begins now, however long the test took to come here.
        self.now = self.now.max(Instant::now());
        agents.restore(journal, found.records);
        // Without a file.
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

    fn agents(&self) -> &Collector {
        &self.running.as_ref().expect("it runs").agents
    }

    fn running_mut(&mut self) -> &mut Running {
        self.running.as_mut().expect("it runs")
    }

    /// Brings the instances up to date, and gives new ones their ids.
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
                    assert!(before.is_some(), "{key:?} is no instance");
                }
                Change::Expired(name) => self.forgotten.push(name),
            }
        }
    }
}

impl Running {
    /// Gives an agent an instance id, and its buckets a base, unless they have one; the id. `None`: the agent is not known any
    /// more.
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

/// Writes one event of so many bytes.
pub fn push(ring: &mut RingWriter, value: u64) {
    assert!(ring.push(Kind::TxBytes, value));
}

/// Writes one event of so many bytes to a new ring.
pub fn push_to(mut ring: RingWriter, value: u64) -> RingWriter {
    push(&mut ring, value);
    ring
}
