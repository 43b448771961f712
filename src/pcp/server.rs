// SPDX-License-Identifier: GPL-2.0-or-later

//! Server: answers requests of pmcd and does the work of each tick. It owns the agents, the state file and the instance
//! domains.
//!
//! `ticks` is the periodic work. `fetch`, `domain` and `pmstore` serve requests. `state_file` opens and checks the
//! state file. `reload` reads the configuration again.

use super::buckets::BucketIndoms;
use super::instances::{AgentInstances, KeyedInstances};
use super::role_times::RoleBucket;
use super::work::{Allowance, FETCH, SHUTDOWN, TimeBudget, Work};
use crate::base::clock::Now;
use crate::collector::Collector;
use crate::config::{Config, LoadedConfig};
use crate::error::ConfigError;
use crate::ids::Ids;
use crate::journal::Journal;
use crate::metrics::control::Control;
use crate::observer::client::ObserverHandle;
use crate::procfs::process::ProcessId;
use crate::rights::Rights;
use crate::rights::privilege::{self, NotAllowed};
use crate::timeline::{Kind, Subject};
use nix::unistd::getuid;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

mod domain;
mod fetch;
mod pmstore;
mod reload;
mod state_file;
mod ticks;
mod timeline;
mod transports;
pub use pmstore::{PmStoreError, PmStoreRequest};
use state_file::Phase;
use timeline::Comparisons;
pub use transports::PeerKey;

/// Function that reads the configuration.
pub type ReadConfig = Box<dyn Fn() -> Result<LoadedConfig, ConfigError>>;
/// Function that opens the state file, becomes the configured user, starts the observer and gives up all other rights.
/// This cannot be undone.
pub type EnterAccount = Box<dyn Fn(&Config) -> Result<Entered, NotAllowed>>;

/// What a process opens before it gives up its rights.
#[derive(Debug)]
pub struct Entered {
    /// State file.
    pub journal: Journal,
    /// Observer, unless the configuration needs none.
    pub observer: ObserverHandle,
}

/// Instance domains without instances.
#[derive(Debug)]
pub struct Indoms {
    /// Instance domain of agents.
    pub agents: AgentInstances,
    /// Instance domain of processes that use NIXL.
    pub processes: KeyedInstances<ProcessId>,
    /// Instance domain of the peers of agents.
    pub peers: KeyedInstances<PeerKey>,
    /// Instance domain of processes and remote agents, by instance id.
    pub traced: KeyedInstances<u32>,
    /// Instance domain of their times, by instance id and bucket.
    pub traced_times: KeyedInstances<(u32, usize)>,
    /// Instance domain of the sums by role.
    pub role_times: KeyedInstances<RoleBucket>,
    /// Instance domains of histograms.
    pub buckets: BucketIndoms,
}

/// State of the PMDA: agents, instance domains, configuration, and the current tick.
pub struct Server {
    collector: Collector,
    /// State file, until it is locked. Then the agents have it.
    journal: Journal,
    phase: Phase,
    /// Domain number of the PMDA.
    domain: u32,
    indoms: Indoms,
    /// Time of the last scan and drain before an answer.
    refreshed: Instant,
    ids: Ids,
    control: Control,
    users: HashMap<i32, u32>,
    read_config: ReadConfig,
    enter_account: EnterAccount,
    comparisons: Comparisons,
    /// Time of the last check that the state file is in place.
    state_checked: Instant,
    /// Rights that the process has since [`EnterAccount`] was called. `None`: there was no valid configuration yet.
    rights: Option<Rights>,
    work: Work,
}

/// Returns the time since the epoch.
fn since_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("agents", &self.collector)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Creates the server, and begins with the configuration if it is valid. If not, the server serves `nixl.control`
    /// only, until a reload succeeds: it does not know the user, the directories and the histograms of the operator.
    ///
    /// # Errors
    /// If the configured user is not available. The process must then end, because it would run as the wrong user.
    pub fn new(
        domain: u32,
        cache_path: PathBuf,
        loaded: Result<Config, ConfigError>,
        read_config: ReadConfig,
        enter_account: EnterAccount,
        indoms: Indoms,
    ) -> Result<Self, NotAllowed> {
        let mut server = Self {
            collector: Collector::default(),
            ids: Ids::new(cache_path),
            journal: Journal::default(),
            phase: Phase::NoConfiguration,
            domain,
            indoms,
            refreshed: Instant::now(),
            control: Control {
                drain_interval: Config::default().drain_interval,
                ..Control::default()
            },
            users: HashMap::new(),
            read_config,
            enter_account,
            rights: None,
            comparisons: Comparisons::new(Instant::now()),
            state_checked: Instant::now(),
            work: Work::Nothing,
        };
        match loaded {
            Ok(config) => {
                server.begin(&config)?;
                server.note_configuration(&config, since_epoch());
            }
            Err(err) => server.note_rejection(err.to_string()),
        }
        Ok(server)
    }

    /// Becomes the user of the first valid configuration, and begins to work. Until then the process has no other
    /// thread: one that a system call blocks would block setuid(2).
    fn begin(&mut self, config: &Config) -> Result<(), NotAllowed> {
        let rights = Rights::of(config, getuid().as_raw(), privilege::permitted());
        let entered = (self.enter_account)(config)?;
        self.journal = entered.journal;
        self.rights = Some(rights);
        let timeline = std::mem::take(self.collector.timeline_mut());
        self.collector = Collector::new(config);
        *self.collector.timeline_mut() = timeline;
        self.collector.set_observer(entered.observer);
        self.phase = Phase::Start;
        Ok(())
    }

    /// Notes that a configuration is in force, for `nixl.control`.
    fn note_configuration(&mut self, config: &Config, when: Duration) {
        self.control.drain_interval = config.drain_interval;
        self.control.config_error.clear();
        self.control.config_loads += 1;
        self.control.config_times.read = when;
        let loads = self.control.config_loads;
        let text = match loads {
            1 => format!(
                "pmdanixl {} began with its configuration",
                env!("CARGO_PKG_VERSION")
            ),
            _ => "configuration loaded again".into(),
        };
        let timeline = self.collector.timeline_mut();
        timeline.record(Kind::Configuration, Subject::default(), loads.into(), text);
    }

    /// Notes why a configuration is rejected, for `nixl.control`.
    fn note_rejection(&mut self, why: String) {
        let (loads, text) = (
            self.control.config_loads,
            format!("configuration rejected: {why}"),
        );
        let timeline = self.collector.timeline_mut();
        timeline.record(
            Kind::ConfigurationRejected,
            Subject::default(),
            loads.into(),
            text,
        );
        self.control.config_error = why;
        self.control.config_times.rejected = since_epoch();
        self.collector.set_config_times(self.control.config_times);
    }

    /// True if this process drains. It does not before a valid configuration, and while another pmdanixl drains the
    /// rings of this host: then only `nixl.control` has values.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Scans for new rings and drains all rings, within the budget of an answer.
    pub fn refresh(&mut self) {
        self.collect(FETCH);
        if self.is_serving() {
            self.refreshed = Instant::now();
        }
    }

    /// Scans and drains for a request about instances or labels, at most once per `drain_interval`. Such a request
    /// reads no values, and clients ask about one instance domain after the other.
    pub fn refresh_instances(&mut self) {
        if !self.is_serving() || self.refreshed.elapsed() >= self.control.drain_interval {
            self.refresh();
        }
    }

    fn collect(&mut self, budget: TimeBudget) {
        let is_first = !self.is_serving();
        if !self.start_serving() {
            return;
        }
        self.collect_within(budget, is_first.then(Allowance::first_drain));
    }

    /// Scans and drains. `first`: the time for a first scan, which finds all files.
    fn collect_within(&mut self, budget: TimeBudget, first: Option<Allowance>) {
        while !self.scan(budget.scan) && first.is_some_and(|first| first.has_time()) {}
        let mut in_time = self.drain_all(budget, first.unwrap_or_else(Allowance::answer));
        if self.collector.wants_rescan() {
            // The drain found a ring that its agent has replaced by one of another size. Events of the new ring belong
            // in this answer.
            self.scan(budget.scan);
            in_time &= self.drain_all(budget, Allowance::answer());
        }
        self.control.drains += 1;
        self.control.drains_cut += u64::from(!in_time);
    }

    /// Drains all rings until `allowance` is over. Returns true if no event was left.
    fn drain_all(&mut self, budget: TimeBudget, allowance: Allowance) -> bool {
        loop {
            let in_time = self.drain(None, budget.drain);
            if in_time || !allowance.has_time() {
                return in_time;
            }
        }
    }

    /// Returns the time between two ticks.
    pub(super) fn drain_interval(&self) -> Duration {
        self.control.drain_interval
    }

    /// Drains once more and saves the instance ids. It drains before it scans, because the scan may take long.
    pub(super) fn finish(&mut self) {
        if !self.is_serving() {
            return;
        }
        self.drain(None, SHUTDOWN.drain);
        self.collect(SHUTDOWN);
        self.save(true);
    }

    fn save(&mut self, is_end: bool) {
        let (known, limit) = (
            self.collector.ids(Now::read()),
            self.collector.max_records(),
        );
        self.ids.save(known, limit, is_end);
    }

    /// Forgets a client context.
    pub fn end_client(&mut self, context: i32) {
        self.users.remove(&context);
        self.collector.timeline_mut().end_client(context);
    }

    /// Records the uid of a client context. `None` removes it.
    pub fn set_user(&mut self, context: i32, uid: Option<u32>) {
        match uid {
            Some(uid) => drop(self.users.insert(context, uid)),
            None => drop(self.users.remove(&context)),
        }
    }
}
