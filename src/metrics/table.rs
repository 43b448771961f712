//! The metric table: the only place where a metric is written down, in a file for each group of clusters.

use super::{Buckets, Get, Metric, Semantics, Units, ValueSource};
use crate::agents::agent::Agent;
use crate::event::EventType;
use crate::metrics::control::Control;
use std::sync::LazyLock;

mod agent;
mod control;
mod host;
mod python;
mod transfers;

/// All metrics, in PMID order.
pub static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let sums = host::sums(python::ROWS);
    [
        python::ROWS,
        agent::ROWS,
        transfers::ROWS,
        &sums,
        host::ROWS,
        control::ROWS,
    ]
    .concat()
});

const fn event_metric(
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
        source: ValueSource::Event(event),
        semantics: Semantics::Counter,
        units,
        oneline,
        help,
    }
}

const fn error_metric(
    item: u32,
    name: &'static str,
    status: EventType,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    event_metric(3, item, name, status, Units::Count, oneline, help)
}

/// Of an agent: cluster and item, semantics and units.
const fn agent_metric(
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
        source: ValueSource::Agent(value),
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
        source: ValueSource::Buckets(buckets),
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
        source: ValueSource::Cumulative(buckets),
        ..histogram(pmid, name, buckets, oneline, help)
    }
}

/// Of the PMDA or of all agents together: cluster and item, semantics and units.
const fn control_metric(
    (cluster, item): (u32, u32),
    name: &'static str,
    value: Get<Control>,
    (semantics, units): (Semantics, Units),
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster,
        item,
        name,
        source: ValueSource::Control(value),
        semantics,
        units,
        oneline,
        help,
    }
}
