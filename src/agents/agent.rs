//! One NIXL agent: its rings, what is known of it, and whether it is an instance.

use crate::agents::registry::Counted;
use crate::agents::removal::{self, Removal};
use crate::agents::{AgentKey, Change};
use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::find::scan::Scanner;
use crate::log;
use crate::producer::facts::Facts;
use crate::producer::life::Life;
use crate::source::Source;
use crate::source::store::StoreReader;
use crate::state::RecordId;
use crate::state::journal::Journal;
use crate::state::ledger::{Books, Ledger};
use crate::state::record::{Entry, Name};
use crate::totals::ranges::Ranges;
use crate::totals::windows::Windows;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

mod drain;
mod labels;
mod view;
mod waiting;
pub use drain::Outcome;
pub(crate) use waiting::Waiting;

/// A NIXL agent: what writes, or wrote, rings of one name in one directory, or stores.
#[derive(Debug)]
pub struct Agent {
    /// What it is called.
    pub name: Name,
    /// What its events came to, and what else outlives the daemon.
    pub entry: Entry,
    /// How its transfers of the last minute are distributed.
    pub windows: Windows,
    /// Whether it lives, as of the last drain.
    pub state: Life,
    /// What is known of its process and its place; `None`: that was not found out yet.
    pub facts: Option<Facts>,
    /// Whether those are of the process before the one that writes now, as they are until that one is known: an instance keeps
    /// its labels meanwhile.
    pub(crate) facts_are_old: bool,
    label_text: labels::Kept,
    /// Whether it is an instance. One that is new becomes one when its facts are known, by which it is labelled, or when they
    /// have been waited for long enough.
    pub(crate) shown: bool,
    /// Until when they are waited for.
    pub(crate) wait_until: Instant,
    /// Where the entry is kept; `None`: in memory only.
    pub(crate) record: Option<RecordId>,
    /// Its instance id, once it had one.
    pub(crate) id: Option<u32>,
    /// Its rings, or its store. More than one while a ring that was replaced or unlinked is still written to.
    pub(crate) sources: Vec<Source>,
    /// The file that it has no place for, and that it may write to: nobody else's is taken for its.
    pub(crate) waits: Option<Waiting>,
    /// Since when it is known to have no file, as of the last look for those that are to be forgotten.
    pub(crate) bare_since: Option<Instant>,
    /// What the registry counts of it.
    pub(crate) counted: Counted,
}

impl Agent {
    /// An agent of which nothing is known yet but what it is called, or what the state file says.
    #[must_use]
    pub(crate) fn new(name: Name, entry: Entry, now: Instant) -> Self {
        // A ring that is not found after a restart may still be written to.
        let state = match entry.exited {
            true => Life::Exited,
            false => Life::Unknown,
        };
        Self {
            name,
            entry,
            windows: Windows::new(now),
            state,
            facts: None,
            facts_are_old: false,
            label_text: labels::Kept::default(),
            shown: false,
            wait_until: now,
            record: None,
            id: None,
            sources: Vec::new(),
            waits: None,
            bare_since: None,
            counted: Counted::default(),
        }
    }

    /// Whether a process scan could tell more of its files.
    pub(crate) fn asks(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| source.file.presence.asks())
    }

    /// Has the next process scan ask about all its files.
    pub(crate) fn ask_again(&mut self) {
        for source in &mut self.sources {
            source.file.presence.ask_again();
        }
    }

    /// Whether it is to be an instance now that was none, or is to be none any more: then it is from here on.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<bool> {
        let ready = self.shown || self.facts.is_some() || now >= self.wait_until;
        let shown = self.entry.active && ready;
        let turned = std::mem::replace(&mut self.shown, shown) != shown;
        turned.then_some(shown)
    }

    /// It is to be no instance any more.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.entry.active = false;
        if self.facts_are_old {
            self.set_facts(None);
        }
        // It may be remembered for long, and its values are nobody's.
        self.windows = Windows::new(now);
        self.label_text = labels::Kept::default();
    }

    /// The changes by which an instance gets ids for its ranges of times, if these have none yet.
    pub(crate) fn renew_buckets(&self, key: AgentKey) -> impl Iterator<Item = Change> + use<> {
        let is_due = self.shown && self.id.is_some() && self.bucket_base().is_none();
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
        self.facts = self.facts.take().filter(|_| self.shown);
        self.facts_are_old = self.facts.is_some();
    }

    /// Takes what is known of its process, or that nothing is.
    pub(crate) fn set_facts(&mut self, facts: Option<Facts>) {
        (self.facts, self.facts_are_old) = (facts, false);
    }

    /// What is known of the process that writes now.
    pub(crate) fn own_facts(&self) -> Option<&Facts> {
        self.facts.as_ref().filter(|_| !self.facts_are_old)
    }

    /// Whether a process scan is wanted soon: what it is labelled with is not known, or of another process.
    pub(crate) fn wants_facts(&self) -> bool {
        self.entry.active && (!self.shown || self.facts_are_old)
    }

    /// Its instance id, once it had one.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.id
    }

    /// The ranges of times of its histograms.
    #[must_use]
    pub fn ranges(&self) -> &Ranges {
        self.entry.account.ranges()
    }

    /// The base of the instance ids of these ranges. `None`: they have no ids yet.
    #[must_use]
    pub fn bucket_base(&self) -> Option<u32> {
        self.entry.account.bucket_base
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

    /// Whether, asked now, certainly nobody writes to any file of it, so that what comes under its name may be its.
    pub(crate) fn is_free(&mut self, now: Instant, scanner: &Scanner) -> bool {
        self.waits.take_if(|waiting| waiting.is_gone(scanner));
        self.waits.is_none()
            && self
                .sources
                .iter_mut()
                .all(|source| source.is_abandoned(now))
    }

    /// Counts what a store came to that nobody writes to any more.
    pub(crate) fn look_at_end(&mut self, store: &mut StoreReader, now: Now, books: &mut Books) {
        let (entry, windows) = (&mut self.entry, &mut self.windows);
        let mut ledger = Ledger::new(entry, windows, self.record, now, books);
        // One that is broken says nothing more.
        let _ = store.look(now.instant, &mut ledger);
    }

    /// Lets its store go after a last look.
    pub(crate) fn let_store_go(&mut self, now: Now, books: &mut Books) {
        let store = self.sources.pop();
        let (entry, windows) = (&mut self.entry, &mut self.windows);
        let mut ledger = Ledger::new(entry, windows, self.record, now, books);
        if let Some(mut store) = store {
            store.drain(now.instant, &mut ledger);
        }
        ledger.retire_store();
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
        let (entry, windows) = (&mut self.entry, &mut self.windows);
        let mut ledger = Ledger::new(entry, windows, self.record, now, books);
        let now = now.instant;
        let instance = &self.name.instance;
        for source in &mut self.sources {
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
                    source.file.presence.unlinked(now);
                }
                // Whoever has it now is asked for again in a second.
                Removal::Left => source.file.presence.saw_somebody(now),
                Removal::Impossible(errno) => {
                    tracing::warn!("agent {instance}: {path} cannot be removed: {errno}; it stays");
                    source.stays();
                }
            }
        }
    }
}
