//! Process scans: who writes the rings and the stores, as far as /proc shows it.

use super::Agents;
use crate::agents::agent::Agent;
use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::{ProcessScan, ScanRequest};
use crate::procfs::scan_threads::{ScanFailed, ScanThreads};
use crate::source::Source;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Between two process scans there is so much more time than one takes, within these bounds: on a host of many processes it takes
/// long, and a new agent waits for its labels.
const REST: u32 = 3;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// All files are asked about this often, and which processes use NIXL without telemetry; less often where that would take a
/// noticeable share of the time.
const FULL: Duration = Duration::from_secs(60);
const FULL_REST: u32 = 200;

/// When processes are scanned, and what the last scan has shown of all of them.
#[derive(Debug, Default)]
pub(super) struct ProcessScans {
    /// The scan that goes on, and those that processes have stalled.
    scan: ScanThreads<ProcessScan>,
    /// Whether a scan could tell more of some file, as of the last drain.
    pub asks: bool,
    /// When the last scan ended, and how long it took. `None`: there was none.
    last: Option<(Instant, Duration)>,
    /// When the last scan began that asked about all files. `None`: the next one is to.
    pub last_full: Option<Instant>,
    /// The processes that use NIXL without telemetry; `None`: that is not known.
    silent: Option<Vec<ProcessId>>,
    /// Scans that have ended.
    pub count: u64,
    /// The time that all of them took.
    pub time: Duration,
}

impl ProcessScans {
    fn is_full_due(&self, now: Instant) -> bool {
        let took = self.last.map_or(Duration::ZERO, |(_, took)| took);
        let every = FULL.max(took.saturating_mul(FULL_REST));
        self.last_full.is_none_or(|last| now >= last + every)
    }

    fn is_due(&self, now: Instant) -> bool {
        let has_rested = |(ended, took): (Instant, Duration)| {
            now >= ended + (took * REST).clamp(SHORTEST, LONGEST)
        };
        !self.scan.is_running()
            && (self.asks || self.is_full_due(now))
            && self.last.is_none_or(has_rested)
    }

    /// Nothing was found out: the next scan is in a while, and asks about all files.
    fn has_failed(&mut self, now: Instant) {
        (self.last, self.last_full) = (Some((now, LONGEST)), None);
    }
}

impl Agents {
    /// Makes instances of the agents that wait for what /proc shows of them, as soon as it has, within `patience`: an answer to
    /// pmcd is about to be given.
    pub fn reveal(&mut self, patience: Duration) {
        let scans = &self.process_scans;
        // Each answer asks, and almost always no agent waits.
        let may_wait = self.books.config.proc_facts && (scans.asks || scans.scan.is_running());
        if !may_wait || !self.agents.values().any(Agent::wants_facts) {
            return;
        }
        let now = Instant::now();
        self.scan_processes(now, patience);
        for (key, agent) in self.agents.iter_mut() {
            let was_published = agent.is_published();
            agent.publish(now);
            self.changes.extend(agent.change_since(was_published, key));
        }
    }

    /// Begins a process scan if it is time, and takes what it has shown once it ends, which is waited for so long.
    pub(super) fn scan_processes(&mut self, now: Instant, wait: Duration) {
        if !self.books.config.proc_facts {
            return;
        }
        if self.process_scans.is_due(now) {
            self.begin_process_scan(now);
        }
        let scans = &mut self.process_scans;
        match scans.scan.wait(wait, now) {
            None => {}
            Some(Err(ScanFailed)) => scans.has_failed(now),
            Some(Ok(process_scan)) => {
                scans.count += 1;
                scans.time += process_scan.duration;
                scans.last = Some((now, process_scan.duration));
                self.take(&process_scan, now);
            }
        }
    }

    /// The processes that use NIXL and write nothing that is read here, as of the last scan; `None`: not all can be seen.
    #[must_use]
    pub fn silent(&self) -> Option<&[ProcessId]> {
        let scans = &self.process_scans;
        scans
            .silent
            .as_deref()
            .filter(|_| self.books.config.proc_facts)
    }

    fn begin_process_scan(&mut self, now: Instant) {
        let is_full = self.process_scans.is_full_due(now);
        let mut request = ScanRequest::default();
        // A process that has any of the files mapped does not use NIXL without telemetry.
        let mut inodes = HashSet::new();
        for agent in self.agents.values_mut() {
            for source in &mut agent.sources {
                inodes.insert(source.file.facts.id.ino);
                if source.file.liveness.begin_process_scan(is_full) {
                    let facts = source.current_facts();
                    request.files.extend(facts.map(|facts| (facts.id, facts)));
                }
            }
        }
        let scans = &mut self.process_scans;
        scans.asks = false;
        if request.files.is_empty() && !is_full {
            return;
        }
        request.inodes = Some(inodes);
        request.pod_logs.clone_from(&self.books.config.pod_logs);
        let read = move |context: &_| ProcessScan::run(request, context);
        if !scans.scan.start(now, read) {
            scans.has_failed(now);
        } else if is_full {
            scans.last_full = Some(now);
        }
    }

    /// Takes what a process scan has shown.
    fn take(&mut self, process_scan: &ProcessScan, now: Instant) {
        let files = || self.agents.values().flat_map(Agent::attached);
        // Of files that were attached meanwhile it does not show whose they are; the next one does, which is due.
        if files().all(|(id, _)| process_scan.request.includes(id.ino)) || !process_scan.is_complete
        {
            self.process_scans.silent = process_scan.without_telemetry(files());
        }
        let mut woken = Vec::new();
        let moment = self.clock.at(now);
        for (key, agent) in self.agents.iter_mut() {
            // What its owner is called was asked only with its files.
            let is_asked = |source: &Source| {
                process_scan
                    .request
                    .files
                    .contains_key(&source.file.facts.id)
            };
            if !agent.sources.iter().any(is_asked) {
                continue;
            }
            for file in agent.sources.iter_mut().map(|source| &mut source.file) {
                file.liveness
                    .end_process_scan(process_scan, file.facts.id, &file.path);
            }
            // Of several rings, the last one's writer counts if it is known.
            let mut sources = agent.sources.iter().rev();
            let known = |source: &&Source| source.file.liveness.facts().is_some();
            let Some(source) = sources.find(|source| is_asked(source) || known(source)) else {
                continue;
            };
            let user = process_scan.user_names.get(&source.file.facts.uid);
            let of_file = agent.facts_of_files(user.map(String::as_str));
            // Of one that is not seen it stays as it was, or what its file tells must do.
            let of_process = source.file.liveness.facts().or(agent.own_facts());
            let mut facts = match of_process {
                Some(of_process) => of_file.merge(of_process),
                None => of_file,
            };
            process_scan.pods.name(&mut facts, agent.own_facts());
            woken.push(key);
            if agent.own_facts() != Some(&facts) {
                self.books.journal.set_facts(agent.record, Some(&facts));
                agent.set_facts(Some(facts));
            }
            // It may be an instance before the next drain.
            agent.update_life(&moment, &self.books.config);
        }
        for key in woken {
            self.agents.wake(key);
        }
    }
}
