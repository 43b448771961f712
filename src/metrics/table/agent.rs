//! Clusters 16 to 19: identity and state of an agent, lost telemetry, and last values.

use super::{BYTES, EVENTS, FACT, LEVEL, MOMENT, TIME, metric};
use crate::event::EventType;
use crate::metrics::ValueSource::Agent;
use crate::metrics::{Get, Metric, Semantics, Units};
use std::path::Path;

/// Returns a path with its control characters and quotes escaped. The owner of a file chooses its name, so a name can
/// have control sequences of a terminal.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

pub(super) const ROWS: &[Metric] = &[
    metric(
        (16, 0),
        "agent.state",
        Agent(Get::U32(|agent, _| Some(agent.entry.agent_state as u32))),
        (Semantics::Instant, Units::None),
    ),
    metric(
        (16, 1),
        "agent.status",
        Agent(Get::Text(|agent, _| {
            Some(agent.entry.agent_state.text().into())
        })),
        (Semantics::Instant, Units::None),
    ),
    metric(
        (16, 2),
        "agent.mode",
        Agent(Get::Text(|agent, _| Some(agent.mode()?.into()))),
        FACT,
    ),
    metric(
        (16, 3),
        "agent.source",
        Agent(Get::Text(|agent, _| {
            agent.has_files().then(|| agent.source_kind().to_owned())
        })),
        FACT,
    ),
    metric(
        (16, 4),
        "agent.pid",
        Agent(Get::U32(|agent, _| agent.pid())),
        FACT,
    ),
    metric(
        (16, 5),
        "agent.user",
        Agent(Get::Text(|agent, _| agent.user())),
        FACT,
    ),
    metric(
        (16, 6),
        "agent.wire_version",
        Agent(Get::U32(|agent, _| agent.wire_version())),
        FACT,
    ),
    metric(
        (16, 7),
        "agent.starts",
        Agent(Get::U64(|agent, _| Some(agent.entry.starts))),
        EVENTS,
    ),
    metric(
        (16, 8),
        "agent.first_seen",
        Agent(Get::U64(|agent, _| Some(agent.entry.first_seen))),
        MOMENT,
    ),
    metric(
        (16, 9),
        "agent.idle_time",
        Agent(Get::U64(|agent, now| Some(agent.idle_time(now)))),
        (Semantics::Instant, Units::Millisecond),
    ),
    metric(
        (16, 10),
        "agent.path",
        Agent(Get::Text(|agent, _| Some(shown(&agent.path()?)))),
        FACT,
    ),
    metric(
        (16, 11),
        "agent.command",
        Agent(Get::Text(|agent, _| {
            agent.labelled_facts().get("command").map(str::to_owned)
        })),
        FACT,
    ),
    metric(
        (17, 0),
        "ring.capacity",
        Agent(Get::U64(|agent, _| agent.capacity())),
        LEVEL,
    ),
    metric(
        (17, 1),
        "ring.pending",
        Agent(Get::U64(|agent, _| agent.pending())),
        LEVEL,
    ),
    metric(
        (17, 2),
        "ring.highwater",
        Agent(Get::U64(|agent, _| agent.of_ring(agent.entry.highwater))),
        LEVEL,
    ),
    metric(
        (17, 3),
        "ring.full",
        Agent(Get::U64(|agent, _| agent.of_ring(agent.entry.overflows))),
        EVENTS,
    ),
    metric(
        (17, 4),
        "ring.dropped",
        Agent(Get::U64(|agent, _| agent.dropped())),
        EVENTS,
    ),
    metric(
        (17, 5),
        "ring.events",
        Agent(Get::U64(|agent, _| agent.of_ring(agent.entry.stats.events))),
        EVENTS,
    ),
    metric(
        (17, 6),
        "ring.unknown",
        Agent(Get::U64(|agent, _| {
            agent.of_ring(agent.entry.stats.totals.unknown())
        })),
        EVENTS,
    ),
    metric(
        (17, 7),
        "ring.resets",
        Agent(Get::U64(|agent, _| agent.of_ring(agent.entry.resets))),
        EVENTS,
    ),
    metric(
        (17, 8),
        "ring.foreign_reads",
        Agent(Get::U64(|agent, _| {
            agent.of_ring(agent.entry.foreign_reads)
        })),
        EVENTS,
    ),
    metric(
        (18, 0),
        "last.tx_bytes",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::TxBytes)
        })),
        BYTES,
    ),
    metric(
        (18, 1),
        "last.rx_bytes",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::RxBytes)
        })),
        BYTES,
    ),
    metric(
        (18, 2),
        "last.registered",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::MemoryRegistered)
        })),
        BYTES,
    ),
    metric(
        (18, 3),
        "last.deregistered",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::MemoryDeregistered)
        })),
        BYTES,
    ),
    metric(
        (18, 4),
        "last.xfer_time",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::XferTime)
        })),
        TIME,
    ),
    metric(
        (18, 5),
        "last.xfer_post_time",
        Agent(Get::U64(|agent, _| {
            agent.entry.stats.last(EventType::XferPostTime)
        })),
        TIME,
    ),
    metric(
        (19, 0),
        "memory.current",
        Agent(Get::U64(|agent, _| Some(agent.entry.stats.registered))),
        BYTES,
    ),
    metric(
        (19, 1),
        "errors.total",
        Agent(Get::U64(|agent, _| Some(agent.entry.stats.errors()))),
        EVENTS,
    ),
    metric(
        (19, 2),
        "errors.last",
        Agent(Get::Text(|agent, _| {
            Some(agent.entry.stats.last_error?.0.status()?.into())
        })),
        FACT,
    ),
    metric(
        (19, 3),
        "errors.last_time",
        Agent(Get::U64(|agent, _| Some(agent.entry.stats.last_error?.1))),
        MOMENT,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_line_without_control_characters() {
        let plain = "/dev/shm/nixl/worker-0 é.ring";
        assert_eq!(shown(Path::new(plain)), plain);
        let forged = "/tmp/x\"\n inst [5 or \"y\"] value \"\u{1b}[31m\u{202e}";
        assert_eq!(
            shown(Path::new(forged)),
            "/tmp/x\\\"\\n inst [5 or \\\"y\\\"] value \\\"\\u{1b}[31m\\u{202e}"
        );
    }
}
