//! The metric table, in one file for each group of clusters.

use super::{Get, Histogram, Metric, Semantics, Units, ValueSource};
use crate::agents::Agent;
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

/// A counter of the events of one type.
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

/// A counter of cluster 3: failures with one status.
const fn error_metric(
    item: u32,
    name: &'static str,
    status: EventType,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    event_metric(3, item, name, status, Units::Count, oneline, help)
}

/// A metric with one value per agent: cluster and item, name, value, semantics and units.
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

/// A histogram with one counter per agent and bucket.
const fn histogram(
    (cluster, item): (u32, u32),
    name: &'static str,
    buckets: Histogram,
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

/// A cumulative histogram, as Prometheus has it: one counter per agent and upper bound.
const fn cumulative(
    pmid: (u32, u32),
    name: &'static str,
    buckets: Histogram,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        source: ValueSource::Cumulative(buckets),
        ..histogram(pmid, name, buckets, oneline, help)
    }
}

/// A metric with one value for the PMDA or the host: cluster and item, name, value, semantics and units.
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
