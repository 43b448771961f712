// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 24: processes that use NIXL, and peers.
//!
//! Retired: 3 process.tcp.connections, 4 process.tcp.rtt.

use super::{EVENTS, FACT, INSTANT, Kind, LEVEL, Name, Pmid, Read, TIME, metric};
use crate::metrics::{Get, Metric, Semantics, Units, ValueSource};
use crate::transport::TransportProcess;
use crate::transport::peers::Peer;

const TRAFFIC: Kind = (Semantics::Counter, Units::Byte);

const fn process_u64(
    pmid: Pmid,
    name: Name,
    kind: Kind,
    get: Read<TransportProcess, u64>,
) -> Metric {
    metric(pmid, name, kind, ValueSource::Process(Get::U64(get)))
}

const fn process_u32(pmid: Pmid, name: Name, get: Read<TransportProcess, u32>) -> Metric {
    metric(pmid, name, LEVEL, ValueSource::Process(Get::U32(get)))
}

const fn process_text(pmid: Pmid, name: Name, get: Read<TransportProcess, String>) -> Metric {
    metric(pmid, name, FACT, ValueSource::Process(Get::Text(get)))
}

const fn peer(pmid: Pmid, name: Name, kind: Kind, get: Read<Peer, u64>) -> Metric {
    metric(pmid, name, kind, ValueSource::Peer(Get::U64(get)))
}

pub(super) const ROWS: &[Metric] = rows![
    /// bytes sent over TCP and acknowledged
    /// Bytes that the peers of the process's TCP connections have acknowledged. If NIXL
    /// uses TCP, this grows with the bytes that it writes and that other agents read.
    /// All connections count, also those of HTTP, ZMQ and NCCL.
    process_u64((24, 0), "process.tcp.tx_bytes", TRAFFIC, |process| {
        process.current_traffic().map(|traffic| traffic.sent)
    }),
    /// bytes received over TCP
    /// Bytes that the process's TCP connections have received, also those of HTTP, ZMQ
    /// and NCCL. They include transfers that other agents started, of which NIXL itself
    /// reports nothing on this side.
    process_u64((24, 1), "process.tcp.rx_bytes", TRAFFIC, |process| {
        process.current_traffic().map(|traffic| traffic.received)
    }),
    /// TCP segments sent again
    /// Segments that the process's TCP connections have sent again, because they were
    /// lost or acknowledged late; those of HTTP, ZMQ and NCCL count, too. More than one
    /// in a thousand slows transfers down: see network.interface.in.errors.
    process_u64((24, 2), "process.tcp.retransmits", EVENTS, |process| {
        process.current_traffic().map(|traffic| traffic.retransmits)
    }),
    /// backends of NIXL that are loaded
    /// Names of the plugins that the process has mapped, such as UCX or GDS,POSIX. NIXL
    /// before 1.1 loads all of them. Which transport UCX uses is not known from this.
    process_text((24, 5), "process.backends", |process| {
        let backends = process.found.libraries.backends.iter();
        Some(backends.map(String::as_str).collect::<Vec<_>>().join(","))
    }),
    /// release of NIXL
    /// Release of the Python package that has the libnixl of the process. No value:
    /// the library is not part of a Python package with a version.
    process_text((24, 6), "process.nixl_version", |process| {
        process.version.clone()
    }),
    /// RDMA devices that the process has open
    /// Number of device files /dev/infiniband/uverbs* that the process has open. 0 on a
    /// host with RDMA means that UCX cannot use it: the device is missing in the
    /// container, UCX_TLS or UCX_NET_DEVICES leave it out, or the limit on locked
    /// memory is too low.
    process_u32((24, 7), "process.rdma_devices", |process| {
        process.reading().map(|reading| reading.rdma_devices)
    }),
    /// agents that the process runs
    /// Agents of nixl.agent that write their ring or store in this process. 0: it has
    /// no telemetry here (nixl.host.processes.silent).
    process_u32((24, 8), "process.agents", |process| Some(process.agents)),
    /// bytes over TCP divided by bytes of the process's agents
    /// nixl.agent.tcp_share of all agents of the process together: the bytes of its
    /// connections cannot be divided among its agents. With one agent, both values are
    /// equal. No value: the agents moved less than 1 MiB in each direction in the last
    /// minute, one is new, has left or is not counted (nixl.agent.mode), or the process
    /// was not read in the last minute.
    metric(
        (24, 9),
        "process.tcp_share",
        INSTANT,
        ValueSource::Process(Get::F64(TransportProcess::tcp_share)),
    ),
    /// bytes sent to the peer over TCP
    /// Bytes that the peer has acknowledged, on all connections of the agent's process.
    peer((24, 16), "agent.peer.tcp.tx_bytes", TRAFFIC, |peer| {
        Some(peer.traffic.sent)
    }),
    /// bytes received from the peer over TCP
    /// Bytes received from the peer, on all connections of the agent's process.
    peer((24, 17), "agent.peer.tcp.rx_bytes", TRAFFIC, |peer| {
        Some(peer.traffic.received)
    }),
    /// TCP segments sent to the peer again
    /// Segments that were lost on the way to the peer, or acknowledged late. If only
    /// one peer has many, its link or its host is the cause.
    peer((24, 18), "agent.peer.tcp.retransmits", EVENTS, |peer| {
        Some(peer.traffic.retransmits)
    }),
    /// nixl.agent.tcp_share of the peer's agent
    /// The value of nixl.agent.tcp_share of the agent whose peer this is, so that pmie,
    /// which compares values of one instance domain only, can name agent and peer.
    metric(
        (24, 19),
        "agent.peer.tcp.agent_share",
        INSTANT,
        ValueSource::AgentOfPeer(Get::F64(|agent| agent.transport.tcp_share)),
    ),
    /// smoothed round-trip time to the peer
    /// Mean of the kernel's smoothed round-trip times in microseconds, weighted by the
    /// bytes that each connection to the peer moved since the reading before (at the
    /// first one, in all). No value: none moved any.
    peer((24, 20), "agent.peer.tcp.rtt", TIME, |peer| peer.rtt),
];
