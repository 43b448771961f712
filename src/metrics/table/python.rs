//! Clusters 0 to 3, exactly as the Python PMDA of PCP has them.

use super::{error_metric, event_metric};
use crate::event::EventType;
use crate::metrics::{Metric, Units};

pub(super) const ROWS: &[Metric] = &[
    event_metric(
        0,
        0,
        "transfer.tx_bytes",
        EventType::TxBytes,
        Units::Byte,
        "bytes of completed WRITE transfers",
        "\
Bytes of completed transfers that the agent started as WRITE: from its own
memory to a remote agent's. NIXL reports a transfer once, on the side that
started it, when it completes. The remote side counts nothing, and neither does
a transfer that hangs.",
    ),
    event_metric(
        0,
        1,
        "transfer.rx_bytes",
        EventType::RxBytes,
        Units::Byte,
        "bytes of completed READ transfers",
        "\
Bytes of completed transfers that the agent started as READ: from a remote
agent's memory to its own. NIXL reports a transfer once, on the side that
started it, when it completes. What other agents read from this one or write to
it is in their counters.",
    ),
    event_metric(
        0,
        2,
        "transfer.tx_requests",
        EventType::TxRequests,
        Units::Count,
        "completed WRITE transfers",
        "\
Completed transfers that the agent started as WRITE. One request of an inference
engine is commonly many transfers.",
    ),
    event_metric(
        0,
        3,
        "transfer.rx_requests",
        EventType::RxRequests,
        Units::Count,
        "completed READ transfers",
        "\
Completed transfers that the agent started as READ. One request of an inference
engine is commonly many transfers.",
    ),
    event_metric(
        1,
        0,
        "memory.registered",
        EventType::MemoryRegistered,
        Units::Byte,
        "bytes registered for transfers",
        "\
Bytes of memory that the agent has registered with NIXL, summed over all
registrations. It never falls: nixl.memory.current is what is registered now.",
    ),
    event_metric(
        1,
        1,
        "memory.deregistered",
        EventType::MemoryDeregistered,
        Units::Byte,
        "bytes deregistered",
        "\
Bytes of memory that the agent has deregistered, summed over all calls. An agent
that exits without deregistering leaves it behind nixl.memory.registered.",
    ),
    event_metric(
        2,
        0,
        "performance.xfer_time_us",
        EventType::XferTime,
        Units::Microsecond,
        "time from start to completion of transfers",
        "\
Microseconds from the start of a transfer until its initiator found it complete,
summed over completed transfers. Divided by their number (tx_requests and
rx_requests of nixl.transfer) it is the mean time of a transfer. Transfers
overlap: it can grow by more than a second per second, and bytes divided by it
are the throughput of one transfer, not the rate on the wire.",
    ),
    event_metric(
        2,
        1,
        "performance.xfer_post_time_us",
        EventType::XferPostTime,
        Units::Microsecond,
        "time to post transfers to the backend",
        "\
Microseconds from the start of a transfer until NIXL's backend accepted it,
summed over transfers: the part of nixl.performance.xfer_time_us that passes in
software before the transfer runs.",
    ),
    error_metric(
        0,
        "errors.not_posted",
        EventType::NotPosted,
        "calls on transfers that were never posted",
        "\
Events NIXL_ERR_NOT_POSTED: the state of a transfer was asked for before it was
started. NIXL 0.10.1 to 1.5.1 never write this event.",
    ),
    error_metric(
        1,
        "errors.invalid_param",
        EventType::InvalidParam,
        "calls with invalid parameters",
        "\
Events NIXL_ERR_INVALID_PARAM: descriptors, memory type, operation or handle of
a call were not valid.",
    ),
    error_metric(
        2,
        "errors.backend",
        EventType::Backend,
        "failures in the transfer backend",
        "\
Events NIXL_ERR_BACKEND: the backend (UCX, libfabric, GDS and so on) failed. The
backend's own log says more.",
    ),
    error_metric(
        3,
        "errors.not_found",
        EventType::NotFound,
        "unknown agents, backends or memory",
        "\
Events NIXL_ERR_NOT_FOUND: a call named an unknown remote agent, backend or
memory. Commonly the remote agent's metadata is not loaded, or its process was
restarted.",
    ),
    error_metric(
        4,
        "errors.mismatch",
        EventType::Mismatch,
        "mismatched descriptors or metadata",
        "\
Events NIXL_ERR_MISMATCH: the descriptor lists or the metadata of the two sides
do not fit each other.",
    ),
    error_metric(
        5,
        "errors.not_allowed",
        EventType::NotAllowed,
        "calls that are not allowed",
        "\
Events NIXL_ERR_NOT_ALLOWED: the call is not allowed in this state or with this
configuration.",
    ),
    error_metric(
        6,
        "errors.repost_active",
        EventType::RepostActive,
        "transfers posted again while active",
        "\
Events NIXL_ERR_REPOST_ACTIVE: a transfer was started again before it completed.
NIXL 0.10.1 to 1.5.1 never write this event.",
    ),
    error_metric(
        7,
        "errors.unknown",
        EventType::Unknown,
        "errors without a known cause",
        "\
Events NIXL_ERR_UNKNOWN, a status of NIXL. Events of types that the PMDA does
not know are in nixl.ring.unknown.",
    ),
    error_metric(
        8,
        "errors.not_supported",
        EventType::NotSupported,
        "calls that are not supported",
        "\
Events NIXL_ERR_NOT_SUPPORTED: the backend does not support the request. NIXL
0.10.1 to 1.5.1 never write this event.",
    ),
    error_metric(
        9,
        "errors.remote_disconnect",
        EventType::RemoteDisconnect,
        "transfers that lost the remote agent",
        "\
Events NIXL_ERR_REMOTE_DISCONNECT: the remote agent went away. NIXL 0.10.1 to
1.5.1 return this status to the application and never write the event: the value
stays 0 even if a peer is killed. Use the engine's own counter instead, such as
vllm:nixl_num_failed_transfers of vLLM. See docs/errors.md.",
    ),
    error_metric(
        10,
        "errors.canceled",
        EventType::Canceled,
        "canceled transfers",
        "\
Events NIXL_ERR_CANCELED: a transfer was canceled before it completed. NIXL
1.1.0 to 1.5.1 never write this event.",
    ),
    error_metric(
        11,
        "errors.no_telemetry",
        EventType::NoTelemetry,
        "telemetry requested but not collected",
        "\
Events NIXL_ERR_NO_TELEMETRY: an application asked NIXL for the telemetry of a
transfer, and none was collected. NIXL returns this status only where telemetry
is off, and so never writes this event.",
    ),
];
