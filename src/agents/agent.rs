// SPDX-License-Identifier: GPL-2.0-or-later

//! One NIXL agent: its sources, totals, labels and lifecycle.

use crate::agents::registry::Included;
use crate::agents::role_times::AddedTimes;
use crate::base::clock::Now;
use crate::base::file::{self, FileFacts, FileId};
use crate::discovery::scan::Scanner;
use crate::entry::{Entry, Lifecycle, Name};
use crate::journal::{Journal, RecordId};
use crate::log;
use crate::procfs::facts::Facts;
use crate::source::Source;
use crate::source::context::{DrainContext, Shared};
use crate::source::removal::{self, Removal};
use crate::source::store::StoreReader;
use crate::stats::windows::Windows;
use crate::transport::AgentTransport;
use nix::errno::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

mod drain;
mod label_cache;
mod noted;
mod view;
pub use drain::Outcome;
pub(crate) use label_cache::ProcessFacts;

/// A NIXL agent. It writes, or wrote, rings of one name in one directory, or stores.
#[derive(Debug)]
pub struct Agent {
    /// Directory, name, owner, part and instance name.
    pub name: Name,
    /// Totals, and what else survives a restart of the daemon.
    pub entry: Entry,
    /// Distribution of the transfers of the last minute.
    pub windows: Windows,
    /// Facts of its process, for the labels.
    pub(crate) facts: ProcessFacts,
    /// Valid until a label changes: pmcd requests the labels of tens of thousands of buckets at a time.
    cached_labels: label_cache::CachedLabels,
    /// Record in the state file. `None`: the totals are in memory only.
    pub(crate) record: Option<RecordId>,
    /// Instance id, if it was ever published.
    pub id: Option<u32>,
    /// Attached rings, or the present store. More than one while a ring that was replaced or unlinked is still written
    /// to.
    pub(crate) sources: Vec<Source>,
    /// Name and identity of a file that there is no room for, and that the agent may write to. Until it is attached, no
    /// other store becomes the agent's.
    pub(crate) waiting: Option<(OsString, FileId)>,
    /// When it was first found without a file by a search for agents to expire.
    pub(crate) without_file_since: Option<Instant>,
    /// Its part in the sums of the registry.
    pub(crate) included: Included,
    /// What of its histograms of times is in the sums by role.
    pub(crate) added_times: AddedTimes,
    /// What its process transfers by TCP, if the process runs no other agent, and whether transfers have stalled.
    pub transport: AgentTransport,
    /// What the timeline has of it.
    pub(crate) noted: noted::Noted,
}

impl Agent {
    /// Returns an agent without sources.
    #[must_use]
    pub(crate) fn new(name: Name, entry: Entry, now: Instant) -> Self {
        Self {
            name,
            entry,
            windows: Windows::new(now),
            facts: ProcessFacts::default(),
            cached_labels: label_cache::CachedLabels::default(),
            record: None,
            id: None,
            sources: Vec::new(),
            waiting: None,
            without_file_since: None,
            included: Included::default(),
            added_times: AddedTimes::default(),
            transport: AgentTransport::default(),
            noted: noted::Noted::default(),
        }
    }

    /// True if the agent has stores. False if it has rings.
    pub(crate) fn has_stores(&self) -> bool {
        !self.name.part.is_empty()
    }

    /// Returns the facts that the agent's files tell.
    pub(crate) fn facts_of_files(&self, user: Option<&str>) -> Facts {
        let facts = Facts::of_file(user, &self.name.raw, &self.name.directory);
        match self.store() {
            Some(store) => store.description.facts().merge(&facts),
            None => facts,
        }
    }

    /// True if a process scan could still resolve the writer of one of its files.
    pub(crate) fn asks(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.file.liveness.needs_scan())
    }

    /// True if the agent is an instance.
    pub(crate) fn is_published(&self) -> bool {
        self.entry.lifecycle.is_published()
    }

    /// Publishes an agent that waits for its labels, if they are known or the wait is over.
    pub(crate) fn publish(&mut self, stamp: u64, journal: &mut Journal) {
        let are_known = self.facts.any().is_some();
        if self.entry.lifecycle.publish(are_known, stamp) {
            journal.commit(self.record, &self.entry);
        }
    }

    /// Withdraws the agent from the instance domain.
    pub(crate) fn withdraw(&mut self, now: Instant, journal: &mut Journal) {
        self.entry.lifecycle = Lifecycle::Dormant;
        journal.commit(self.record, &self.entry);
        if self.facts.current().is_none() {
            self.set_facts(None);
        }
        // Its record may stay for long, and its recent values are not shown any more.
        self.windows = Windows::new(now);
        self.cached_labels.take();
    }

    /// Notes a start of the producer. The facts of the process before are no longer current, also after a restart of
    /// the daemon.
    pub(crate) fn started(&mut self, stamp: u64, journal: &mut Journal) {
        self.entry.add_start(stamp);
        self.outdate_facts();
        journal.set_facts(self.record, None);
    }

    /// Notes that the known facts are those of the process before.
    pub(crate) fn outdate_facts(&mut self) {
        self.facts.outdate(self.is_published());
    }

    /// Replaces the facts of its process.
    pub(crate) fn set_facts(&mut self, facts: Option<Facts>) {
        self.facts = facts.map_or(ProcessFacts::Unknown, ProcessFacts::Current);
    }

    /// True if a file of the agent is attached.
    pub(crate) fn has_files(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Detaches the first source of a live agent. If the agent has several rings, its process writes the last one. Of
    /// an exited agent, detaches the sources that are drained; `may_be_held`: also if a process has them open.
    pub(crate) fn detach(
        &mut self,
        is_live: bool,
        now: Instant,
        may_be_held: bool,
    ) -> Vec<(Source, FileFacts)> {
        let (mut kept, mut detached) = (Vec::new(), Vec::new());
        for (number, mut source) in std::mem::take(&mut self.sources).into_iter().enumerate() {
            let facts = match is_live {
                true => source.current_facts().filter(|_| number == 0),
                false => source.facts_if_drained(now, may_be_held),
            };
            match facts {
                Some(facts) => detached.push((source, facts)),
                None => kept.push(source),
            }
        }
        self.sources = kept;
        detached
    }

    /// Returns the attached files.
    pub fn attached(&self) -> impl Iterator<Item = (&FileFacts, &Path)> {
        let sources = self.sources.iter();
        sources.map(|source| (&source.file.facts, &*source.file.path))
    }

    /// Returns the attached store.
    pub(crate) fn store(&self) -> Option<&StoreReader> {
        self.sources.last()?.as_store()
    }

    /// True if there is no room for a file of the agent that still exists, and that the agent may write to.
    pub(crate) fn waits(&self, scanner: &Scanner) -> bool {
        self.waiting.as_ref().is_some_and(|(name, id)| {
            let directory = scanner.directory(&self.name.directory);
            // A file that cannot be accessed now may still exist.
            directory.is_none_or(|directory| match file::facts(directory, name) {
                Ok(facts) => facts.id == *id,
                Err(errno) => errno != Errno::ENOENT,
            })
        })
    }

    /// Counts what came to a store before its process ended.
    pub(crate) fn read_last(&mut self, store: &mut Source, now: Now, shared: &mut Shared) {
        // A store that is no longer what was attached has nothing more to count.
        let _ = store.drain(&mut self.context(now, shared).0);
    }

    /// Returns what a drain changes, the agent's name and its sources.
    fn context<'a>(
        &'a mut self,
        now: Now,
        shared: &'a mut Shared,
    ) -> (DrainContext<'a>, &'a Name, &'a mut Vec<Source>) {
        let context = DrainContext {
            entry: &mut self.entry,
            windows: &mut self.windows,
            record: self.record,
            now,
            shared,
        };
        (context, &self.name, &mut self.sources)
    }

    /// Removes the files of rings that no process has had open for `after`.
    pub(crate) fn remove_exited_files(
        &mut self,
        directory: &OwnedFd,
        now: Now,
        after: Duration,
        shared: &mut Shared,
    ) {
        let (mut context, Name { instance, .. }, sources) = self.context(now, shared);
        let now = now.instant;
        for source in sources {
            let Some(ago) = source.abandoned_for(now).filter(|&ago| ago >= after) else {
                continue;
            };
            // Another of its rings has a batch in flight, which is recovered first.
            if context
                .entry
                .in_flight()
                .is_some_and(|ring| ring != source.id())
            {
                continue;
            }
            let path = log::shown(&source.file.path);
            match removal::remove(directory, source, &mut context) {
                Removal::Done => {
                    let ago = humantime::format_duration(Duration::from_secs(ago.as_secs()));
                    tracing::info!(
                        "agent {instance}: {path}: removed: it is empty, and no process has had it open for {ago}"
                    );
                    source.file.liveness.unlinked(now);
                }
                // Tried again in a second.
                Removal::Left => source.file.liveness.saw_holder(now),
                Removal::Impossible(errno) => {
                    tracing::warn!(
                        "agent {instance}: {path}: cannot be removed, and is not tried again: {errno}"
                    );
                    source.file.is_unremovable = true;
                }
            }
        }
    }
}
