//! The metric table, in one file for each group of clusters.

use super::{Metric, Semantics, Units, ValueSource};
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

// Semantics and units that several metrics have.
const FACT: (Semantics, Units) = (Semantics::Discrete, Units::None);
const EVENTS: (Semantics, Units) = (Semantics::Counter, Units::Count);
const LEVEL: (Semantics, Units) = (Semantics::Instant, Units::Count);
const BYTES: (Semantics, Units) = (Semantics::Instant, Units::Byte);
const TIME: (Semantics, Units) = (Semantics::Instant, Units::Microsecond);
const MOMENT: (Semantics, Units) = (Semantics::Discrete, Units::Second);

/// Returns a row: cluster and item, name, values, semantics and units.
const fn metric(
    (cluster, item): (u32, u32),
    name: &'static str,
    source: ValueSource,
    (semantics, units): (Semantics, Units),
) -> Metric {
    Metric {
        cluster,
        item,
        name,
        source,
        semantics,
        units,
    }
}
