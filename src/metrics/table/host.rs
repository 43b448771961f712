//! Clusters 30 and 31: the host.

use super::of_pmda;
use crate::event::EventType;
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};

const EVENTS: (Semantics, Units) = (Semantics::Counter, Units::Count);
const LEVEL: (Semantics, Units) = (Semantics::Instant, Units::Count);

/// The sums of metrics of agents over all agents that ever were. Their items are the places in `rows`.
pub(super) fn sums(rows: &[Metric]) -> Vec<Metric> {
    let events = rows.iter().filter_map(|row| match row.source {
        ValueSource::Event(event) => Some((row.name, event, row.units, row.oneline)),
        _ => None,
    });
    let dropped = (
        "ring.dropped",
        EventType::EventsDropped,
        Units::Count,
        "events that NIXL has dropped",
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
            "nixl.{name},\n\
added up over all agents that pmdanixl has met on this host, those included that
have exited and are no instances any more. It does not go back when agents leave
or restart, nor when pmdanixl is started again while it can keep its state
(nixl.control.state.persistent); it begins at zero at a boot."
        )
        .leak(),
    };
    rows.map(sum).collect()
}

pub(super) const ROWS: &[Metric] = &[
    of_pmda(
        (30, 21),
        "host.errors.total",
        Get::U64(|control, _| Some(control.agents.errors)),
        EVENTS,
        "errors of all kinds, all agents",
        "\
The sum of the twelve kinds of errors below nixl.host.errors. It does not go
back when agents leave.",
    ),
    of_pmda(
        (30, 22),
        "host.ring.full",
        Get::U64(|control, _| Some(control.agents.full)),
        EVENTS,
        "drains that found a ring full, all agents",
        "\
nixl.ring.full, added up over all agents that pmdanixl has met on this host: it
does not go back when agents leave. How much each full ring has lost, NIXL does
not tell.",
    ),
    of_pmda(
        (31, 0),
        "agents.live",
        Get::U32(|control, _| Some(control.agents.live)),
        LEVEL,
        "agents that are live",
        "\
Agents whose nixl.agent.state is 1: a process has the ring, and has reported
something within idle_after.",
    ),
    of_pmda(
        (31, 1),
        "agents.idle",
        Get::U32(|control, _| Some(control.agents.idle)),
        LEVEL,
        "agents that are live and silent",
        "\
Agents whose nixl.agent.state is 2: a process has the ring, and has reported
nothing for idle_after (60 seconds). That is evidence of silence, not of a hang:
an agent without work is silent, and so is one whose transfers are stuck.",
    ),
    of_pmda(
        (31, 2),
        "agents.exited",
        Get::U32(|control, _| Some(control.agents.exited)),
        LEVEL,
        "agents that have exited within retain",
        "\
Agents whose nixl.agent.state is 3: nobody has the ring any more. They are
instances until retain (10 minutes) has passed.",
    ),
    of_pmda(
        (31, 3),
        "agents.unsupported",
        Get::U32(|control, _| Some(control.agents.unsupported)),
        LEVEL,
        "files of a NIXL version that is not supported",
        "\
Rings and stores whose header has a version that this pmdanixl does not know.
They are neither read nor changed. The log and pmdanixl --check name each.
Install a newer pmdanixl, or remove files that no process uses any more.",
    ),
    of_pmda(
        (31, 4),
        "agents.refused",
        Get::U32(|control, _| Some(control.agents.refused)),
        LEVEL,
        "rings that cannot be read as they are",
        "\
Files that look like telemetry rings but are refused now: damaged headers, files
of owners that are not taken, more than max_agents. The log and pmdanixl --check
name them with their reasons. Files that are no rings are not counted.",
    ),
    of_pmda(
        (31, 5),
        "agents.unknown",
        Get::U32(|control, _| Some(control.agents.unknown)),
        LEVEL,
        "agents of which it is not known whether they live",
        "\
Agents whose nixl.agent.state is 0: the kernel does not tell who has the ring,
and nothing was reported for retain.",
    ),
    of_pmda(
        (31, 6),
        "agents.silent",
        Get::U32(|control, _| control.agents.silent),
        LEVEL,
        "processes that use NIXL without telemetry here",
        "\
Processes that have a NIXL backend loaded (libplugin_*.so mapped) and write no
ring or store that is read here: their telemetry is off or goes elsewhere. A
process that only imports NIXL does not count. A process whose agents have ended
does, and so does each child that was forked from a counted process.
pmdanixl --check names them with what is missing. Counted once a minute; no
value where not all processes of the host can be seen (proc_facts = false, a PID
namespace, a user without the rights).",
    ),
];
