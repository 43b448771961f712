// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 40: the PMDA itself.
//!
//! Retired items of 0.1.0: 2 drains, 3 drain_time, 4 scan_time, 10 events, 13 rings, 14 agents.known, 15 surveys, 16
//! survey_time, 22 log.left_out, 24 cut.scans, 25 files.known, 26 container_looks. The debug log has their values.

use super::{BYTES, EVENTS, FACT, LEVEL, daemon_text, daemon_u32, daemon_u64};
use crate::log;
use crate::metrics::control::milliseconds;
use crate::metrics::{Metric, Semantics, Units};

pub(super) const ROWS: &[Metric] = &[
    daemon_text((40, 0), "control.version", |_| {
        Some(env!("CARGO_PKG_VERSION").into())
    }),
    daemon_u32(
        (40, 1),
        "control.drain_interval",
        (Semantics::Discrete, Units::Millisecond),
        |control| Some(milliseconds(control.drain_interval)),
    ),
    daemon_u64((40, 5), "control.files.refused", EVENTS, |control| {
        Some(control.activity.file_rejections)
    }),
    daemon_u32((40, 6), "control.state.persistent", FACT, |control| {
        Some(control.is_persistent.into())
    }),
    daemon_u32((40, 7), "control.debug", FACT, |_| {
        Some(log::is_debug().into())
    }),
    daemon_u32((40, 8), "control.reload", FACT, |control| {
        Some(control.config_loads)
    }),
    daemon_text((40, 9), "control.config_error", |control| {
        Some(control.config_error.clone())
    }),
    daemon_u64(
        (40, 11),
        "control.cpu_time",
        (Semantics::Counter, Units::Microsecond),
        |control| control.cpu_time(),
    ),
    daemon_u64((40, 12), "control.memory", BYTES, |control| {
        control.memory()
    }),
    daemon_u32(
        (40, 17),
        "control.places.max",
        (Semantics::Discrete, Units::Count),
        |control| Some(control.activity.places),
    ),
    daemon_u32((40, 18), "control.places.taken", LEVEL, |control| {
        Some(control.activity.places_taken)
    }),
    daemon_u64((40, 19), "control.places.refused", EVENTS, |control| {
        Some(control.activity.place_rejections)
    }),
    daemon_u32((40, 20), "control.directories.watched", LEVEL, |control| {
        Some(control.activity.directories)
    }),
    daemon_u32((40, 21), "control.directories.left_out", LEVEL, |control| {
        Some(control.activity.directories_left_out)
    }),
    daemon_u64((40, 23), "control.cut.drains", EVENTS, |control| {
        Some(control.drains_cut)
    }),
    daemon_u32((40, 27), "control.directories.missing", LEVEL, |control| {
        Some(control.activity.missing_directories)
    }),
    daemon_u64((40, 28), "control.doubtful_batches", EVENTS, |control| {
        Some(control.activity.doubtful_batches)
    }),
    daemon_u32((40, 29), "control.observer", FACT, |control| {
        control.activity.observes.map(u32::from)
    }),
];
