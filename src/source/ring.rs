//! One attached ring: its mapping, its file, and whether somebody still writes to it.

use crate::base::file::{FileFacts, FileId};
use crate::error::{Refusal, RingFault};
use crate::producer::presence::{Presence, Seen};
use crate::producer::survey::Mappers;
use crate::producer::writer::Holder;
use crate::ring::candidate::{Access, Candidate};
use crate::ring::commit::{Commit, Identity};
use crate::ring::gaps::Gaps;
use crate::ring::{BATCH, Ring};
use crate::shm::{self, Rest};
use crate::state::ledger::Ledger;
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod counting;

/// How often a ring that another process drains is tried for its lock.
const TRY: Duration = Duration::from_secs(1);
/// How often one that is full, and that another should drain, is counted as full.
const FULL_AGAIN: Duration = Duration::from_secs(1);

/// A ring that is drained, or followed.
#[derive(Debug)]
pub struct Source {
    ring: Ring,
    facts: FileFacts,
    /// Where the file was found.
    path: PathBuf,
    mode: Mode,
    /// What was counted last; it ends where the next batch begins.
    commit: Commit,
    /// Whether somebody still writes to it.
    pub presence: Presence,
    /// Events that waited when it was looked at last.
    pending: u64,
    /// Whether that was more than a batch.
    more: bool,
    /// When it was last counted as full, of one that another drains.
    full: Option<Instant>,
    /// How many events wait that may be of any age; `None`: that was not looked at yet.
    aged: Option<u64>,
    /// Where events may be missing.
    gaps: Gaps,
    /// True if the lock is to be tried again: another process has it, or a lock for reading is in the way.
    wants_lock: bool,
    /// When the lock was tried last.
    last_try: Instant,
    stays: bool,
}

/// What is done with a ring's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are counted, and their slots given back.
    Drain,
    /// They are counted only: another process has locked the ring to drain it.
    Locked,
    /// They are counted only: the ring may not be written to, or is not to be.
    Observe(Access),
}

/// What a drain found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Events.
    Events,
    /// Nothing, but somebody has the file who may still write some.
    Held,
    /// Nothing, and nobody is known who could write.
    Silent,
    /// Nothing, and certainly nobody who could write, and the file is unlinked: nothing will ever come.
    Gone,
    /// It is no longer the ring that was attached.
    Broken(RingFault),
}

/// Locks the file of a ring. Returns what is done with its events, and true if the lock is to be tried again: a ring that another
/// process has locked for writing is followed. While another user's lock for reading is in the way, no process has the lock, and
/// the ring is drained.
fn lock(file: &File) -> (Mode, bool) {
    match shm::lock(file) {
        // Where there are no locks, a second daemon cannot be recognised.
        Ok(true) | Err(_) => (Mode::Drain, false),
        Ok(false) => match shm::is_locked(file) {
            Ok(true) => (Mode::Locked, true),
            _ => (Mode::Drain, true),
        },
    }
}

impl Source {
    /// Maps a candidate and locks it. `before` is the last batch that was counted of the agent's rings, before now or before
    /// the daemon was started: if it is of this ring, what became of it is decided at the next drain.
    ///
    /// # Errors
    /// Why it cannot be mapped.
    pub fn attach(
        candidate: Candidate,
        path: PathBuf,
        before: Option<&Commit>,
        now: Instant,
    ) -> Result<Self, Refusal> {
        let Candidate {
            file,
            facts,
            header,
            layout,
            access,
        } = candidate;
        let look = access != Access::Write;
        let io = |what| {
            move |err: io::Error| {
                err.raw_os_error().map_or(Refusal::Replaced, |errno| {
                    let errno = Errno::from_raw(errno);
                    Refusal::Io { what, errno }
                })
            }
        };
        let ring = Ring::map(file, &header, layout, look).map_err(io("mapped"))?;
        let identity = Identity::of(&ring).map_err(io("looked at"))?;
        let (mode, wants_lock) = match access {
            Access::Write => lock(ring.file()),
            access => (Mode::Observe(access), false),
        };
        let commit = match before {
            Some(before) if before.ring.is_same_file(&identity) => *before,
            _ => counting::begin(&ring, identity, mode).map_err(|_| Refusal::Replaced)?,
        };
        let mut gaps = Gaps::default();
        if counting::was_full(&ring, &commit) {
            // Nobody has kept where.
            gaps.add(ring.between(1, commit.from));
        }
        Ok(Self {
            presence: Presence::new(ring.file(), &facts, shm::LeaseKind::Alone, now),
            ring,
            facts,
            path,
            mode,
            commit,
            pending: 0,
            more: false,
            full: None,
            aged: None,
            gaps,
            wants_lock,
            last_try: now,
            stays: false,
        })
    }

    /// Which file it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.facts.id
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file has another name now, in the same directory.
    pub fn moved_to(&mut self, name: &OsStr) {
        self.path.set_file_name(name);
    }

    /// The file's owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.facts.uid
    }

    /// The last batch that was counted of it.
    #[must_use]
    pub fn commit(&self) -> Commit {
        self.commit
    }

    /// Version in its header.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.ring.layout().version().unsigned_abs()
    }

    /// Slots.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.ring.capacity()
    }

    /// Events that waited when it was looked at last.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// What is done with its events.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Counts the events that wait.
    pub fn drain(&mut self, now: Instant, ledger: &mut Ledger) -> Drained {
        if self.wants_lock {
            self.try_lock(now);
        }
        let found = match self.mode {
            Mode::Drain => self.consume(ledger),
            Mode::Locked | Mode::Observe(_) => self.follow(ledger),
        };
        match found {
            Ok(true) => {
                self.presence.saw_events(now, ledger.check_every());
                Drained::Events
            }
            Ok(false) => match self
                .presence
                .check(self.ring.file(), now, ledger.check_every())
            {
                // Of one that begins elsewhere the positions tell.
                Seen::Started if self.commit.upto == 0 && self.is_drained() == Ok(true) => {
                    let renewed = self.identity().and_then(|ring| self.renew(ring, ledger));
                    renewed.map_or(Drained::Held, |()| Drained::Events)
                }
                Seen::Held | Seen::Started => Drained::Held,
                // What its last writer wrote before it ended, and after it was looked at here.
                Seen::Gone if self.is_drained() == Ok(true) => Drained::Gone,
                Seen::Gone | Seen::Silent => Drained::Silent,
            },
            // What the producer left there is the producer's; the new ring is drained from its start at the next tick.
            Err(RingFault::Restarted) => Drained::Events,
            // Nothing is known, so that nothing has changed: what was begun is settled at the next tick.
            Err(RingFault::Unseen) => Drained::Held,
            Err(fault) => Drained::Broken(fault),
        }
    }

    /// Tries to get the lock, once a second.
    fn try_lock(&mut self, now: Instant) {
        if now.duration_since(self.last_try) >= TRY {
            self.last_try = now;
            (self.mode, self.wants_lock) = lock(self.ring.file());
        }
    }

    /// Whether nothing waits and, asked now, nobody has the file, or somebody may: then the file's facts, from before that was
    /// asked, by which a later start of its agent can be told.
    pub fn spent(&mut self, now: Instant, also_held: bool) -> Option<FileFacts> {
        let facts = self.current_facts()?;
        let holder = self.presence.ask_kernel(self.ring.file(), now);
        // A ring that is no longer what it was is for the next drain to find out.
        let may_go = holder != Holder::Somebody || also_held;
        (may_go && self.is_drained() == Ok(true)).then_some(facts)
    }

    /// The file's facts as they are now.
    #[must_use]
    pub fn current_facts(&self) -> Option<FileFacts> {
        Some(FileFacts::new(&fstat(self.ring.file()).ok()?))
    }

    /// Whether, asked now, nobody else has the file.
    pub fn is_abandoned(&mut self, now: Instant) -> bool {
        self.presence.ask_kernel(self.ring.file(), now) == Holder::Nobody
    }

    /// For how long the kernel has said that nobody else has the file, if it can be removed as far as is known.
    #[must_use]
    pub fn abandoned_for(&self, now: Instant) -> Option<Duration> {
        let removable = self.mode == Mode::Drain && !self.stays && !self.presence.is_unlinked();
        self.presence.abandoned_for(now).filter(|_| removable)
    }

    /// Its file cannot be removed, so that it is not tried again.
    pub fn stays(&mut self) {
        self.stays = true;
    }

    /// A second descriptor of the same opening, which does not count as another for a lease.
    ///
    /// # Errors
    /// There is none to be had.
    pub fn file(&self) -> io::Result<File> {
        self.ring.file().try_clone()
    }

    /// Counts all events that wait; whether none is left.
    ///
    /// # Errors
    /// It is no longer the ring that was attached.
    pub fn drain_out(&mut self, ledger: &mut Ledger) -> Result<bool, RingFault> {
        // Nobody adds to it, so that this comes to an end.
        for _ in 0..=self.ring.capacity() / BATCH + 1 {
            if !self.consume(ledger)? {
                break;
            }
        }
        self.is_drained()
    }

    /// A survey of /proc begins that may show who writes.
    pub fn begin_survey(&mut self) {
        self.presence.begin_survey(self.ring.file());
    }

    /// Takes what it showed.
    pub fn end_survey(&mut self, mappers: &Mappers) {
        self.presence.end_survey(mappers, &self.facts, &self.path);
    }

    fn is_drained(&self) -> Result<bool, RingFault> {
        let upto = self.commit.upto;
        Ok(self.ring.positions()? == (upto, upto))
    }

    /// Whether something happened in it since the last batch.
    #[must_use]
    pub fn has_news(&self) -> bool {
        self.is_drained() == Ok(false)
    }

    /// Until when a drain would find what the last one found, unless something happens in the ring, where it is asked so often
    /// who has it; `None`: it may find more.
    #[must_use]
    pub fn quiet_until(&self, check_every: Duration) -> Option<Instant> {
        let next = self.presence.next_check(check_every);
        let counted = self.full.map_or(next, |full| next.min(full + FULL_AGAIN));
        match self.mode {
            Mode::Drain => (self.commit.released && self.pending == 0).then_some(next),
            Mode::Locked => self
                .commit
                .observed
                .then(|| counted.min(self.last_try + TRY)),
            Mode::Observe(_) => self.commit.observed.then_some(counted),
        }
    }

    /// By which it can be seen whether anything happens in its ring.
    #[must_use]
    pub fn rest(&self) -> Option<Rest> {
        let upto = self.commit.upto;
        // Of one that is drained here nothing waits.
        self.ring.rest(self.ring.between(self.pending, upto), upto)
    }

    /// Whether more waited than was counted of it.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.more
    }
}
