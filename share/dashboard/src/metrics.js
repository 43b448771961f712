// SPDX-License-Identifier: GPL-2.0-or-later

// Names of the metrics that the page shows.

export const STATUS = "nixl.agent.status";
export const STALL = {
    state: "nixl.agent.stall.state",
    age: "nixl.agent.stall.age",
    peer: "nixl.agent.stall.peer",
    reason: "nixl.agent.stall.reason",
};
export const SERVER = "nixl.agent.server";
export const RANK = "nixl.agent.rank";
export const COMMAND = "nixl.agent.command";
export const SENT = "nixl.transfer.tx_bytes";
export const RECEIVED = "nixl.transfer.rx_bytes";
export const WRITES = "nixl.transfer.tx_requests";
export const READS = "nixl.transfer.rx_requests";
export const TIME = "nixl.latency.xfer_time";
export const BUCKETS = `${TIME}.histogram`;
export const PEER_RATIO = `${TIME}.peer_ratio`;
export const QUANTILES = ["p50", "p90", "p99", "max"];
export const FULL = "nixl.ring.full";
export const DROPPED = "nixl.queue.dropped";
export const HIGHWATER = "nixl.ring.highwater";
export const CAPACITY = "nixl.ring.capacity";
export const TCP_SHARE = "nixl.agent.tcp_share";
// Of all agents of a process: for agents without a share of their own.
export const PROCESS_SHARE = "nixl.process.tcp_share";
// Of each peer of an agent.
export const PEER = {
    sent: "nixl.agent.peer.tcp.tx_bytes",
    received: "nixl.agent.peer.tcp.rx_bytes",
    retransmits: "nixl.agent.peer.tcp.retransmits",
    rtt: "nixl.agent.peer.tcp.rtt",
};
// Addresses of the host, of PCP's PMDA for Linux. IPv6 addresses have a prefix length.
export const ADDRESSES = ["network.interface.inet_addr", "network.interface.ipv6_addr"];
export const ERRORS = "nixl.errors.total";
export const VERSION = "nixl.control.version";
export const CONFIG_ERROR = "nixl.control.config_error";
export const CPU_TIME = "nixl.control.cpu_time";
export const EVENTS = "nixl.events.last";
export const HOST = {
    sent: "nixl.host.transfer.tx_bytes",
    received: "nixl.host.transfer.rx_bytes",
    writes: "nixl.host.transfer.tx_requests",
    reads: "nixl.host.transfer.rx_requests",
    dropped: "nixl.host.queue.dropped",
    full: "nixl.host.ring.full",
};
export const COUNTS = {
    live: "nixl.host.agents.live",
    idle: "nixl.host.agents.idle",
    exited: "nixl.host.agents.exited",
    unsupported: "nixl.control.files.unsupported",
    rejected: "nixl.control.files.rejected",
};

/** Metrics with a history: the charts draw them. */
export const DRAWN = [
    SENT,
    RECEIVED,
    WRITES,
    READS,
    FULL,
    DROPPED,
    ...Object.values(HOST),
    BUCKETS,
    ...QUANTILES.map((quantile) => `${TIME}.${quantile}`),
];

export const ALL = [
    STATUS,
    "nixl.agent.mode",
    "nixl.agent.user",
    "nixl.agent.pid",
    COMMAND,
    SERVER,
    RANK,
    "nixl.agent.idle_time",
    ...Object.values(STALL),
    ...DRAWN,
    HIGHWATER,
    CAPACITY,
    ERRORS,
    PEER_RATIO,
    TCP_SHARE,
    PROCESS_SHARE,
    ...Object.values(PEER),
    VERSION,
    CONFIG_ERROR,
    CPU_TIME,
    EVENTS,
    ...Object.values(COUNTS),
];

/** Metrics with many instances for each agent. */
export const LARGE = [BUCKETS, ...Object.values(PEER)];
