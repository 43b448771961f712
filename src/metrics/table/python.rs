//! Clusters 0 to 3, exactly as the Python PMDA of PCP has them.

use super::metric;
use crate::event::EventType;
use crate::metrics::{Metric, Semantics, Units, ValueSource};

/// A counter of the events of one type.
const fn event(pmid: (u32, u32), name: &'static str, event: EventType, units: Units) -> Metric {
    let source = ValueSource::Event(event);
    metric(pmid, name, source, (Semantics::Counter, units))
}

/// A counter of cluster 3: failures with one status.
const fn error(item: u32, name: &'static str, status: EventType) -> Metric {
    event((3, item), name, status, Units::Count)
}

pub(super) const ROWS: &[Metric] = &[
    event((0, 0), "transfer.tx_bytes", EventType::TxBytes, Units::Byte),
    event((0, 1), "transfer.rx_bytes", EventType::RxBytes, Units::Byte),
    event(
        (0, 2),
        "transfer.tx_requests",
        EventType::TxRequests,
        Units::Count,
    ),
    event(
        (0, 3),
        "transfer.rx_requests",
        EventType::RxRequests,
        Units::Count,
    ),
    event(
        (1, 0),
        "memory.registered",
        EventType::MemoryRegistered,
        Units::Byte,
    ),
    event(
        (1, 1),
        "memory.deregistered",
        EventType::MemoryDeregistered,
        Units::Byte,
    ),
    event(
        (2, 0),
        "performance.xfer_time_us",
        EventType::XferTime,
        Units::Microsecond,
    ),
    event(
        (2, 1),
        "performance.xfer_post_time_us",
        EventType::XferPostTime,
        Units::Microsecond,
    ),
    error(0, "errors.not_posted", EventType::NotPosted),
    error(1, "errors.invalid_param", EventType::InvalidParam),
    error(2, "errors.backend", EventType::Backend),
    error(3, "errors.not_found", EventType::NotFound),
    error(4, "errors.mismatch", EventType::Mismatch),
    error(5, "errors.not_allowed", EventType::NotAllowed),
    error(6, "errors.repost_active", EventType::RepostActive),
    error(7, "errors.unknown", EventType::Unknown),
    error(8, "errors.not_supported", EventType::NotSupported),
    error(9, "errors.remote_disconnect", EventType::RemoteDisconnect),
    error(10, "errors.canceled", EventType::Canceled),
    error(11, "errors.no_telemetry", EventType::NoTelemetry),
];
