// SPDX-License-Identifier: GPL-2.0-or-later

//! Statistics of the events of one agent: sums, histograms, and percentiles of the last minute.

pub mod agent_stats;
pub mod bucket_bounds;
pub mod histogram;
pub mod pairing;
pub mod scale;
pub mod sized_times;
pub mod slow_transfers;
pub mod store_values;
pub mod window;
pub mod windows;

/// Histogram of an agent. The state file has them in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Histogram {
    /// Time from start to completion of transfers, microseconds.
    XferTime,
    /// Time to post transfers, microseconds.
    PostTime,
    /// Bytes of transfers.
    Size,
    /// Bytes per second of transfers.
    Bandwidth,
}
