// SPDX-License-Identifier: GPL-2.0-or-later

//! Sums and histograms of the events of one agent.

use crate::base::words::words;
use crate::event::{Event, EventType, Events, Totals};
use crate::stats::Histogram;
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::{Bounds, BucketCounts};
use crate::stats::pairing::Pairing;
use crate::stats::scale::Scaled;
use crate::stats::store_values::StoreValues;
use crate::stats::windows::Windows;

/// Sums and histograms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentStats {
    /// Sums by type.
    pub totals: Totals,
    /// Number of events.
    pub events: u64,
    /// Type of the last error, and the time at which it was counted, in seconds since 1970.
    pub last_error: Option<(EventType, u64)>,
    /// Registered memory, bytes.
    pub registered: u64,
    /// State of the pairing of bytes with times.
    pub pairing: Pairing,
    /// Bounds of the histograms of times.
    bucket_bounds: BucketBounds,
    /// Base of the instance ids of these buckets. `None`: they have no ids yet.
    pub bucket_base: Option<u32>,
    /// Transfers by bucket, in the order of [`Histogram`].
    histograms: [BucketCounts; 4],
    /// Sums of the transfer times and post times that the histograms of times lack, because their bounds have changed.
    times_before: [u64; 2],
}
words!(AgentStats:
    totals, events, last_error, registered, pairing, bucket_bounds, bucket_base, histograms,
    times_before
);

impl AgentStats {
    /// Applies a batch of events. `gaps`, in rising order, are the indexes of events before which others may be
    /// missing. `bounds` are those of the histograms of times, see [`AgentStats::set_bounds`]. `seconds` is the time
    /// since 1970.
    pub fn apply(
        &mut self,
        events: &Events,
        gaps: &[usize],
        bounds: &Bounds,
        seconds: u64,
        windows: &mut Windows,
    ) {
        self.set_bounds(bounds);
        self.totals.add(events.totals());
        let events = events.list();
        self.events = self.events.wrapping_add(events.len() as u64);
        let mut from = 0;
        for &gap in gaps {
            let upto = gap.clamp(from, events.len());
            self.apply_events(&events[from..upto], bounds, seconds, windows);
            self.note_gap();
            from = upto;
        }
        self.apply_events(&events[from..], bounds, seconds, windows);
    }

    /// Applies events without a gap between them, except their sums.
    fn apply_events(
        &mut self,
        events: &[Event],
        bounds: &Bounds,
        seconds: u64,
        windows: &mut Windows,
    ) {
        for &Event { kind, value } in events {
            match kind {
                Some(EventType::XferTime) => {
                    self.pairing.start(value);
                    let time = Scaled::from(value);
                    self.count(Histogram::XferTime, bounds.find(time));
                    windows.xfer_time.record(time);
                }
                Some(EventType::XferPostTime) => {
                    self.pairing.drop_pending();
                    let time = Scaled::from(value);
                    self.count(Histogram::PostTime, bounds.find(time));
                    windows.post_time.record(time);
                }
                Some(EventType::TxBytes | EventType::RxBytes) => {
                    let size = Bounds::SIZE.find(value);
                    if let Some(transfer) = self.pairing.complete(value) {
                        let rate = Scaled::from(transfer.bandwidth);
                        self.count(Histogram::Bandwidth, Bounds::BANDWIDTH.find(rate));
                        windows.bandwidth.record(rate);
                        windows.sized_times.record(size, transfer.micros);
                    }
                    self.count(Histogram::Size, size);
                }
                Some(EventType::MemoryRegistered) => {
                    self.pairing.drop_pending();
                    self.registered = self.registered.saturating_add(value);
                }
                Some(EventType::MemoryDeregistered) => {
                    self.pairing.drop_pending();
                    self.registered = self.registered.saturating_sub(value);
                }
                None
                | Some(EventType::TxRequests | EventType::RxRequests | EventType::EventsDropped) => {
                    self.pairing.drop_pending();
                }
                // The other types are errors. Their value is the number of errors.
                Some(kind) => {
                    self.pairing.drop_pending();
                    if value > 0 {
                        self.last_error = Some((kind, seconds));
                    }
                }
            }
        }
    }

    /// Sets the bounds of the histograms of times. If they change, the histograms begin at zero and get new instance
    /// ids. Returns true if they change.
    pub fn set_bounds(&mut self, bounds: &Bounds) -> bool {
        self.set_bucket_bounds(BucketBounds::of(bounds))
    }

    fn set_bucket_bounds(&mut self, bucket_bounds: BucketBounds) -> bool {
        let is_other = self.bucket_bounds != bucket_bounds;
        if is_other {
            self.bucket_bounds = bucket_bounds;
            for times in [Histogram::XferTime, Histogram::PostTime] {
                self.histograms[times as usize] = BucketCounts::default();
            }
            let times = [EventType::XferTime, EventType::XferPostTime];
            self.times_before = times.map(|kind| self.totals.get(kind));
            self.bucket_base = None;
        }
        is_other
    }

    /// Returns the bounds of the histograms of times.
    #[must_use]
    pub fn bucket_bounds(&self) -> &BucketBounds {
        &self.bucket_bounds
    }

    /// Applies the delta of a store since the last reading, and its current values. `seconds` is the time since 1970;
    /// `None` at the first reading, because the times of its errors are not known.
    pub fn apply_delta(
        &mut self,
        delta: &StoreValues,
        now: &StoreValues,
        bucket_bounds: &BucketBounds,
        seconds: Option<u64>,
    ) {
        self.set_bucket_bounds(*bucket_bounds);
        self.totals.add(&Totals::from_store(&delta.counters));
        // A store has the first two, those of times.
        let counts = delta.histograms.map(BucketCounts);
        for (sum, counts) in self.histograms.iter_mut().zip(&counts) {
            sum.add(counts);
        }
        let counter = |kind: EventType| now.counters[kind as usize];
        self.registered = counter(EventType::MemoryRegistered)
            .saturating_sub(counter(EventType::MemoryDeregistered));
        let increase = |kind: EventType| delta.counters[kind as usize];
        // A store has no order of errors, so the most frequent one counts as the last.
        let errors = EventType::errors().iter().copied();
        let most = errors.max_by_key(|&kind| increase(kind));
        if let Some(last) = most.filter(|&kind| increase(kind) > 0).zip(seconds) {
            self.last_error = Some(last);
        }
    }

    /// Returns the number of transfers in a bucket of a histogram.
    #[must_use]
    pub fn bucket_count(&self, histogram: Histogram, bucket: usize) -> u64 {
        self.histograms[histogram as usize].get(bucket)
    }

    /// Returns the histograms of transfer times and of post times.
    #[must_use]
    pub fn times(&self) -> [&BucketCounts; 2] {
        [Histogram::XferTime, Histogram::PostTime].map(|of| &self.histograms[of as usize])
    }

    /// Returns the number of transfers in all buckets of a histogram.
    #[must_use]
    pub fn histogram_count(&self, histogram: Histogram) -> u64 {
        self.histograms[histogram as usize].total()
    }

    /// Returns the sums of the times in the histograms of transfer times and of post times, in microseconds.
    #[must_use]
    pub fn histogram_sums(&self) -> [u64; 2] {
        let [xfer_time, post_time] = self.times_before;
        let since = |kind, before| self.totals.get(kind).wrapping_sub(before);
        [
            since(EventType::XferTime, xfer_time),
            since(EventType::XferPostTime, post_time),
        ]
    }

    fn count(&mut self, histogram: Histogram, bucket: usize) {
        self.histograms[histogram as usize].increment(bucket);
    }

    /// Notes a producer restart: the new producer has no registered memory.
    pub fn producer_restarted(&mut self) {
        self.registered = 0;
        self.note_gap();
    }

    /// Notes that events may be missing here: the next event may belong to another transfer.
    pub fn note_gap(&mut self) {
        self.pairing.drop_pending();
    }
}

#[cfg(test)]
mod tests;
