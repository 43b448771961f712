//! What the agent says of itself: the `nixl.control` metrics.

use std::time::Duration;

/// Counts and settings of the agent itself.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// Time between two drains.
    pub drain_interval: Duration,
    /// Drains of all rings.
    pub drains: u64,
    /// Time spent draining.
    pub drain_time: Duration,
    /// Time spent looking through the directories.
    pub scan_time: Duration,
    /// Files refused, each file and reason once.
    pub files_refused: u64,
    /// Rings of a version that this build does not read, now.
    pub agents_unsupported: usize,
    /// How often a configuration was taken.
    pub loads: u32,
    /// Why the configuration was not taken the last time; empty if it was.
    pub config_error: String,
}

/// Whole microseconds, as PCP counts time here.
#[must_use]
pub fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whole milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
