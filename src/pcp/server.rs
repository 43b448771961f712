//! What the PMDA answers.

use super::buckets::{self, BucketIndoms};
use super::instances::AgentInstances;
use super::work::{Allowance, Budget, END, FETCH, PIECE, REVEAL, TICK, Work};
use crate::agents::agent::{Agent, Now};
use crate::agents::{AgentKey, Agents, Change};
use crate::config::{Config, Loaded};
use crate::error::ConfigError;
use crate::ids::kept::{self, KeptIds};
use crate::log;
use crate::metrics::control::Control;
use crate::metrics::{AGENTS, TIMES_UP_TO};
use crate::rights::privilege::NotAllowed;
use crate::state::{self, State, StateFile};
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

mod answer;
mod store;
pub use store::{Store, StoreRefusal};

/// How often it is looked whether the state file is where it was.
const LOOK_AFTER_STATE: Duration = Duration::from_secs(10);

/// Reads the configuration anew.
pub type Reader = Box<dyn Fn() -> Result<Loaded, ConfigError>>;
/// Becomes the user that the configuration names, for good.
pub type EnterAccount = Box<dyn Fn(&Config) -> Result<(), NotAllowed>>;

/// Where the server keeps what outlives it.
#[derive(Debug)]
pub struct Places {
    /// The state file, opened before the user was changed, or why it could not be.
    pub state: Rc<io::Result<StateFile>>,
    /// Its name.
    pub state_path: PathBuf,
    /// The file of instance ids (pmdacache(3)).
    pub cache_path: PathBuf,
}

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
    places: Places,
    phase: Phase,
    /// Of metrics and instance domains.
    domain: u32,
    instances: AgentInstances,
    /// The instance domains of histograms.
    buckets: BucketIndoms,
    /// When the agents were looked at for the answer that is being given.
    now: Now,
    ids: KeptIds,
    control: Control,
    users: HashMap<i32, u32>,
    read_config: Reader,
    enter_account: EnterAccount,
    user: Option<String>,
    /// When it was last looked whether the state file is where it was.
    looked: Instant,
    /// Whether it was ever ours.
    had_state: bool,
    /// Whether it was said that there is none.
    no_state: bool,
    /// The configuration by which rights were given up.
    locked_in: Option<Config>,
    work: Work,
}

/// Whether this is the pmdanixl that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// That was not asked yet.
    Start,
    /// Another one has the lock on the state file.
    Waiting,
    /// It is.
    Serving,
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
        places: Places,
        loaded: Result<Config, ConfigError>,
        read_config: Reader,
        enter_account: EnterAccount,
        indoms: Indoms,
    ) -> Result<Self, NotAllowed> {
        let nowhere = Config {
            telemetry_dir: Vec::new(),
            ..Config::default()
        };
        let config = loaded.as_ref().unwrap_or(&nowhere);
        if loaded.is_ok() {
            enter_account(config)?;
        }
        Ok(Self {
            agents: Agents::new(config),
            ids: KeptIds::new(places.cache_path.clone()),
            places,
            phase: Phase::Start,
            domain,
            instances: indoms.agents,
            buckets: indoms.buckets,
            now: Now::read(),
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
            enter_account,
            user: config.user.as_ref().map(|user| user.name.clone()),
            locked_in: loaded.is_ok().then(|| config.clone()),
            looked: Instant::now(),
            had_state: false,
            no_state: false,
            work: Work::Nothing,
        })
    }

    /// Whether another pmdanixl drains the rings of this host: then there is nothing to say but `nixl.control`.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.phase != Phase::Serving
    }

    /// Becomes the one that drains, if no other is; then it goes on from where that one ended.
    fn begin(&mut self) -> bool {
        if self.phase == Phase::Serving {
            return true;
        }
        let shown = self.places.state_path.display();
        let taken = match self.places.state.as_ref() {
            Ok(file) => state::boot_id().and_then(|boot| State::take(file, boot)),
            Err(err) => Err(io::Error::new(err.kind(), err.to_string())),
        };
        let mut changes = Vec::new();
        match taken {
            Ok(None) => {
                if self.phase == Phase::Start {
                    tracing::warn!(
                        "another pmdanixl holds {shown}; this one waits until that has ended"
                    );
                }
                self.phase = Phase::Waiting;
                return false;
            }
            Ok(Some(found)) => {
                if let Some(why) = found.set_aside {
                    tracing::warn!("{shown}: {why}");
                }
                self.had_state = true;
                changes = self.agents.restore(found.state, found.records);
                if !changes.is_empty() {
                    tracing::info!(
                        "goes on with what {shown} says of {} instances",
                        changes.len()
                    );
                }
            }
            Err(err) => {
                self.no_state = true;
                tracing::warn!("{shown}: {err}; totals begin at zero after a restart of pmdanixl")
            }
        }
        if self.phase == Phase::Waiting {
            tracing::info!("the other pmdanixl has ended; this one drains the rings now");
        }
        self.phase = Phase::Serving;
        self.control.persistent = self.agents.is_persistent();
        let next = self.agents.next_id();
        self.ids.begin(&self.agents.ids(), next);
        self.agents.set_next_id(self.ids.next());
        self.follow(changes);
        true
    }

    /// Notices that the state file was removed or replaced, and makes another where there is none.
    fn look_after_state(&mut self, now: Instant) {
        if now.duration_since(self.looked) < LOOK_AFTER_STATE {
            return;
        }
        self.looked = now;
        let file = self.places.state.as_ref().as_ref();
        let is_in_place = file.is_ok_and(StateFile::is_in_place);
        match self.agents.state() {
            Some(state) if is_in_place && state.is_whole() => return,
            Some(_) if is_in_place => self.agents.lose_state("was truncated"),
            Some(_) => self.agents.lose_state("was removed or replaced"),
            None => {}
        }
        match self.another_state(is_in_place) {
            Ok(state) => {
                let path = self.places.state_path.display();
                tracing::info!("{path}: all that is known is kept there now");
                self.agents.move_to(state, now);
                self.agents.set_next_id(self.ids.next());
                (self.had_state, self.no_state) = (true, false);
            }
            Err(err) if !self.no_state => {
                let path = self.places.state_path.display();
                tracing::warn!("{path}: {err}; no other can be made, which is tried again");
                self.no_state = true;
            }
            Err(_) => {}
        }
        self.control.persistent = self.agents.is_persistent();
    }

    /// An empty state, of the same file if that is still in its place, or of one that is made there.
    fn another_state(&mut self, is_in_place: bool) -> io::Result<State> {
        let opened = match is_in_place {
            // Its lock is still held, and would keep a second opening away.
            true => Rc::clone(&self.places.state),
            false => Rc::new(StateFile::open(&self.places.state_path)),
        };
        let file = opened.as_ref().as_ref();
        let file = file.map_err(|err| io::Error::new(err.kind(), err.to_string()))?;
        // What is left of our own is known here, and better.
        if is_in_place && self.had_state {
            file.clear()?;
        }
        let found = State::take(file, state::boot_id()?)?
            .ok_or_else(|| io::Error::other("another pmdanixl holds it"))?;
        // What another has counted is not to be counted once more here.
        if !found.records.is_empty() {
            return Err(io::Error::other(
                "it is one that another pmdanixl has written; remove it, or run Install to go on with it",
            ));
        }
        self.places.state = Rc::clone(&opened);
        Ok(found.state)
    }

    /// Finds new rings and counts all events that wait.
    pub fn refresh(&mut self) {
        let until = Instant::now() + REVEAL;
        self.collect(FETCH);
        if !self.is_waiting() {
            let mut changes = Vec::new();
            let left = until.saturating_duration_since(Instant::now());
            self.agents.reveal(left, &mut changes);
            self.follow(changes);
            self.now = Now::read();
        }
    }

    fn collect(&mut self, budget: Budget) {
        let is_first = self.is_waiting();
        if !self.begin() {
            return;
        }
        let allowance = if is_first {
            Allowance::first()
        } else {
            Allowance::none()
        };
        while !self.scan(budget.scan) && allowance.lasts() {}
        while !self.drain(budget.drain, Agents::drain) && allowance.lasts() {}
        self.control.drains += 1;
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
        drain: impl FnOnce(&mut Agents, Instant, Duration, &mut Vec<Change>) -> bool,
    ) -> bool {
        let (mut changes, start) = (Vec::new(), Instant::now());
        let all = drain(&mut self.agents, start, budget, &mut changes);
        self.control.drain_time += start.elapsed();
        self.control.persistent = self.agents.is_persistent();
        self.follow(changes);
        all
    }

    /// Time between two ticks.
    pub(super) fn drain_interval(&self) -> Duration {
        self.control.drain_interval
    }

    /// A tick of the timer: what [`Server::refresh`] does, with more time, and what need not be done for an answer. What does
    /// not take long is done at once, and the rest by [`Server::go_on`].
    pub(super) fn tick(&mut self) {
        if self.is_waiting() {
            return self.collect(FETCH);
        }
        self.control.drains += 1;
        self.work = Work::Scan {
            end: Instant::now() + TICK.scan,
        };
        self.go_on();
    }

    /// Whether something is left to do of the last tick.
    pub(super) fn has_work(&self) -> bool {
        self.work != Work::Nothing
    }

    /// Does a piece of what is left.
    pub(super) fn go_on(&mut self) {
        let until = Instant::now() + PIECE;
        loop {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            // Nothing is left after a panic in the midst of it.
            self.work = match std::mem::replace(&mut self.work, Work::Nothing) {
                Work::Scan { end } if !self.scan(left) && now < end => Work::Scan { end },
                Work::Scan { end } => {
                    self.control.scans_cut += u64::from(now >= end);
                    Work::Drain { began: now }
                }
                Work::Drain { began } => {
                    let on = |agents: &mut Agents, now, budget, changes: &mut _| {
                        agents.drain_on(began, now, budget, changes)
                    };
                    match self.drain(left, on) {
                        false if now < began + TICK.drain => Work::Drain { began },
                        in_time => {
                            self.control.drains_cut += u64::from(!in_time);
                            Work::Tidy
                        }
                    }
                }
                Work::Tidy => {
                    self.agents.tidy(now, until);
                    self.look_after_state(now);
                    if self.ids.is_due() {
                        Work::Save
                    } else {
                        Work::Nothing
                    }
                }
                Work::Save => {
                    self.save();
                    Work::Nothing
                }
                Work::Nothing => Work::Nothing,
            };
            if !self.has_work() || Instant::now() >= until {
                break;
            }
        }
    }

    /// The end: what waits is counted before new rings are looked for, which may take long.
    pub(super) fn finish(&mut self) {
        if self.is_waiting() {
            return;
        }
        self.drain(END.drain, Agents::drain);
        self.collect(END);
        self.save_with(KeptIds::finish);
    }

    fn save(&mut self) {
        self.save_with(KeptIds::save);
    }

    fn save_with(&mut self, save: impl FnOnce(&mut KeptIds, kept::Agents)) {
        let agents = kept::Agents {
            known: &self.agents.ids(),
            seen: &self.instances.iter().map(|(id, _)| id).collect(),
            limit: self.agents.max_records(),
        };
        save(&mut self.ids, agents);
    }

    /// Brings the instance domains after the agents: first who leaves, all at once, since each look through the ranges of all
    /// agents takes long, and then who comes.
    fn follow(&mut self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.ids.changed();
        }
        let (mut left, mut come, mut turned) = (HashSet::new(), Vec::new(), Vec::new());
        let mut forgotten = Vec::new();
        for change in changes {
            match change {
                Change::Appeared(key) => come.push(key),
                Change::Ranges(key) => turned.push(key),
                Change::Left { key, id } => {
                    // It may have come and gone since the last time.
                    come.retain(|&other| other != key);
                    left.extend(id);
                }
                Change::Forgotten(name) => forgotten.push(name),
            }
        }
        let mut changed = HashMap::new();
        for key in turned {
            let agent = self.agents.get(key);
            let Some((agent, id)) = agent.and_then(|agent| Some((agent, agent.id()?))) else {
                continue;
            };
            if left.contains(&id) || come.contains(&key) {
                // It has them when it comes.
            } else if agent.slots().fits(agent.ranges()) {
                changed.insert(id, key);
            } else {
                // It comes again, with another id.
                left.insert(id);
                come.push(key);
            }
        }
        self.instances.remove(&left);
        self.buckets.remove(&left);
        let turned = changed.keys().copied().collect();
        self.buckets.remove_latencies(&turned);
        // Its counters begin at zero under another id: they never go back under one.
        forgotten.iter().for_each(|name| self.ids.forget(name));
        come.into_iter().for_each(|key| self.come(key));
        for (id, key) in changed {
            self.agents.set_id(key, id);
            if let Some(agent) = self.agents.get(key) {
                self.buckets.add(id, agent);
            }
        }
    }

    /// An agent is an instance from now on.
    fn come(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get(key) else {
            return;
        };
        let _about = log::about(agent.name.owner);
        let name = agent.name.instance.as_str();
        let mut had = agent.id();
        if !agent.slots().fits(agent.ranges()) {
            // It had so many ranges that some would get the ids of others.
            self.ids.forget(name);
            had = None;
        }
        let Some(id) = had.or_else(|| self.ids.give(name)) else {
            return tracing::error!("agent {name} cannot be an instance: no instance id is left");
        };
        if !self.instances.add(id, name, key) {
            return tracing::error!("agent {name} cannot be an instance: another has its id, {id}");
        }
        // Before anybody is told of it.
        self.agents.set_next_id(self.ids.next());
        self.agents.set_id(key, id);
        if let Some(agent) = self.agents.get(key) {
            self.buckets.add(id, agent);
        }
    }

    /// The agent that is this instance.
    fn agent(&self, inst: u32) -> Option<&Agent> {
        self.agents.get(self.instances.get(inst)?)
    }

    /// The labels of an instance, as JSON.
    #[must_use]
    pub fn labels(&self, indom: u32, inst: u32) -> Option<String> {
        let serial = super::serial(indom);
        if serial == AGENTS {
            return Some(self.agent(inst)?.label_text().to_string());
        }
        let agent = self.agent(buckets::agent(inst))?;
        let (ranges, slots) = self.buckets.ranges(serial, agent);
        let (lower, upper) = ranges.label(buckets::bucket(serial, slots, inst)?);
        let labels = agent.label_text();
        // An object that is not empty. Bounds are numbers, of which JSON takes all characters.
        let labels = labels.strip_suffix('}')?;
        Some(match serial {
            TIMES_UP_TO => format!("{labels},\"le\":\"{upper}\"}}"),
            _ => format!("{labels},\"lower_bound\":\"{lower}\",\"upper_bound\":\"{upper}\"}}"),
        })
    }

    /// Notes the user of a client, or forgets it.
    pub fn set_user(&mut self, context: i32, uid: Option<u32>) {
        match uid {
            Some(uid) => drop(self.users.insert(context, uid)),
            None => drop(self.users.remove(&context)),
        }
    }
}
