//! The values of a store, and what came since they were read before.

use crate::event::EventType;
use crate::totals::histogram::MAX_BUCKETS;

/// All values of a store. None of them is of the same moment as another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Values {
    /// When the last flush with events ended, or the store was made: nanoseconds of CLOCK_MONOTONIC.
    pub updated: u64,
    /// Running totals by event type.
    pub counters: [u64; EventType::COUNT],
    /// Value of the last event by type. NIXL fills it for the types that its gauges show.
    pub last: [u64; EventType::COUNT],
    /// Transfers by range, of the two types in `TIMES`, not cumulative.
    pub histograms: [[u64; MAX_BUCKETS]; 2],
}

impl Values {
    /// Without any.
    pub const NONE: Self = Self {
        updated: 0,
        counters: [0; EventType::COUNT],
        last: [0; EventType::COUNT],
        histograms: [[0; MAX_BUCKETS]; 2],
    };
}

/// What came since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// By event type.
    pub counters: [u64; EventType::COUNT],
    /// By range, of both histograms.
    pub histograms: [[u64; MAX_BUCKETS]; 2],
}

impl News {
    /// Nothing came.
    pub const NONE: Self = Self {
        counters: [0; EventType::COUNT],
        histograms: [[0; MAX_BUCKETS]; 2],
    };
}
