// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains.

/// Serial number of the instance domain of agents.
pub const AGENTS: u32 = 0;
/// Serial number of the instance domain of the buckets of transfer times.
pub const LATENCIES: u32 = 1;
/// Serial number of the instance domain of the buckets of transfer sizes.
pub const SIZES: u32 = 2;
/// Serial number of the instance domain of the buckets of bandwidths.
pub const BANDWIDTHS: u32 = 3;
/// Serial number of the instance domain of upper bounds of transfer times, for cumulative histograms.
pub const CUMULATIVE_TIMES: u32 = 4;
/// Serial number of the instance domain of processes that use NIXL.
pub const PROCESSES: u32 = 5;
/// Serial number of the instance domain of the peers of agents.
pub const PEERS: u32 = 6;

/// Serial numbers of all instance domains.
pub const INDOMS: [u32; 7] = [
    AGENTS,
    LATENCIES,
    SIZES,
    BANDWIDTHS,
    CUMULATIVE_TIMES,
    PROCESSES,
    PEERS,
];
