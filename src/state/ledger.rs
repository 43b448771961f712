//! One agent's account while its rings are drained: what is counted is in the state file before any slot is given back.

use crate::base::clock::Now;
use crate::base::file::FileId;
use crate::config::Lifetimes;
use crate::event::{Events, Totals};
use crate::ring::commit::Commit;
use crate::state::record::Entry;
use crate::state::{Journal, RecordId};
use crate::store::{Seen, StoreId};
use crate::totals::histogram::Bounds;
use crate::totals::ranges::Ranges;
use crate::totals::values::{News, Values};
use crate::totals::windows::Windows;
use std::time::{Duration, Instant};

/// What the accounts of all agents have in common.
#[derive(Debug)]
pub struct Books {
    /// Where the entries are kept.
    pub journal: Journal,
    /// Sums over all agents that ever were.
    pub host: Totals,
    /// How often the rings of agents that are forgotten were found full.
    pub forgotten_full: u64,
    /// Of the histograms of times.
    pub bounds: Bounds,
    /// How long silence may last.
    pub lifetimes: Lifetimes,
    /// How often it is asked who has a file in which nothing happens.
    pub check_every: Duration,
    /// What [`Ledger::room`] gives.
    pub room: Events,
    /// Whether the first look at everything is not over.
    pub early: bool,
    /// Whether somebody waits for what is counted.
    pub for_answer: bool,
    /// How many events were counted since the start.
    pub counted: u64,
    /// How many batches were taken for counted although their ring may have been restarted since.
    pub doubtful: u64,
}

/// The account of one agent.
#[derive(Debug)]
pub struct Ledger<'a> {
    /// What is known of the agent.
    pub entry: &'a mut Entry,
    windows: &'a mut Windows,
    record: Option<RecordId>,
    books: &'a mut Books,
    now: Now,
}

impl<'a> Ledger<'a> {
    /// The account of an agent whose entry is in this record, if it is kept.
    pub fn new(
        entry: &'a mut Entry,
        windows: &'a mut Windows,
        record: Option<RecordId>,
        now: Now,
        books: &'a mut Books,
    ) -> Self {
        Self {
            entry,
            windows,
            record,
            books,
            now,
        }
    }

    /// Room for the events of a batch, which [`Ledger::apply`] takes back: a drain allocates nothing.
    pub fn room(&mut self) -> Events {
        std::mem::take(&mut self.books.room)
    }

    /// Notes that a batch is taken for counted although its ring may have been restarted since.
    pub fn doubts(&mut self) {
        self.books.doubtful += 1;
    }

    /// Counts a start of the producer: what is known of the one before is not of this one.
    pub fn add_start(&mut self) {
        self.entry.add_start(self.now.stamp);
        self.books.journal.set_facts(self.record, None);
    }

    /// How long silence may last.
    #[must_use]
    pub fn lifetimes(&self) -> Lifetimes {
        self.books.lifetimes
    }

    /// How often it is asked who has a file in which nothing happens.
    #[must_use]
    pub fn check_every(&self) -> Duration {
        self.books.check_every
    }

    /// When this is.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now.instant
    }

    /// The same in seconds since 1970.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        self.now.seconds
    }

    /// Notes how many events were found waiting in a ring of that many slots, where none is counted.
    pub fn look(&mut self, pending: u64, capacity: u64) {
        self.entry.add_look(pending, capacity);
        self.keep();
    }

    /// Adds the events of a batch to the totals in memory. `pending` is how many waited when the ring was looked at, and `cuts`
    /// says before which others may be missing. Of what `is_aged` nobody knows whether it is of the last minute.
    pub fn apply(
        &mut self,
        events: Events,
        commit: &Commit,
        pending: u64,
        cuts: &[usize],
        is_aged: bool,
    ) {
        let mut of_any_age = is_aged.then(|| Windows::new(self.now.instant));
        let windows = of_any_age.as_mut().unwrap_or(self.windows);
        let (account, seconds) = (&mut self.entry.account, self.now.seconds);
        let before = self.entry.commit.map(|commit| commit.ring.id);
        if before != Some(commit.ring.id) {
            // Of another ring of the agent's.
            account.cut();
        }
        account.count(&events, cuts, &self.books.bounds, seconds, windows);
        self.entry.add_look(pending, commit.ring.capacity);
        // Also where it was away: whoever writes it had started by then.
        (self.entry.last_event, self.entry.last_seen) = (self.now.stamp, self.now.stamp);
        // Not kept: at the next start it is added up from the entries.
        self.books.host.add(events.totals());
        self.books.counted += events.list().len() as u64;
        self.books.room = events;
    }

    /// Writes that a batch, and all that was applied, is counted: from here on a kill does not lose it, and a restart does not
    /// count it again.
    pub fn commit(&mut self, commit: Commit) {
        self.entry.commit = Some(commit);
        self.keep();
    }

    /// Takes the values of a store that has these ranges, for good, as [`Ledger::apply`] and [`Ledger::commit`] take events; whether something came
    /// since the last look.
    pub fn count_store(&mut self, id: StoreId, ranges: &Ranges, values: Values) -> bool {
        let seen = match self.entry.store.take() {
            Some(seen) if seen.id == id => seen,
            _ => Seen::nothing(id),
        };
        // Also what is no count: a look in the midst of a flush finds the counters before the rest.
        if seen.values.as_ref() == Some(&values) {
            self.entry.store = Some(seen);
            return false;
        }
        let is_first = seen.values.is_none();
        let news = seen.news(&values);
        let is_new = news.is_some();
        let news = news.unwrap_or(News::NONE);
        let seconds = (!is_first).then_some(self.now.seconds);
        let account = &mut self.entry.account;
        account.absorb(&news, &values, ranges, seconds);
        self.books.host.add(&Totals::from_store(&news.counters));
        if !is_first || is_new {
            // What it says of its time is a stranger's word.
            let updated = values.updated.min(self.now.stamp);
            self.entry.last_event = self.entry.last_event.max(updated);
            self.entry.last_seen = self.now.stamp;
        }
        let values = Some(values);
        self.entry.store = Some(Seen { id, values });
        self.keep();
        is_new
    }

    /// Lets the store go: what comes next is of another, or of a ring.
    pub fn retire_store(&mut self) {
        self.entry.retire_store(self.now.stamp);
        self.keep();
    }

    /// Whether the first look at everything is not over, so that a store may still be found that was known before.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.books.early
    }

    /// Whether somebody waits for what is counted: to the last event.
    #[must_use]
    pub fn is_for_answer(&self) -> bool {
        self.books.for_answer
    }

    /// The ring whose batch was counted last, while it is not known that its slots were given back.
    #[must_use]
    pub fn in_flight(&self) -> Option<FileId> {
        let commit = self.entry.commit.filter(Commit::is_in_flight);
        commit.map(|commit| commit.ring.id)
    }

    /// Notes that the slots of the last batch were given back, if that was of this ring.
    pub fn released(&mut self, ring: FileId) {
        let commit = self.entry.commit.as_mut();
        let Some(commit) = commit.filter(|commit| commit.ring.id == ring) else {
            return;
        };
        commit.released = true;
        self.books.journal.released(self.record);
    }

    /// Writes the entry as it is.
    pub fn keep(&mut self) {
        self.books.journal.commit(self.record, self.entry);
    }
}
