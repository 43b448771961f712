// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes that use NIXL, and what they transfer by TCP.
//!
//! NIXL does not tell which transport it uses. The kernel does: it counts the bytes of each TCP connection. A worker process
//! ([`worker`]) reads the sockets of the processes that have NIXL loaded, every 10 s, and sends what was added. This module owns the
//! table of these processes. It must not know agents: the collector gives them their part. Begin with [`Transports::poll`].

use crate::discovery::name;
use crate::log;
use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::NixlProcess;
use peers::Peers;
use protocol::{ProcessReading, Request, RequestedProcess, Response, Traffic};
use scans::TransportScans;
use share::{Bytes, Share};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod accounts;
pub mod client;
pub mod peers;
pub mod protocol;
pub mod release;
mod scans;
pub mod share;
pub mod sockets;
pub mod worker;

/// Time between two scans.
const SCAN_PERIOD: Duration = Duration::from_secs(10);
/// Limit of processes. Each user gets an equal share of them, its oldest processes first.
const MAX_PROCESSES: usize = 256;
/// Limit of processes whose release is found out in one scan. Their paths must fit into a pipe.
const MAX_RELEASES: usize = 16;
/// Limit of the path of a library, in bytes.
const MAX_PATH: usize = 1024;

/// A process that uses NIXL, and what it transfers by TCP.
#[derive(Clone, Debug)]
pub struct TransportProcess {
    /// What the process scan has found.
    pub found: NixlProcess,
    /// Release of NIXL. `None`: not known.
    pub release: Option<String>,
    /// Number of agents of this host that it runs and that have telemetry.
    pub agents: u32,
    /// Traffic of its connections.
    pub traffic: Traffic,
    /// What was read last. `None`: nothing was read yet.
    pub reading: Option<ProcessReading>,
    /// Reason why it could not be read.
    failure: Option<String>,
    /// True if the release is asked for in the present scan.
    is_release_requested: bool,
    /// True if the worker has begun to read the release. Its files may stall the worker, so it is read once.
    is_release_read: bool,
}

impl TransportProcess {
    /// Returns the instance id: the process id, and above it the second of the start, so that a later process with this process id has
    /// another one.
    #[must_use]
    pub fn instance_id(&self) -> u32 {
        /// Process ids have 22 bits (PID_MAX_LIMIT of Linux's include/linux/threads.h). Instance ids have 31 bits.
        const PID_BITS: u32 = 22;
        // Clock ticks are hundredths of a second (USER_HZ).
        let second = self.found.id.start / 100 % (1 << (31 - PID_BITS));
        let pid = self.found.id.pid % (1 << PID_BITS);
        pid | u32::try_from(second).unwrap_or_default() << PID_BITS
    }

    /// Returns the name of the instance, as the proc PMDA of PCP forms it.
    #[must_use]
    pub fn instance_name(&self) -> String {
        let command = name::printable(OsStr::new(&self.found.command));
        format!("{} {command}", self.found.id.pid)
    }
}

/// What the process of an agent transfers by TCP.
#[derive(Clone, Debug, Default)]
pub struct AgentTransport {
    /// The process.
    process: Option<ProcessId>,
    share: Share,
    /// Peers.
    pub peers: Peers,
}

impl AgentTransport {
    /// Takes over what was read of the process of an agent, `None` if it has none or the process runs other agents too. `nixl` is what
    /// the agent has transferred so far.
    pub fn update(&mut self, process: Option<&TransportProcess>, nixl: Bytes, now: Instant) {
        let id = process.map(|process| process.found.id);
        if self.process != id {
            (self.process, self.share) = (id, Share::default());
        }
        let Some(process) = process else {
            return;
        };
        self.share.add(now, process.traffic, nixl);
        if let Some(reading) = &process.reading {
            self.peers.add(&reading.peers);
        }
    }

    /// Returns the share of its bytes that went over TCP in the last minute. `None`: it is not known, or there were few.
    #[must_use]
    pub fn tcp_share(&self) -> Option<f64> {
        self.share.value()
    }
}

/// The processes that use NIXL.
#[derive(Debug, Default)]
pub struct Transports {
    scans: TransportScans,
    processes: BTreeMap<ProcessId, TransportProcess>,
    /// When the next scan begins. `None`: at once.
    next_scan: Option<Instant>,
}

impl Transports {
    /// Sets the program of the worker process. Without it nothing is read.
    pub fn set_program(&mut self, program: PathBuf) {
        self.scans.program = Some(program);
    }

    /// Takes over the result of a process scan: all processes that use NIXL now. Returns true if one has ended.
    pub fn set_processes<'a>(&mut self, found: impl Iterator<Item = &'a NixlProcess>) -> bool {
        if self.scans.program.is_none() {
            return false;
        }
        let mut known = std::mem::take(&mut self.processes);
        for found in limited(found) {
            let process = match known.remove(&found.id) {
                Some(process) => TransportProcess {
                    found: found.clone(),
                    ..process
                },
                None => {
                    // Read as soon as it is found.
                    self.next_scan = None;
                    TransportProcess {
                        found: found.clone(),
                        release: None,
                        agents: 0,
                        traffic: Traffic::default(),
                        reading: None,
                        failure: None,
                        is_release_requested: false,
                        is_release_read: false,
                    }
                }
            };
            self.processes.insert(found.id, process);
        }
        !known.is_empty()
    }

    /// Starts a scan if one is due. Returns the processes that a scan has read since the last call, `None` if none has ended.
    pub fn poll(&mut self, now: Instant) -> Option<Vec<ProcessId>> {
        if self.processes.is_empty() && !self.scans.is_running() {
            self.scans.stop(now);
            return None;
        }
        let is_due = self.next_scan.is_none_or(|next| now >= next);
        if is_due && !self.scans.is_running() {
            self.next_scan = Some(now + SCAN_PERIOD);
            let request = self.request();
            self.scans.start(&request, now);
        }
        let responses = self.scans.poll(now)?;
        Some(
            responses
                .into_iter()
                .filter_map(|response| self.apply(response))
                .collect(),
        )
    }

    /// Returns the request of a scan: all processes, the oldest first.
    fn request(&mut self) -> Request {
        let scans = &self.scans;
        let mut all: Vec<_> = self.processes.values_mut().collect();
        all.retain(|process| !scans.is_skipped(process.found.id));
        all.sort_by_key(|process| process.found.id.start);
        let mut releases = 0;
        let processes = all.into_iter().map(|process| {
            let library = process.found.libraries.core.as_ref();
            let library = library.filter(|_| !process.is_release_read && releases < MAX_RELEASES);
            let library = library.filter(|path| is_plain(path)).cloned();
            process.is_release_requested = library.is_some();
            releases += usize::from(library.is_some());
            RequestedProcess {
                id: process.found.id,
                was_counted: process.reading.is_some(),
                library,
            }
        });
        Request {
            processes: processes.collect(),
        }
    }

    /// Applies a response. Returns the process if it was read.
    fn apply(&mut self, response: Response) -> Option<ProcessId> {
        match response {
            Response::Read(reading) => {
                let process = self.processes.get_mut(&reading.id)?;
                process.traffic += reading.traffic;
                if reading.release.is_some() {
                    process.release.clone_from(&reading.release);
                }
                Some(process.reading.insert(reading).id)
            }
            Response::Failed(id, None) => {
                self.processes.remove(&id);
                None
            }
            Response::Failed(id, Some(why)) => {
                let process = self.processes.get_mut(&id)?;
                if process.failure.as_ref() != Some(&why) {
                    let _about = log::about(Some(process.found.uid));
                    tracing::info!(
                        "process {} ({}): its sockets cannot be read: {why}; pmdanixl --check says what is missing",
                        id.pid,
                        process.found.command
                    );
                    process.failure = Some(why);
                }
                None
            }
            Response::Begun(id) => {
                let process = self.processes.get_mut(&id)?;
                process.is_release_read |= process.is_release_requested;
                None
            }
            Response::Done => None,
        }
    }

    /// Forgets all processes, and ends the worker process. Returns true if there was one.
    pub fn clear(&mut self, now: Instant) -> bool {
        let had_processes = !std::mem::take(&mut self.processes).is_empty();
        self.next_scan = None;
        self.scans.stop(now);
        had_processes
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

    /// Notes how many agents each process runs.
    pub fn set_agents(&mut self, agents: &HashMap<ProcessId, u32>) {
        for process in self.processes.values_mut() {
            process.agents = agents.get(&process.found.id).copied().unwrap_or(0);
        }
    }
}

/// True if a request can have this path. Any process can map a file with any name, and JSON has no bytes that are not UTF-8, and needs
/// six for a control character.
fn is_plain(path: &Path) -> bool {
    let text = path.to_str();
    text.is_some_and(|text| text.len() <= MAX_PATH && !text.contains(char::is_control))
}

/// Returns at most [`MAX_PROCESSES`] processes: of each user in turn its oldest one.
fn limited<'a>(found: impl Iterator<Item = &'a NixlProcess>) -> Vec<&'a NixlProcess> {
    let mut all: Vec<_> = found.collect();
    all.sort_by_key(|process| process.id.start);
    let mut ranks: HashMap<u32, usize> = HashMap::new();
    let mut all: Vec<_> = all
        .into_iter()
        .map(|process| {
            let rank = ranks.entry(process.uid).or_default();
            *rank += 1;
            (*rank, process)
        })
        .collect();
    all.sort_by_key(|(rank, process)| (*rank, process.id.start));
    all.truncate(MAX_PROCESSES);
    all.into_iter().map(|(_, process)| process).collect()
}

#[cfg(test)]
mod tests;
