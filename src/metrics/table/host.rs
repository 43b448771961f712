// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 30 to 32: the host.
//!
//! Retired: 30:4 host.memory.registered, 30:5 host.memory.deregistered, and 31:3 agents.unsupported and 31:4
//! agents.refused, which are in cluster 40 now.

use super::{BYTES, EVENTS, LEVEL, Name, daemon_u32, daemon_u64, metric};
use crate::event::EventType;
use crate::metrics::ValueSource::{Event, Host, RoleTimes};
use crate::metrics::{HOST_ROLES, Metric, Semantics, Units};
use crate::stats::Histogram::{self, PostTime, XferTime};

/// First items of the sums of clusters 0 to 3. Sums of registered memory are wrong once an agent was killed.
const FIRST_ITEMS: [Option<u32>; 4] = [Some(0), None, Some(6), Some(8)];

/// Returns the metrics that sum an event type over all agents, also expired ones.
pub(super) fn sums(rows: &[Metric]) -> Vec<Metric> {
    let events = rows.iter().filter_map(|row| match row.source {
        Event(event) => {
            let first = (*FIRST_ITEMS.get(usize::try_from(row.cluster).ok()?)?)?;
            Some((first + row.item, row.name, event, row.units, row.oneline))
        }
        _ => None,
    });
    let oneline = " events that NIXL dropped";
    let (event, units) = (EventType::EventsDropped, Units::Count);
    let dropped = (20, "queue.dropped", event, units, oneline);
    let sum = |(item, name, event, units, oneline)| {
        let kind = (Semantics::Counter, units);
        let help = format!(
            "\n Sum of nixl.{name}\n over all agents since the host booted, exited agents included."
        );
        let name = format!("host.{name}").leak();
        Metric {
            oneline: format!("{oneline}, all agents").leak(),
            help: help.leak(),
            ..metric((30, item), name, kind, Host(event))
        }
    };
    events.chain([dropped]).map(sum).collect()
}

const fn by_role(item: u32, name: Name, of: Histogram) -> Metric {
    metric((HOST_ROLES, item), name, EVENTS, RoleTimes(of))
}

pub(super) const ROWS: &[Metric] = rows![
    /// errors of all kinds, all agents
    /// Sum of the twelve counters below nixl.host.errors: errors of all agents since
    /// the host booted, exited agents included.
    daemon_u64((30, 21), "host.errors.total", EVENTS, |control| {
        Some(control.agents.errors)
    }),
    /// drains that found a ring full, all agents
    /// Sum of nixl.ring.full over all agents since the host booted, exited agents
    /// included. NIXL does not tell how many events each full ring has lost.
    daemon_u64((30, 22), "host.ring.full", EVENTS, |control| {
        Some(control.agents.full)
    }),
    /// bytes registered now, all agents
    /// Sum of nixl.memory.current over the agents that have a value.
    daemon_u64((30, 23), "host.memory.current", BYTES, |control| {
        Some(control.agents.registered)
    }),
    /// agents that are live
    /// Agents in nixl.agent.state 1: a process has the file open, and an event came
    /// within idle_after (60 seconds).
    daemon_u32((31, 0), "host.agents.live", LEVEL, |control| {
        Some(control.agents.live)
    }),
    /// agents that are live, without recent events
    /// Agents in nixl.agent.state 2: a process has the file open, and no event came for
    /// idle_after (60 seconds). An agent without work is silent, and so is one whose
    /// transfers hang.
    daemon_u32((31, 1), "host.agents.idle", LEVEL, |control| {
        Some(control.agents.idle)
    }),
    /// agents that exited within retain
    /// Agents in nixl.agent.state 3: no process writes to the file any more. They stay
    /// instances until retain (10 minutes) has passed.
    daemon_u32((31, 2), "host.agents.exited", LEVEL, |control| {
        Some(control.agents.exited)
    }),
    /// agents with unknown state
    /// Agents in nixl.agent.state 0: whether a process writes cannot be found out, and
    /// no event came for retain.
    daemon_u32((31, 5), "host.agents.unknown", LEVEL, |control| {
        Some(control.agents.unknown)
    }),
    /// processes that use NIXL without telemetry here
    /// Processes with a NIXL backend loaded (libplugin_*.so mapped) that write no ring
    /// or store read here: their telemetry is off or goes elsewhere. Children forked
    /// from such a process count too, processes that only import NIXL do not.
    /// pmdanixl --check names each and what is missing. Counted once a minute. No
    /// value: not all processes of the host can be seen (proc_facts = false, a PID
    /// namespace, missing rights).
    daemon_u32((31, 6), "host.processes.silent", LEVEL, |control| {
        control.agents.silent
    }),
    /// transfers completed within each time, agents of a role
    /// Sum of nixl.latency.xfer_time.bucket over the agents of each role, exited agents
    /// included: for histogram_quantile of Prometheus, with few series. It begins at 0
    /// with the PMDA, and when histogram_buckets_us changes. Transfers count for the
    /// role that the agent had at the first fetch after them. Agents whose store has
    /// other bounds are left out. No value: there was no agent of the role yet.
    by_role(0, "host.latency.xfer_time.bucket", XferTime),
    /// transfers posted within each time, agents of a role
    /// Sum of nixl.latency.post_time.bucket over the agents of each role, exited agents
    /// included: for histogram_quantile of Prometheus, with few series. It begins at 0
    /// with the PMDA, and when histogram_buckets_us changes. Transfers count for the
    /// role that the agent had at the first fetch after them. Agents whose store has
    /// other bounds are left out. No value: there was no agent of the role yet.
    by_role(1, "host.latency.post_time.bucket", PostTime),
];
