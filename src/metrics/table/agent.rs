// SPDX-License-Identifier: GPL-2.0-or-later

//! Clusters 16, 17 and 19: identity and state of an agent, lost telemetry, memory and errors.
//!
//! Retired: 16:3 agent.source, 16:8 agent.first_seen, and cluster 18, last values.

use super::{BYTES, EVENTS, FACT, INSTANT, LEVEL, MILLISECONDS, MOMENT, SIZE};
use super::{agent_f64, agent_text, agent_u32, agent_u64};
use crate::agents::Agent;
use crate::base::clock::Now;
use crate::base::text;
use crate::metrics::Metric;
use std::path::Path;

/// Returns a path with its control and invisible characters and quotes escaped. The owner of a file chooses its name,
/// so a name can have control sequences of a terminal.
fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().map(text::escaped).collect()
}

pub(super) const ROWS: &[Metric] = rows![
    /// 0 unknown, 1 live, 2 idle, 3 exited
    /// 0 unknown  whether a process writes cannot be found out, and no event came for
    ///            retain; the agent leaves the instance domain after another retain
    /// 1 live     a process has the ring open, or the store open for writing
    /// 2 idle     as live, without an event for idle_after (60 seconds). An agent
    ///            without work looks like one whose transfers hang.
    /// 3 exited   no process has the file open, or only a reader; leaves after retain.
    agent_u32((16, 0), "agent.state", INSTANT, |agent| {
        Some(agent.entry.agent_state as u32)
    }),
    /// nixl.agent.state in words
    /// nixl.agent.state as a word: unknown, live, idle or exited.
    agent_text((16, 1), "agent.status", INSTANT, |agent| {
        Some(agent.entry.agent_state.text().into())
    }),
    /// drain or observe (a ring), or store
    /// drain: the PMDA takes the events out of the ring, and counts each.
    /// observe: it leaves them there and counts none (observe is set in nixl.conf, the
    /// file is not writable, or another pmdanixl drains it). Totals from before stay.
    /// store: its values are the running totals of NIXL's exporter prometheus_mp, of
    /// which nothing can be missed. No value: the agent has no file now.
    agent_text((16, 2), "agent.mode", FACT, |agent| {
        Some(agent.mode()?.into())
    }),
    /// id of the process that writes the ring or store
    /// Id of the process that writes, in the PMDA's PID namespace. Where /proc does not
    /// show the process, the id that a live agent's store names, in the namespace of
    /// that process. No value: the agent has exited, its process is not known, or
    /// several processes write one ring, as agents of one name in one directory do.
    agent_u32((16, 4), "agent.pid", FACT, Agent::pid),
    /// owner of the ring or store
    /// Name of the file's owner, which is the user that the agent runs as; a number
    /// where this host has no name for it. No value: the agent has no file now.
    agent_text((16, 5), "agent.user", FACT, Agent::user),
    /// format version of the ring or store
    /// Version in the ring's header: 1 up to NIXL 1.0, 2 for 1.1 and 1.2, 3 for 1.3, 4
    /// from 1.4 on. Different versions on a host show a rollout that is not complete.
    /// Of a store: the version of its schema, 1 from NIXL 1.5 on. No value: the agent
    /// has no file now.
    agent_u32((16, 6), "agent.format_version", FACT, Agent::format_version),
    /// starts of the agent
    /// Number of starts of the agent: its file appeared, or its ring was initialised
    /// again. A restart is missed if the ring was empty at its beginning before.
    agent_u64((16, 7), "agent.starts", EVENTS, |agent| {
        Some(agent.entry.starts)
    }),
    /// time since its last event
    /// Milliseconds since the last event of any type was read, or since the agent was
    /// last found started, where that is later.
    agent_u64(
        (16, 9),
        "agent.idle_time",
        MILLISECONDS,
        |agent| u64::try_from(agent.idle(&Now::read()).as_millis()).ok(),
    ),
    /// file of its ring or store
    /// Path of the ring or store, also after the ring was removed. Bytes that are not
    /// UTF-8 are shown as U+FFFD, control characters as \n or \u{1b}. No value: its
    /// store is gone.
    agent_text((16, 10), "agent.path", FACT, |agent| {
        Some(shown(&agent.path()?))
    }),
    /// title or program of the writing process, without arguments
    /// Title that the process gave itself (VLLM::Worker_TP0), up to the first blank.
    /// Without a title: file name of the program; behind a Python interpreter also of
    /// the script, or -m and the module. Without arguments, which can hold secrets; at
    /// most 96 bytes; control characters as \n or \u{1b}. No value: /proc does not
    /// show the process.
    agent_text((16, 11), "agent.command", FACT, |agent| {
        agent.labelled_facts().get("command").map(str::to_owned)
    }),
    /// bytes over TCP divided by bytes of NIXL, last minute
    /// Bytes that the agent's process moved over TCP in the last minute, divided by the
    /// bytes of its completed transfers: about 1 if NIXL has fallen back to TCP, about
    /// 0 on RDMA, NVLink or shared memory. Writes compare with what was sent, reads
    /// with what was received. Other traffic of the process and transfers that other
    /// agents start raise it. No value: less than 1 MiB was moved in each direction,
    /// the process was not read, or runs several agents (nixl.process.tcp_share).
    agent_f64((16, 12), "agent.tcp_share", INSTANT, |agent| {
        agent.transport.tcp_share
    }),
    /// engine, role and port of its server
    /// Server that the agent is a part of, as its labels engine, role and port tell:
    /// vllm decode:8200. All ranks of a server have the same. Archives keep it, while
    /// those of PCP before 6.3.4 lack the labels of agents that came after their start.
    /// No value: no engine, role or port is known.
    agent_text((16, 13), "agent.server", FACT, |agent| {
        agent.labelled_facts().server()
    }),
    /// rank in its server
    /// Rank of the agent in its server, as its label rank tells: TP0, DP1_TP3. Without
    /// that, "rank" and the label local_rank: the number that the launcher gave to the
    /// process on this host. No value: neither is known.
    agent_text((16, 14), "agent.rank", FACT, |agent| {
        agent.labelled_facts().rank()
    }),
    /// 0 none, 1 suspect, 2 stalled
    /// Whether transfers hang, which telemetry does not tell: NIXL counts them when
    /// they complete. 1: none completed for stalled_after (30 seconds), and bytes wait
    /// in a TCP connection of the process, or a peer's process on this host is stopped.
    /// 2: for four times as long. 0 proves nothing: a hang over RDMA, or of a read from
    /// another host, leaves no sign. No value: the process is not known or cannot be
    /// read.
    agent_u32((16, 15), "agent.stall.state", INSTANT, |agent| {
        Some(agent.transport.stall.state()? as u32)
    }),
    /// time for which transfers have not advanced
    /// Milliseconds since the last completed transfer; of an agent that was idle before
    /// the stall, since its connections were first read with the sign. No value:
    /// nixl.agent.stall.state is 0.
    agent_u64((16, 16), "agent.stall.age", MILLISECONDS, |agent| {
        let began = agent.transport.stall.sign()?.began;
        u64::try_from(began.elapsed().as_millis()).ok()
    }),
    /// peer of the stalled transfers
    /// Address of the peer, and id and command of its process if that runs on this
    /// host. Of several peers, the one that has been waited for longest. "its own
    /// process": that of the agent is stopped. No value: nixl.agent.stall.state is 0.
    agent_text((16, 17), "agent.stall.peer", FACT, |agent| {
        Some(agent.transport.stall.sign()?.peer())
    }),
    /// sign of the stall
    /// Why nixl.agent.stall.state is not 0: the peer's process is stopped or blocked in
    /// the kernel, has not read bytes that its kernel has received, or the peer has not
    /// acknowledged bytes. None of them has moved since. Other connections of the
    /// process, such as those of HTTP and NCCL, count as well. No value: the state is
    /// 0.
    agent_text((16, 18), "agent.stall.reason", FACT, |agent| {
        Some(agent.transport.stall.sign()?.reason())
    }),
    /// slots of the ring, one more than the events it can hold
    /// Slots of the ring (NIXL_TELEMETRY_BUFFER_SIZE, 4096 by default). It holds one
    /// event less. No value: the agent has no ring now.
    agent_u64((17, 0), "ring.capacity", SIZE, Agent::capacity),
    /// events that waited in the ring at the last drain
    /// Events that waited in the ring when it was last read, before they were taken
    /// out. In observe mode: events that wait there now.
    agent_u64((17, 1), "ring.pending", LEVEL, Agent::pending),
    /// most events that waited in the ring at any drain
    /// Most events that ever waited in the agent's ring when it was read. Near
    /// nixl.ring.capacity, the loss of events is near.
    agent_u64((17, 2), "ring.highwater", LEVEL, |agent| {
        agent.of_ring(agent.entry.highwater)
    }),
    /// drains that found the ring full
    /// Number of times that the ring was found full, with capacity - 1 events. NIXL
    /// then loses all further events and counts them nowhere: this is the dependable
    /// sign of loss. Raise NIXL_TELEMETRY_BUFFER_SIZE (a power of two, 4096 by default)
    /// or lower NIXL_TELEMETRY_RUN_INTERVAL (100 ms by default) in the agent's process.
    /// In observe mode nothing is counted, so it does not grow: see nixl.ring.pending.
    agent_u64((17, 3), "ring.full", EVENTS, |agent| {
        agent.of_ring(agent.entry.overflows)
    }),
    /// events that NIXL dropped before the ring
    /// Events that the agent lost in its own queue before the ring, and reported as
    /// lost. Raise NIXL_TELEMETRY_BUFFER_SIZE or lower NIXL_TELEMETRY_RUN_INTERVAL.
    /// NIXL mostly loses the report itself when the ring is full: see nixl.ring.full. A
    /// store tells it too. No value: NIXL before 1.4, which does not report it.
    agent_u64((17, 4), "queue.dropped", EVENTS, Agent::dropped),
    /// events read from the ring
    /// Events of all types that were read from the agent's ring and counted. The
    /// metrics of nixl.ring have no value for an agent of stores.
    agent_u64((17, 5), "ring.events", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.events)
    }),
    /// events with a type or value that cannot be counted
    /// Events of the ring that cannot be counted: of a type that the PMDA does not know
    /// (backends of NIXL up to 0.10 add their own), or of 2^56 or more. Values of that
    /// size mean that two processes write to one file: two agents of one name and of
    /// different versions of NIXL, or a process that is no agent.
    agent_u64((17, 6), "ring.unknown", EVENTS, |agent| {
        agent.of_ring(agent.entry.stats.totals.unknown())
    }),
    /// restarts of the producer in the same ring
    /// Number of times that the ring was found initialised again: its agent restarted
    /// under the same name and took over the file. Events that were not yet read are
    /// lost then, at most those of one drain_interval; the agent's counters go on. If
    /// it grows without restarts, two processes of one name share the directory and
    /// spoil the ring: give each a directory of its own.
    agent_u64((17, 7), "ring.resets", EVENTS, |agent| {
        agent.of_ring(agent.entry.resets)
    }),
    /// events that another reader consumed
    /// Events that another reader took out of the ring: NIXL's telemetry_reader, the
    /// Python PMDA or another pmdanixl. They are missing in the counters, except those
    /// that were counted here before. Stop the other reader: a ring has room for one.
    agent_u64((17, 8), "ring.foreign_reads", EVENTS, |agent| {
        agent.of_ring(agent.entry.foreign_reads)
    }),
    /// bytes registered now
    /// Bytes registered less bytes deregistered since the agent's last start. A value
    /// that grows without end shows a leak. After lost events it is wrong until the
    /// next start. No value: the agent has exited, which ends its registrations.
    agent_u64((19, 0), "memory.current", BYTES, Agent::registered),
    /// errors of all kinds
    /// Sum of the twelve kinds of errors below nixl.errors.
    agent_u64((19, 1), "errors.total", EVENTS, |agent| {
        agent.counted(agent.entry.stats.totals.errors())
    }),
    /// name of the last error
    /// NIXL's name for the status of the last error, such as NIXL_ERR_BACKEND. A store
    /// does not tell the order of errors: there it is the most frequent of the errors
    /// that came last. No value: there was none since the PMDA first saw the agent.
    agent_text((19, 2), "errors.last", FACT, |agent| {
        Some(agent.entry.stats.last_error?.0.status()?.into())
    }),
    /// time of the last error, seconds since 1970
    /// Time when the last error was read, in seconds since 1970. No value: there was
    /// none since the PMDA first saw the agent.
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
