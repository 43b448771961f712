// SPDX-License-Identifier: GPL-2.0-or-later

//! Messages between the daemon and the worker process, as lines of JSON.

use crate::procfs::process::ProcessId;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::ops::AddAssign;
use std::path::PathBuf;

/// Request of the daemon: processes to read, the oldest first.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Processes.
    pub processes: Vec<RequestedProcess>,
}

/// Process to read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedProcess {
    /// Process.
    pub id: ProcessId,
    /// User.
    pub uid: u32,
    /// True if the daemon has counted connections of the process before. A new worker does not know how much of them.
    pub was_counted: bool,
    /// libnixl in the mount namespace of the process, if its version is requested.
    pub library: Option<PathBuf>,
}

/// Response of the worker. A response to a request is any number of `Begun`, each followed by `Read`, `Ended` or `Failed`, and then `Done`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum Response {
    /// The process is read next. If nothing follows, it stalls the worker.
    Begun(ProcessId),
    /// The process was read.
    Read(ProcessReading),
    /// The process has ended.
    Ended(ProcessId),
    /// The process runs and could not be read, for this reason.
    Failed(ProcessId, String),
    /// The scan has ended: all processes were read, or its time was used.
    Done,
}

/// What was read of a process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessReading {
    /// Process.
    pub id: ProcessId,
    /// True if bytes may have been lost before it: this worker did not know the process, which was counted before.
    pub is_resumed: bool,
    /// Version of NIXL, if it was requested and is known.
    pub version: Option<String>,
    /// Number of RDMA devices that the process has open.
    pub rdma_devices: u32,
    /// Number of TCP connections that count for this process.
    pub connections: u32,
    /// Mean of the smoothed round-trip times in microseconds, weighted by the bytes since the last reading. `None`: no bytes.
    pub rtt: Option<f64>,
    /// Traffic since the last reading.
    pub traffic: Traffic,
    /// Traffic since the last reading by peer, also of open connections without traffic.
    pub peers: Vec<(IpAddr, Traffic)>,
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
