//! The metric table: the only place where a metric is written down, in a file for each group of clusters.

use super::{Buckets, CONTROL, Get, Metric, Semantics, Source, Units};
use crate::agents::agent::Agent;
use crate::event::EventType;
use crate::metrics::control::Control;

mod agent;
mod control;
mod host;
mod python;
mod transfers;

const GROUPS: [&[Metric]; 5] = [
    python::ROWS,
    agent::ROWS,
    transfers::ROWS,
    host::ROWS,
    control::ROWS,
];

/// All metrics, in PMID order.
pub static METRICS: &[Metric] = &ALL;

const ALL: [Metric; count()] = {
    let mut all = [GROUPS[0][0]; count()];
    let (mut group, mut row, mut at) = (0, 0, 0);
    while at < all.len() {
        if row == GROUPS[group].len() {
            (group, row) = (group + 1, 0);
            continue;
        }
        all[at] = GROUPS[group][row];
        (row, at) = (row + 1, at + 1);
    }
    all
};

const fn count() -> usize {
    let (mut sum, mut group) = (0, 0);
    while group < GROUPS.len() {
        sum += GROUPS[group].len();
        group += 1;
    }
    sum
}

const fn event(
    cluster: u32,
    item: u32,
    name: &'static str,
    event: EventType,
    units: Units,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster,
        item,
        name,
        source: Source::Event(event),
        semantics: Semantics::Counter,
        units,
        oneline,
        help,
    }
}

const fn error(
    item: u32,
    name: &'static str,
    status: EventType,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    event(3, item, name, status, Units::Count, oneline, help)
}

/// Of an agent: cluster and item, semantics and units.
const fn of_agent(
    (cluster, item): (u32, u32),
    name: &'static str,
    value: Get<Agent>,
    (semantics, units): (Semantics, Units),
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster,
        item,
        name,
        source: Source::Agent(value),
        semantics,
        units,
        oneline,
        help,
    }
}

/// A histogram of an agent: counters, one for each bucket.
const fn histogram(
    (cluster, item): (u32, u32),
    name: &'static str,
    buckets: Buckets,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster,
        item,
        name,
        source: Source::Buckets(buckets),
        semantics: Semantics::Counter,
        units: Units::Count,
        oneline,
        help,
    }
}

/// The same as Prometheus has it: counters, each of all up to a bound.
const fn cumulative(
    pmid: (u32, u32),
    name: &'static str,
    buckets: Buckets,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        source: Source::UpTo(buckets),
        ..histogram(pmid, name, buckets, oneline, help)
    }
}

const fn control(
    item: u32,
    name: &'static str,
    value: Get<Control>,
    semantics: Semantics,
    units: Units,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster: CONTROL,
        item,
        name,
        source: Source::Control(value),
        semantics,
        units,
        oneline,
        help,
    }
}
