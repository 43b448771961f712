//! The NIXL agents of this host.
//!
//! `look` and `stores` find their files, `place` says whose they are, and `order` which comes first;
//! `drain` counts their events, and `quiet` says whom it passes over; `keep` keeps what is known of them in the state file,
//! `surveys` finds out who they are, `exited` removes what they have left, `limits` evicts where there are too many, `forget` ends
//! records after `remember`, and `counts` says how many they are. `reload` takes another configuration.

use crate::agents::agent::Agent;
use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::config::Config;
use crate::event::{EventType, Events, Totals};
use crate::find::scan::{Found, Scanner};
use crate::ids::cache_file::Line;
use crate::producer::holdups::Holdups;
use crate::producer::presence::check_every;
use crate::producer::writer::Writer;
use crate::state::journal::Journal;
use crate::state::ledger::Books;
use crate::state::record::Saved;
use crate::state::{RecordId, State};
use descriptors::Descriptors;
use forget::Forgetting;
use limits::Places;
use newcomers::Newcomers;
use place::Place;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use table::Table;
use turns::Turns;

pub mod agent;
pub mod counts;
mod descriptors;
mod drain;
mod exited;
mod forget;
mod keep;
mod limits;
mod look;
mod newcomers;
mod order;
pub mod peers;
mod place;
mod quiet;
mod reload;
pub mod removal;
mod stores;
mod surveys;
mod table;
mod turns;
pub use table::AgentKey;

/// How often room in the state file is tried for again after there was none.
const RETRY: Duration = Duration::from_secs(10);

/// How long the first look at everything may take.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// The instance domain changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An agent is an instance from now on.
    Appeared(AgentKey),
    /// An agent is no instance any more; it may be forgotten.
    Left {
        /// The agent.
        key: AgentKey,
        /// Its instance id, if it had one.
        id: Option<u32>,
    },
    /// The agent of this instance name is not remembered any more: one that comes under it is another.
    Forgotten(String),
}

/// All agents.
#[derive(Debug)]
pub struct Agents {
    scanner: Scanner,
    /// What was found and not looked at yet.
    found: VecDeque<Found>,
    /// What is new and may be an agent's that was known before, found before the first look at everything has come to its end,
    /// and until when it is waited for that; `None`: it has.
    early: Option<(Vec<Found>, Instant)>,
    books: Books,
    max_agents: usize,
    /// `max_agents`, or as many as there are descriptors for.
    max_rings: usize,
    remove_exited_after: Option<Duration>,
    next_removal: Instant,
    proc_facts: bool,
    pod_logs: PathBuf,
    surveying: Option<surveys::Surveying>,
    /// Who has held up surveys.
    holdups: Holdups,
    /// Whether a survey could tell more of somebody, as of the last drain.
    asks: bool,
    /// Whether anybody may wait for what a survey shows; `false`: nobody does.
    may_wait: bool,
    /// When the last survey ended, and how long it took.
    surveyed: Option<(Instant, Duration)>,
    /// Who uses NIXL without telemetry; `None`: that is not known.
    silent: Option<Vec<Writer>>,
    /// Surveys that were finished, and the time that all of them took.
    surveys: u64,
    survey_time: Duration,
    turns: Turns,
    agents: Table,
    by_place: HashMap<Place, AgentKey>,
    by_name: HashMap<OsString, Vec<AgentKey>>,
    places: Places,
    newcomers: Newcomers,
    /// What was evicted or forgotten since the last drain.
    gone: Vec<Change>,
    /// How often there was no place for what was found.
    refused_places: u64,
    /// Users for whose files there was no place, with or without news, in this look through what was found.
    turned_away: HashSet<(u32, bool)>,
    instances: HashSet<String>,
    attached: HashSet<FileId>,
    /// Whether the last drain has found files that are to be looked at anew.
    again: bool,
    /// When room for agents that have no record is looked for again; `None`: there was room for all.
    retry: Option<Instant>,
    /// Agents whose names are too long for a record.
    unkept: usize,
    forgetting: Forgetting,
    /// A moment on all clocks.
    clock: Now,
}

impl Agents {
    /// No agents yet, and no state: they are forgotten at the end.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let clock = Now::read();
        let now = clock.instant;
        let room = Descriptors::of(config);
        Self {
            scanner: Scanner::new(room.limit(config.places()), config.terms()),
            found: VecDeque::new(),
            early: Some((Vec::new(), now + FIRST_LOOK)),
            books: Books {
                journal: Journal::default(),
                host: Totals::default(),
                forgotten_full: 0,
                bounds: config.bounds.clone(),
                lifetimes: config.lifetimes(),
                check_every: check_every(0),
                room: Events::default(),
                early: true,
                for_answer: false,
                counted: 0,
                doubtful: 0,
            },
            max_agents: config.max_agents,
            max_rings: room.rings,
            remove_exited_after: config.remove_exited_after,
            next_removal: now,
            proc_facts: config.proc_facts,
            pod_logs: config.pod_logs.clone(),
            surveying: None,
            holdups: Holdups::default(),
            asks: false,
            may_wait: false,
            surveyed: None,
            silent: None,
            surveys: 0,
            survey_time: Duration::ZERO,
            turns: Turns::default(),
            agents: Table::default(),
            by_place: HashMap::new(),
            by_name: HashMap::new(),
            places: Places::default(),
            newcomers: Newcomers::default(),
            gone: Vec::new(),
            refused_places: 0,
            turned_away: HashSet::new(),
            instances: HashSet::new(),
            attached: HashSet::new(),
            again: false,
            retry: None,
            unkept: 0,
            forgetting: Forgetting::new(config),
            clock,
        }
    }

    /// Whether the last drain has found that rings are not what they were: another look finds what they are now.
    #[must_use]
    pub fn is_to_look_again(&self) -> bool {
        self.again
    }

    /// Goes on from a state: its agents are known again, and those that were instances are.
    pub fn restore(&mut self, state: State, mut records: Vec<(RecordId, Saved)>) -> Vec<Change> {
        let retired = state.retired().unwrap_or_default();
        (self.books.host, self.books.forgotten_full) = (retired.totals, retired.full);
        self.books.journal.open(state);
        let (mut changes, mut ids) = (Vec::new(), HashSet::new());
        let now = Instant::now();
        // An id that was given away after its agent was long gone belongs to the one that was seen last.
        records.sort_by_key(|(_, saved)| Reverse((saved.entry.active, saved.entry.last_seen)));
        for (record, mut saved) in records {
            saved.id = saved.id.filter(|&id| ids.insert(id));
            let place = Place::of(&saved.name);
            self.books.host.add(&saved.entry.account.totals);
            if self.by_place.contains_key(&place) || self.instances.contains(&saved.name.instance) {
                self.retire(Some(record), &saved.entry);
                continue;
            }
            let mut agent = Agent::new(saved.name, saved.entry, now);
            if !agent.has_stores() {
                agent.entry.account.set_bounds(&self.books.bounds);
            }
            (agent.record, agent.id, agent.facts) = (Some(record), saved.id, saved.facts);
            // It was an instance, and is one at once.
            let appeared = agent.turn(now);
            let key = self.insert(agent);
            if appeared == Some(true) {
                changes.push(Change::Appeared(key));
            }
        }
        changes
    }

    /// Whether what is counted now will be known after a restart of the daemon.
    #[must_use]
    pub fn is_persistent(&self) -> bool {
        self.state().is_some() && self.retry.is_none() && self.unkept == 0
    }

    /// The instance ids that agents have, with their names and when they were last seen, at `now`.
    #[must_use]
    pub fn ids(&self, now: Now) -> Vec<Line> {
        let line = |agent: &Agent| {
            let unseen = match agent.shown {
                true => 0,
                false => now.since(agent.entry.last_seen).as_secs(),
            };
            Some(Line {
                id: agent.id?,
                seen: now.seconds.saturating_sub(unseen),
                name: agent.name.instance.clone(),
            })
        };
        self.agents.values().filter_map(line).collect()
    }

    /// All numbers that agents have: instance ids, and bases of the ids of histograms.
    #[must_use]
    pub fn taken_ids(&self) -> HashSet<u32> {
        let both = |agent: &Agent| [agent.id, agent.bucket_base()];
        self.agents.values().flat_map(both).flatten().collect()
    }

    /// How many agents are remembered at most, once their rings are gone.
    #[must_use]
    pub fn max_records(&self) -> usize {
        self.max_agents + forget::REMEMBERED.min(3 * self.max_agents)
    }

    /// More than any instance id that was given before, as far as the state and its records say.
    #[must_use]
    pub fn next_id(&self) -> u32 {
        let state = self.state();
        let next = state.map_or(0, |state| state.next_id().unwrap_or(0));
        let ids = self.taken_ids().into_iter();
        ids.fold(next, |next, id| next.max(id + 1))
    }

    /// Notes what is more than any that was given.
    pub fn set_next_id(&mut self, next: u32) {
        self.books.journal.set_next_id(next);
    }

    /// Notes in the state file when the configuration was last read, in time since the epoch.
    pub fn set_config_read(&mut self, when: Duration) {
        self.books.journal.set_config_read(when);
    }

    /// Notes the instance id that an agent has, and the base of the ids of its histograms of times: before anybody sees them.
    pub fn set_id(&mut self, key: AgentKey, id: u32, bucket_base: Option<u32>) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.id = Some(id);
        let is_new = agent.entry.account.bucket_base != bucket_base;
        agent.entry.account.bucket_base = bucket_base;
        self.books.journal.set_id(agent.record, id);
        if is_new {
            self.books.journal.commit(agent.record, &agent.entry);
        }
    }

    /// Sum of all values of one event type over all agents that ever were.
    #[must_use]
    pub fn host_total(&self, event: EventType) -> u64 {
        self.books.host.get(event)
    }

    /// The scanner's counts.
    #[must_use]
    pub fn scanner(&self) -> &Scanner {
        &self.scanner
    }

    /// All that are known, instances or not.
    pub fn iter(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// An agent that is there, instance or not.
    #[must_use]
    pub fn get(&self, key: AgentKey) -> Option<&Agent> {
        self.agents.get(key)
    }

    /// Has the next drain look at all of an agent, and the next survey ask about it: it has a file that it had not.
    fn wake(&mut self, key: AgentKey) {
        self.agents.wake(key);
        if let Some(agent) = self.agents.get_mut(key) {
            agent.bare_since = None;
        }
        (self.asks, self.may_wait) = (true, true);
        self.recount(key);
    }

    fn insert(&mut self, agent: Agent) -> AgentKey {
        let (place, raw) = (Place::of(&agent.name), agent.name.raw.clone());
        self.instances.insert(agent.name.instance.clone());
        let key = self.agents.insert(agent);
        self.by_place.insert(place, key);
        self.by_name.entry(raw).or_default().push(key);
        (self.asks, self.may_wait) = (true, true);
        self.recount(key);
        key
    }
}
