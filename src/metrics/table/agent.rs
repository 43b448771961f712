// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 16 to 19: identity and state of an agent, lost telemetry, and last values.

use super::{BYTES, EVENTS, FACT, INSTANT, LEVEL, MOMENT, TIME};
use super::{agent_f64, agent_text, agent_u32, agent_u64};
use crate::agents::Agent;
use crate::base::clock::Now;
use crate::base::text;
use crate::event::EventType;
use crate::metrics::{Metric, Semantics, Units};
use std::path::Path;

/// Returns a path with its control and invisible characters and quotes escaped. The owner of a file chooses its name, so a name can
/// have control sequences of a terminal.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().map(text::escaped).collect()
}

pub(super) const ROWS: &[Metric] = &[
    agent_u32((16, 0), "agent.state", INSTANT, |agent| {
        Some(agent.entry.agent_state as u32)
    }),
    agent_text((16, 1), "agent.status", INSTANT, |agent| {
        Some(agent.entry.agent_state.text().into())
    }),
    agent_text((16, 2), "agent.mode", FACT, |agent| {
        Some(agent.mode()?.into())
    }),
    agent_text((16, 3), "agent.source", FACT, |agent| {
        agent.has_files().then(|| agent.source_kind().to_owned())
    }),
    agent_u32((16, 4), "agent.pid", FACT, Agent::pid),
    agent_text((16, 5), "agent.user", FACT, Agent::user),
    agent_u32((16, 6), "agent.wire_version", FACT, Agent::wire_version),
    agent_u64((16, 7), "agent.starts", EVENTS, |agent| {
        Some(agent.entry.starts)
    }),
    agent_u64((16, 8), "agent.first_seen", MOMENT, |agent| {
        Some(agent.entry.first_seen)
    }),
    agent_u64(
        (16, 9),
        "agent.idle_time",
        (Semantics::Instant, Units::Millisecond),
        |agent| u64::try_from(agent.idle(&Now::read()).as_millis()).ok(),
    ),
    agent_text((16, 10), "agent.path", FACT, |agent| {
        Some(shown(&agent.path()?))
    }),
    agent_text((16, 11), "agent.command", FACT, |agent| {
        agent.labelled_facts().get("command").map(str::to_owned)
    }),
    agent_f64((16, 12), "agent.tcp_share", INSTANT, |agent| {
        agent.transport.tcp_share()
    }),
    agent_u64((17, 0), "ring.capacity", LEVEL, Agent::capacity),
    agent_u64((17, 1), "ring.pending", LEVEL, Agent::pending),
    agent_u64((17, 2), "ring.highwater", LEVEL, |agent| {
        agent.of_ring(agent.entry.highwater)
    }),
    agent_u64((17, 3), "ring.full", EVENTS, |agent| {
        agent.of_ring(agent.entry.overflows)
    }),
    agent_u64((17, 4), "ring.dropped", EVENTS, Agent::dropped),
    agent_u64((17, 5), "ring.events", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.events)
    }),
    agent_u64((17, 6), "ring.unknown", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.totals.unknown())
    }),
    agent_u64((17, 7), "ring.resets", EVENTS, |agent| {
        agent.of_ring(agent.entry.resets)
    }),
    agent_u64((17, 8), "ring.foreign_reads", EVENTS, |agent| {
        agent.of_ring(agent.entry.foreign_reads)
    }),
    agent_u64((18, 0), "last.tx_bytes", BYTES, |agent| {
        agent.entry.stats.last(EventType::TxBytes)
    }),
    agent_u64((18, 1), "last.rx_bytes", BYTES, |agent| {
        agent.entry.stats.last(EventType::RxBytes)
    }),
    agent_u64((18, 2), "last.registered", BYTES, |agent| {
        agent.entry.stats.last(EventType::MemoryRegistered)
    }),
    agent_u64((18, 3), "last.deregistered", BYTES, |agent| {
        agent.entry.stats.last(EventType::MemoryDeregistered)
    }),
    agent_u64((18, 4), "last.xfer_time", TIME, |agent| {
        agent.entry.stats.last(EventType::XferTime)
    }),
    agent_u64((18, 5), "last.xfer_post_time", TIME, |agent| {
        agent.entry.stats.last(EventType::XferPostTime)
    }),
    agent_u64((19, 0), "memory.current", BYTES, |agent| {
        agent.counted(agent.entry.stats.registered)
    }),
    agent_u64((19, 1), "errors.total", EVENTS, |agent| {
        agent.counted(agent.entry.stats.totals.errors())
    }),
    agent_text((19, 2), "errors.last", FACT, |agent| {
        Some(agent.entry.stats.last_error?.0.status()?.into())
    }),
    agent_u64((19, 3), "errors.last_time", MOMENT, |agent| {
        Some(agent.entry.stats.last_error?.1)
    }),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_line_without_control_characters() {
        let plain = "/dev/shm/nixl/worker-0 é.ring";
        assert_eq!(shown(Path::new(plain)), plain);
        let forged = "/tmp/x\"\n inst [5 or \"y\"] value \"\u{1b}[31m\u{202e}\u{3164}";
        assert_eq!(
            shown(Path::new(forged)),
            "/tmp/x\\\"\\n inst [5 or \\\"y\\\"] value \\\"\\u{1b}[31m\\u{202e}\\u{3164}"
        );
    }
}
