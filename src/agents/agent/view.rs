//! What the metrics ask of an agent.

use super::{Agent, Now};
use crate::event::EventType;
use crate::producer::life::Life;
use crate::source::ring::{Mode, Source};
use crate::source::store::Store;
use crate::store::SCHEMA;
use crate::totals::Buckets;
use std::path::PathBuf;
use std::time::Duration;

/// The first wire version that tells of drops.
const TELLS_DROPS: u64 = 4;

impl Agent {
    /// Sum of all values of one event type since the agent was first seen.
    #[must_use]
    pub fn total(&self, event: EventType) -> u64 {
        self.entry.account.totals.get(event)
    }

    /// The file of its store, or else of its ring; `None`: it had a store, which is let go.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        match self.has_stores() {
            true => Some(self.store.as_ref()?.path().to_owned()),
            false => Some(self.name.directory.join(&self.name.raw)),
        }
    }

    /// What only rings tell.
    pub fn of_ring<T>(&self, value: T) -> Option<T> {
        (!self.has_stores()).then_some(value)
    }

    /// How many transfers a range of a histogram has; `None`: a store does not tell.
    #[must_use]
    pub fn bucket(&self, of: Buckets, bucket: usize) -> Option<u64> {
        let count = self.entry.account.bucket(of, bucket);
        match of {
            Buckets::XferTime | Buckets::PostTime => Some(count),
            Buckets::Size | Buckets::Bandwidth => self.of_ring(count),
        }
    }

    /// A percentile of the times of its transfers in the last minute, microseconds; of a store within its ranges.
    #[must_use]
    pub fn xfer_time(&self, percent: u64) -> Option<f64> {
        let of_store = || self.store.as_ref()?.percentile(false, percent);
        let of_ring = || self.windows.xfer_time.percentile(percent);
        of_store().or_else(of_ring)
    }

    /// The same of the times to post them.
    #[must_use]
    pub fn post_time(&self, percent: u64) -> Option<f64> {
        let of_store = || self.store.as_ref()?.percentile(true, percent);
        let of_ring = || self.windows.post_time.percentile(percent);
        of_store().or_else(of_ring)
    }

    /// Its ring; of several the one that has the name.
    fn ring(&self) -> Option<&Source> {
        let mut rings = self.sources.iter().rev();
        let named = rings.find(|ring| !ring.presence.is_unlinked());
        named.or(self.sources.last())
    }

    /// What is done with its events.
    #[must_use]
    pub fn mode(&self) -> Option<&'static str> {
        if self.store.is_some() {
            return Some("read");
        }
        Some(match self.ring()?.mode() {
            Mode::Drain => "drain",
            Mode::Locked | Mode::Observe(_) => "observe",
        })
    }

    /// Where its values come from.
    #[must_use]
    pub fn source_kind(&self) -> Option<&'static str> {
        match &self.store {
            Some(_) => Some("store"),
            None => self.ring().map(|_| "ring"),
        }
    }

    /// The process that writes, where that is known; else of a store what it says itself, while it is not known to have ended.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        if let Some(store) = &self.store {
            let known = store.presence.writer().map(|writer| writer.pid);
            let said = || u32::try_from(store.description.pid).ok();
            let lives = self.state != Life::Exited;
            return known.or_else(|| said().filter(|_| lives));
        }
        let mut rings = self.sources.iter().rev();
        rings.find_map(|source| Some(source.presence.writer()?.pid))
    }

    /// The owner of its ring.
    #[must_use]
    pub fn user(&self) -> Option<String> {
        let store = self.store.as_ref().map(Store::uid);
        let ring = || self.ring().map(Source::uid);
        let uid = store.or_else(ring)?;
        let name = self.facts.as_ref().and_then(|facts| facts.user.clone());
        Some(name.unwrap_or_else(|| uid.to_string()))
    }

    /// The version in its ring's header, or the schema in its store's.
    #[must_use]
    pub fn wire_version(&self) -> Option<u32> {
        if self.store.is_some() {
            return Some(SCHEMA);
        }
        self.ring().map(Source::version)
    }

    /// Slots of its ring.
    #[must_use]
    pub fn capacity(&self) -> Option<u64> {
        Some(self.ring()?.capacity())
    }

    /// Events that waited in its ring at the last look.
    #[must_use]
    pub fn pending(&self) -> Option<u64> {
        Some(self.ring()?.pending())
    }

    /// Events that it dropped; `None` where its version does not tell.
    #[must_use]
    pub fn dropped(&self) -> Option<u64> {
        let dropped = self.total(EventType::EventsDropped);
        // The version is in both halves.
        let of_commit = || Some(self.entry.commit?.ring.versions >> 32);
        let version = self.ring().map(|ring| ring.version().into());
        let tells = version.or_else(of_commit) >= Some(TELLS_DROPS) || self.has_stores();
        (tells || dropped > 0).then_some(dropped)
    }

    /// Time since its last event.
    #[must_use]
    pub fn idle(&self, now: &Now) -> Duration {
        now.since(self.entry.last_event)
    }

    /// The same in milliseconds.
    #[must_use]
    pub fn idle_time(&self, now: &Now) -> u64 {
        u64::try_from(self.idle(now).as_millis()).unwrap_or(u64::MAX)
    }
}
