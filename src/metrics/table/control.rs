//! Cluster 40: the PMDA itself.
//!
//! Retired items of 0.1.0: 2 drains, 3 drain_time, 4 scan_time, 10 events, 13 rings, 14 agents.known, 15 surveys, 16
//! survey_time, 22 log.left_out, 24 cut.scans, 25 files.known, 26 container_looks. The debug log has their values.

use super::{BYTES, EVENTS, FACT, LEVEL, metric};
use crate::log;
use crate::metrics::ValueSource::Control;
use crate::metrics::control::{self as own, milliseconds};
use crate::metrics::{CONTROL, Get, Metric, Semantics, Units};

pub(super) const ROWS: &[Metric] = &[
    metric(
        (CONTROL, 0),
        "control.version",
        Control(Get::Text(|_, _| Some(env!("CARGO_PKG_VERSION").into()))),
        FACT,
    ),
    metric(
        (CONTROL, 1),
        "control.drain_interval",
        Control(Get::U32(|control, _| {
            Some(milliseconds(control.drain_interval))
        })),
        (Semantics::Discrete, Units::Millisecond),
    ),
    metric(
        (CONTROL, 5),
        "control.files.refused",
        Control(Get::U64(|control, _| Some(control.files_refused))),
        EVENTS,
    ),
    metric(
        (CONTROL, 6),
        "control.state.persistent",
        Control(Get::U32(|control, _| Some(control.is_persistent.into()))),
        FACT,
    ),
    metric(
        (CONTROL, 7),
        "control.debug",
        Control(Get::U32(|_, _| Some(log::is_debug().into()))),
        FACT,
    ),
    metric(
        (CONTROL, 8),
        "control.reload",
        Control(Get::U32(|control, _| Some(control.config_loads))),
        FACT,
    ),
    metric(
        (CONTROL, 9),
        "control.config_error",
        Control(Get::Text(|control, _| Some(control.config_error.clone()))),
        FACT,
    ),
    metric(
        (CONTROL, 11),
        "control.cpu_time",
        Control(Get::U64(|_, _| own::cpu_time())),
        (Semantics::Counter, Units::Microsecond),
    ),
    metric(
        (CONTROL, 12),
        "control.memory",
        Control(Get::U64(|_, _| own::memory())),
        BYTES,
    ),
    metric(
        (CONTROL, 17),
        "control.places.max",
        Control(Get::U32(|control, _| Some(control.effort.places))),
        (Semantics::Discrete, Units::Count),
    ),
    metric(
        (CONTROL, 18),
        "control.places.taken",
        Control(Get::U32(|control, _| Some(control.effort.taken))),
        LEVEL,
    ),
    metric(
        (CONTROL, 19),
        "control.places.refused",
        Control(Get::U64(|control, _| Some(control.effort.place_rejections))),
        EVENTS,
    ),
    metric(
        (CONTROL, 20),
        "control.directories.watched",
        Control(Get::U32(|control, _| Some(control.effort.directories))),
        LEVEL,
    ),
    metric(
        (CONTROL, 21),
        "control.directories.left_out",
        Control(Get::U32(|control, _| Some(control.effort.left_out))),
        LEVEL,
    ),
    metric(
        (CONTROL, 23),
        "control.cut.drains",
        Control(Get::U64(|control, _| Some(control.drains_cut))),
        EVENTS,
    ),
    metric(
        (CONTROL, 27),
        "control.directories.missing",
        Control(Get::U32(|control, _| Some(control.effort.missing))),
        LEVEL,
    ),
    metric(
        (CONTROL, 28),
        "control.doubtful_batches",
        Control(Get::U64(|control, _| Some(control.effort.doubtful))),
        EVENTS,
    ),
];
