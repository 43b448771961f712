//! Clusters 30 and 31: the host.

use super::{EVENTS, LEVEL, metric};
use crate::event::EventType;
use crate::metrics::ValueSource::{Control, Event, Host};
use crate::metrics::{Get, Metric, Semantics, Units};

/// Returns the metrics that sum an event type over all agents, also expired ones. Their items are the indexes in
/// `rows`.
pub(super) fn sums(rows: &[Metric]) -> Vec<Metric> {
    let events = rows.iter().filter_map(|row| match row.source {
        Event(event) => Some((row.name, event, row.units)),
        _ => None,
    });
    let dropped = ("ring.dropped", EventType::EventsDropped, Units::Count);
    let rows = (0..).zip(events.chain([dropped]));
    let sum = |(item, (name, event, units))| {
        let name = format!("host.{name}").leak();
        metric((30, item), name, Host(event), (Semantics::Counter, units))
    };
    rows.map(sum).collect()
}

pub(super) const ROWS: &[Metric] = &[
    metric(
        (30, 21),
        "host.errors.total",
        Control(Get::U64(|control, _| Some(control.agents.errors))),
        EVENTS,
    ),
    metric(
        (30, 22),
        "host.ring.full",
        Control(Get::U64(|control, _| Some(control.agents.full))),
        EVENTS,
    ),
    metric(
        (31, 0),
        "agents.live",
        Control(Get::U32(|control, _| Some(control.agents.live))),
        LEVEL,
    ),
    metric(
        (31, 1),
        "agents.idle",
        Control(Get::U32(|control, _| Some(control.agents.idle))),
        LEVEL,
    ),
    metric(
        (31, 2),
        "agents.exited",
        Control(Get::U32(|control, _| Some(control.agents.exited))),
        LEVEL,
    ),
    metric(
        (31, 3),
        "agents.unsupported",
        Control(Get::U32(|control, _| Some(control.agents.unsupported))),
        LEVEL,
    ),
    metric(
        (31, 4),
        "agents.refused",
        Control(Get::U32(|control, _| Some(control.agents.refused))),
        LEVEL,
    ),
    metric(
        (31, 5),
        "agents.unknown",
        Control(Get::U32(|control, _| Some(control.agents.unknown))),
        LEVEL,
    ),
    metric(
        (31, 6),
        "agents.silent",
        Control(Get::U32(|control, _| control.agents.silent)),
        LEVEL,
    ),
];
