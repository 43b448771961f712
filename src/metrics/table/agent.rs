//! Clusters 16 to 19: who an agent is and whether it lives, what of its telemetry is lost, and what it did last.

use super::of_agent;
use crate::agents::agent::Agent;
use crate::event::EventType;
use crate::metrics::{Get, Metric, Semantics, Units};
use std::path::Path;

const FACT: (Semantics, Units) = (Semantics::Discrete, Units::None);
const EVENTS: (Semantics, Units) = (Semantics::Counter, Units::Count);
const LEVEL: (Semantics, Units) = (Semantics::Instant, Units::Count);
const BYTES: (Semantics, Units) = (Semantics::Instant, Units::Byte);
const TIME: (Semantics, Units) = (Semantics::Instant, Units::Microsecond);
const MOMENT: (Semantics, Units) = (Semantics::Discrete, Units::Second);

/// A path as a text that cannot be taken for more than one, and does nothing to a terminal: whoever may make a file chooses it.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// The value of the last event of a type.
const fn last(
    item: u32,
    name: &'static str,
    value: fn(&Agent, &crate::base::clock::Now) -> Option<u64>,
    units: (Semantics, Units),
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    of_agent((18, item), name, Get::U64(value), units, oneline, help)
}

pub(super) const ROWS: &[Metric] = &[
    of_agent(
        (16, 0),
        "agent.state",
        Get::U32(|agent, _| Some(agent.entry.life as u32)),
        (Semantics::Instant, Units::None),
        "0 unknown, 1 live, 2 idle, 3 exited",
        "\
0 unknown  nobody tells who has the ring or store, and nothing was
           reported for retain; the agent leaves after retain more.
1 live     a process has the ring, or has the store open for writing.
2 idle     likewise, but it has reported nothing for idle_after (60
           seconds). That is evidence of silence, not of a hang: NIXL
           reports a transfer when it is complete, so that an agent
           without work looks as one whose transfers are stuck does.
3 exited   nobody has it, or only somebody who reads it; the agent leaves
           the instance domain after retain.
nixl.agent.status has the same in words. It is found out once a second, where
more than 200 files are open less often.",
    ),
    of_agent(
        (16, 1),
        "agent.status",
        Get::Text(|agent, _| Some(agent.entry.life.text().into())),
        (Semantics::Instant, Units::None),
        "nixl.agent.state in words",
        "unknown, live, idle or exited; nixl.agent.state explains them.",
    ),
    of_agent(
        (16, 2),
        "agent.mode",
        Get::Text(|agent, _| Some(agent.mode()?.into())),
        FACT,
        "drain, observe (only followed), or read (a store)",
        "\
drain: pmdanixl takes the events out of the ring, and so counts all of them.
observe: it only follows, since observe is set in nixl.conf, the file may not be
written to, or another pmdanixl drains it. What it shows then is a lower bound:
a ring that nobody drains stops when it is full, and one that another drains can
go round between two looks. read: its values are those of a prometheus_mp store,
of which nothing is taken and nothing can be missed. No value: there is neither
now.",
    ),
    of_agent(
        (16, 3),
        "agent.source",
        Get::Text(|agent, _| agent.source_kind().map(str::to_owned)),
        FACT,
        "where its values come from: ring or store",
        "\
ring: events, which NIXL writes where NIXL_TELEMETRY_DIR is set. store: the
running totals that the exporter prometheus_mp keeps in
NIXL_TELEMETRY_MULTIPROC_DIR. No value: there is none of them now.",
    ),
    of_agent(
        (16, 4),
        "agent.pid",
        Get::U32(|agent, _| agent.pid()),
        FACT,
        "process that writes the ring or store",
        "\
Process id of the agent as pmdanixl's own PID namespace has it. Where /proc does
not show it (proc_facts, or another namespace), a live agent's store says its
process id itself, as the agent's own namespace has it. No value: it has exited,
or nobody tells.",
    ),
    of_agent(
        (16, 5),
        "agent.user",
        Get::Text(|agent, _| agent.user()),
        FACT,
        "user that the ring or store belongs to",
        "\
Name of the owner of the file, which is the user that the agent runs as; a
number where this host has no name for it. No value: there is no file now.",
    ),
    of_agent(
        (16, 6),
        "agent.wire_version",
        Get::U32(|agent, _| agent.wire_version()),
        FACT,
        "version of its telemetry on the wire",
        "\
The version in the ring's header: 1 up to NIXL 1.0, 2 for 1.1 and 1.2, 3 for
1.3, 4 from 1.4 on. More than one on a host tells of a rollout that is not
complete. Of a store, whose versions are counted on their own, it is the schema:
1 from NIXL 1.5 on. No value: there is neither now.",
    ),
    of_agent(
        (16, 7),
        "agent.starts",
        Get::U64(|agent, _| Some(agent.entry.starts)),
        EVENTS,
        "starts of the agent",
        "\
How often the agent was found started: its ring or store appeared, or its ring
was set up anew. One that begins soon after the end of the last, where its ring
stood at its start, may be missed; memory.current goes on then.",
    ),
    of_agent(
        (16, 8),
        "agent.first_seen",
        Get::U64(|agent, _| Some(agent.entry.first_seen)),
        MOMENT,
        "when the agent was first seen, seconds since 1970",
        "\
When pmdanixl first saw an agent of this name in this directory; the agent may
have been there before. It stays when the agent is started anew.",
    ),
    of_agent(
        (16, 9),
        "agent.idle_time",
        Get::U64(|agent, now| Some(agent.idle_time(now))),
        (Semantics::Instant, Units::Millisecond),
        "time since its last event",
        "\
Time since the agent's last event of any kind was taken from its ring, or noted
in its store; since it was last found started, where that is later.",
    ),
    of_agent(
        (16, 10),
        "agent.path",
        Get::Text(|agent, _| Some(shown(&agent.path()?))),
        FACT,
        "file of its ring or store",
        "\
Where the ring is, or was, or the store is; bytes that are no UTF-8 are shown as
U+FFFD, and control characters as \\n or \\u{1b}. In a container it is where this
host reaches it, below /proc. No value: its store is gone.",
    ),
    of_agent(
        (16, 11),
        "agent.command",
        Get::Text(|agent, _| agent.labelled_facts().get("command").map(str::to_owned)),
        FACT,
        "title or program of the writing process, without arguments",
        "\
The title that the process gave itself (VLLM::Worker_TP0), up to the first
blank; of one without, the file name of its program, and behind a Python
interpreter also that of the script or -m and the module. Arguments are left
out, since they can hold secrets. Control characters are shown as \\n or
\\u{1b}; it ends after 96 bytes. No value: /proc does not show the process.",
    ),
    of_agent(
        (17, 0),
        "ring.capacity",
        Get::U64(|agent, _| agent.capacity()),
        LEVEL,
        "events that the ring has room for, and one",
        "\
Slots of the ring (NIXL_TELEMETRY_BUFFER_SIZE, 4096 unless set). It holds one
event less. No value: there is no ring now.",
    ),
    of_agent(
        (17, 1),
        "ring.pending",
        Get::U64(|agent, _| agent.pending()),
        LEVEL,
        "events that the last drain found",
        "\
Events that waited in the ring when it was last looked at, before they were
taken. In observe mode: those that wait there now.",
    ),
    of_agent(
        (17, 2),
        "ring.highwater",
        Get::U64(|agent, _| agent.of_ring(agent.entry.highwater)),
        LEVEL,
        "most events that a drain found",
        "\
The most events that ever waited in the agent's ring when it was looked at. The
nearer it comes to nixl.ring.capacity, the nearer is the loss of events.",
    ),
    of_agent(
        (17, 3),
        "ring.full",
        Get::U64(|agent, _| agent.of_ring(agent.entry.full)),
        EVENTS,
        "drains that found the ring full",
        "\
How often the ring was found full, with capacity - 1 events in it. NIXL loses
all further events then and counts them nowhere: this is the dependable sign
that telemetry is being lost. Give the agent's process more room with a larger
NIXL_TELEMETRY_BUFFER_SIZE (a power of two; 4096 unless set), or have it write
more often with a smaller NIXL_TELEMETRY_RUN_INTERVAL (100 ms unless set); in
observe mode, see who should drain it.",
    ),
    of_agent(
        (17, 4),
        "ring.dropped",
        Get::U64(|agent, _| agent.dropped()),
        EVENTS,
        "events that NIXL has dropped before the ring",
        "\
Events that the agent lost in its own queue before the ring and has reported as
lost: more came within NIXL_TELEMETRY_RUN_INTERVAL than
NIXL_TELEMETRY_BUFFER_SIZE has room for. Raise NIXL_TELEMETRY_BUFFER_SIZE, or
lower NIXL_TELEMETRY_RUN_INTERVAL. NIXL reports it from 1.4 on, and mostly loses
the report itself when the ring is full: see nixl.ring.full as well. A store
tells it too, of the same queue. No value: an older NIXL, which does not tell.",
    ),
    of_agent(
        (17, 5),
        "ring.events",
        Get::U64(|agent, _| agent.of_ring(agent.entry.account.events)),
        EVENTS,
        "events taken from the ring",
        "\
All events of the agent that were counted, of whatever kind. Metrics of
nixl.ring have no value for an agent that has a prometheus_mp store and never
had a ring.",
    ),
    of_agent(
        (17, 6),
        "ring.unknown",
        Get::U64(|agent, _| agent.of_ring(agent.entry.account.totals.unknown())),
        EVENTS,
        "events of kinds or values that cannot be counted",
        "\
Events of the ring whose type this pmdanixl does not know: those that backends
of NIXL up to 0.10 add of their own; and those whose value cannot be, 2^56 or
more: two agents of one name and of two versions of NIXL write to one file, or
somebody else does.",
    ),
    of_agent(
        (17, 7),
        "ring.resets",
        Get::U64(|agent, _| agent.of_ring(agent.entry.resets)),
        EVENTS,
        "producers that started anew in the same ring",
        "\
How often the ring was found set up anew: its agent was started again under the
same name, which takes over the file. What the agent had written before and was
not drained yet is lost then, at most what came in during one drain_interval.
The counters of the agent go on. A number that keeps growing while the agent is
not restarted means that two processes of one name share the directory, which
spoils the ring: give each a directory of its own.",
    ),
    of_agent(
        (17, 8),
        "ring.foreign_reads",
        Get::U64(|agent, _| agent.of_ring(agent.entry.foreign_reads)),
        EVENTS,
        "events that another reader took",
        "\
Events of the ring that something else consumed: NIXL's telemetry_reader, the
Python PMDA, or another pmdanixl. What it took first is missing in the counters.
Stop the other reader: a ring has one.",
    ),
    last(
        0,
        "last.tx_bytes",
        |agent, _| agent.entry.account.last(EventType::TxBytes),
        BYTES,
        "bytes of the last WRITE",
        "\
Bytes of the last completed WRITE, as the gauge agent_tx_last_bytes of NIXL's
own exporters; like that, 0 where a store has none. No value: there was none.",
    ),
    last(
        1,
        "last.rx_bytes",
        |agent, _| agent.entry.account.last(EventType::RxBytes),
        BYTES,
        "bytes of the last READ",
        "\
Bytes of the last completed READ, as the gauge agent_rx_last_bytes of NIXL's own
exporters. No value: there was none.",
    ),
    last(
        2,
        "last.registered",
        |agent, _| agent.entry.account.last(EventType::MemoryRegistered),
        BYTES,
        "bytes of the last registration",
        "\
Bytes of the last registration of memory, as the gauge
agent_memory_registered_last_bytes of NIXL's own exporters. No value: there was
none.",
    ),
    last(
        3,
        "last.deregistered",
        |agent, _| agent.entry.account.last(EventType::MemoryDeregistered),
        BYTES,
        "bytes of the last deregistration",
        "\
Bytes of the last deregistration of memory, as the gauge
agent_memory_deregistered_last_bytes of NIXL's own exporters. No value: there
was none.",
    ),
    last(
        4,
        "last.xfer_time",
        |agent, _| agent.entry.account.last(EventType::XferTime),
        TIME,
        "time of the last transfer",
        "\
Time from start to completion of the last completed transfer, as the gauge
agent_xfer_time of NIXL's own exporters. No value: there was none.",
    ),
    last(
        5,
        "last.xfer_post_time",
        |agent, _| agent.entry.account.last(EventType::XferPostTime),
        TIME,
        "time to post the last transfer",
        "\
Time from the start of the last transfer until NIXL's backend had accepted it,
as the gauge agent_xfer_post_time of NIXL's own exporters. No value: there was
none.",
    ),
    of_agent(
        (19, 0),
        "memory.current",
        Get::U64(|agent, _| Some(agent.entry.account.registered_now())),
        BYTES,
        "bytes registered now",
        "\
Bytes registered less bytes deregistered since the agent was last started:
nixl.memory.registered and .deregistered count from before that. A value that
grows without end shows a leak. Lost events make it wrong until the next start.",
    ),
    of_agent(
        (19, 1),
        "errors.total",
        Get::U64(|agent, _| Some(agent.entry.account.errors())),
        EVENTS,
        "errors of all kinds",
        "The sum of the twelve kinds of errors below nixl.errors.",
    ),
    of_agent(
        (19, 2),
        "errors.last",
        Get::Text(|agent, _| Some(agent.entry.account.last_error()?.0.status()?.into())),
        FACT,
        "what the last error was",
        "\
NIXL's name for the status of the last error, such as
NIXL_ERR_REMOTE_DISCONNECT. Of a store, which does not tell their order, it is
the most frequent one of the last time that there were any. No value: there was
none, or none since pmdanixl has first seen the store.",
    ),
    of_agent(
        (19, 3),
        "errors.last_time",
        Get::U64(|agent, _| Some(agent.entry.account.last_error()?.1)),
        MOMENT,
        "when the last error was, seconds since 1970",
        "\
When the last error was taken from the ring, or seen in the store. No value:
there was none, or none since pmdanixl has first seen the store.",
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
