// SPDX-License-Identifier: GPL-2.0-or-later

//! Totals of one agent from events, without a ring.

use pmdanixl::event::{Event, EventType, Events};
use pmdanixl::stats::Histogram;
use pmdanixl::stats::agent_stats::AgentStats;
use pmdanixl::stats::histogram::{Bounds, MAX_BUCKETS};
use pmdanixl::stats::windows::Windows;
use std::time::{Duration, Instant};

/// Totals, histograms and last values of an agent, and the percentiles of its last minute.
pub struct Stats {
    stats: AgentStats,
    windows: Windows,
}

impl Stats {
    /// Counts events, given by type and value as in a ring, evenly over one minute.
    pub fn of(events: &[(usize, u64)]) -> Self {
        let start = Instant::now();
        let (mut stats, mut windows) = (AgentStats::default(), Windows::new(start));
        let bounds = Bounds::default();
        for (number, &(kind, value)) in (0..).zip(events) {
            let after =
                Duration::from_secs(60) * number / u32::try_from(events.len()).expect("few");
            windows.advance(start + after);
            let event = Event::new(EventType::ALL.get(kind).copied(), value);
            stats.apply(&Events::of(&[event]), &[], &bounds, 0, &mut windows);
        }
        stats.note_gap();
        Self { stats, windows }
    }

    pub fn total(&self, event: EventType) -> u64 {
        self.stats.totals.get(event)
    }

    pub fn events(&self) -> u64 {
        self.stats.events
    }

    /// Number of events of unknown types.
    pub fn unknown(&self) -> u64 {
        self.stats.totals.unknown()
    }

    pub fn errors(&self) -> u64 {
        self.stats.totals.errors()
    }

    /// Number of unpaired halves of transfers.
    pub fn unpaired(&self) -> u64 {
        self.stats.pairing.unpaired()
    }

    /// Number of transfers with a bandwidth.
    pub fn paired(&self) -> u64 {
        (0..MAX_BUCKETS)
            .map(|bucket| self.bucket(Histogram::Bandwidth, bucket))
            .sum()
    }

    pub fn bucket(&self, of: Histogram, bucket: usize) -> u64 {
        self.stats.bucket_count(of, bucket)
    }

    /// Percentile of the last minute, in microseconds or bytes per second. Sizes have no percentiles.
    pub fn percentile(&self, of: Histogram, percent: u64) -> Option<f64> {
        match of {
            Histogram::XferTime => self.windows.xfer_time.percentile(percent),
            Histogram::PostTime => self.windows.post_time.percentile(percent),
            Histogram::Bandwidth => self.windows.bandwidth.percentile(percent),
            Histogram::Size => None,
        }
    }

    /// Longest time of the last minute, in microseconds.
    pub fn longest(&self, of: Histogram) -> Option<u64> {
        match of {
            Histogram::XferTime => self.windows.xfer_time.max(),
            Histogram::PostTime => self.windows.post_time.max(),
            Histogram::Size | Histogram::Bandwidth => None,
        }
    }
}
