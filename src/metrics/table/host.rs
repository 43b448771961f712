//! Clusters 30 and 31: the host.

use super::control_metric;
use crate::event::EventType;
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};

const EVENTS: (Semantics, Units) = (Semantics::Counter, Units::Count);
const LEVEL: (Semantics, Units) = (Semantics::Instant, Units::Count);

/// Returns the metrics that sum an event type over all agents, also expired ones. Their items are the indexes in
/// `rows`.
pub(super) fn sums(rows: &[Metric]) -> Vec<Metric> {
    let events = rows.iter().filter_map(|row| match row.source {
        ValueSource::Event(event) => Some((row.name, event, row.units, row.oneline)),
        _ => None,
    });
    let dropped = (
        "ring.dropped",
        EventType::EventsDropped,
        Units::Count,
        "events that NIXL dropped",
    );
    let rows = (0..).zip(events.chain([dropped]));
    let sum = |(item, (name, event, units, oneline))| Metric {
        cluster: 30,
        item,
        name: format!("host.{name}").leak(),
        source: ValueSource::Host(event),
        semantics: Semantics::Counter,
        units,
        oneline: format!("{oneline}, all agents").leak(),
        help: format!(
            "\
Sum of nixl.{name}
over all agents since the host booted, exited agents included."
        )
        .leak(),
    };
    rows.map(sum).collect()
}

pub(super) const ROWS: &[Metric] = &[
    control_metric(
        (30, 21),
        "host.errors.total",
        Get::U64(|control, _| Some(control.agents.errors)),
        EVENTS,
        "errors of all kinds, all agents",
        "\
Sum of the twelve counters below nixl.host.errors: errors of all agents since
the host booted, exited agents included.",
    ),
    control_metric(
        (30, 22),
        "host.ring.full",
        Get::U64(|control, _| Some(control.agents.full)),
        EVENTS,
        "drains that found a ring full, all agents",
        "\
Sum of nixl.ring.full over all agents since the host booted, exited agents
included. NIXL does not tell how many events each full ring has lost.",
    ),
    control_metric(
        (31, 0),
        "agents.live",
        Get::U32(|control, _| Some(control.agents.live)),
        LEVEL,
        "agents that are live",
        "\
Agents in nixl.agent.state 1: a process has the file open, and an event came
within idle_after (60 seconds).",
    ),
    control_metric(
        (31, 1),
        "agents.idle",
        Get::U32(|control, _| Some(control.agents.idle)),
        LEVEL,
        "agents that are live, without recent events",
        "\
Agents in nixl.agent.state 2: a process has the file open, and no event came for
idle_after (60 seconds). An agent without work is silent, and so is one whose
transfers hang.",
    ),
    control_metric(
        (31, 2),
        "agents.exited",
        Get::U32(|control, _| Some(control.agents.exited)),
        LEVEL,
        "agents that exited within retain",
        "\
Agents in nixl.agent.state 3: no process writes to the file any more. They stay
instances until retain (10 minutes) has passed.",
    ),
    control_metric(
        (31, 3),
        "agents.unsupported",
        Get::U32(|control, _| Some(control.agents.unsupported)),
        LEVEL,
        "files of a NIXL version that is not supported",
        "\
Rings and stores of a version that this pmdanixl does not know. They are neither
read nor changed. The log and pmdanixl --check name each. Install a newer
pmdanixl, or remove files that no process uses any more.",
    ),
    control_metric(
        (31, 4),
        "agents.refused",
        Get::U32(|control, _| Some(control.agents.refused)),
        LEVEL,
        "rings and stores that are rejected now",
        "\
Files that look like telemetry but are rejected now: damaged headers, owners
that are not accepted, no room below max_agents. The log and pmdanixl --check
name each with its reason. Files of other kinds are not counted.",
    ),
    control_metric(
        (31, 5),
        "agents.unknown",
        Get::U32(|control, _| Some(control.agents.unknown)),
        LEVEL,
        "agents with unknown state",
        "\
Agents in nixl.agent.state 0: whether a process writes cannot be found out, and
no event came for retain.",
    ),
    control_metric(
        (31, 6),
        "agents.silent",
        Get::U32(|control, _| control.agents.silent),
        LEVEL,
        "processes that use NIXL without telemetry here",
        "\
Processes with a NIXL backend loaded (libplugin_*.so mapped) that write no ring
or store read here: their telemetry is off or goes elsewhere. Children forked
from such a process count too, processes that only import NIXL do not.
pmdanixl --check names each and what is missing. Counted once a minute. No
value: not all processes of the host can be seen (proc_facts = false, a PID
namespace, missing rights).",
    ),
];
