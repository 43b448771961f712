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

pub(super) const ROWS: &[Metric] = &[
    event((0, 0), "transfer.tx_bytes", TxBytes, Byte),
    event((0, 1), "transfer.rx_bytes", RxBytes, Byte),
    event((0, 2), "transfer.tx_requests", TxRequests, Count),
    event((0, 3), "transfer.rx_requests", RxRequests, Count),
    event((1, 0), "memory.registered", MemoryRegistered, Byte),
    event((1, 1), "memory.deregistered", MemoryDeregistered, Byte),
    event((2, 0), "performance.xfer_time_us", XferTime, Microsecond),
    event(
        (2, 1),
        "performance.xfer_post_time_us",
        XferPostTime,
        Microsecond,
    ),
    error(0, "errors.not_posted", NotPosted),
    error(1, "errors.invalid_param", InvalidParam),
    error(2, "errors.backend", Backend),
    error(3, "errors.not_found", NotFound),
    error(4, "errors.mismatch", Mismatch),
    error(5, "errors.not_allowed", NotAllowed),
    error(6, "errors.repost_active", RepostActive),
    error(7, "errors.unknown", Unknown),
    error(8, "errors.not_supported", NotSupported),
    error(9, "errors.remote_disconnect", RemoteDisconnect),
    error(10, "errors.canceled", Canceled),
    error(11, "errors.no_telemetry", NoTelemetry),
];
