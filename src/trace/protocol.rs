// SPDX-License-Identifier: GPL-2.0-or-later

//! Messages between the daemon, the observer and the tracer, as lines of JSON.

use crate::procfs::process::ProcessId;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;

/// What is to be traced. The answer has the figures since the tracer has attached its programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceRequest {
    /// Processes that use NIXL.
    pub processes: Vec<TracedProcess>,
    /// Bounds of the histogram, microseconds. With other bounds the figures begin at zero.
    pub bounds: Vec<u64>,
    /// True if the result of postXferReq is read (`trace_failed_posts`).
    pub at_return: bool,
}

/// A process that uses NIXL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedProcess {
    /// Process.
    pub id: ProcessId,
    /// User.
    pub uid: u32,
    /// libnixl in the mount namespace of the process.
    pub library: OsString,
}

/// Reply of the tracer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceReply {
    /// The answer is not complete: the libnixl of this process is probed next, which can block.
    Attaching(ProcessId),
    /// The answer, or why nothing can be traced.
    Read(Result<TraceReading, String>),
}

/// What the tracer has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReading {
    /// Pairs of the processes.
    pub pairs: Vec<PairReading>,
    /// Number of libraries with programs.
    pub libraries: u32,
    /// Handles and pairs that found no room.
    pub lost: u64,
    /// Libraries that cannot be probed, each once.
    pub failures: Vec<LibraryFailure>,
}

/// A library that cannot be probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryFailure {
    /// A process that has it mapped.
    pub process: TracedProcess,
    /// Reason.
    pub why: String,
}

/// Figures of a process and a remote agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairReading {
    /// Process.
    pub process: ProcessId,
    /// Name of the remote agent, as it is written in an instance.
    pub remote: String,
    /// Time at which the figures began, of CLOCK_BOOTTIME in ns.
    pub created: u64,
    /// Transfers in flight.
    pub in_flight: u64,
    /// Time since the oldest of them was posted, in ns.
    pub oldest: Option<u64>,
    /// Transfers that were posted.
    pub posted: u64,
    /// Transfers whose handle was released, or that were done at their post.
    pub released: u64,
    /// Transfers whose handle was posted again.
    pub reposted: u64,
    /// Transfers that have failed at their post. `None`: results of posts are not read.
    pub failed: Option<u64>,
    /// Time of the released transfers, in ns.
    pub time: u64,
    /// Released transfers by their time.
    pub buckets: Vec<u64>,
}

/// What the observer sends to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// Tracers that were started. The figures of each begin at zero.
    pub starts: u64,
    /// The reading, or why there is none.
    pub reading: Result<TraceReading, String>,
}
