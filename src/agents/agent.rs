//! One NIXL agent: its rings, what is known of it, and whether it is an instance.

use crate::agents::registry::Counted;
use crate::agents::removal::{self, Removal};
use crate::agents::{AgentKey, Change};
use crate::base::clock::Now;
use crate::base::file::{self, FileId};
use crate::discovery::scan::Scanner;
use crate::journal::ledger::{Books, Ledger};
use crate::journal::record::{Entry, Lifecycle, Name};
use crate::journal::{Journal, RecordId};
use crate::log;
use crate::procfs::facts::Facts;
use crate::source::Source;
use crate::source::store::StoreReader;
use crate::stats::windows::Windows;
use nix::errno::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

mod drain;
mod labels;
mod view;
pub use drain::Outcome;
pub(crate) use labels::ProcessFacts;

/// A NIXL agent: what writes, or wrote, rings of one name in one directory, or stores.
#[derive(Debug)]
pub struct Agent {
    /// What it is called.
    pub name: Name,
    /// What its events came to, and what else outlives the daemon.
    pub entry: Entry,
    /// How its transfers of the last minute are distributed.
    pub windows: Windows,
    /// What is known of its process and its place.
    pub(crate) facts: ProcessFacts,
    label_text: labels::Kept,
    /// Where the entry is kept; `None`: in memory only.
    pub(crate) record: Option<RecordId>,
    /// Its instance id, once it had one.
    pub id: Option<u32>,
    /// Its rings, or its store. More than one while a ring that was replaced or unlinked is still written to.
    pub(crate) sources: Vec<Source>,
    /// Name and identity of a file that there is no room for, and that the agent may write to. No other file is taken for its next.
    pub(crate) waiting: Option<(OsString, FileId)>,
    /// The time of the last update of its earlier stores that the process before had counted.
    pub(crate) stores_before: u64,
    /// Since when it is known to have no file, as of the last look for those that are to be forgotten.
    pub(crate) bare_since: Option<Instant>,
    /// What the registry counts of it.
    pub(crate) counted: Counted,
}

impl Agent {
    /// An agent of which nothing is known yet but what it is called, or what the state file says.
    #[must_use]
    pub(crate) fn new(name: Name, entry: Entry, now: Instant) -> Self {
        Self {
            name,
            stores_before: entry.store_retired,
            entry,
            windows: Windows::new(now),
            facts: ProcessFacts::default(),
            label_text: labels::Kept::default(),
            record: None,
            id: None,
            sources: Vec::new(),
            waiting: None,
            bare_since: None,
            counted: Counted::default(),
        }
    }

    /// Whether a process scan could tell more of its files.
    pub(crate) fn asks(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.file.liveness.needs_scan())
    }

    /// True for an instance.
    pub(crate) fn is_published(&self) -> bool {
        self.entry.lifecycle.is_published()
    }

    /// Publishes an agent that has waited for its labels, if they are known or have been waited for long enough.
    pub(crate) fn publish(&mut self, now: Instant) {
        let are_known = self.facts.any().is_some();
        self.entry.lifecycle.publish(are_known, now);
    }

    /// Ends an instance.
    pub(crate) fn withdraw(&mut self, now: Instant) {
        self.entry.lifecycle.withdraw();
        if self.facts.current().is_none() {
            self.set_facts(None);
        }
        // It may be remembered for long, and its values are nobody's.
        self.windows = Windows::new(now);
        self.label_text = labels::Kept::default();
    }

    /// How an agent that was or was not published has changed the instance domains. `None`: it has not.
    pub(crate) fn change_since(&self, was_published: bool, key: AgentKey) -> Option<Change> {
        match (was_published, self.is_published()) {
            (false, true) => Some(Change::Appeared(key)),
            (true, false) => Some(Change::Left { key, id: self.id }),
            _ => None,
        }
    }

    /// The changes by which an instance gets ids for its ranges of times, if these have none yet.
    pub(crate) fn renew_buckets(&self, key: AgentKey) -> impl Iterator<Item = Change> + use<> {
        let is_due =
            self.is_published() && self.id.is_some() && self.entry.stats.bucket_base.is_none();
        let id = self.id;
        let changes = is_due.then_some([Change::Left { key, id }, Change::Appeared(key)]);
        changes.into_iter().flatten()
    }

    /// Its producer was started: nothing is known of it yet. After a restart of the daemon what was known before is not, either.
    pub(crate) fn started(&mut self, stamp: u64, journal: &mut Journal) {
        self.entry.add_start(stamp);
        self.outdate_facts();
        journal.set_facts(self.record, None);
    }

    /// What is known of its process is of the one before.
    pub(crate) fn outdate_facts(&mut self) {
        self.facts.outdate(self.is_published());
    }

    /// Takes what is known of its process, or that nothing is.
    pub(crate) fn set_facts(&mut self, facts: Option<Facts>) {
        self.facts = ProcessFacts::of(facts);
    }

    /// What is known of the process that writes now.
    pub(crate) fn own_facts(&self) -> Option<&Facts> {
        self.facts.current()
    }

    /// Whether a process scan is wanted soon: what it is labelled with is not known, or of another process.
    pub(crate) fn wants_facts(&self) -> bool {
        match self.entry.lifecycle {
            Lifecycle::Dormant => false,
            Lifecycle::AwaitingLabels { .. } => true,
            Lifecycle::Active | Lifecycle::Exited { .. } => self.facts.are_outdated(),
        }
    }

    /// Whether a ring or a store of it is attached.
    pub(crate) fn has_files(&self) -> bool {
        !self.sources.is_empty()
    }

    /// The attached files.
    pub(crate) fn attached(&self) -> impl Iterator<Item = (FileId, &Path)> {
        let sources = self.sources.iter();
        sources.map(|source| (source.id(), &*source.file.path))
    }

    /// The store that it has, or had until it left.
    pub(crate) fn store(&self) -> Option<&StoreReader> {
        self.sources.last()?.as_store()
    }

    /// True if there is no room for its file, which is still there: the agent may be writing to it.
    pub(crate) fn waits(&self, scanner: &Scanner) -> bool {
        self.waiting.as_ref().is_some_and(|(name, id)| {
            let directory = scanner.directory(&self.name.directory);
            // A file that cannot be reached now may still be there.
            directory.is_none_or(|directory| match file::facts(directory, name) {
                Ok(facts) => facts.id == *id,
                Err(errno) => errno != Errno::ENOENT,
            })
        })
    }

    /// Counts what came to a store that no process writes any more.
    pub(crate) fn read_last(&mut self, store: &mut Source, now: Now, books: &mut Books) {
        store.drain(&mut self.ledger(now, books).0);
    }

    /// Its account, with its name and its sources.
    fn ledger<'a>(
        &'a mut self,
        now: Now,
        books: &'a mut Books,
    ) -> (Ledger<'a>, &'a Name, &'a mut Vec<Source>) {
        let ledger = Ledger {
            entry: &mut self.entry,
            windows: &mut self.windows,
            record: self.record,
            now,
            books,
        };
        (ledger, &self.name, &mut self.sources)
    }
}

impl Agent {
    /// Removes the files of rings that nobody has had for so long.
    pub(crate) fn remove_exited(
        &mut self,
        directory: &OwnedFd,
        now: Now,
        after: Duration,
        books: &mut Books,
    ) {
        let (mut ledger, Name { instance, .. }, sources) = self.ledger(now, books);
        let now = now.instant;
        for source in sources {
            let Some(ago) = source.abandoned_for(now).filter(|&ago| ago >= after) else {
                continue;
            };
            // Another of its rings comes first.
            if ledger.in_flight().is_some_and(|ring| ring != source.id()) {
                continue;
            }
            let path = log::shown(&source.file.path);
            match removal::remove(directory, source, &mut ledger) {
                Removal::Done => {
                    let ago = humantime::format_duration(Duration::from_secs(ago.as_secs()));
                    tracing::info!(
                        "agent {instance}: {path} is removed; nothing waits in it, and nobody has had it for {ago}"
                    );
                    source.file.liveness.unlinked(now);
                }
                // Whoever has it now is asked for again in a second.
                Removal::Left => source.file.liveness.saw_holder(now),
                Removal::Impossible(errno) => {
                    tracing::warn!("agent {instance}: {path} cannot be removed: {errno}; it stays");
                    source.file.stays = true;
                }
            }
        }
    }
}
