// SPDX-License-Identifier: GPL-2.0-or-later

//! The metric table, in one file for each group of clusters.

use super::control::Control;
use super::{Get, Metric, Semantics, Units, ValueSource};
use crate::agents::Agent;
use std::sync::LazyLock;

/// Makes a table of rows. The comment above a row is its help: the short text in the first line, then the long one.
/// rustfmt does not format the rows.
macro_rules! rows {
    ($(#[doc = $oneline:literal] $(#[doc = $help:literal])+ $row:ident $values:tt,)+) => {
        &[$(Metric { oneline: $oneline, help: concat!($("\n", $help),+), ..$row $values }),+]
    };
}

mod agent;
mod control;
mod host;
mod processes;
mod python;
pub(super) mod timeline;
mod traced;
mod transfers;

/// All metrics, in PMID order.
pub static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let sums = host::sums(python::ROWS);
    [
        python::ROWS,
        agent::ROWS,
        transfers::ROWS,
        processes::ROWS,
        traced::ROWS,
        &sums,
        host::ROWS,
        control::ROWS,
        timeline::ROWS,
    ]
    .concat()
});

/// Cluster and item of a PMID.
type Pmid = (u32, u32);
/// Semantics and units.
type Kind = (Semantics, Units);
type Name = &'static str;
/// Function that reads a value. It returns `None` if there is no value now.
type Read<T, V> = fn(&T) -> Option<V>;

// Kinds of several metrics.
const FACT: Kind = (Semantics::Discrete, Units::None);
const EVENTS: Kind = (Semantics::Counter, Units::Count);
const LEVEL: Kind = (Semantics::Instant, Units::Count);
/// A configured number.
const SIZE: Kind = (Semantics::Discrete, Units::Count);
const BYTES: Kind = (Semantics::Instant, Units::Byte);
const TIME: Kind = (Semantics::Instant, Units::Microsecond);
const MILLISECONDS: Kind = (Semantics::Instant, Units::Millisecond);
const INSTANT: Kind = (Semantics::Instant, Units::None);
const MOMENT: Kind = (Semantics::Discrete, Units::Second);

const fn metric(pmid: Pmid, name: Name, kind: Kind, source: ValueSource) -> Metric {
    Metric {
        cluster: pmid.0,
        item: pmid.1,
        name,
        source,
        semantics: kind.0,
        units: kind.1,
        oneline: "",
        help: "",
    }
}

// Rows of agents, by the type of the value.

const fn agent_u32(pmid: Pmid, name: Name, kind: Kind, get: Read<Agent, u32>) -> Metric {
    metric(pmid, name, kind, ValueSource::Agent(Get::U32(get)))
}

const fn agent_u64(pmid: Pmid, name: Name, kind: Kind, get: Read<Agent, u64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Agent(Get::U64(get)))
}

const fn agent_f64(pmid: Pmid, name: Name, kind: Kind, get: Read<Agent, f64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Agent(Get::F64(get)))
}

const fn agent_text(pmid: Pmid, name: Name, kind: Kind, get: Read<Agent, String>) -> Metric {
    metric(pmid, name, kind, ValueSource::Agent(Get::Text(get)))
}

// Rows of the daemon and of the host, by the type of the value.

const fn daemon_u32(pmid: Pmid, name: Name, kind: Kind, get: Read<Control, u32>) -> Metric {
    metric(pmid, name, kind, ValueSource::Control(Get::U32(get)))
}

const fn daemon_u64(pmid: Pmid, name: Name, kind: Kind, get: Read<Control, u64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Control(Get::U64(get)))
}

const fn daemon_text(pmid: Pmid, name: Name, get: Read<Control, String>) -> Metric {
    metric(pmid, name, FACT, ValueSource::Control(Get::Text(get)))
}
