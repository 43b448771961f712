// SPDX-License-Identifier: GPL-2.0-or-later

//! Schedules process scans and applies their results: which process writes each file, and its labels.

use super::Collector;
use crate::accounts::user_names::UserNames;
use crate::agents::{Agent, AgentKey};
use crate::base::clock::Now;
use crate::base::file::FileFacts;
use crate::log;
use crate::observer::protocol::{End, Found, Request, RequestKind, Response};
use crate::procfs::facts::labels::MAX_USER_NAME;
use crate::procfs::process::{ProcessId, Usage};
use crate::procfs::process_scan::scanned::ScannedProcess;
use crate::procfs::process_scan::{ProcessScan, ScanRequest};
use crate::source::Source;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use std::vec;

/// Pause after a look at all agents of which none needs a process scan.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait of the result of a scan for names of users. It is shorter than the wait of a new agent for its labels.
const NAME_PATIENCE: Duration = Duration::from_millis(500);
/// Pause after a full scan, which resolves the writers of all files and finds the processes that use NIXL without
/// telemetry. At least this multiple of the time that a scan took.
const FULL_PAUSE: Duration = Duration::from_secs(60);
const FULL_PAUSE_FACTOR: u32 = 200;
/// Time after which an observer that has not ended a scan counts as one that does not run.
const SCAN_PATIENCE: Duration = Duration::from_secs(60);
/// Limit of processes that have answered after the end of a scan.
const MAX_LATE: usize = 64;

/// When processes are scanned, and what the last scans have found.
#[derive(Debug, Default)]
pub(super) struct ProcessScans {
    /// The scan that is running, with what it has found so far.
    running: Option<ProcessScan>,
    /// When the last scan began.
    began: Option<Instant>,
    /// Processes that have answered after the end of a scan.
    late: Vec<ScannedProcess>,
    /// Result of the last scan while it waits for names of users, and when the wait ends.
    result: Option<(ProcessScan, Instant)>,
    /// Result that is applied to one agent after the other, and the agents that are left.
    applied: Option<(ProcessScan, vec::IntoIter<AgentKey>)>,
    /// Names of the owners of files.
    user_names: UserNames,
    /// True if a process scan could still resolve the writer of some file.
    pub asks: bool,
    /// When the pause after the last scan ends. `None`: there was no scan yet.
    pause_ends: Option<Instant>,
    /// Time that the last scan took.
    last_time: Duration,
    /// When the last full scan began. `None`: the next scan is full.
    pub last_full: Option<Instant>,
    /// Processes that use NIXL without telemetry. `None`: not known.
    silent: Option<Vec<ProcessId>>,
    /// Number of completed scans.
    pub count: u64,
    /// Time that they took.
    pub time: Duration,
}

impl ProcessScans {
    fn is_full_due(&self, now: Instant) -> bool {
        let every = FULL_PAUSE.max(self.last_time.saturating_mul(FULL_PAUSE_FACTOR));
        self.last_full.is_none_or(|last| now >= last + every)
    }

    fn is_due(&self, now: Instant) -> bool {
        let is_pause_over = self.pause_ends.is_none_or(|end| now >= end);
        is_pause_over && !self.is_running() && (self.asks || self.is_full_due(now))
    }

    /// True if a scan was begun whose result is not applied to all agents.
    fn is_running(&self) -> bool {
        self.running.is_some() || self.result.is_some() || self.applied.is_some()
    }

    /// True if a scan was begun that the observer should have ended.
    fn is_overdue(&self, now: Instant) -> bool {
        let began = self.began.filter(|_| self.running.is_some());
        began.is_some_and(|began| now >= began + SCAN_PATIENCE)
    }

    /// Adds what the observer has found.
    fn add(&mut self, found: Found, now: Instant) {
        let has_room = self.late.len() < MAX_LATE;
        match (found, &mut self.running) {
            (Found::Pods(pods), Some(scan)) => scan.pods = pods,
            (Found::Scanned(process), Some(scan)) => scan.add(process),
            (Found::Scanned(process), None) if has_room && !process.files.is_empty() => {
                // A full scan finds out what it writes.
                self.late.push(process);
                self.last_full = None;
            }
            (Found::LookedUp(uids, lines), _) => {
                self.user_names.add(&uids, lines.as_deref(), now);
            }
            _ => {}
        }
    }

    /// Ends the scan that is running.
    fn end(&mut self, end: &End, now: Instant) {
        let Some(mut scan) = self.running.take() else {
            return;
        };
        for process in std::mem::take(&mut self.late) {
            if !scan.has(process.process.id) {
                scan.add(process);
            }
        }
        scan.is_complete &= end.is_complete;
        scan.has_postponed = end.has_postponed;
        self.count += 1;
        self.time += end.duration;
        (self.last_time, self.pause_ends) = (end.duration, Some(now + end.pause));
        let users = scan.nixl_processes.iter().map(|process| process.info.uid);
        self.user_names.want(users, now);
        self.result = Some((scan, now + NAME_PATIENCE));
    }

    /// True if the result of the last scan waits for names of users.
    fn waits_for_names(&self, now: Instant) -> bool {
        let ends = self.result.as_ref().map(|(_, end)| *end);
        self.user_names.is_asking() && ends.is_some_and(|end| now < end)
    }

    /// Ends all scans: none will be made any more.
    fn stop(&mut self) {
        (self.running, self.silent) = (None, None);
    }
}

impl Collector {
    /// Begins a process scan if one is due, and applies the result of one that has ended until `end`; the next call
    /// goes on from there. Never waits. Returns true unless agents are left to apply it to.
    pub(super) fn scan_processes(&mut self, now: Instant, end: Instant) -> bool {
        if !self.observes() {
            return true;
        }
        if self.process_scans.is_due(now) {
            self.begin_process_scan(now);
        }
        self.receive(now);
        let waits = self.process_scans.waits_for_names(now);
        if let Some((process_scan, _)) = self.process_scans.result.take_if(|_| !waits) {
            self.begin_application(process_scan);
        }
        self.continue_application(now, end)
    }

    /// True if other processes are looked at.
    #[must_use]
    pub fn observes(&self) -> bool {
        self.shared.config.proc_facts && self.observer.is_running()
    }

    /// True if other processes are looked at, and the observer answers.
    pub(super) fn observer_answers(&self) -> bool {
        self.observes() && !self.process_scans.is_overdue(Instant::now())
    }

    /// Takes over what the observer has read since the last call.
    fn receive(&mut self, now: Instant) {
        for response in self.observer.receive(Duration::ZERO) {
            if let Response::Done(_, end) = &response {
                // Of a worker that has ended the kernel tells more exactly, which may be less.
                let cpu = self.observer_usage.cpu.max(end.usage.cpu);
                self.observer_usage = Usage { cpu, ..end.usage };
            }
            match response {
                Response::Found(found) => self.process_scans.add(found, now),
                Response::Done(RequestKind::Scan, end) => {
                    self.process_scans.end(&end, now);
                    self.ask_for_names(now);
                }
                Response::Done(RequestKind::Names, _) => {
                    self.process_scans.user_names.end_question(now);
                    self.ask_for_names(now);
                }
                Response::Queues(reading) => self.add_queues(&reading, now),
                Response::Done(RequestKind::Queues, _) => self.end_queues(),
                response => self.apply_response(response, now),
            }
        }
        if !self.observer.is_running() {
            self.process_scans.stop();
            self.transports.end_scan();
            self.end_queues();
            self.observer_usage.memory = 0;
        }
    }

    /// Has the next names of users looked up.
    fn ask_for_names(&mut self, now: Instant) {
        if let Some(uids) = self.process_scans.user_names.question(now) {
            self.observer.send(&Request::LookUp(uids));
        }
    }

    /// Returns the name of a user, or its number if no name is known or the name is too long.
    #[must_use]
    pub fn user_name(&self, uid: u32) -> String {
        let name = self.process_scans.user_names.get(uid);
        if name.len() > MAX_USER_NAME {
            return uid.to_string();
        }
        name
    }

    /// Returns the processes with a NIXL backend loaded that write to no attached file, as of the last scan. `None`:
    /// not all processes are visible.
    #[must_use]
    pub fn silent(&self) -> Option<&[ProcessId]> {
        let silent = self.process_scans.silent.as_deref();
        silent.filter(|_| self.observer_answers())
    }

    fn begin_process_scan(&mut self, now: Instant) {
        let scans = &mut self.process_scans;
        let is_full = scans.is_full_due(now);
        let mut files = HashMap::new();
        // Of all files, to tell which processes use NIXL without telemetry.
        let mut inodes = HashSet::new();
        for agent in self.agents.values_mut() {
            for source in &mut agent.sources {
                let file = &mut source.file;
                inodes.insert(file.facts.id.ino);
                if file.liveness.begin_process_scan(is_full) {
                    let changed = file.liveness.change_time();
                    let facts = FileFacts {
                        changed,
                        ..file.facts
                    };
                    files.insert(facts.id, facts);
                }
            }
        }
        scans.asks = false;
        if files.is_empty() && !is_full {
            scans.pause_ends = Some(now + IDLE_PAUSE);
            return;
        }
        if is_full {
            scans.last_full = Some(now);
        }
        let owners = files.values().map(|facts| facts.uid);
        scans.user_names.want(owners, now);
        let request = ScanRequest {
            inodes: Some(inodes),
            with_facts: files.keys().map(|file| file.ino).collect(),
            owners: files.values().map(|file| file.uid).collect(),
            pod_logs: self.shared.config.pod_logs.clone(),
        };
        self.observer.send(&Request::Scan(request.clone()));
        scans.running = Some(ProcessScan::of(files, request));
        scans.began = Some(now);
        self.ask_for_names(now);
    }

    /// Applies the result of a process scan, except for what concerns single agents.
    pub(super) fn begin_application(&mut self, process_scan: ProcessScan) {
        let files = || self.agents.values().flat_map(Agent::attached);
        // It does not tell which processes write the files that were attached meanwhile. The next scan, which is due,
        // does.
        if files().all(|(file, _)| process_scan.request.includes(file.id.ino))
            || !process_scan.is_complete
        {
            self.process_scans.silent = process_scan.without_telemetry(files());
        }
        if self.shared.config.transport && self.shared.config.proc_facts {
            let owners = self.shared.config.owners.as_ref();
            let (found, ids) = (&process_scan.nixl_processes, &mut self.clock_ids);
            self.transports.set_processes(found, owners, ids);
        }
        let keys = self.agents.keys().into_iter();
        self.process_scans.applied = Some((process_scan, keys));
    }

    /// Applies the result of a process scan to the agents that are left, at least to one, until `end`. Returns true if
    /// none is left.
    pub(super) fn continue_application(&mut self, now: Instant, end: Instant) -> bool {
        let Some((process_scan, mut keys)) = self.process_scans.applied.take() else {
            return true;
        };
        let moment = self.clock.at(now);
        while let Some(key) = keys.next() {
            let agent = self.get(key);
            let _span = agent.map(|agent| log::span(Some(agent.name.owner)));
            let apply = || self.apply_to_agent(&process_scan, key, &moment);
            if catch_unwind(AssertUnwindSafe(apply)).is_err() {
                self.reject_after_panic(key);
            }
            if Instant::now() >= end {
                self.process_scans.applied = Some((process_scan, keys));
                return false;
            }
        }
        self.count_agents();
        true
    }

    /// Applies the result of a process scan to an agent, which may have been removed meanwhile.
    fn apply_to_agent(&mut self, process_scan: &ProcessScan, key: AgentKey, now: &Now) {
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        // The scan has resolved the owner's name of these files only.
        let files = &process_scan.files;
        let is_asked = |source: &Source| files.contains_key(&source.file.facts.id);
        if !agent.sources.iter().any(is_asked) {
            return;
        }
        for source in &mut agent.sources {
            let file = &mut source.file;
            let others = file
                .liveness
                .end_process_scan(process_scan, &file.facts, &file.path);
            let are_others = others.is_some();
            if let Some(sharers) = source.sharers().filter(|_| are_others) {
                let (instance, path) = (&agent.name.instance, log::shown(&source.file.path));
                tracing::warn!("agent {instance}: {path}: {sharers}");
            }
        }
        // Of several rings, the last one counts that the scan was for, or whose process is known.
        let mut sources = agent.sources.iter().rev();
        let known = |source: &&Source| source.file.liveness.facts().is_some();
        let Some(source) = sources.find(|source| is_asked(source) || known(source)) else {
            return;
        };
        let user = self.process_scans.user_names.get(source.file.facts.uid);
        let of_file = agent.facts_of_files(Some(&user));
        // If the process was not found, its facts stay as they were. Of several processes, none is the agent's.
        let of_process = source.file.liveness.facts().or(agent.facts.current());
        let mut facts = match of_process.filter(|_| !agent.is_shared()) {
            Some(of_process) => of_file.merge(of_process),
            None => of_file,
        };
        process_scan.pods.name(&mut facts, agent.facts.current());
        if agent.facts.current() != Some(&facts) {
            self.shared.journal.set_facts(agent.record, Some(&facts));
            agent.set_facts(Some(facts));
        }
        // It may be published before the next drain.
        agent.update_state(now, false, &mut self.shared);
        self.agents.end_poll(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_is_overdue_after_a_minute_until_it_ends() {
        let (mut scans, start) = (ProcessScans::default(), Instant::now());
        let late = start + SCAN_PATIENCE;
        assert!(!scans.is_overdue(late), "none has begun");
        scans.running = Some(ProcessScan::of(HashMap::new(), ScanRequest::default()));
        scans.began = Some(start);
        assert!(!scans.is_overdue(late - Duration::from_millis(1)));
        assert!(scans.is_overdue(late));
        scans.end(&End::default(), late);
        assert!(!scans.is_overdue(late));
    }
}
