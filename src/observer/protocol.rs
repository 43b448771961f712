// SPDX-License-Identifier: GPL-2.0-or-later

//! Messages, as lines of JSON: between the daemon and the observer, and between the observer and a worker.

use crate::observer::examination::{Examination, Subject};
use crate::observer::group::Group;
use crate::observer::queues::ProcessQueues;
use crate::observer::sockets::OpenFiles;
use crate::procfs::facts::pods::Pods;
use crate::procfs::process::{ProcessId, Usage};
use crate::procfs::process_scan::ScanRequest;
use crate::procfs::process_scan::scanned::ScannedProcess;
use crate::trace::protocol::{TraceReport, TraceRequest};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::path::PathBuf;
use std::time::Duration;

/// Kinds of requests. The observer serves one request of each kind at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RequestKind {
    /// Process scan.
    Scan,
    /// Socket scan.
    Sockets,
    /// Bytes that wait in the sockets of processes.
    Queues,
    /// Examination, for `--check`.
    Examination,
    /// Names of users.
    Names,
    /// Transfers in flight. The tracer reads them.
    Trace,
}

/// Request of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Read all processes.
    Scan(ScanRequest),
    /// Read the sockets of these processes. Of equal ones, the oldest is read first.
    Sockets(Vec<SocketRequest>),
    /// Read the bytes that wait in the sockets of these processes, and whether they run.
    Queues(Vec<QueueRequest>),
    /// Examine these processes.
    Examine(Vec<Subject>),
    /// Ask the name services for the names of these users.
    LookUp(Vec<u32>),
    /// Read the transfers in flight of these processes.
    Trace(TraceRequest),
}

impl Request {
    /// True if it may take a part of the time only, as it comes again and again. A scan for all files is made once, by
    /// `--check`.
    pub fn is_limited(&self) -> bool {
        match self {
            Self::Scan(request) => request.inodes.is_some(),
            Self::Sockets(_) | Self::Queues(_) => true,
            Self::Examine(_) | Self::LookUp(_) | Self::Trace(_) => false,
        }
    }
}

/// Process whose sockets are to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRequest {
    /// Process.
    pub id: ProcessId,
    /// User.
    pub uid: u32,
    /// True if the daemon has counted connections of the process. If not, they count from their beginning.
    pub was_counted: bool,
    /// libnixl in the mount namespace of the process, if its version is requested.
    pub library: Option<OsString>,
}

/// Process whose queues are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRequest {
    /// Process.
    pub id: ProcessId,
    /// User.
    pub uid: u32,
    /// True if an agent of the process completes no transfer. Others are read as its possible peers.
    pub is_silent: bool,
}

/// Response of the observer. What is read of a process that answers late may follow the end of its request.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// What a worker has found.
    Found(Found),
    /// The sockets of a process were read.
    Sockets(SocketReading),
    /// The queues of a process with silent agents were read, and those of the others that could be.
    Queues(QueueReading),
    /// A process whose sockets were to be read has ended.
    Ended(ProcessId),
    /// A process runs, and its sockets could not be read.
    Failed {
        /// Process.
        id: ProcessId,
        /// Reason.
        why: String,
        /// Version of NIXL, if it was requested and is known.
        version: Option<String>,
    },
    /// Transfers in flight. The end of the request.
    Trace(TraceReport),
    /// A reading has blocked for ten seconds.
    Stalled(Stalled),
    /// A worker has ended, or cannot be started.
    WorkerFailed(String),
    /// A request was served, as far as possible.
    Done(RequestKind, End),
}

/// What a served request leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Of a process scan: true if all processes were read.
    pub is_complete: bool,
    /// True if processes are left to the next request: those of their users had taken too much time, or are being
    /// waited for.
    pub has_postponed: bool,
    /// Processes that have not answered yet, or for which killed workers still wait.
    pub stalled: Vec<u32>,
    /// Time from the request.
    pub duration: Duration,
    /// Of a process scan: time after which the next one may come.
    pub pause: Duration,
    /// What the observer and its workers use.
    pub usage: Usage,
}

/// Process that has stalled a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// What was read.
    pub kind: RequestKind,
    /// The process. `None`: the directory with the logs of pods, or the name services.
    pub process: Option<(ProcessId, Group)>,
    /// User whose process was to be read.
    pub uid: u32,
    /// Number of blocked workers, with this one.
    pub blocked: usize,
}

/// Message to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// What process scans look for, from now on. Has no answer.
    LookFor(ScanRequest),
    /// Something to read, without processes of these groups.
    Read(Order, Vec<Group>),
}

/// What a worker is to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The names of pods in the directory of their logs.
    Pods(PathBuf),
    /// A process, for a process scan.
    Scan(u32),
    /// The sockets of a process.
    Sockets(SocketRequest),
    /// The queues of a process.
    Queues(QueueRequest),
    /// What `--check` asks for.
    Examine(Subject),
    /// Names of these users, from the name services.
    LookUp(Vec<u32>),
}

impl Order {
    /// Process that is read. `None`: it has ended, or something else is read.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        match self {
            Self::Scan(pid) => ProcessId::of(*pid).ok(),
            Self::Sockets(request) => Some(request.id),
            Self::Queues(request) => Some(request.id),
            Self::Examine(subject) => Some(subject.process()),
            Self::Pods(_) | Self::LookUp(..) => None,
        }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Scan(pid) => Some(*pid),
            order => Some(order.process()?.pid),
        }
    }
}

/// Reply of a worker to an order.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The reply is not complete: this ancestor of the process is read next.
    Ancestor(ProcessId),
    /// Something for the daemon.
    Found(Found),
    /// Process with nothing that a process scan looks for. True if all of it was read.
    Nothing(bool),
    /// Open files of a process, or why they cannot be read, and its version of NIXL.
    Sockets(Result<OpenFiles, String>, Option<String>),
    /// Queues of a process.
    Queues(ProcessQueues),
    /// Nothing was read.
    Unread(Unread),
}

/// What a worker has found, and the observer passes on.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Found {
    /// Names of pods, at the beginning of a process scan.
    Pods(Pods),
    /// A process with a requested file or with NIXL, for a process scan.
    Scanned(ScannedProcess),
    /// What `--check` has asked for.
    Examined(Examination),
    /// Users, and lines of passwd(5) for those that have a name. `None`: the name services have not answered.
    LookedUp(Vec<u32>, Option<String>),
}

/// Why a process was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unread {
    /// It has ended.
    Ended,
    /// There is no permission.
    Denied(String),
    /// Its group is left out.
    Skipped,
    /// Something else.
    Failed(String),
}

/// What was read of the sockets of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketReading {
    /// Process.
    pub id: ProcessId,
    /// True if bytes were lost before it: the observer had forgotten the connections of the process.
    pub is_resumed: bool,
    /// Version of NIXL, if it was requested and is known.
    pub version: Option<String>,
    /// Number of RDMA devices that the process has open.
    pub rdma_devices: u32,
    /// Traffic since the last reading.
    pub traffic: Traffic,
    /// Peers, also of open connections without traffic.
    pub peers: Vec<PeerReading>,
}

/// Why a process does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Halt {
    /// A signal or a debugger has stopped it.
    Stopped,
    /// Its first thread waits in the kernel, and no signal ends the wait. With the number of times that this thread has
    /// given up the processor: while the number stays, it is one wait.
    Blocked(u64),
}

/// What the queues of a process with silent agents say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReading {
    /// Process.
    pub id: ProcessId,
    /// Sign that its transfers do not advance. `None`: there is none.
    pub sign: Option<Sign>,
}

/// Sign that a transfer does not advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// Address of the peer. `None`: the process itself is halted.
    pub peer: Option<IpAddr>,
    /// Process of the peer, if it is known. It is only known where it is halted or has not read bytes.
    pub process: Option<ProcessId>,
    /// Why that process does not run.
    pub halt: Option<Halt>,
    /// Bytes that the peer has not acknowledged.
    pub unacknowledged: u64,
    /// Bytes that the process of the peer has not read.
    pub unread: u64,
    /// Time between the first and the last reading that have it. Zero: one reading has it, which may be chance.
    pub time: Duration,
}

/// What was read of the connections of a process to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReading {
    /// Address.
    pub address: IpAddr,
    /// Traffic since the last reading.
    pub traffic: Traffic,
    /// Mean of the kernel's smoothed round-trip times in microseconds, weighted by the bytes since the last reading.
    /// `None`: no bytes.
    pub rtt: Option<u64>,
}

/// Traffic of TCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes sent and acknowledged.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Segments sent again.
    pub retransmits: u64,
}

impl Traffic {
    /// Bytes in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sent.saturating_add(self.received)
    }

    /// What was added since an earlier reading. A socket that was disconnected and connected again begins at 0.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.sent < earlier.sent
            || self.received < earlier.received
            || self.retransmits < earlier.retransmits
        {
            return *self;
        }
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            received: self.received.saturating_sub(earlier.received),
            retransmits: self.retransmits.saturating_sub(earlier.retransmits),
        }
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.sent = self.sent.saturating_add(other.sent);
        self.received = self.received.saturating_add(other.received);
        self.retransmits = self.retransmits.saturating_add(other.retransmits);
    }
}
