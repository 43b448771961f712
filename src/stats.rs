//! What the events of an agent come to: sums, histograms, and percentiles of the last minute.

pub mod agent_stats;
pub mod bucket_bounds;
pub mod histogram;
pub mod pairing;
pub mod scale;
pub mod store_values;
pub mod window;
pub mod windows;

/// The histograms of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Histogram {
    /// Of the time from start to completion of transfers, microseconds.
    XferTime,
    /// Of the time to post transfers, microseconds.
    PostTime,
    /// Of the bytes of transfers.
    Size,
    /// Of bytes per second of transfers.
    Bandwidth,
}
