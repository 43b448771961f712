// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes that use NIXL, and what they transfer by TCP.
//!
//! NIXL does not tell which transport it uses. The kernel does: it counts the bytes of each TCP connection. The
//! observer ([`crate::observer`]) has the sockets of the processes that have NIXL loaded read, and sends what was
//! added. This module owns the table of these processes. It must not import `agents`: the collector gives them their
//! part.
//! Begin with [`Transports::apply`].

use crate::base::per_user;
use crate::discovery::name;
use crate::log;
use crate::observer::protocol::{RequestKind, Response, SocketReading, SocketRequest, Traffic};
use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::NixlProcess;
use ids::ClockIds;
use peers::Peers;
use share::Share;
use stall::Stall;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

pub mod ids;
pub mod peers;
pub mod share;
pub mod stall;
pub mod traced;

/// Time between two socket scans. A process with 32 connections takes half a millisecond.
const SCAN_PERIOD: Duration = Duration::from_secs(10);
/// Time between two socket scans if a process was found meanwhile.
const MIN_SCAN_PERIOD: Duration = Duration::from_secs(1);
/// A reading that is older tells nothing of the last minute.
const MAX_READING_AGE: Duration = Duration::from_secs(60);
/// Limit of processes. Each user gets an equal share of them, its oldest processes first.
const MAX_PROCESSES: usize = 256;

/// A process that uses NIXL, and what it transfers by TCP.
#[derive(Clone, Debug, Default)]
pub struct TransportProcess {
    /// What the process scan has found.
    pub found: NixlProcess,
    /// Version of NIXL. `None`: not known.
    pub version: Option<String>,
    /// Number of agents of this host that it runs and that have telemetry.
    pub agents: u32,
    /// Traffic of its connections. `None`: it was never read.
    pub traffic: Option<Traffic>,
    /// Share of the bytes of its agents that went over TCP. `None`: it has no counted agents, or was not read in the
    /// last minute.
    share: Option<Share>,
    /// Instance names of the agents that the share is of.
    share_agents: Vec<String>,
    /// What was read last, and when. `None`: nothing was read in the last minute.
    reading: Option<(SocketReading, Instant)>,
    /// Reason why it could not be read.
    failure: Option<String>,
    /// Instance id.
    pub instance: u32,
    /// True once the version was read, or could not be. Its files may stall a worker.
    is_version_read: bool,
}

impl TransportProcess {
    fn new(found: NixlProcess, instance: u32) -> Self {
        Self {
            found,
            instance,
            ..Self::default()
        }
    }

    /// Returns what was read in the last minute.
    #[must_use]
    pub fn reading(&self) -> Option<&SocketReading> {
        self.reading.as_ref().map(|(reading, _)| reading)
    }

    /// Returns its traffic if it was read in the last minute.
    #[must_use]
    pub fn current_traffic(&self) -> Option<Traffic> {
        self.reading().and(self.traffic)
    }

    /// Returns the name of the instance.
    #[must_use]
    pub fn instance_name(&self) -> String {
        name::process_name(self.found.info.id.pid, &self.found.info.command)
    }

    /// Returns the share of the bytes of all its agents that went over TCP in the last minute. `None`: it is not known,
    /// or there were few bytes.
    #[must_use]
    pub fn tcp_share(&self) -> Option<f64> {
        self.share.as_ref()?.value()
    }

    /// Returns that share if the agents move much, at least 10 MB/s, as in the rules on TCP. The other connections of
    /// the process matter less then.
    #[must_use]
    pub fn busy_tcp_share(&self) -> Option<f64> {
        let share = self.share.as_ref().filter(|share| share.rate() >= 10e6)?;
        share.value()
    }

    /// Adds what the agents of the process have transferred so far to its share. The share begins again if they are
    /// other agents than at the last reading, or if bytes by TCP were lost since: NIXL has not lost them.
    fn update_share(&mut self, agents: AgentSum, now: Instant) {
        let is_counted = !agents.names.is_empty() && !agents.has_uncounted;
        let Some((reading, _)) = self.reading.as_ref().filter(|_| is_counted) else {
            self.share = None;
            return;
        };
        let goes_on = agents.names == self.share_agents && !reading.is_resumed;
        let mut share = self.share.take().filter(|_| goes_on).unwrap_or_default();
        share.add(now, self.traffic.unwrap_or_default(), agents.nixl);
        (self.share, self.share_agents) = (Some(share), agents.names);
    }
}

/// The agents of a process, and what they have transferred so far.
#[derive(Clone, Debug, Default)]
pub struct AgentSum {
    /// Instance names of the agents.
    pub names: Vec<String>,
    /// Bytes of all agents.
    pub nixl: Traffic,
    /// True if the bytes of an agent are not counted.
    pub has_uncounted: bool,
}

/// What the process of an agent transfers by TCP.
#[derive(Clone, Debug, Default)]
pub struct AgentTransport {
    /// Instance id of the process that was read last.
    process: Option<u32>,
    /// True if the process was read in the last minute.
    pub is_read: bool,
    /// Share of the bytes that went over TCP in the last minute. `None`: it is not known, or there were few bytes.
    pub tcp_share: Option<f64>,
    /// Peers of that process.
    pub peers: Peers,
    /// Whether its transfers have stalled.
    pub stall: Stall,
}

impl AgentTransport {
    /// Copies what was read of the process of an agent, and its share. The agent must be the only one of the process.
    /// New peers get their ids from `ids`.
    pub fn update(&mut self, process: Option<&TransportProcess>, ids: &mut ClockIds) {
        let read = process.and_then(|process| Some((process, process.reading()?)));
        let Some((process, reading)) = read else {
            (self.is_read, self.tcp_share) = (false, None);
            return;
        };
        if self.process != Some(process.instance) {
            // Its counters begin again, and those of its peers with them.
            *self = Self {
                process: Some(process.instance),
                stall: std::mem::take(&mut self.stall),
                ..Self::default()
            };
        }
        (self.is_read, self.tcp_share) = (true, process.tcp_share());
        self.peers.add(&reading.peers, ids);
    }
}

/// The processes that use NIXL.
#[derive(Debug, Default)]
pub struct Transports {
    /// Processes with a row. One that has a row again begins with its open connections, with another id.
    processes: BTreeMap<ProcessId, TransportProcess>,
    /// When the last scan began. `None`: there was none since there are processes.
    last_scan: Option<Instant>,
    /// True while a scan runs.
    is_scanning: bool,
    /// True if a process was found since the last scan began.
    has_new: bool,
    /// Processes whose agents do not know yet that they were read, have ended, or were not read for a minute.
    updated: HashSet<ProcessId>,
    /// True if processes or peers have changed since the collector took note of it.
    pub has_changed: bool,
}

impl Transports {
    /// Takes over the result of a process scan: the processes that use NIXL, as far as they could be read. A process
    /// that was found before stays until it ends. Processes of other users than `owners` are left out. New processes
    /// get their ids from `ids`.
    pub fn set_processes(
        &mut self,
        found: &[NixlProcess],
        owners: Option<&Vec<u32>>,
        ids: &mut ClockIds,
    ) {
        let found_ids: HashSet<ProcessId> = found.iter().map(|process| process.info.id).collect();
        let mut known = std::mem::take(&mut self.processes);
        let missing = known.values().map(|process| &process.found);
        let missing = missing
            .filter(|found| !found_ids.contains(&found.info.id) && found.info.id.is_running());
        let missing = Vec::from_iter(missing.cloned());
        let all = found.iter().chain(&missing);
        let all =
            all.filter(|process| owners.is_none_or(|owners| owners.contains(&process.info.uid)));
        let mut has_new = false;
        for found in limited(all) {
            let process = known.remove(&found.info.id);
            has_new |= process.is_none();
            let mut process =
                process.unwrap_or_else(|| TransportProcess::new(found.clone(), ids.draw()));
            // An id never has a second name.
            if process.found.info.command != found.info.command {
                process.instance = ids.draw();
            }
            process.found = found.clone();
            self.processes.insert(process.found.info.id, process);
        }
        self.has_changed |= has_new || !known.is_empty();
        self.has_new |= has_new;
    }

    /// Returns the processes whose sockets are to be read if a socket scan is due. It is then taken for begun.
    pub fn begin_scan(&mut self, now: Instant) -> Option<Vec<SocketRequest>> {
        let period = match self.has_new {
            true => MIN_SCAN_PERIOD,
            false => SCAN_PERIOD,
        };
        let is_due = self.last_scan.is_none_or(|last| now >= last + period);
        if !is_due || self.is_scanning || self.processes.is_empty() {
            return None;
        }
        (self.last_scan, self.has_new, self.is_scanning) = (Some(now), false, true);
        let request = |process: &TransportProcess| {
            let library = process.found.libraries.core.as_ref();
            SocketRequest {
                id: process.found.info.id,
                uid: process.found.info.uid,
                was_counted: process.traffic.is_some(),
                library: library.filter(|_| !process.is_version_read).cloned(),
            }
        };
        Some(self.processes.values().map(request).collect())
    }

    /// Returns the processes that were read since the last call, have ended, or were not read for a minute. `None` if
    /// nothing has changed; no process if only the last one has gone.
    pub fn take_updated(&mut self, now: Instant) -> Option<HashSet<ProcessId>> {
        let is_over = self.processes.is_empty() && !self.is_scanning;
        let has_gone = is_over && self.last_scan.take().is_some();
        let is_old = |&mut (_, at): &mut (SocketReading, Instant)| now > at + MAX_READING_AGE;
        for process in self.processes.values_mut() {
            if process.reading.take_if(is_old).is_some() {
                self.updated.insert(process.found.info.id);
            }
        }
        let updated = std::mem::take(&mut self.updated);
        (has_gone || !updated.is_empty()).then_some(updated)
    }

    /// Applies a response of the observer.
    pub fn apply(&mut self, response: Response, now: Instant) {
        let updated = self.update_by(response, now);
        self.updated.extend(updated);
    }

    /// Applies a response. Returns the process if it was read, or has ended.
    fn update_by(&mut self, response: Response, now: Instant) -> Option<ProcessId> {
        match response {
            Response::Sockets(reading) => {
                let process = self.processes.get_mut(&reading.id)?;
                *process.traffic.get_or_insert_default() += reading.traffic;
                if reading.version.is_some() {
                    process.version.clone_from(&reading.version);
                }
                process.is_version_read = true;
                process.failure = None;
                process.reading = Some((reading, now));
                Some(process.found.info.id)
            }
            Response::Ended(id) => {
                // Only its first thread may have ended. If another calls execve(2), the process is found again.
                self.processes.remove(&id)?;
                Some(id)
            }
            Response::Failed { id, why, version } => {
                let process = self.processes.get_mut(&id)?;
                if version.is_some() {
                    (process.version, process.is_version_read) = (version, true);
                }
                if process.failure.as_ref() != Some(&why) {
                    let _span = log::span(Some(process.found.info.uid));
                    tracing::info!(
                        "process {} ({}): its sockets cannot be read: {why}; pmdanixl --check says what is missing",
                        id.pid,
                        process.found.info.command
                    );
                    process.failure = Some(why);
                }
                None
            }
            Response::Stalled(stalled) if stalled.kind == RequestKind::Sockets => {
                let (id, _) = stalled.process?;
                self.processes.get_mut(&id)?.is_version_read = true;
                None
            }
            Response::Done(RequestKind::Sockets, _) => {
                self.is_scanning = false;
                None
            }
            _ => None,
        }
    }

    /// Ends a scan whose responses will not come any more.
    pub fn end_scan(&mut self) {
        self.is_scanning = false;
    }

    /// Removes all processes.
    pub fn clear(&mut self) {
        self.processes.clear();
        self.last_scan = None;
        self.has_changed = true;
    }

    /// Returns the processes.
    pub fn iter(&self) -> impl Iterator<Item = &TransportProcess> {
        self.processes.values()
    }

    /// Returns a process.
    #[must_use]
    pub fn get(&self, id: ProcessId) -> Option<&TransportProcess> {
        self.processes.get(&id)
    }

    /// Adds what the agents of a process have transferred so far to the share of the process.
    pub fn update_share(&mut self, id: ProcessId, agents: AgentSum, now: Instant) {
        if let Some(process) = self.processes.get_mut(&id) {
            process.update_share(agents, now);
        }
    }

    /// Sets how many agents each process runs.
    pub fn set_agent_counts(&mut self, agents: &HashMap<ProcessId, u32>) {
        for process in self.processes.values_mut() {
            process.agents = agents.get(&process.found.info.id).copied().unwrap_or(0);
        }
    }
}

/// Returns at most [`MAX_PROCESSES`] processes: of each user in turn its oldest one.
fn limited<'a>(found: impl Iterator<Item = &'a NixlProcess>) -> Vec<&'a NixlProcess> {
    let mut all: Vec<_> = found.collect();
    all.sort_by_key(|process| process.info.id.start);
    let mut all = per_user::numbered(all, |process| process.info.uid);
    all.sort_by_key(|(number, process)| (*number, process.info.id.start));
    all.truncate(MAX_PROCESSES);
    all.into_iter().map(|(_, process)| process).collect()
}

#[cfg(test)]
mod tests;
