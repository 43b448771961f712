//! Clusters 30 and 31: the host.

use super::Source;
use crate::event::EventType;
use crate::metrics::control::Control;
use crate::metrics::{Get, Metric, Semantics, Units};

/// The sum of a metric over all agents that ever were.
macro_rules! host {
    ($item:literal, $of:literal, $event:ident, $units:ident, $oneline:literal) => {
        Metric {
            cluster: 30,
            item: $item,
            name: concat!("host.", $of),
            source: Source::Host(EventType::$event),
            semantics: Semantics::Counter,
            units: Units::$units,
            oneline: $oneline,
            help: concat!(
                "nixl.",
                $of,
                ",\n\
added up over all agents that pmdanixl has met on this host, those included that
have exited and are no instances any more. It does not go back when agents leave
or restart, nor when pmdanixl is started again while it can keep its state
(nixl.control.state.persistent); it begins at zero at a boot."
            ),
        }
    };
}

/// Of all agents that ever were, what is no sum of one event.
const fn of_host(
    item: u32,
    name: &'static str,
    value: fn(&Control, &crate::base::clock::Now) -> Option<u64>,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster: 30,
        item,
        name,
        source: Source::Control(Get::U64(value)),
        semantics: Semantics::Counter,
        units: Units::Count,
        oneline,
        help,
    }
}

/// How many agents are in a state.
const fn agents(
    item: u32,
    name: &'static str,
    value: fn(&Control, &crate::base::clock::Now) -> Option<u32>,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster: 31,
        item,
        name,
        source: Source::Control(Get::U32(value)),
        semantics: Semantics::Instant,
        units: Units::Count,
        oneline,
        help,
    }
}

pub(super) const ROWS: &[Metric] = &[
    host!(
        0,
        "transfer.tx_bytes",
        TxBytes,
        Byte,
        "bytes of WRITE transfers, all agents"
    ),
    host!(
        1,
        "transfer.rx_bytes",
        RxBytes,
        Byte,
        "bytes of READ transfers, all agents"
    ),
    host!(
        2,
        "transfer.tx_requests",
        TxRequests,
        Count,
        "WRITE transfers, all agents"
    ),
    host!(
        3,
        "transfer.rx_requests",
        RxRequests,
        Count,
        "READ transfers, all agents"
    ),
    host!(
        4,
        "memory.registered",
        MemoryRegistered,
        Byte,
        "bytes registered, all agents"
    ),
    host!(
        5,
        "memory.deregistered",
        MemoryDeregistered,
        Byte,
        "bytes deregistered, all agents"
    ),
    host!(
        6,
        "performance.xfer_time_us",
        XferTime,
        Microsecond,
        "time of transfers, all agents"
    ),
    host!(
        7,
        "performance.xfer_post_time_us",
        XferPostTime,
        Microsecond,
        "time to post transfers, all agents"
    ),
    host!(
        8,
        "errors.not_posted",
        NotPosted,
        Count,
        "NIXL_ERR_NOT_POSTED, all agents"
    ),
    host!(
        9,
        "errors.invalid_param",
        InvalidParam,
        Count,
        "NIXL_ERR_INVALID_PARAM, all agents"
    ),
    host!(
        10,
        "errors.backend",
        Backend,
        Count,
        "NIXL_ERR_BACKEND, all agents"
    ),
    host!(
        11,
        "errors.not_found",
        NotFound,
        Count,
        "NIXL_ERR_NOT_FOUND, all agents"
    ),
    host!(
        12,
        "errors.mismatch",
        Mismatch,
        Count,
        "NIXL_ERR_MISMATCH, all agents"
    ),
    host!(
        13,
        "errors.not_allowed",
        NotAllowed,
        Count,
        "NIXL_ERR_NOT_ALLOWED, all agents"
    ),
    host!(
        14,
        "errors.repost_active",
        RepostActive,
        Count,
        "NIXL_ERR_REPOST_ACTIVE, all agents"
    ),
    host!(
        15,
        "errors.unknown",
        Unknown,
        Count,
        "NIXL_ERR_UNKNOWN, all agents"
    ),
    host!(
        16,
        "errors.not_supported",
        NotSupported,
        Count,
        "NIXL_ERR_NOT_SUPPORTED, all agents"
    ),
    host!(
        17,
        "errors.remote_disconnect",
        RemoteDisconnect,
        Count,
        "NIXL_ERR_REMOTE_DISCONNECT, all agents"
    ),
    host!(
        18,
        "errors.canceled",
        Canceled,
        Count,
        "NIXL_ERR_CANCELED, all agents"
    ),
    host!(
        19,
        "errors.no_telemetry",
        NoTelemetry,
        Count,
        "NIXL_ERR_NO_TELEMETRY, all agents"
    ),
    host!(
        20,
        "ring.dropped",
        EventsDropped,
        Count,
        "events that NIXL has dropped, all agents"
    ),
    of_host(
        21,
        "host.errors.total",
        |control, _| Some(control.agents.errors),
        "errors of all kinds, all agents",
        "\
The sum of the twelve kinds of errors below nixl.host.errors. It does not go
back when agents leave.",
    ),
    of_host(
        22,
        "host.ring.full",
        |control, _| Some(control.agents.full),
        "drains that found a ring full, all agents",
        "\
nixl.ring.full, added up over all agents that pmdanixl has met on this host: it
does not go back when agents leave. How much each full ring has lost, NIXL does
not tell.",
    ),
    agents(
        0,
        "agents.live",
        |control, _| Some(control.agents.live),
        "agents that are live",
        "\
Agents whose nixl.agent.state is 1: a process has the ring, and has reported
something within idle_after.",
    ),
    agents(
        1,
        "agents.idle",
        |control, _| Some(control.agents.idle),
        "agents that are live and silent",
        "\
Agents whose nixl.agent.state is 2: a process has the ring, and has reported
nothing for idle_after (60 seconds). That is evidence of silence, not of a hang:
an agent without work is silent, and so is one whose transfers are stuck.",
    ),
    agents(
        2,
        "agents.exited",
        |control, _| Some(control.agents.exited),
        "agents that have exited within retain",
        "\
Agents whose nixl.agent.state is 3: nobody has the ring any more. They are
instances until retain (10 minutes) has passed.",
    ),
    agents(
        3,
        "agents.unsupported",
        |control, _| Some(control.agents.unsupported),
        "files of a NIXL version that is not supported",
        "\
Rings and stores whose header has a version that this pmdanixl does not know.
They are neither read nor changed. The log and pmdanixl --check name each.
Install a newer pmdanixl, or remove files that no process uses any more.",
    ),
    agents(
        4,
        "agents.refused",
        |control, _| Some(control.agents.refused),
        "rings that cannot be read as they are",
        "\
Files that look like telemetry rings but are refused now: damaged headers, files
of owners that are not taken, more than max_agents. The log and pmdanixl --check
name them with their reasons. Files that are no rings are not counted.",
    ),
    agents(
        5,
        "agents.unknown",
        |control, _| Some(control.agents.unknown),
        "agents of which it is not known whether they live",
        "\
Agents whose nixl.agent.state is 0: the kernel does not tell who has the ring,
and nothing was reported for retain.",
    ),
    agents(
        6,
        "agents.silent",
        |control, _| control.agents.silent,
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
