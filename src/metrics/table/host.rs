// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 30 and 31: the host.

use super::{EVENTS, LEVEL, daemon_u32, daemon_u64, metric};
use crate::event::EventType;
use crate::metrics::ValueSource::{Event, Host};
use crate::metrics::{Metric, Semantics, Units};

/// First items of the sums of clusters 0 to 3.
const FIRST_ITEMS: [u32; 4] = [0, 4, 6, 8];

/// Returns the metrics that sum an event type over all agents, also expired ones.
pub(super) fn sums(rows: &[Metric]) -> Vec<Metric> {
    let events = rows.iter().filter_map(|row| match row.source {
        Event(event) => {
            let first = FIRST_ITEMS.get(usize::try_from(row.cluster).ok()?)?;
            Some((first + row.item, row.name, event, row.units))
        }
        _ => None,
    });
    let dropped = (20, "ring.dropped", EventType::EventsDropped, Units::Count);
    let sum = |(item, name, event, units)| {
        let name = format!("host.{name}").leak();
        metric((30, item), name, (Semantics::Counter, units), Host(event))
    };
    events.chain([dropped]).map(sum).collect()
}

pub(super) const ROWS: &[Metric] = &[
    daemon_u64((30, 21), "host.errors.total", EVENTS, |control| {
        Some(control.agents.errors)
    }),
    daemon_u64((30, 22), "host.ring.full", EVENTS, |control| {
        Some(control.agents.full)
    }),
    daemon_u32((31, 0), "agents.live", LEVEL, |control| {
        Some(control.agents.live)
    }),
    daemon_u32((31, 1), "agents.idle", LEVEL, |control| {
        Some(control.agents.idle)
    }),
    daemon_u32((31, 2), "agents.exited", LEVEL, |control| {
        Some(control.agents.exited)
    }),
    daemon_u32((31, 3), "agents.unsupported", LEVEL, |control| {
        Some(control.agents.unsupported)
    }),
    daemon_u32((31, 4), "agents.refused", LEVEL, |control| {
        Some(control.agents.rejected)
    }),
    daemon_u32((31, 5), "agents.unknown", LEVEL, |control| {
        Some(control.agents.unknown)
    }),
    daemon_u32((31, 6), "agents.silent", LEVEL, |control| {
        control.agents.silent
    }),
];
