// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 0 to 3, exactly as the Python PMDA of PCP has them.

use super::{Name, Pmid, metric};
use crate::event::EventType::{self, *};
use crate::metrics::Units::{self, Byte, Count, Microsecond};
use crate::metrics::{Metric, Semantics, ValueSource};

/// A counter of the events of one type.
const fn event(pmid: Pmid, name: Name, event: EventType, units: Units) -> Metric {
    let source = ValueSource::Event(event);
    metric(pmid, name, (Semantics::Counter, units), source)
}

/// A counter of cluster 3: failures with one status.
const fn error(item: u32, name: Name, status: EventType) -> Metric {
    event((3, item), name, status, Count)
}

pub(super) const ROWS: &[Metric] = rows![
    /// bytes of completed WRITE transfers
    /// Bytes of completed transfers that the agent started as WRITE: from its own
    /// memory to a remote agent's. NIXL reports a transfer once, on the side that
    /// started it, when it completes. The remote side counts nothing, and neither does
    /// a transfer that hangs.
    event((0, 0), "transfer.tx_bytes", TxBytes, Byte),
    /// bytes of completed READ transfers
    /// Bytes of completed transfers that the agent started as READ: from a remote
    /// agent's memory to its own. NIXL reports a transfer once, on the side that
    /// started it, when it completes. What other agents read from this one or write to
    /// it is in their counters.
    event((0, 1), "transfer.rx_bytes", RxBytes, Byte),
    /// completed WRITE transfers
    /// Completed transfers that the agent started as WRITE. One request of an inference
    /// engine is commonly many transfers.
    event((0, 2), "transfer.tx_requests", TxRequests, Count),
    /// completed READ transfers
    /// Completed transfers that the agent started as READ. One request of an inference
    /// engine is commonly many transfers.
    event((0, 3), "transfer.rx_requests", RxRequests, Count),
    /// bytes registered for transfers
    /// Bytes of memory that the agent has registered with NIXL, summed over all
    /// registrations. It never falls: nixl.memory.current is what is registered now.
    event((1, 0), "memory.registered", MemoryRegistered, Byte),
    /// bytes deregistered
    /// Bytes of memory that the agent has deregistered, summed over all calls. An agent
    /// that exits without deregistering leaves it behind nixl.memory.registered.
    event((1, 1), "memory.deregistered", MemoryDeregistered, Byte),
    /// time from start to completion of transfers
    /// Microseconds from the start of a transfer until its initiator found it complete,
    /// summed over completed transfers. Divided by their number (tx_requests and
    /// rx_requests of nixl.transfer) it is the mean time of a transfer. Transfers
    /// overlap: it can grow by more than a second per second, and bytes divided by it
    /// are the throughput of one transfer, not the rate on the wire.
    event((2, 0), "performance.xfer_time_us", XferTime, Microsecond),
    /// time to post transfers to the backend
    /// Microseconds from the start of a transfer until NIXL's backend accepted it,
    /// summed over transfers: the part of nixl.performance.xfer_time_us that passes in
    /// software before the transfer runs.
    event(
        (2, 1),
        "performance.xfer_post_time_us",
        XferPostTime,
        Microsecond,
    ),
    /// calls on transfers that were never posted
    /// Events NIXL_ERR_NOT_POSTED: the state of a transfer was asked for before it was
    /// started. NIXL 0.10.1 to 1.5.1 never write this event.
    error(0, "errors.not_posted", NotPosted),
    /// calls with invalid parameters
    /// Events NIXL_ERR_INVALID_PARAM: descriptors, memory type, operation or handle of
    /// a call were not valid.
    error(1, "errors.invalid_param", InvalidParam),
    /// failures in the transfer backend
    /// Events NIXL_ERR_BACKEND: the backend (UCX, libfabric, GDS and so on) failed. The
    /// backend's own log says more.
    error(2, "errors.backend", Backend),
    /// unknown agents, backends or memory
    /// Events NIXL_ERR_NOT_FOUND: a call named an unknown remote agent, backend or
    /// memory. Commonly the remote agent's metadata is not loaded, or its process was
    /// restarted.
    error(3, "errors.not_found", NotFound),
    /// mismatched descriptors or metadata
    /// Events NIXL_ERR_MISMATCH: the descriptor lists or the metadata of the two sides
    /// do not fit each other.
    error(4, "errors.mismatch", Mismatch),
    /// calls that are not allowed
    /// Events NIXL_ERR_NOT_ALLOWED: the call is not allowed in this state or with this
    /// configuration.
    error(5, "errors.not_allowed", NotAllowed),
    /// transfers posted again while active
    /// Events NIXL_ERR_REPOST_ACTIVE: a transfer was started again before it completed.
    /// NIXL 0.10.1 to 1.5.1 never write this event.
    error(6, "errors.repost_active", RepostActive),
    /// errors without a known cause
    /// Events NIXL_ERR_UNKNOWN, a status of NIXL. Events of types that the PMDA does
    /// not know are in nixl.ring.unknown.
    error(7, "errors.unknown", Unknown),
    /// calls that are not supported
    /// Events NIXL_ERR_NOT_SUPPORTED: the backend does not support the request. NIXL
    /// 0.10.1 to 1.5.1 never write this event.
    error(8, "errors.not_supported", NotSupported),
    /// transfers that lost the remote agent
    /// Events NIXL_ERR_REMOTE_DISCONNECT: the remote agent went away. NIXL 0.10.1 to
    /// 1.5.1 return this status to the application and never write the event: the value
    /// stays 0 even if a peer is killed. Use the engine's own counter instead, such as
    /// vllm:nixl_num_failed_transfers of vLLM. See docs/errors.md.
    error(9, "errors.remote_disconnect", RemoteDisconnect),
    /// canceled transfers
    /// Events NIXL_ERR_CANCELED: a transfer was canceled before it completed. NIXL
    /// 1.1.0 to 1.5.1 never write this event.
    error(10, "errors.canceled", Canceled),
    /// telemetry requested but not collected
    /// Events NIXL_ERR_NO_TELEMETRY: an application asked NIXL for the telemetry of a
    /// transfer, and none was collected. NIXL returns this status only where telemetry
    /// is off, and so never writes this event.
    error(11, "errors.no_telemetry", NoTelemetry),
];
