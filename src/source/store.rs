// SPDX-License-Identifier: GPL-2.0-or-later

//! The reader of a store of NIXL's prometheus_mp exporter.
//!
//! A store is only read, and reading consumes nothing, so any number of readers may read it. It holds running totals,
//! of which the change since the last reading is counted. Begin with `StoreReader::read`.

use crate::error::{Rejection, RingFault};
use crate::event::Totals;
use crate::shm::{HeaderPoll, Mapping};
use crate::source::context::DrainContext;
use crate::stats::store_values::StoreValues;
use crate::stats::windows::Windows;
use crate::store::format::{self, WORDS};
use crate::store::{Description, StoreCandidate, StoreId, StoreReading};
use std::fs::File;
use std::rc::Rc;

/// The reader of a store.
#[derive(Debug)]
pub struct StoreReader {
    mapping: Rc<Mapping>,
    /// The descriptor that the file was mapped from.
    pub(super) descriptor: File,
    id: StoreId,
    /// What the store says of its agent.
    pub description: Description,
    /// Time of the last update in the store at the last reading. `None` before the first reading.
    updated: Option<u64>,
}

impl StoreReader {
    /// Maps a store and reads its values.
    pub(super) fn attach(candidate: StoreCandidate) -> Result<(Self, StoreValues), Rejection> {
        let mapping =
            Mapping::read_only(&candidate.file, WORDS).map_err(Rejection::io("mapped"))?;
        let store = Self {
            mapping: Rc::new(mapping),
            descriptor: candidate.file,
            id: candidate.id,
            description: candidate.description,
            updated: None,
        };
        let values = store.values().map_err(|_| Rejection::Replaced)?;
        Ok((store, values))
    }

    /// Reads the values. Fails if the file has lost its second page or more, or belongs to another process now.
    fn values(&self) -> Result<StoreValues, RingFault> {
        let read = |words: &[_]| (format::read_values(words), format::read_head(words));
        let (values, head) = self.mapping.read_access(&self.descriptor, read)?;
        match head == format::head(self.id.pid) {
            true => Ok(values),
            false => Err(RingFault::Reformatted),
        }
    }

    /// Counts the change since the last reading. Returns true if there was one.
    pub(super) fn read(&mut self, context: &mut DrainContext) -> Result<bool, RingFault> {
        let values = self.values()?;
        let may_be_old = self.updated.replace(values.updated).is_none();
        Ok(self.apply(values, may_be_old, context))
    }

    /// Applies and commits values, like the events of a ring. If `may_be_old`, the change may be older than the last
    /// minute and does not count in the percentiles. Returns true if a counter changed.
    fn apply(&self, values: StoreValues, may_be_old: bool, context: &mut DrainContext) -> bool {
        let (entry, now) = (&mut *context.entry, context.now);
        let last = entry.store.take().filter(|last| last.id == self.id);
        let last = last.unwrap_or_else(|| StoreReading::none(self.id));
        // Compares all values, not only counters: a reading during a flush finds the counters changed before the rest.
        if last.values == values {
            entry.store = Some(last);
            return false;
        }
        let is_first = last.values == StoreValues::NONE;
        let delta = values.delta_since(&last.values);
        let is_new = delta.has_counts();
        let bounds = &self.description.bounds;
        if entry.stats.bucket_bounds() != bounds {
            *context.windows = Windows::new(now.instant);
        }
        if !may_be_old {
            let [xfer_time, post_time] = &delta.histograms;
            context.windows.xfer_time.record_buckets(xfer_time);
            context.windows.post_time.record_buckets(post_time);
        }
        let seconds = (!is_first).then_some(now.seconds);
        entry.stats.apply_delta(&delta, &values, bounds, seconds);
        context
            .shared
            .host
            .add(&Totals::from_store(&delta.counters));
        if !is_first || is_new {
            // The time in the store is untrusted.
            entry.last_event = entry.last_event.max(values.updated.min(now.stamp));
            entry.last_seen = now.stamp;
        }
        let id = self.id;
        entry.store = Some(StoreReading { id, values });
        context.write_entry();
        is_new
    }

    /// A poll of the first words, which stay the same until the agent updates the store.
    pub(super) fn poll(&self) -> Option<HeaderPoll> {
        let [magic, schema, pid] = format::head(self.id.pid);
        HeaderPoll::new(&self.mapping, [magic, schema, pid, self.updated?])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file;
    use crate::config::Config;
    use std::ffi::OsStr;
    use std::os::unix::fs::FileExt;

    const NAME: &str = "nixl.4242.17.0.mmap";

    #[test]
    fn truncated_or_overwritten_store_is_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(NAME);
        for spoil in [0, 1] {
            std::fs::write(&path, crate::store::format::tests::store("a", "0", &[1.0]))
                .expect("written");
            let fd = File::open(dir.path()).expect("there").into();
            let name = OsStr::new(NAME);
            let facts = file::facts(&fd, name).expect("there");
            let candidate = crate::discovery::store::open(&fd, name, &facts, &Config::default())
                .expect("a store");
            let (store, values) = StoreReader::attach(candidate).expect("mapped");
            assert_eq!(values.updated, 5);
            crate::shm::guard_against_sigbus().expect("a handler");
            let file = File::options().write(true).open(&path).expect("there");
            match spoil {
                0 => file.set_len(0).expect("shortened"),
                _ => file.write_all_at(&[9], 16).expect("written"),
            }
            assert!(store.values().is_err());
        }
    }
}
