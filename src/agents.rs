//! The NIXL agents of this host: their rings, their totals, and when each is an instance.

use crate::config::Config;
use crate::directory::{self, Directory};
use crate::discover::FileId;
use crate::error::Refusal;
use crate::event::{EventType, Totals};
use crate::name;
use crate::scan::{Found, Scanner};
use crate::source::{Drained, Source};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Records of agents that left are kept for their return, up to this many times `max_agents`.
const RECORDS_PER_AGENT: usize = 4;

/// A NIXL agent: what writes, or wrote, rings of one name in one directory.
#[derive(Debug)]
pub struct Agent {
    /// The raw name, which is the file's.
    pub raw_name: OsString,
    /// What it is called in the instance domain.
    pub instance: String,
    directory: Directory,
    totals: Totals,
    /// More than one while a ring that was replaced or unlinked is still written to.
    sources: Vec<Source>,
    active: bool,
    /// Since when no writer was seen and nothing came.
    silent_since: Option<Instant>,
    last_seen: Instant,
}

impl Agent {
    /// Sum of all values of one event type since the agent was first seen.
    #[must_use]
    pub fn total(&self, event: EventType) -> u64 {
        self.totals.get(event)
    }

    fn path(&self) -> PathBuf {
        self.directory.path.join(&self.raw_name)
    }
}

/// Names an agent's record for as long as it exists; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentKey(u64);

/// The instance domain changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An agent is an instance from now on.
    Appeared(AgentKey),
    /// An agent is no instance any more.
    Left(AgentKey),
}

/// All agents.
#[derive(Debug)]
pub struct Agents {
    scanner: Scanner,
    retain: Duration,
    max_agents: usize,
    agents: BTreeMap<AgentKey, Agent>,
    by_place: HashMap<(PathBuf, OsString), AgentKey>,
    instances: HashMap<String, AgentKey>,
    attached: HashSet<FileId>,
    next_key: u64,
}

impl Agents {
    /// No agents yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            scanner: Scanner::new(config.telemetry_dir.clone(), config.owners.clone()),
            retain: config.retain,
            max_agents: config.max_agents,
            agents: BTreeMap::new(),
            by_place: HashMap::new(),
            instances: HashMap::new(),
            attached: HashSet::new(),
            next_key: 0,
        }
    }

    /// Takes another configuration. Rings in directories that it no longer names are let go, after a last drain.
    pub fn configure(&mut self, config: &Config) {
        self.retain = config.retain;
        self.max_agents = config.max_agents;
        self.scanner
            .configure(config.telemetry_dir.clone(), config.owners.clone());
        let directories: HashSet<PathBuf> = directory::expand(&config.telemetry_dir)
            .into_iter()
            .map(|directory| directory.path)
            .collect();
        for agent in self.agents.values_mut() {
            let allowed = directories.contains(&agent.directory.path);
            agent.sources.retain(|source| {
                let keep = allowed
                    && config
                        .owners
                        .as_ref()
                        .is_none_or(|owners| owners.contains(&source.uid()));
                if !keep {
                    self.attached.remove(&source.id());
                }
                keep
            });
        }
    }

    /// The scanner's counts.
    #[must_use]
    pub fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// An agent that is there, instance or not.
    #[must_use]
    pub fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(&key)
    }

    /// Looks for rings that came or went.
    pub fn scan(&mut self, now: Instant, changes: &mut Vec<Change>) {
        for found in self.scanner.scan(now, &self.attached) {
            // One inode met by two paths is one ring.
            if !self.attached.contains(&found.candidate.facts.id) {
                self.attach(found, now, changes);
            }
        }
    }

    /// Counts all events that wait in the rings, and lets agents that have exited go when it is time.
    pub fn drain(&mut self, now: Instant, changes: &mut Vec<Change>) {
        let mut hurry = false;
        for (&key, agent) in &mut self.agents {
            let mut alive = false;
            agent.sources.retain_mut(|source| {
                match source.drain(now, &mut agent.totals) {
                    Drained::Live => alive = true,
                    Drained::Silent => {}
                    Drained::Gone => return !self.attached.remove(&source.id()),
                    Drained::Broken(fault) => {
                        tracing::info!(
                            "agent {}: its ring {fault}; it is looked at anew",
                            agent.instance
                        );
                        hurry = true;
                        return !self.attached.remove(&source.id());
                    }
                }
                true
            });
            if alive {
                agent.last_seen = now;
                agent.silent_since = None;
                if !agent.active {
                    agent.active = true;
                    changes.push(Change::Appeared(key));
                }
            } else if agent.active {
                let since = *agent.silent_since.get_or_insert_with(|| {
                    tracing::info!(
                        "agent {}: nobody writes to its ring any more",
                        agent.instance
                    );
                    now
                });
                if now.duration_since(since) >= self.retain {
                    tracing::info!("agent {}: is no instance any more", agent.instance);
                    agent.active = false;
                    changes.push(Change::Left(key));
                }
            }
        }
        if hurry {
            self.scanner.hurry();
        }
        self.forget();
    }

    fn attach(&mut self, found: Found, now: Instant, changes: &mut Vec<Change>) {
        if self.attached.len() >= self.max_agents && !self.make_room() {
            let refusal = Refusal::TooMany {
                max_agents: self.max_agents,
            };
            self.scanner.set_aside(
                &found.directory,
                &found.name,
                &found.candidate.facts,
                refusal,
            );
            return;
        }
        let (header, layout) = (found.candidate.header, found.candidate.layout);
        let source = match Source::attach(found.candidate, now) {
            Ok(source) => source,
            Err((facts, refusal)) => {
                self.scanner
                    .set_aside(&found.directory, &found.name, &facts, refusal);
                return;
            }
        };
        let key = self.record(&found.directory, found.name, now);
        let Some(agent) = self.agents.get_mut(&key) else {
            return;
        };
        let (capacity, pending) = (header.capacity, header.pending());
        let (version, path) = (layout.name(), agent.path());
        tracing::info!(
            "agent {}: ring {version}, {capacity} events, {pending} pending, {path:?}",
            agent.instance
        );
        self.attached.insert(source.id());
        // A ring that is empty and that nobody writes to has nothing to say; it is watched for its agent's return.
        if !agent.active && (pending > 0 || !source.is_abandoned()) {
            agent.active = true;
            changes.push(Change::Appeared(key));
        }
        agent.silent_since = None;
        agent.sources.push(source);
    }

    /// The record of the agent of that name in that directory, made if there is none.
    fn record(&mut self, directory: &Directory, name: OsString, now: Instant) -> AgentKey {
        let place = (directory.path.clone(), name);
        if let Some(&key) = self.by_place.get(&place) {
            return key;
        }
        let key = AgentKey(self.next_key);
        self.next_key += 1;
        let instance = self.free_name(directory, place.1.as_bytes());
        self.instances.insert(instance.clone(), key);
        let agent = Agent {
            raw_name: place.1.clone(),
            instance,
            directory: directory.clone(),
            totals: Totals::default(),
            sources: Vec::new(),
            active: false,
            silent_since: None,
            last_seen: now,
        };
        self.agents.insert(key, agent);
        self.by_place.insert(place, key);
        key
    }

    /// An instance name that no other agent has: the agent's own; with the directory's label or a hash of its path; and at
    /// last with a hash of both.
    fn free_name(&self, directory: &Directory, raw_name: &[u8]) -> String {
        let path = directory.path.as_os_str().as_bytes();
        let plain = name::instance_name(raw_name);
        let short = format!("{:08x}", name::hash(path) >> 32);
        let label = directory.label.as_ref().unwrap_or(&short);
        let whole = [path, b"/", raw_name].concat();
        let mut names = vec![
            plain.clone(),
            format!("{plain}@{label}"),
            format!("{plain}@{short}"),
        ];
        // Names are a stranger's choice, so even these may be taken.
        names.extend(
            (0..=self.instances.len()).map(|n| format!("{plain}@{:016x}.{n}", name::hash(&whole))),
        );
        let free = names
            .into_iter()
            .find(|name| !self.instances.contains_key(name));
        free.expect("more names than there are instances")
    }

    /// Lets the ring go that has been silent for longest, if its agent has left.
    fn make_room(&mut self) -> bool {
        let oldest = self
            .agents
            .iter_mut()
            .filter(|(_, agent)| !agent.active && !agent.sources.is_empty())
            .min_by_key(|(_, agent)| agent.last_seen);
        let Some((_, agent)) = oldest else {
            return false;
        };
        for source in agent.sources.drain(..) {
            self.attached.remove(&source.id());
            if let Some(facts) = source.detach() {
                self.scanner
                    .set_aside(&agent.directory, &agent.raw_name, &facts, Refusal::Exited);
            }
        }
        true
    }

    /// Drops the oldest records of agents that left and whose rings are gone.
    fn forget(&mut self) {
        let limit = RECORDS_PER_AGENT * self.max_agents;
        while self.agents.len() > limit {
            let gone = self
                .agents
                .iter()
                .filter(|(_, agent)| !agent.active && agent.sources.is_empty());
            let Some(key) = gone
                .min_by_key(|(_, agent)| agent.last_seen)
                .map(|(&key, _)| key)
            else {
                return;
            };
            if let Some(agent) = self.agents.remove(&key) {
                self.instances.remove(&agent.instance);
                self.by_place
                    .remove(&(agent.directory.path, agent.raw_name));
            }
        }
    }
}
