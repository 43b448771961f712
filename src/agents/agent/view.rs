// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of an agent for the metrics.

use super::{Agent, Now};
use crate::event::EventType;
use crate::procfs::agent_state::AgentState;
use crate::source::Source;
use crate::source::ring::{Mode, RingReader};
use crate::stats::Histogram;
use crate::stats::window::Window;
use crate::store::SCHEMA;
use std::path::PathBuf;
use std::time::Duration;

/// First wire version with events for drops.
const DROPS_VERSION: u64 = 4;

impl Agent {
    /// Returns the sum of all values of one event type since the agent was first seen.
    #[must_use]
    pub fn total(&self, event: EventType) -> u64 {
        self.entry.stats.totals.get(event)
    }

    /// True if no process writes its files any more.
    #[must_use]
    pub fn has_exited(&self) -> bool {
        self.entry.agent_state == AgentState::Exited
    }

    /// Returns the path of its present store, or of its ring. `None`: its store is detached.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self.has_stores() {
            true => Some(self.sources.last()?.file.path.clone()),
            false => Some(self.name.directory.join(&self.name.raw)),
        }
    }

    /// Returns a total. `None`: nothing of the agent was ever counted, since its ring may not be drained.
    pub fn counted<T>(&self, value: T) -> Option<T> {
        self.entry.is_counted.then_some(value)
    }

    /// Returns a total that only rings have.
    pub fn of_ring<T>(&self, value: T) -> Option<T> {
        self.counted(value).filter(|_| !self.has_stores())
    }

    /// Returns the registered memory, in bytes. `None`: the agent has exited, which ends its registrations.
    #[must_use]
    pub fn registered(&self) -> Option<u64> {
        let registered = self.counted(self.entry.stats.registered);
        registered.filter(|_| !self.has_exited())
    }

    /// Returns the number of transfers in a bucket. `None`: a store does not have this histogram.
    #[must_use]
    pub fn bucket(&self, of: Histogram, bucket: usize) -> Option<u64> {
        let count = self.counted(self.entry.stats.bucket_count(of, bucket))?;
        match of {
            Histogram::XferTime | Histogram::PostTime => Some(count),
            Histogram::Size | Histogram::Bandwidth => self.of_ring(count),
        }
    }

    /// Returns a percentile of the transfer times of the last minute, in microseconds; of a store within its buckets.
    #[must_use]
    pub fn xfer_time(&self, percent: u64) -> Option<f64> {
        self.percentile(&self.windows.xfer_time, percent)
    }

    /// Returns a percentile of the post times of the last minute, in microseconds; of a store within its buckets.
    #[must_use]
    pub fn post_time(&self, percent: u64) -> Option<f64> {
        self.percentile(&self.windows.post_time, percent)
    }

    fn percentile(&self, window: &Window, percent: u64) -> Option<f64> {
        match self.has_stores() {
            true => window.percentile_of_buckets(self.entry.stats.bucket_bounds(), percent),
            false => window.percentile(percent),
        }
    }

    /// Returns the longest time in a window. `None`: a store does not tell.
    #[must_use]
    pub fn max(&self, window: &Window) -> Option<u64> {
        window.max().filter(|_| !self.has_stores())
    }

    /// Returns its source; of several rings the one that is still linked.
    fn source(&self) -> Option<&Source> {
        let mut sources = self.sources.iter().rev();
        let named = sources.find(|source| !source.file.liveness.is_unlinked());
        named.or(self.sources.last())
    }

    /// True if all its rings are drained.
    pub(crate) fn is_drained(&self) -> bool {
        let mut rings = self.sources.iter().filter_map(Source::as_ring);
        rings.all(|ring| ring.mode == Mode::Drain)
    }

    fn ring(&self) -> Option<&RingReader> {
        self.source()?.as_ring()
    }

    /// Returns what is done with the events of its ring, or `store`.
    #[must_use]
    pub fn mode(&self) -> Option<&'static str> {
        Some(match self.source()?.as_ring().map(|ring| ring.mode) {
            None => "store",
            Some(Mode::Drain) => "drain",
            Some(Mode::Locked | Mode::Observe(_)) => "observe",
        })
    }

    /// True if several processes write one of its rings, so that none of them is the agent's.
    pub(crate) fn is_shared(&self) -> bool {
        self.sources.iter().any(|source| source.sharers().is_some())
    }

    /// Returns the process that writes its files. If it is not known, the one that its store names, unless the agent
    /// has exited. `None` if several processes write one file.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        if self.is_shared() {
            return None;
        }
        let mut sources = self.sources.iter().rev();
        let known = sources.find_map(|source| Some(source.file.liveness.writer()?.pid));
        let said = || u32::try_from(self.store()?.description.pid).ok();
        known.or_else(|| said().filter(|_| !self.has_exited()))
    }

    /// Returns the owner of its file, by name or number.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let uid = self.source()?.file.facts.uid;
        let name = self.facts.any().and_then(|facts| facts.get("user"));
        Some(name.map_or_else(|| uid.to_string(), str::to_owned))
    }

    /// Returns the version in the header of its ring, or the schema of its store.
    #[must_use]
    pub fn format_version(&self) -> Option<u32> {
        let source = self.source()?;
        Some(source.as_ring().map_or(SCHEMA, |reader| reader.version()))
    }

    /// Returns the number of slots of its ring.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        Some(self.ring()?.ring.capacity())
    }

    /// Returns the number of events in its ring at the last drain.
    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        Some(self.ring()?.pending())
    }

    /// Returns the number of events that it dropped. `None` if its version does not tell.
    #[must_use]
    pub fn dropped(&self) -> Option<u64> {
        let dropped = self.total(EventType::EventsDropped);
        // Both halves of the word have the version.
        let of_checkpoint = || Some(self.entry.checkpoint?.ring.versions >> 32);
        let version = self.ring().map(|reader| reader.version().into());
        let tells = version.or_else(of_checkpoint) >= Some(DROPS_VERSION) || self.has_stores();
        self.counted(dropped).filter(|_| tells || dropped > 0)
    }

    /// Returns the time since its last event.
    #[must_use]
    pub fn idle(&self, now: &Now) -> Duration {
        now.since(self.entry.last_event)
    }
}
