// SPDX-License-Identifier: GPL-2.0-or-later

//! Cluster 24: processes that use NIXL, and peers.

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

pub(super) const ROWS: &[Metric] = &[
    process_u64((24, 0), "process.tcp.tx_bytes", TRAFFIC, |process| {
        process.current_traffic().map(|traffic| traffic.sent)
    }),
    process_u64((24, 1), "process.tcp.rx_bytes", TRAFFIC, |process| {
        process.current_traffic().map(|traffic| traffic.received)
    }),
    process_u64((24, 2), "process.tcp.retransmits", EVENTS, |process| {
        process.current_traffic().map(|traffic| traffic.retransmits)
    }),
    process_u32((24, 3), "process.tcp.connections", |process| {
        process.reading().map(|reading| reading.connections)
    }),
    metric(
        (24, 4),
        "process.tcp.rtt",
        TIME,
        ValueSource::Process(Get::F64(|process| process.reading()?.rtt)),
    ),
    process_text((24, 5), "process.backends", |process| {
        let backends = process.found.libraries.backends.iter();
        Some(backends.map(String::as_str).collect::<Vec<_>>().join(","))
    }),
    process_text((24, 6), "process.nixl_version", |process| {
        process.version.clone()
    }),
    process_u32((24, 7), "process.rdma_devices", |process| {
        process.reading().map(|reading| reading.rdma_devices)
    }),
    process_u32((24, 8), "process.agents", |process| Some(process.agents)),
    peer((24, 16), "peer.tcp.tx_bytes", TRAFFIC, |peer| {
        Some(peer.traffic.sent)
    }),
    peer((24, 17), "peer.tcp.rx_bytes", TRAFFIC, |peer| {
        Some(peer.traffic.received)
    }),
    peer((24, 18), "peer.tcp.retransmits", EVENTS, |peer| {
        Some(peer.traffic.retransmits)
    }),
    metric(
        (24, 19),
        "peer.tcp.agent_share",
        INSTANT,
        ValueSource::AgentOfPeer(Get::F64(|agent| agent.transport.tcp_share())),
    ),
];
