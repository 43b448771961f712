//! Clusters 16 to 19: identity and state of an agent, lost telemetry, and last values.

use super::agent_metric;
use crate::agents::Agent;
use crate::event::EventType;
use crate::metrics::{Get, Metric, Semantics, Units};
use std::path::Path;

const FACT: (Semantics, Units) = (Semantics::Discrete, Units::None);
const EVENTS: (Semantics, Units) = (Semantics::Counter, Units::Count);
const LEVEL: (Semantics, Units) = (Semantics::Instant, Units::Count);
const BYTES: (Semantics, Units) = (Semantics::Instant, Units::Byte);
const TIME: (Semantics, Units) = (Semantics::Instant, Units::Microsecond);
const MOMENT: (Semantics, Units) = (Semantics::Discrete, Units::Second);

/// Returns a path with its control characters and quotes escaped. The owner of a file chooses its name, so a name can
/// have control sequences of a terminal.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

/// A metric with the value of the last event of a type.
const fn last(
    item: u32,
    name: &'static str,
    value: fn(&Agent, &crate::base::clock::Now) -> Option<u64>,
    units: (Semantics, Units),
    oneline: &'static str,
    help: &'static str,
) -> Metric {
    agent_metric((18, item), name, Get::U64(value), units, oneline, help)
}

pub(super) const ROWS: &[Metric] = &[
    agent_metric(
        (16, 0),
        "agent.state",
        Get::U32(|agent, _| Some(agent.entry.agent_state as u32)),
        (Semantics::Instant, Units::None),
        "0 unknown, 1 live, 2 idle, 3 exited",
        "\
0 unknown  whether a process writes cannot be found out, and no event came for
           retain; the agent leaves the instance domain after another retain
1 live     a process has the ring open, or the store open for writing
2 idle     as live, without an event for idle_after (60 seconds). An agent
           without work looks like one whose transfers hang.
3 exited   no process has the file open, or only a reader; leaves after retain.",
    ),
    agent_metric(
        (16, 1),
        "agent.status",
        Get::Text(|agent, _| Some(agent.entry.agent_state.text().into())),
        (Semantics::Instant, Units::None),
        "nixl.agent.state in words",
        "nixl.agent.state as a word: unknown, live, idle or exited.",
    ),
    agent_metric(
        (16, 2),
        "agent.mode",
        Get::Text(|agent, _| Some(agent.mode()?.into())),
        FACT,
        "drain, observe (only followed), or read (a store)",
        "\
drain: the PMDA takes the events out of the ring, and counts each.
observe: it only follows the ring (observe is set in nixl.conf, the file is not
writable, or another pmdanixl drains it). Values are then lower bounds: a full
ring that is not drained stops, and one that is drained can go round unseen.
read: values of a prometheus_mp store, of which nothing can be missed.
No value: the agent has no file now.",
    ),
    agent_metric(
        (16, 3),
        "agent.source",
        Get::Text(|agent, _| agent.has_files().then(|| agent.source_kind().to_owned())),
        FACT,
        "origin of the values: ring or store",
        "\
ring: events that NIXL writes where NIXL_TELEMETRY_DIR is set. store: running
totals that NIXL's exporter prometheus_mp keeps in NIXL_TELEMETRY_MULTIPROC_DIR.
No value: the agent has neither now.",
    ),
    agent_metric(
        (16, 4),
        "agent.pid",
        Get::U32(|agent, _| agent.pid()),
        FACT,
        "id of the process that writes the ring or store",
        "\
Id of the process that writes, in the PMDA's PID namespace. Where /proc does not
show the process, the id that a live agent's store names, in the namespace of
that process. No value: the agent has exited, or its process is not known.",
    ),
    agent_metric(
        (16, 5),
        "agent.user",
        Get::Text(|agent, _| agent.user()),
        FACT,
        "owner of the ring or store",
        "\
Name of the file's owner, which is the user that the agent runs as; a number
where this host has no name for it. No value: the agent has no file now.",
    ),
    agent_metric(
        (16, 6),
        "agent.wire_version",
        Get::U32(|agent, _| agent.wire_version()),
        FACT,
        "format version of the ring or store",
        "\
Version in the ring's header: 1 up to NIXL 1.0, 2 for 1.1 and 1.2, 3 for 1.3, 4
from 1.4 on. Different versions on a host show a rollout that is not complete.
Of a store: the version of its schema, 1 from NIXL 1.5 on. No value: the agent
has no file now.",
    ),
    agent_metric(
        (16, 7),
        "agent.starts",
        Get::U64(|agent, _| Some(agent.entry.starts)),
        EVENTS,
        "starts of the agent",
        "\
Number of starts of the agent: its file appeared, or its ring was initialised
again. A restart is missed if the ring was empty at its beginning before.",
    ),
    agent_metric(
        (16, 8),
        "agent.first_seen",
        Get::U64(|agent, _| Some(agent.entry.first_seen)),
        MOMENT,
        "when the agent was first seen, seconds since 1970",
        "\
Time when the PMDA first saw an agent of this name in this directory, in seconds
since 1970. It stays when the agent restarts.",
    ),
    agent_metric(
        (16, 9),
        "agent.idle_time",
        Get::U64(|agent, now| Some(agent.idle_time(now))),
        (Semantics::Instant, Units::Millisecond),
        "time since its last event",
        "\
Milliseconds since the last event of any type was read, or since the agent was
last found started, where that is later.",
    ),
    agent_metric(
        (16, 10),
        "agent.path",
        Get::Text(|agent, _| Some(shown(&agent.path()?))),
        FACT,
        "file of its ring or store",
        "\
Path of the ring or store, also after the ring was removed. Bytes that are not
UTF-8 are shown as U+FFFD, control characters as \\n or \\u{1b}. No value: its
store is gone.",
    ),
    agent_metric(
        (16, 11),
        "agent.command",
        Get::Text(|agent, _| agent.labelled_facts().get("command").map(str::to_owned)),
        FACT,
        "title or program of the writing process, without arguments",
        "\
Title that the process gave itself (VLLM::Worker_TP0), up to the first blank.
Without a title: file name of the program; behind a Python interpreter also of
the script, or -m and the module. Without arguments, which can hold secrets; at
most 96 bytes; control characters as \\n or \\u{1b}. No value: /proc does not
show the process.",
    ),
    agent_metric(
        (17, 0),
        "ring.capacity",
        Get::U64(|agent, _| agent.capacity()),
        LEVEL,
        "slots of the ring, one more than the events it can hold",
        "\
Slots of the ring (NIXL_TELEMETRY_BUFFER_SIZE, 4096 by default). It holds one
event less. No value: the agent has no ring now.",
    ),
    agent_metric(
        (17, 1),
        "ring.pending",
        Get::U64(|agent, _| agent.pending()),
        LEVEL,
        "events that waited in the ring at the last drain",
        "\
Events that waited in the ring when it was last read, before they were taken
out. In observe mode: events that wait there now.",
    ),
    agent_metric(
        (17, 2),
        "ring.highwater",
        Get::U64(|agent, _| agent.of_ring(agent.entry.highwater)),
        LEVEL,
        "most events that waited in the ring at any drain",
        "\
Most events that ever waited in the agent's ring when it was read. Near
nixl.ring.capacity, the loss of events is near.",
    ),
    agent_metric(
        (17, 3),
        "ring.full",
        Get::U64(|agent, _| agent.of_ring(agent.entry.overflows)),
        EVENTS,
        "drains that found the ring full",
        "\
Number of times that the ring was found full, with capacity - 1 events. NIXL
then loses all further events and counts them nowhere: this is the dependable
sign of loss. Raise NIXL_TELEMETRY_BUFFER_SIZE (a power of two, 4096 by default)
or lower NIXL_TELEMETRY_RUN_INTERVAL (100 ms by default) in the agent's process.
In observe mode, find out why the ring is not drained.",
    ),
    agent_metric(
        (17, 4),
        "ring.dropped",
        Get::U64(|agent, _| agent.dropped()),
        EVENTS,
        "events that NIXL dropped before the ring",
        "\
Events that the agent lost in its own queue before the ring, and reported as
lost. Raise NIXL_TELEMETRY_BUFFER_SIZE or lower NIXL_TELEMETRY_RUN_INTERVAL.
NIXL mostly loses the report itself when the ring is full: see nixl.ring.full. A
store tells it too. No value: NIXL before 1.4, which does not report it.",
    ),
    agent_metric(
        (17, 5),
        "ring.events",
        Get::U64(|agent, _| agent.of_ring(agent.entry.stats.events)),
        EVENTS,
        "events read from the ring",
        "\
Events of all types that were read from the agent's ring and counted. The
metrics of nixl.ring have no value for an agent of stores.",
    ),
    agent_metric(
        (17, 6),
        "ring.unknown",
        Get::U64(|agent, _| agent.of_ring(agent.entry.stats.totals.unknown())),
        EVENTS,
        "events with a type or value that cannot be counted",
        "\
Events of the ring that cannot be counted: of a type that the PMDA does not know
(backends of NIXL up to 0.10 add their own), or of 2^56 or more. Values of that
size mean that two processes write to one file: two agents of one name and of
different versions of NIXL, or a process that is no agent.",
    ),
    agent_metric(
        (17, 7),
        "ring.resets",
        Get::U64(|agent, _| agent.of_ring(agent.entry.resets)),
        EVENTS,
        "restarts of the producer in the same ring",
        "\
Number of times that the ring was found initialised again: its agent restarted
under the same name and took over the file. Events that were not yet read are
lost then, at most those of one drain_interval; the agent's counters go on. If
it grows without restarts, two processes of one name share the directory and
spoil the ring: give each a directory of its own.",
    ),
    agent_metric(
        (17, 8),
        "ring.foreign_reads",
        Get::U64(|agent, _| agent.of_ring(agent.entry.foreign_reads)),
        EVENTS,
        "events that another reader consumed",
        "\
Events that another reader took out of the ring: NIXL's telemetry_reader, the
Python PMDA or another pmdanixl. They are missing in the counters. Stop the
other reader: a ring has room for one.",
    ),
    last(
        0,
        "last.tx_bytes",
        |agent, _| agent.entry.stats.last(EventType::TxBytes),
        BYTES,
        "bytes of the last WRITE",
        "\
Bytes of the last completed WRITE: agent_tx_last_bytes of NIXL's own exporters.
No value: there was none. Of a store: 0 if there was none.",
    ),
    last(
        1,
        "last.rx_bytes",
        |agent, _| agent.entry.stats.last(EventType::RxBytes),
        BYTES,
        "bytes of the last READ",
        "\
Bytes of the last completed READ: agent_rx_last_bytes of NIXL's own exporters.
No value: there was none. Of a store: 0 if there was none.",
    ),
    last(
        2,
        "last.registered",
        |agent, _| agent.entry.stats.last(EventType::MemoryRegistered),
        BYTES,
        "bytes of the last registration",
        "\
Bytes of the last registration of memory: agent_memory_registered_last_bytes of
NIXL's own exporters. No value: there was none.",
    ),
    last(
        3,
        "last.deregistered",
        |agent, _| agent.entry.stats.last(EventType::MemoryDeregistered),
        BYTES,
        "bytes of the last deregistration",
        "\
Bytes of the last deregistration: agent_memory_deregistered_last_bytes of NIXL's
own exporters. No value: there was none.",
    ),
    last(
        4,
        "last.xfer_time",
        |agent, _| agent.entry.stats.last(EventType::XferTime),
        TIME,
        "time of the last transfer",
        "\
Microseconds from start to completion of the last completed transfer:
agent_xfer_time of NIXL's own exporters. No value: there was none.",
    ),
    last(
        5,
        "last.xfer_post_time",
        |agent, _| agent.entry.stats.last(EventType::XferPostTime),
        TIME,
        "time to post the last transfer",
        "\
Microseconds from the start of the last transfer until NIXL's backend accepted
it: agent_xfer_post_time of NIXL's own exporters. No value: there was none.",
    ),
    agent_metric(
        (19, 0),
        "memory.current",
        Get::U64(|agent, _| Some(agent.entry.stats.registered)),
        BYTES,
        "bytes registered now",
        "\
Bytes registered less bytes deregistered since the agent's last start. A value
that grows without end shows a leak. After lost events it is wrong until the
next start.",
    ),
    agent_metric(
        (19, 1),
        "errors.total",
        Get::U64(|agent, _| Some(agent.entry.stats.errors())),
        EVENTS,
        "errors of all kinds",
        "Sum of the twelve kinds of errors below nixl.errors.",
    ),
    agent_metric(
        (19, 2),
        "errors.last",
        Get::Text(|agent, _| Some(agent.entry.stats.last_error?.0.status()?.into())),
        FACT,
        "name of the last error",
        "\
NIXL's name for the status of the last error, such as NIXL_ERR_BACKEND. A store
does not tell the order of errors: there it is the most frequent of the errors
that came last. No value: there was none since the PMDA first saw the agent.",
    ),
    agent_metric(
        (19, 3),
        "errors.last_time",
        Get::U64(|agent, _| Some(agent.entry.stats.last_error?.1)),
        MOMENT,
        "time of the last error, seconds since 1970",
        "\
Time when the last error was read, in seconds since 1970. No value: there was
none since the PMDA first saw the agent.",
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
