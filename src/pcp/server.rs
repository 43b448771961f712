//! What the PMDA answers, and what it does meanwhile: `ticks` is its work, `answer`, `domain` and `store` are what clients ask for, and
//! `state_file` begins and follows the state file, and `reload` reads the configuration again.

use super::buckets::BucketIndoms;
use super::instances::AgentInstances;
use super::work::{Allowance, FETCH, NEW_AGENT_WAIT, SHUTDOWN, TimeBudget, Work};
use crate::agents::Agents;
use crate::base::clock::Now;
use crate::config::{Config, Loaded};
use crate::error::ConfigError;
use crate::ids::Ids;
use crate::metrics::control::Control;
use crate::rights::privilege::NotAllowed;
use crate::state::Journal;
use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

mod answer;
mod domain;
mod pmstore;
mod reload;
mod state_file;
mod ticks;
pub use pmstore::{PmStoreError, PmStoreRequest};
use state_file::Phase;

/// Reads the configuration anew.
pub type ReadConfig = Box<dyn Fn() -> Result<Loaded, ConfigError>>;
/// Becomes the user that the configuration names, for good.
pub type EnterAccount = Box<dyn Fn(&Config) -> Result<(), NotAllowed>>;

/// The instance domains, with nothing in them yet.
#[derive(Debug)]
pub struct Indoms {
    /// Of agents.
    pub agents: AgentInstances,
    /// Of histograms.
    pub buckets: BucketIndoms,
}

/// Everything that an answer is made of.
pub struct Server {
    agents: Agents,
    /// The state file, until it is locked; then the agents have it.
    journal: Journal,
    phase: Phase,
    /// Of metrics and instance domains.
    domain: u32,
    indoms: Indoms,
    /// When the agents were looked at for the answer that is being given.
    now: Now,
    ids: Ids,
    control: Control,
    users: HashMap<i32, u32>,
    read_config: ReadConfig,
    enter_account: EnterAccount,
    /// When it was last checked whether the state file is where it was.
    state_checked: Instant,
    /// The configuration by which the user was changed and rights were given up. `None`: none was good yet.
    entered_config: Option<Config>,
    work: Work,
}

/// The time since the epoch.
fn since_epoch() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("agents", &self.agents)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// A server with the configuration that was read, or with none if it was bad: it then looks nowhere, since what it was
    /// told to keep away from is not known, and waits for a good one.
    ///
    /// # Errors
    /// The configured user cannot be had. The agent must not go on as another.
    pub fn new(
        domain: u32,
        journal: Journal,
        cache_path: PathBuf,
        loaded: Result<Config, ConfigError>,
        read_config: ReadConfig,
        enter_account: EnterAccount,
        indoms: Indoms,
    ) -> Result<Self, NotAllowed> {
        let no_directories = Config {
            telemetry_dir: Vec::new(),
            ..Config::default()
        };
        let config = loaded.as_ref().unwrap_or(&no_directories);
        if loaded.is_ok() {
            enter_account(config)?;
        }
        Ok(Self {
            agents: Agents::new(config),
            ids: Ids::new(cache_path),
            journal,
            phase: Phase::Start,
            domain,
            indoms,
            now: Now::read(),
            control: Control {
                drain_interval: config.drain_interval,
                config_loads: u32::from(loaded.is_ok()),
                config_read: loaded.is_ok().then(since_epoch),
                config_error: loaded
                    .as_ref()
                    .err()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                ..Control::default()
            },
            users: HashMap::new(),
            read_config,
            enter_account,
            entered_config: loaded.is_ok().then(|| config.clone()),
            state_checked: Instant::now(),
            work: Work::Nothing,
        })
    }

    /// Whether another pmdanixl drains the rings of this host: then there is nothing to say but `nixl.control`.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.phase != Phase::Serving
    }

    /// Finds new rings and counts all events that wait.
    pub fn refresh(&mut self) {
        let until = Instant::now() + NEW_AGENT_WAIT;
        self.collect(FETCH);
        if !self.is_waiting() {
            let left = until.saturating_duration_since(Instant::now());
            self.agents.reveal(left);
            self.update_indoms();
            self.now = Now::read();
        }
    }

    /// Finds new rings for a request about instances or labels. No value is asked for, so once in a timer period is enough: a
    /// client asks about one instance domain after the other.
    pub fn refresh_instances(&mut self) {
        if self.is_waiting() || self.now.instant.elapsed() >= self.control.drain_interval {
            self.refresh();
        }
    }

    fn collect(&mut self, budget: TimeBudget) {
        let is_first = self.is_waiting();
        if !self.start_serving() {
            return;
        }
        let first = is_first.then(Allowance::first_drain);
        while !self.scan(budget.scan) && first.is_some_and(|first| first.has_time()) {}
        let mut in_time = self.drain_all(budget, first.unwrap_or_else(Allowance::answer));
        if self.agents.is_to_look_again() {
            // An agent that was started anew with a ring of another size: what it has written since is in this answer.
            self.scan(budget.scan);
            in_time &= self.drain_all(budget, Allowance::answer());
        }
        self.control.drains += 1;
        self.control.drains_cut += u64::from(!in_time);
    }

    /// Counts what waits; whether that was all.
    fn drain_all(&mut self, budget: TimeBudget, allowance: Allowance) -> bool {
        loop {
            let in_time = self.drain(budget.drain, Agents::drain);
            if in_time || !allowance.has_time() {
                return in_time;
            }
        }
    }

    /// Whether all was looked at that was due.
    fn scan(&mut self, budget: Duration) -> bool {
        let start = Instant::now();
        let all = self.agents.scan(start, budget);
        self.control.scan_time += start.elapsed();
        self.control.files_refused = self.agents.scanner().refusals();
        all
    }

    /// Drains in one of the ways that [`Agents`] has; whether all events that waited are counted.
    fn drain(
        &mut self,
        budget: Duration,
        drain: impl FnOnce(&mut Agents, Instant, Duration) -> bool,
    ) -> bool {
        let start = Instant::now();
        let all = drain(&mut self.agents, start, budget);
        self.control.drain_time += start.elapsed();
        self.control.is_persistent = self.agents.is_persistent();
        self.update_indoms();
        all
    }

    /// Time between two ticks.
    pub(super) fn drain_interval(&self) -> Duration {
        self.control.drain_interval
    }

    /// The end: what waits is counted before new rings are looked for, which may take long.
    pub(super) fn finish(&mut self) {
        if self.is_waiting() {
            return;
        }
        self.drain(SHUTDOWN.drain, Agents::drain);
        self.collect(SHUTDOWN);
        self.save(true);
    }

    fn save(&mut self, is_end: bool) {
        let (known, limit) = (self.agents.ids(Now::read()), self.agents.max_records());
        self.ids.save(known, limit, is_end);
    }

    /// Notes the user of a client, or forgets it.
    pub fn set_user(&mut self, context: i32, uid: Option<u32>) {
        match uid {
            Some(uid) => drop(self.users.insert(context, uid)),
            None => drop(self.users.remove(&context)),
        }
    }
}
