//! The agent while it runs: what it answers, and the loop.

use super::callbacks::StoreRefusal;
use super::ffi::{InstanceCache, Pmda, Status};
use crate::agents::{AgentKey, Agents, Change};
use crate::config::{Config, Loaded};
use crate::control::Control;
use crate::error::ConfigError;
use crate::metrics::{self, AGENTS, Source, Value};
use crate::privilege::NotAllowed;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Names that were not seen for a week lose their instance id at the next start.
pub const MAX_AGE: i64 = 7 * 24 * 60 * 60;
/// The cache file's times are brought up to date this often, so that a week is counted from when an agent was last seen.
const SAVE_INTERVAL: Duration = Duration::from_secs(3600);

/// Reads the configuration anew.
pub type Reader = Box<dyn Fn() -> Result<Loaded, ConfigError>>;
/// Becomes the user that the configuration names, for good.
pub type Drop = Box<dyn Fn(&Config) -> Result<(), NotAllowed>>;

/// Everything that an answer is made of.
pub struct Server {
    agents: Agents,
    cache: InstanceCache,
    indom: u32,
    ids: HashMap<u32, AgentKey>,
    control: Control,
    users: HashMap<i32, u32>,
    read_config: Reader,
    drop_privileges: Drop,
    user: Option<String>,
    unsaved: bool,
    saved: Instant,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("agents", &self.agents)
            .field("control", &self.control)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// The callbacks get no argument of ours, and there is one thread.
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Runs something on the server; `None` while there is none.
pub(super) fn with_server<T>(run: impl FnOnce(&mut Server) -> T) -> Option<T> {
    SERVER.with_borrow_mut(|server| server.as_mut().map(run))
}

impl Server {
    /// A server with the configuration that was read, or with none if it was bad: it then looks nowhere, since what it was
    /// told to keep away from is not known, and waits for a good one.
    ///
    /// # Errors
    /// The configured user cannot be had. The agent must not go on as another.
    pub fn new(
        domain: u32,
        loaded: Result<Config, ConfigError>,
        read_config: Reader,
        drop_privileges: Drop,
    ) -> Result<Self, NotAllowed> {
        let nowhere = Config {
            telemetry_dir: Vec::new(),
            ..Config::default()
        };
        let config = loaded.as_ref().unwrap_or(&nowhere);
        if loaded.is_ok() {
            drop_privileges(config)?;
        }
        Ok(Self {
            agents: Agents::new(config),
            cache: InstanceCache::load(domain, AGENTS, MAX_AGE),
            indom: super::indom(domain, AGENTS),
            ids: HashMap::new(),
            control: Control {
                drain_interval: config.drain_interval,
                loads: u32::from(loaded.is_ok()),
                config_error: loaded
                    .as_ref()
                    .err()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
                ..Control::default()
            },
            users: HashMap::new(),
            read_config,
            drop_privileges,
            user: config.user.as_ref().map(|user| user.name.clone()),
            unsaved: false,
            saved: Instant::now(),
        })
    }

    /// Finds new rings and counts all events that wait.
    pub fn refresh(&mut self) {
        let mut changes = Vec::new();
        let start = Instant::now();
        self.agents.scan(start, &mut changes);
        let scanned = Instant::now();
        self.agents.drain(scanned, &mut changes);
        self.control.scan_time += scanned - start;
        self.control.drain_time += scanned.elapsed();
        self.control.drains += 1;
        self.control.files_refused = self.agents.scanner().refusals();
        self.control.agents_unsupported = self.agents.scanner().unsupported();
        for change in changes {
            self.follow(&change);
        }
    }

    /// One tick of the timer: what [`Server::refresh`] does, and what need not be done for an answer.
    fn tick(&mut self) {
        self.refresh();
        if self.unsaved || self.saved.elapsed() >= SAVE_INTERVAL {
            self.save();
        }
    }

    fn save(&mut self) {
        if let Err(status) = self.cache.save() {
            tracing::warn!(
                "instance ids cannot be saved: {status}; agents get new ids after a restart"
            );
        }
        self.unsaved = false;
        self.saved = Instant::now();
    }

    /// Brings the instance domain after the agents.
    fn follow(&mut self, change: &Change) {
        let (Change::Appeared(key) | Change::Left(key)) = change;
        let Some(name) = self
            .agents
            .get(*key)
            .and_then(|agent| CString::new(agent.instance.as_str()).ok())
        else {
            return;
        };
        self.unsaved = true;
        match change {
            Change::Appeared(_) => match self.cache.add(&name) {
                Ok(id) => drop(self.ids.insert(id, *key)),
                Err(status) => tracing::error!("agent {name:?} cannot be an instance: {status}"),
            },
            Change::Left(_) => {
                self.ids.retain(|_, other| other != key);
                if let Err(status) = self.cache.hide(&name) {
                    tracing::error!("agent {name:?} cannot leave the instance domain: {status}");
                }
            }
        }
    }

    /// The value of a metric, for an instance where it has such.
    #[must_use]
    pub fn value(&self, cluster: u32, item: u32, inst: u32) -> Option<Value> {
        match metrics::find(cluster, item)?.source {
            Source::Event(event) => {
                let agent = self.agents.get(*self.ids.get(&inst)?)?;
                Some(Value::U64(agent.total(event)))
            }
            Source::Control(value) => Some(value(&self.control)),
        }
    }

    /// The labels of an instance, as JSON.
    #[must_use]
    pub fn labels(&self, indom: u32, inst: u32) -> Option<String> {
        if indom != self.indom {
            return None;
        }
        let agent = self.agents.get(*self.ids.get(&inst)?)?;
        // Bytes that are no UTF-8 become U+FFFD; the instance name has them as they are.
        let raw_name = agent.raw_name.to_string_lossy();
        Some(serde_json::json!({ "nixl_agent": raw_name }).to_string())
    }

    /// Notes the user of a client, or forgets it.
    pub fn set_user(&mut self, context: i32, uid: Option<u32>) {
        match uid {
            Some(uid) => drop(self.users.insert(context, uid)),
            None => drop(self.users.remove(&context)),
        }
    }

    /// Stores to a metric.
    ///
    /// # Errors
    /// The client may not, the metric cannot be stored to, or what it sets off failed.
    pub fn store(&mut self, context: i32, pmid: u32) -> Result<(), StoreRefusal> {
        if super::cluster_and_item(pmid) != metrics::RELOAD {
            return Err(StoreRefusal::ReadOnly);
        }
        // Only clients of the local socket have a uid.
        if self.users.get(&context) != Some(&0) {
            return Err(StoreRefusal::NotRoot);
        }
        self.reload()
    }

    fn reload(&mut self) -> Result<(), StoreRefusal> {
        let Loaded { config, warnings } =
            (self.read_config)().map_err(|err| self.not_taken(&err))?;
        warnings
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        let user = config.user.as_ref().map(|user| user.name.clone());
        if self.control.loads == 0 {
            (self.drop_privileges)(&config).map_err(|err| self.not_taken(&err))?;
            self.user = user;
        } else if user != self.user {
            tracing::warn!("user: a change takes effect when the agent is started again");
        }
        // The last that these directories have to say, in case they are no longer looked through.
        self.refresh();
        self.agents.configure(&config);
        self.control.drain_interval = config.drain_interval;
        self.control.config_error.clear();
        self.control.loads += 1;
        tracing::info!("configuration read again");
        Ok(())
    }

    fn not_taken(&mut self, err: &dyn std::error::Error) -> StoreRefusal {
        tracing::error!("{err}; the configuration stays as it was");
        self.control.config_error = err.to_string();
        StoreRefusal::BadConfiguration
    }
}

/// Answers pmcd and drains the rings, until pmcd closes the connection or `signals` brings SIGTERM or SIGINT. After a last
/// drain it returns.
///
/// # Errors
/// The system lacks what the loop is made of.
pub fn serve(mut pmda: Pmda, server: Server, mut signals: SignalFd) -> Result<(), ServeError> {
    let pmcd = pmda.descriptor()?;
    let timer = TimerFd::new(
        ClockId::CLOCK_MONOTONIC,
        TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
    )?;
    let mut interval = Duration::ZERO;
    SERVER.set(Some(server));
    loop {
        let wanted = with_server(|server| server.control.drain_interval).unwrap_or(interval);
        if wanted != interval {
            interval = wanted;
            timer.set(
                Expiration::Interval(TimeSpec::from_duration(interval)),
                TimerSetTimeFlags::empty(),
            )?;
        }
        let mut fds =
            [pmcd, timer.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            other => other?,
        };
        let [pmcd_ready, timer_ready, signal_ready] = fds.map(|fd| fd.any().unwrap_or(true));
        if signal_ready && ends(&mut signals)? {
            tracing::info!("asked to end");
            break;
        }
        if timer_ready {
            // Nothing to read is no harm: the timer was set anew meanwhile.
            match timer.wait() {
                Ok(()) | Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            with_server(Server::tick);
        }
        if pmcd_ready && pmda.serve_one().is_err() {
            tracing::info!("pmcd has closed the connection");
            break;
        }
    }
    // What came in until now is still counted, and ids that are new are kept.
    with_server(Server::refresh);
    with_server(|server| server.unsaved.then(|| server.save()));
    SERVER.set(None);
    Ok(())
}

/// Whether one of the signals that came in is one to end at. SIGHUP (pmcd's to its agents) and SIGIO (a lease was asked for)
/// are none.
fn ends(signals: &mut SignalFd) -> Result<bool, Errno> {
    let mut ends = false;
    while let Some(info) = signals.read_signal()? {
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        ends |= [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(&number);
    }
    Ok(ends)
}

/// Why the loop could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A system call.
    #[error("the loop cannot run: {0}")]
    System(#[from] Errno),
    /// libpcp_pmda.
    #[error("no connection to pmcd: {0}")]
    Pmda(#[from] Status),
}
