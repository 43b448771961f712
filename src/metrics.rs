//! The metric table: the only place where a metric is written down.
//!
//! Registration, values, `pmns`, `help` and the manual page's list come from here. Clusters 0 to 3 are those of PCP's own
//! Python PMDA, to the letter (PCP `src/pmdas/nixl`); ours begin at 16. Items are never renumbered.

use crate::control::{Control, microseconds, milliseconds};
use crate::event::EventType;

/// Root of the names.
pub const ROOT: &str = "nixl";
/// The domain that PCP has registered for NIXL (`stdpmid.pcp`); `-d` overrides it.
pub const DOMAIN: u32 = 39;
/// Serial number of the instance domain of agents.
pub const AGENTS: u32 = 0;

/// One metric.
#[derive(Debug)]
pub struct Metric {
    /// Cluster in the PMID.
    pub cluster: u32,
    /// Item in the PMID.
    pub item: u32,
    /// Name below `nixl.`.
    pub name: &'static str,
    /// Where its values come from, and with that its type and instance domain.
    pub source: Source,
    /// Semantics.
    pub semantics: Semantics,
    /// Units.
    pub units: Units,
    /// One line of help.
    pub oneline: &'static str,
    /// All of the help.
    pub help: &'static str,
}

/// Where values come from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// The sum of an agent's events of one type: u64, one value per agent.
    Event(EventType),
    /// The agent itself (the PMDA): one value.
    Control(fn(&Control) -> Value),
}

/// A value on its way to pmcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// PM_TYPE_U32.
    U32(u32),
    /// PM_TYPE_U64.
    U64(u64),
    /// PM_TYPE_STRING.
    Text(String),
}

/// PM_SEM_*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Semantics {
    /// Only grows.
    Counter,
    /// A level.
    Instant,
    /// Changes seldom.
    Discrete,
}

/// Units, as far as they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// None.
    None,
    /// Bytes.
    Byte,
    /// A number of things.
    Count,
    /// Microseconds.
    Microsecond,
    /// Milliseconds.
    Millisecond,
}

impl Metric {
    /// Whether it has one value per agent rather than one in all.
    #[must_use]
    pub fn per_agent(&self) -> bool {
        matches!(self.source, Source::Event(_))
    }

    /// Its type, as a value of that type.
    #[must_use]
    pub fn sample(&self) -> Value {
        match self.source {
            Source::Event(_) => Value::U64(0),
            Source::Control(value) => value(&Control::default()),
        }
    }
}

/// The metric with this cluster and item.
#[must_use]
pub fn find(cluster: u32, item: u32) -> Option<&'static Metric> {
    let at = METRICS
        .binary_search_by_key(&(cluster, item), |metric| (metric.cluster, metric.item))
        .ok()?;
    Some(&METRICS[at])
}

/// Cluster and item of the metric that reads the configuration again when it is stored to.
pub const RELOAD: (u32, u32) = (40, 8);

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

const fn control(
    item: u32,
    name: &'static str,
    value: fn(&Control) -> Value,
    semantics: Semantics,
    units: Units,
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    Metric {
        cluster: 40,
        item,
        name,
        source: Source::Control(value),
        semantics,
        units,
        oneline,
        help,
    }
}

/// One line of help for the instance domain of agents.
pub const AGENTS_ONELINE: &str = "NIXL agents of this host";
/// All of the help for the instance domain of agents.
pub const AGENTS_HELP: &str = "\
One instance for each NIXL agent that writes a telemetry ring into a directory
that pmdanixl looks through; commonly one agent per GPU worker process. The
instance is named after the agent. Characters that PCP treats specially are
written as %XX, the raw name is in the label nixl_agent, and an agent that has
the name of one in another directory is called name@label.

An agent keeps its instance identifier across restarts of the agent, of
pmdanixl and of pmcd. One that has exited stays for the configured time
(retain, 10 minutes), so that loggers see its last values, and then leaves.";

/// All metrics, in PMID order.
pub static METRICS: &[Metric] = &[
    event(
        0,
        0,
        "transfer.tx_bytes",
        EventType::TxBytes,
        Units::Byte,
        "bytes of completed WRITE transfers",
        "\
Bytes of the transfers that the agent started as WRITE, from its own memory to
a remote agent's, and that have completed. NIXL reports a transfer on the side
that started it (the initiator), once, when it finds it complete: the remote
side counts nothing, and a transfer that is stuck counts nothing either.",
    ),
    event(
        0,
        1,
        "transfer.rx_bytes",
        EventType::RxBytes,
        Units::Byte,
        "bytes of completed READ transfers",
        "\
Bytes of the transfers that the agent started as READ, from a remote agent's
memory to its own, and that have completed. NIXL reports a transfer on the side
that started it (the initiator), once, when it finds it complete: what others
read from this agent or write to it is counted by them.",
    ),
    event(
        0,
        2,
        "transfer.tx_requests",
        EventType::TxRequests,
        Units::Count,
        "completed WRITE transfers",
        "\
Transfers that the agent started as WRITE and that have completed. A request of
an inference engine is commonly many transfers.",
    ),
    event(
        0,
        3,
        "transfer.rx_requests",
        EventType::RxRequests,
        Units::Count,
        "completed READ transfers",
        "\
Transfers that the agent started as READ and that have completed. A request of
an inference engine is commonly many transfers.",
    ),
    event(
        1,
        0,
        "memory.registered",
        EventType::MemoryRegistered,
        Units::Byte,
        "bytes registered for transfers",
        "\
Bytes of memory that the agent has registered with NIXL since it was first
seen, added up over all registration calls. What is registered now is this less
nixl.memory.deregistered.",
    ),
    event(
        1,
        1,
        "memory.deregistered",
        EventType::MemoryDeregistered,
        Units::Byte,
        "bytes deregistered",
        "\
Bytes of memory that the agent has deregistered since it was first seen, added
up over all deregistration calls. An agent that exits without deregistering, or
whose last telemetry is not flushed, leaves this behind nixl.memory.registered.",
    ),
    event(
        2,
        0,
        "performance.xfer_time_us",
        EventType::XferTime,
        Units::Microsecond,
        "time from start to completion of transfers",
        "\
Time from the start of a transfer until the initiator found it complete, added
up over completed transfers. Divided by the number of completed transfers
(nixl.transfer.tx_requests and nixl.transfer.rx_requests) it is the mean time of
a transfer. Transfers overlap, so it can grow by more than a second per second,
and bytes divided by it are the mean throughput of one transfer, not the rate
on the wire. It includes the time until the application asked for the state.",
    ),
    event(
        2,
        1,
        "performance.xfer_post_time_us",
        EventType::XferPostTime,
        Units::Microsecond,
        "time to post transfers to the backend",
        "\
Time from the start of a transfer until NIXL's backend had accepted it, added up
over transfers: the part of nixl.performance.xfer_time_us that is spent in
software before the transfer runs.",
    ),
    error(
        0,
        "errors.not_posted",
        EventType::NotPosted,
        "calls on transfers that were never posted",
        "\
Events with status NIXL_ERR_NOT_POSTED: the state of a transfer was asked for
that had not been started.",
    ),
    error(
        1,
        "errors.invalid_param",
        EventType::InvalidParam,
        "calls with invalid parameters",
        "\
Events with status NIXL_ERR_INVALID_PARAM: descriptors, memory type, operation
or handle of a call were not valid.",
    ),
    error(
        2,
        "errors.backend",
        EventType::Backend,
        "failures in the transfer backend",
        "\
Events with status NIXL_ERR_BACKEND: the backend (UCX, libfabric, GDS and so on)
failed; its own log says more.",
    ),
    error(
        3,
        "errors.not_found",
        EventType::NotFound,
        "unknown agents, backends or memory",
        "\
Events with status NIXL_ERR_NOT_FOUND: a remote agent, a backend or registered
memory that a call names is not known, for instance because the remote agent's
metadata is not loaded or its process was restarted.",
    ),
    error(
        4,
        "errors.mismatch",
        EventType::Mismatch,
        "mismatched descriptors or metadata",
        "\
Events with status NIXL_ERR_MISMATCH: the descriptor lists or the metadata of
the two sides do not fit each other.",
    ),
    error(
        5,
        "errors.not_allowed",
        EventType::NotAllowed,
        "calls that are not allowed",
        "\
Events with status NIXL_ERR_NOT_ALLOWED: a call is not allowed in this state or
with this configuration.",
    ),
    error(
        6,
        "errors.repost_active",
        EventType::RepostActive,
        "transfers posted again while active",
        "\
Events with status NIXL_ERR_REPOST_ACTIVE: a transfer was started again before
it had completed.",
    ),
    error(
        7,
        "errors.unknown",
        EventType::Unknown,
        "errors without a known cause",
        "\
Events with status NIXL_ERR_UNKNOWN. This is NIXL's own status, not a count of
events that pmdanixl does not know.",
    ),
    error(
        8,
        "errors.not_supported",
        EventType::NotSupported,
        "calls that are not supported",
        "\
Events with status NIXL_ERR_NOT_SUPPORTED: the backend does not support what was
asked for.",
    ),
    error(
        9,
        "errors.remote_disconnect",
        EventType::RemoteDisconnect,
        "transfers that lost the remote agent",
        "\
Events with status NIXL_ERR_REMOTE_DISCONNECT: the remote agent went away. A
peer that died under load shows here first.",
    ),
    error(
        10,
        "errors.canceled",
        EventType::Canceled,
        "canceled transfers",
        "\
Events with status NIXL_ERR_CANCELED: a transfer was canceled before it
completed.",
    ),
    error(
        11,
        "errors.no_telemetry",
        EventType::NoTelemetry,
        "telemetry asked for but not collected",
        "\
Events with status NIXL_ERR_NO_TELEMETRY: an application asked NIXL for the
telemetry of a transfer that was not collected.",
    ),
    Metric {
        cluster: 31,
        item: 3,
        name: "agents.unsupported",
        source: Source::Control(|control| {
            Value::U32(u32::try_from(control.agents_unsupported).unwrap_or(u32::MAX))
        }),
        semantics: Semantics::Instant,
        units: Units::Count,
        oneline: "rings of a version that is not supported",
        help: "\
Files that are telemetry rings of a NIXL version which this pmdanixl does not
know. They are left alone, and their agents are no instances; the log and
pmdanixl --check name them. A newer pmdanixl is needed.",
    },
    control(
        0,
        "control.version",
        |_| Value::Text(env!("CARGO_PKG_VERSION").into()),
        Semantics::Discrete,
        Units::None,
        "version of pmdanixl",
        "The version of this PMDA, as pmdanixl --version prints it.",
    ),
    control(
        1,
        "control.drain_interval",
        |control| Value::U32(milliseconds(control.drain_interval)),
        Semantics::Discrete,
        Units::Millisecond,
        "time between two drains of the rings",
        "\
All rings are drained this often, whether anyone asks for values or not, and
once more before each answer. Set by drain_interval in nixl.conf.",
    ),
    control(
        2,
        "control.drains",
        |control| Value::U64(control.drains),
        Semantics::Counter,
        Units::Count,
        "drains of all rings",
        "How often all rings were drained since the start.",
    ),
    control(
        3,
        "control.drain_time",
        |control| Value::U64(microseconds(control.drain_time)),
        Semantics::Counter,
        Units::Microsecond,
        "time spent draining rings",
        "\
Time spent draining rings since the start, looking for their writers included.
Its rate is the share of one processor that draining costs.",
    ),
    control(
        4,
        "control.scan_time",
        |control| Value::U64(microseconds(control.scan_time)),
        Semantics::Counter,
        Units::Microsecond,
        "time spent looking for rings",
        "Time spent looking through the telemetry directories since the start.",
    ),
    control(
        5,
        "control.files.refused",
        |control| Value::U64(control.files_refused),
        Semantics::Counter,
        Units::Count,
        "files in telemetry directories that were refused",
        "\
Files in the telemetry directories that were looked at and left alone since the
start, each file and reason once. A shared directory such as /var/tmp holds many
that are no rings; pmdanixl --check lists them with their reasons.",
    ),
    control(
        8,
        "control.reload",
        |control| Value::U32(control.loads),
        Semantics::Discrete,
        Units::None,
        "store to it to read the configuration again",
        "\
How often a configuration was taken, the one at the start included. Storing any
value to it (as root, over the local socket) reads nixl.conf again. A file with
a mistake changes nothing: the store then fails, and nixl.control.config_error
and the log say why. A changed user takes effect at the next start.",
    ),
    control(
        9,
        "control.config_error",
        |control| Value::Text(control.config_error.clone()),
        Semantics::Discrete,
        Units::None,
        "why the configuration was not taken",
        "\
What was wrong with nixl.conf when it was last read, with file, line and key;
empty if nothing was. If it was wrong at the start, no directory is looked
through until a good one is read (nixl.control.reload).",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pmids_are_sorted_and_unique_and_found() {
        assert!(METRICS.is_sorted_by(|a, b| (a.cluster, a.item) < (b.cluster, b.item)));
        for metric in METRICS {
            assert_eq!(
                find(metric.cluster, metric.item).map(|found| found.name),
                Some(metric.name)
            );
        }
        assert!(find(0, 4).is_none());
        assert_eq!(
            find(RELOAD.0, RELOAD.1).map(|found| found.name),
            Some("control.reload")
        );
    }

    #[test]
    fn names_are_unique_and_in_pcps_form() {
        let mut names = std::collections::HashSet::new();
        for Metric { name, .. } in METRICS {
            assert!(names.insert(name), "{name}");
            let allowed = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.".contains(&byte)
            };
            assert!(
                name.bytes().all(allowed)
                    && name
                        .split('.')
                        .all(|part| part.starts_with(char::is_alphabetic))
            );
        }
    }

    #[test]
    fn every_metric_has_help_that_fits_a_terminal() {
        for Metric {
            name,
            oneline,
            help,
            ..
        } in METRICS
        {
            assert!(
                !oneline.is_empty() && oneline.len() <= 60 && !oneline.ends_with('.'),
                "{name}: {oneline}"
            );
            assert!(
                help.ends_with('.')
                    && help
                        .lines()
                        .all(|line| line.len() <= 80 && !line.starts_with(['@', '#']))
            );
        }
    }

    #[test]
    fn every_event_type_but_the_drops_has_exactly_one_metric() {
        for event in EventType::ALL {
            let rows = METRICS
                .iter()
                .filter(|metric| matches!(metric.source, Source::Event(of) if of == event))
                .count();
            assert_eq!(
                rows,
                usize::from(event != EventType::EventsDropped),
                "{event:?}"
            );
        }
    }

    #[test]
    fn the_python_pmdas_metrics_are_all_there() {
        // PCP 7.2, qa/1999.out.
        let errors = "not_posted invalid_param backend not_found mismatch not_allowed repost_active unknown not_supported \
                      remote_disconnect canceled no_telemetry";
        let clusters = [
            ("transfer", Units::Byte, "tx_bytes rx_bytes"),
            ("memory", Units::Byte, "registered deregistered"),
            (
                "performance",
                Units::Microsecond,
                "xfer_time_us xfer_post_time_us",
            ),
            ("errors", Units::Count, errors),
        ];
        for (cluster, (group, units, names)) in (0..).zip(clusters) {
            for (item, name) in (0..).zip(names.split_whitespace()) {
                let metric = find(cluster, item).expect(name);
                assert_eq!(metric.name, format!("{group}.{name}"));
                assert_eq!(
                    (metric.semantics, metric.units),
                    (Semantics::Counter, units)
                );
                assert!(metric.per_agent() && metric.sample() == Value::U64(0));
            }
        }
        for (item, name) in [(2, "transfer.tx_requests"), (3, "transfer.rx_requests")] {
            let metric = find(0, item).expect(name);
            assert_eq!((metric.name, metric.units), (name, Units::Count));
        }
    }
}
