//! One NIXL agent: its rings, what is known of it, and whether it is an instance.

use crate::agents::removal::{self, Removal};
use crate::find::discover::FileId;
use crate::producer::facts::Facts;
use crate::producer::presence::{Presence, Seen};
use crate::ring::source::{Drained, Source};
use crate::shm::Broken;
use crate::state::ledger::{Books, Ledger, Lifetimes};
use crate::state::record::{Entry, Name};
use crate::state::{RecordId, State};
use crate::store::{Found, Store};
use crate::totals::ranges::Ranges;
use crate::totals::windows::Windows;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod life;
mod now;
mod stranger;
mod view;
pub use life::Life;
pub use now::Now;
pub(crate) use stranger::{Stranger, Version};

/// A NIXL agent: what writes, or wrote, rings of one name in one directory.
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
    /// Whether it is an instance. One that is new becomes one when its facts are known, by which it is labelled, or when they
    /// have been waited for long enough.
    pub(crate) shown: bool,
    /// The ranges of times that the instance has.
    ranges: Ranges,
    /// Until when they are waited for.
    pub(crate) wait_until: Instant,
    /// Its directory as it can be reached now, where only a container sees it.
    pub(crate) reached_at: Option<PathBuf>,
    /// Where the entry is kept; `None`: in memory only.
    pub(crate) record: Option<RecordId>,
    /// Its instance id, once it had one.
    pub(crate) id: Option<u32>,
    /// More than one while a ring that was replaced or unlinked is still written to.
    pub(crate) sources: Vec<Source>,
    /// Where its rings are, if not where it was met first: an agent of a store that went over to rings.
    pub(crate) ring_directory: Option<PathBuf>,
    /// The store that it has, or had until it left.
    pub(crate) store: Option<Store>,
    /// Its ring or store, where that is of a version that this build does not read.
    pub(crate) stranger: Option<Stranger>,
}

/// What a drain of an agent's rings came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Rings that are let go.
    pub gone: Vec<FileId>,
    /// Files that are to be looked at anew.
    pub again: Vec<PathBuf>,
    /// Whether the state file turned out to be broken.
    pub broken: bool,
    /// Whether more events wait than are taken at a time.
    pub more: bool,
}

impl Agent {
    /// An agent of which nothing is known yet but what it is called, or what the state file says.
    #[must_use]
    pub(crate) fn new(name: Name, entry: Entry, now: Instant) -> Self {
        Self {
            name,
            entry,
            windows: Windows::new(now),
            state: Life::Unknown,
            facts: None,
            shown: false,
            ranges: Ranges::default(),
            wait_until: now,
            reached_at: None,
            record: None,
            id: None,
            sources: Vec::new(),
            ring_directory: None,
            store: None,
            stranger: None,
        }
    }

    /// Whether a survey of /proc could tell more of its rings and its store.
    pub(crate) fn asks(&self) -> bool {
        let store = self.store.as_ref().map(|store| &store.presence);
        let mut files = self
            .sources
            .iter()
            .map(|source| &source.presence)
            .chain(store);
        files.any(Presence::asks) || self.stranger.as_ref().is_some_and(Stranger::asks)
    }

    /// Whether it is to be an instance now that was none, or is to be none any more: then it is from here on.
    pub(crate) fn turn(&mut self, now: Instant) -> Option<bool> {
        let ready = self.shown || self.facts.is_some() || now >= self.wait_until;
        let shown = self.entry.active && ready;
        let turned = std::mem::replace(&mut self.shown, shown) != shown;
        if turned {
            self.ranges = *self.entry.account.ranges();
        }
        turned.then_some(shown)
    }

    /// Whether it is an instance whose ranges of times are others than they were: then these are its ranges from here on.
    pub(crate) fn turn_ranges(&mut self) -> bool {
        let turned = self.shown && self.ranges != *self.entry.account.ranges();
        if turned {
            self.ranges = *self.entry.account.ranges();
        }
        turned
    }

    /// Its producer was started: nothing is known of it yet, also not after a restart of the daemon.
    pub(crate) fn started(&mut self, stamp: u64, state: Option<&State>) -> Result<(), Broken> {
        self.entry.add_start(stamp);
        self.facts = None;
        match state.zip(self.record) {
            Some((state, record)) => state.set_facts(record, None),
            None => Ok(()),
        }
    }

    /// Its instance id, once it had one.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.id
    }

    /// The ranges of times that the instance has.
    #[must_use]
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Whether a ring or a store of it is attached.
    pub(crate) fn has_files(&self) -> bool {
        self.store.is_some() || !self.sources.is_empty()
    }

    /// Where its rings are.
    pub(crate) fn ring_directory(&self) -> &Path {
        self.ring_directory
            .as_deref()
            .unwrap_or(&self.name.directory)
    }

    /// Whether, asked now, certainly nobody writes to any file of it, so that what comes under its name may be its.
    pub(crate) fn is_free(&mut self, now: Instant) -> bool {
        self.stranger.is_none()
            && self
                .store
                .as_mut()
                .is_none_or(|store| store.is_abandoned(now))
            && self
                .sources
                .iter_mut()
                .all(|source| source.is_abandoned(now))
    }

    /// Lets its store go after a last look; which file that was, and whether the state file turned out to be broken.
    pub(crate) fn let_store_go(&mut self, now: Now, books: &mut Books) -> (Option<FileId>, bool) {
        let store = self.store.take();
        let (entry, windows) = (&mut self.entry, &mut self.windows);
        let mut ledger = Ledger::new(entry, windows, self.record, now, books);
        let gone = store.map(|store| store.go(now.instant, &mut ledger));
        ledger.entry.retire_store(now.stamp);
        (gone, ledger.broken)
    }

    /// Counts the events that wait, and finds out whether the agent lives. At `end` it leaves the rest of its rings for the
    /// next call.
    pub(crate) fn drain(&mut self, now: Now, end: Instant, books: &mut Books) -> Outcome {
        let Self {
            name,
            entry,
            windows,
            record,
            sources,
            store,
            ..
        } = self;
        let mut outcome = Outcome::default();
        windows.advance(now.instant);
        let mut ledger = Ledger::new(entry, windows, *record, now, books);
        let (active, starts) = (ledger.entry.active, ledger.entry.starts);
        let (mut alive, mut at) = (false, 0);
        // A ring that it had before is written to again, in place: it has gone over to that.
        if ledger.entry.store.is_some() && sources.iter().any(Source::has_news) {
            let is_over = !ledger.is_early();
            match store.take_if(|store| store.is_abandoned(now.instant)) {
                Some(left) => outcome.gone.push(left.go(now.instant, &mut ledger)),
                None if store.is_none() && is_over => ledger.entry.retire_store(now.stamp),
                None => {}
            }
        }
        while at < sources.len() {
            let source = &mut sources[at];
            let mut keep = true;
            match source.drain(now.instant, &mut ledger) {
                Drained::Events => {
                    alive = true;
                    outcome.more |= source.has_more();
                }
                // Whoever has an exited agent's file open, a backup or another reader, does not bring it back.
                Drained::Held => alive |= active,
                // It may be written to again, as far as the kernel tells; it is not waited for when its agent has left.
                Drained::Silent => keep = active || !source.presence.is_unlinked(),
                Drained::Gone => keep = false,
                Drained::Broken(fault) => {
                    let instance = &name.instance;
                    tracing::info!("agent {instance}: its ring {fault}; it is looked at anew");
                    outcome.again.push(source.path().to_owned());
                    // What comes next on this file is a new ring, however alike.
                    ledger.entry.add_reset();
                    ledger.entry.commit = None;
                    ledger.keep();
                    alive |= active;
                    keep = false;
                }
            }
            if keep {
                at += 1;
            } else {
                outcome.gone.push(sources.remove(at).id());
            }
            if at < sources.len() && Instant::now() >= end {
                // Those that had no turn have it first the next time, and may be alive.
                sources.rotate_left(at);
                alive |= active;
                break;
            }
        }
        if let Some(looked_at) = store {
            match looked_at.look(now.instant, &mut ledger) {
                Found::Held => alive = true,
                // Its last values stay for as long as its agent is an instance; and one of which the kernel does not tell whether
                // it is written to is watched, as long as it has a name.
                Found::Silent if ledger.entry.active || looked_at.presence.may_return() => {}
                found => {
                    if found == Found::Broken {
                        let instance = &name.instance;
                        tracing::info!(
                            "agent {instance}: its store is not what it was; it is looked at anew"
                        );
                        outcome.again.push(looked_at.path().to_owned());
                    }
                    outcome.gone.push(looked_at.file_id());
                    *store = None;
                }
            }
        }
        if let Some(stranger) = &mut self.stranger {
            match stranger.check(now.instant) {
                Seen::Held => alive = true,
                Seen::Silent => {}
                Seen::Gone => self.stranger = None,
            }
        }
        let lifetimes = ledger.lifetimes();
        let active = ledger.entry.active;
        // A file of its own for each start: what has left does not come back.
        if !active
            && self
                .stranger
                .as_ref()
                .is_some_and(|stranger| !stranger.is_held())
        {
            outcome
                .gone
                .extend(self.stranger.take().map(|stranger| stranger.id()));
        }
        age(name, &mut ledger, alive, now, lifetimes.retain);
        outcome.broken = ledger.broken;
        if active && !self.entry.active {
            // It may be remembered for long, and its values are nobody's.
            self.windows = Windows::new(now.instant);
        }
        if self.entry.starts != starts {
            self.facts = None;
        }
        self.state = self.life(&now, lifetimes);
        outcome
    }

    /// Whether it lives, from what is known of who has its rings.
    fn life(&self, now: &Now, lifetimes: Lifetimes) -> Life {
        let rings = self.sources.iter().map(|source| &source.presence);
        let lives = rings.chain(self.store.iter().map(|store| &store.presence));
        let lately = (self.entry.account.events > 0 || self.entry.store.is_some())
            && self.idle(now) < lifetimes.retain;
        let lives = lives.map(|presence| presence.life(lately));
        let life = lives.max_by_key(|life| life.rank());
        let life = life.unwrap_or(Life::Exited);
        let stranger = self.stranger.as_ref();
        match life {
            Life::Live if self.idle(now) >= lifetimes.idle_after => Life::Idle,
            Life::Unknown | Life::Exited if stranger.is_some_and(Stranger::is_held) => {
                Life::Unsupported
            }
            life => life,
        }
    }
}

impl Agent {
    /// Removes the files of rings that nobody has had for so long; whether the state file turned out to be broken.
    pub(crate) fn remove_exited(
        &mut self,
        directory: &OwnedFd,
        now: Now,
        after: Duration,
        books: &mut Books,
    ) -> bool {
        let (entry, windows) = (&mut self.entry, &mut self.windows);
        let mut ledger = Ledger::new(entry, windows, self.record, now, books);
        let now = now.instant;
        let instance = &self.name.instance;
        for source in &mut self.sources {
            let Some(ago) = source.abandoned_for(now).filter(|&ago| ago >= after) else {
                continue;
            };
            let path = source.path().to_owned();
            match removal::remove(directory, source, &mut ledger) {
                Removal::Done => {
                    let ago = humantime::format_duration(Duration::from_secs(ago.as_secs()));
                    tracing::info!(
                        "agent {instance}: {path:?} is removed; nothing waits in it, and nobody has had it for {ago}"
                    );
                    source.presence.unlinked(now);
                }
                // Whoever has it now is asked for again in a second.
                Removal::Left => source.presence.saw_somebody(now),
                Removal::Impossible(errno) => {
                    tracing::warn!(
                        "agent {instance}: {path:?} cannot be removed: {errno}; it stays"
                    );
                    source.stays();
                }
            }
        }
        ledger.broken
    }
}

/// Brings whether an agent is to be an instance up to date.
fn age(name: &Name, ledger: &mut Ledger, alive: bool, now: Now, retain: Duration) {
    let entry = &mut *ledger.entry;
    let before = (entry.active, entry.silent_since);
    if alive {
        (entry.active, entry.silent_since) = (true, None);
        entry.last_seen = now.stamp;
    } else if entry.active {
        let since = *entry.silent_since.get_or_insert_with(|| {
            let instance = &name.instance;
            tracing::debug!("agent {instance}: nobody writes to its ring any more");
            now.stamp
        });
        if u128::from(now.stamp.saturating_sub(since)) >= retain.as_nanos() {
            let instance = &name.instance;
            tracing::info!("agent {instance}: has exited and is no instance any more");
            entry.active = false;
        }
    }
    if before != (entry.active, entry.silent_since) {
        ledger.keep();
    }
}
