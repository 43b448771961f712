//! Process scans: who writes the rings and the stores, as far as /proc shows it.

use super::Agents;
use crate::agents::agent::Agent;
use crate::base::file::FileId;
use crate::config::Config;
use crate::producer::facts::Facts;
use crate::producer::holdups::{Holdups, Look, Progress};
use crate::producer::survey::{self, Mappers};
use crate::producer::writer::Writer;
use crate::source::Source;
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Between two process scans there is so much more time than one takes, within these bounds: on a host of many processes it takes
/// long.
const REST: u32 = 20;
/// The same while an agent waits to be an instance, which it does not do for long, or has the labels of the process before: they
/// are to be right from the first moment on.
const URGENT_REST: u32 = 3;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// Who uses NIXL without telemetry is looked for this often, and less often where that would take a noticeable share of the time.
const CENSUS: Duration = Duration::from_secs(60);
const CENSUS_REST: u32 = 200;

/// When processes are scanned, and what the last scan has shown of all of them.
#[derive(Debug, Default)]
pub(super) struct ProcessScans {
    /// Whether /proc is read at all (`proc_facts`).
    pub enabled: bool,
    /// Where pods have their logs (`pod_logs`).
    pub pod_logs: PathBuf,
    running: Option<Running>,
    /// Which processes have stalled a scan.
    holdups: Holdups,
    /// Whether a scan could tell more of some file, as of the last drain.
    pub asks: bool,
    /// Whether an agent may wait for what a scan shows; `false`: none does.
    pub may_wait: bool,
    /// When the last scan ended, and how long it took. `None`: there was none, or the next is to begin at once.
    last: Option<(Instant, Duration)>,
    /// The processes that use NIXL without telemetry; `None`: that is not known.
    silent: Option<Vec<Writer>>,
    /// Scans that have ended.
    pub count: u64,
    /// The time that all of them took.
    pub time: Duration,
}

/// A process scan that goes on.
#[derive(Debug)]
struct Running {
    look: Look<Mappers>,
    asked: Asked,
}

/// What a process scan is for.
#[derive(Debug)]
struct Asked {
    /// The files that it is for: those that are attached later were not there when the first processes were looked at.
    files: HashSet<FileId>,
    /// Of which files it shows who has them mapped.
    inodes: HashSet<u64>,
}

/// What became of a process scan.
enum Ended {
    /// It has shown something.
    Shown(Box<(Asked, Mappers)>),
    /// It has shown nothing of its files.
    Failed(HashSet<FileId>),
}

impl ProcessScans {
    pub fn new(config: &Config) -> Self {
        Self {
            enabled: config.proc_facts,
            pod_logs: config.pod_logs.clone(),
            ..Self::default()
        }
    }

    /// What became of the scan that runs; `None`: there is none, or it goes on. It is waited for until then, or else, if a process
    /// stalls it, abandoned.
    fn end(&mut self, now: Instant, until: Option<Instant>) -> Option<Ended> {
        let scan = self.running.take()?;
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let wait = until.map_or(Duration::ZERO, left);
        match self.holdups.poll(scan.look, wait, now) {
            Progress::Ended(Some(mappers)) => {
                self.count += 1;
                self.time += mappers.took;
                self.last = Some((now, mappers.took));
                return Some(Ended::Shown(Box::new((scan.asked, mappers))));
            }
            Progress::Ended(None) => self.last = Some((now, LONGEST)),
            // The next one skips the process that has stalled this one.
            Progress::Stalled => self.last = None,
            Progress::Going(look) => {
                self.running = Some(Running { look, ..scan });
                return None;
            }
        }
        Some(Ended::Failed(scan.asked.files))
    }

    fn is_census_due(&self, now: Instant) -> bool {
        let due = |(ended, took): (Instant, Duration)| {
            now >= ended + CENSUS.max(took.saturating_mul(CENSUS_REST))
        };
        self.last.is_none_or(due)
    }

    /// True if so many times as long as the last scan took has passed since.
    fn has_rested(&self, now: Instant, times: u32) -> bool {
        let due = |(ended, took): (Instant, Duration)| {
            now >= ended + (took * times).clamp(SHORTEST, LONGEST)
        };
        self.last.is_none_or(due)
    }
}

impl Agents {
    /// Makes instances of the agents that wait for what /proc shows of them, as soon as it has, within `patience`: an answer to
    /// pmcd is about to be given.
    pub fn reveal(&mut self, patience: Duration) {
        if !self.process_scans.enabled || !self.anybody_waits() {
            return;
        }
        let now = Instant::now();
        self.scan_processes(now);
        self.end_process_scan(now, Some(now + patience));
        for (key, agent) in self.agents.iter_mut() {
            let was_published = agent.is_published();
            agent.publish(now);
            self.changes.extend(agent.change_since(was_published, key));
        }
    }

    /// Whether an agent is to be an instance, or to have other labels, as soon as it is known who it is.
    fn anybody_waits(&mut self) -> bool {
        let may_wait = self.process_scans.may_wait;
        // Each answer asks, and almost always nobody does.
        self.process_scans.may_wait = may_wait && self.agents.values().any(Agent::wants_facts);
        self.process_scans.may_wait
    }

    /// Takes what a process scan has shown, or begins one if it is time.
    pub(super) fn scan_processes(&mut self, now: Instant) {
        if self.process_scans.running.is_some() {
            self.end_process_scan(now, None);
        } else if self.process_scans.is_census_due(now) || self.is_process_scan_due(now) {
            self.begin_process_scan(now);
        }
    }

    fn is_process_scan_due(&mut self, now: Instant) -> bool {
        let scans = &self.process_scans;
        let (asks, urgent) = (scans.asks, scans.has_rested(now, URGENT_REST));
        asks && (scans.has_rested(now, REST) || (urgent && self.anybody_waits()))
    }

    fn end_process_scan(&mut self, now: Instant, until: Option<Instant>) {
        match self.process_scans.end(now, until) {
            Some(Ended::Shown(shown)) => self.take(&shown.0, &shown.1, now),
            Some(Ended::Failed(files)) => self.ask_again(&files),
            None => {}
        }
    }

    /// Has the next process scan ask about these files, of which the last one has told nothing.
    fn ask_again(&mut self, files: &HashSet<FileId>) {
        self.process_scans.asks = true;
        for agent in self.agents.values_mut() {
            if agent.attached().any(|(id, _)| files.contains(&id)) {
                agent.ask_again();
            }
        }
    }

    /// The processes that use NIXL and write nothing that is read here, as of the last scan; `None`: not all can be seen.
    #[must_use]
    pub fn silent(&self) -> Option<&[Writer]> {
        let scans = &self.process_scans;
        scans.silent.as_deref().filter(|_| scans.enabled)
    }

    fn begin_process_scan(&mut self, now: Instant) {
        self.process_scans.asks = false;
        let (mut files, mut owners) = (HashSet::new(), HashSet::new());
        for agent in self.agents.values_mut() {
            let sources = agent.sources.iter_mut();
            for source in sources.filter(|source| source.file.presence.asks()) {
                let Source { file, reader } = source;
                file.presence.begin_survey(reader.descriptor());
                files.insert(file.facts.id);
                owners.insert((file.facts.id.ino, file.facts.uid));
            }
        }
        if files.is_empty() && !self.process_scans.is_census_due(now) {
            return;
        }
        // Who has any of them mapped does not use NIXL without telemetry.
        let attached = self.agents.values().flat_map(Agent::attached);
        let inodes: HashSet<u64> = attached.map(|(id, _)| id.ino).collect();
        let pod_logs = (!files.is_empty()).then(|| self.process_scans.pod_logs.clone());
        let asked = Asked { files, inodes };
        let inodes = asked.inodes.clone();
        let read = move |gate: &_| survey::read(&owners, &inodes, pod_logs.as_deref(), gate);
        match self.process_scans.holdups.begin(now, read) {
            Some(look) => self.process_scans.running = Some(Running { look, asked }),
            None => {
                self.ask_again(&asked.files);
                self.process_scans.last = Some((now, LONGEST));
            }
        }
    }

    /// Takes what a process scan has shown.
    fn take(&mut self, scan: &Asked, mappers: &Mappers, now: Instant) {
        let files = || self.agents.values().flat_map(Agent::attached);
        // Of files that were attached meanwhile it does not show whose they are; the next one does, which is due.
        if files().all(|(id, _)| scan.inodes.contains(&id.ino)) || !mappers.complete {
            let silent = mappers.silent(files().map(|(id, path)| (id.dev, id.ino, path)));
            self.process_scans.silent = silent;
        }
        let mut woken = Vec::new();
        let (moment, lifetimes) = (self.clock.at(now), self.books.lifetimes);
        for (key, agent) in self.agents.iter_mut() {
            // What its owner is called was asked only with its files.
            let is_asked = |(id, _)| scan.files.contains(&id);
            if !agent.attached().any(is_asked) {
                continue;
            }
            let mut asked: Option<(Option<Facts>, u32)> = None;
            for Source { file, .. } in &mut agent.sources {
                let is_asked = scan.files.contains(&file.facts.id);
                if is_asked {
                    file.presence.end_survey(mappers, &file.facts, &file.path);
                }
                // Of several rings, the last one's writer counts if it is known.
                let known = file.presence.facts();
                if is_asked || known.is_some() {
                    asked = Some((known.cloned(), file.facts.uid));
                }
            }
            let Some((of_process, uid)) = asked else {
                continue;
            };
            // Of one that is not seen it stays as it was, or what its file tells must do.
            let of_file = agent.facts_of_files(mappers.user(uid));
            let mut facts = match (&of_process, agent.own_facts()) {
                (Some(of_process), _) => of_file.merge(of_process),
                (None, Some(before)) => of_file.merge(before),
                (None, None) => of_file,
            };
            mappers.pods.name(&mut facts, agent.own_facts());
            woken.push(key);
            if agent.own_facts() != Some(&facts) {
                self.books.journal.set_facts(agent.record, Some(&facts));
                agent.set_facts(Some(facts));
            }
            // It may be an instance before the next drain.
            agent.update_life(&moment, lifetimes);
        }
        for key in woken {
            self.agents.wake(key);
        }
    }
}
