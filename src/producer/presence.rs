//! Whether somebody still writes to a file, and who: to a ring or a store.

use crate::base::file::FileFacts;
use crate::producer::facts::Facts;
use crate::producer::life::Life;
use crate::producer::survey::{Mappers, without_children};
use crate::producer::writer::{self, Holder, Writer};
use crate::shm::LeaseKind;
use nix::sys::stat::fstat;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often this is asked of a ring without new events, where there are not many.
const CHECK: Duration = Duration::from_secs(1);
/// How often at least.
const RARE_CHECK: Duration = Duration::from_secs(5);
/// Of how many rings it is asked in a second, unless it would be asked of one too rarely.
const CHECKS: u32 = 200;

/// How often it is asked of each of so many.
#[must_use]
pub fn check_every(files: usize) -> Duration {
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    (CHECK * files / CHECKS).clamp(CHECK, RARE_CHECK)
}
/// How often /proc is asked anew about a ring that somebody has and that says nothing: its agent may have let go of it, and the
/// process gone on.
const ASK: Duration = Duration::from_secs(60);
/// At which of so many checks it is read in /proc whether a writer still runs. At the others it is only asked whether a process has
/// its id, which costs a tenth: one that has ended has one as long as it was not waited for, and another may get its id, but not
/// soon.
const READ: u32 = 10;
/// How long a ring is taken for live after its last event where the kernel does not tell who has it.
const BENEFIT_OF_DOUBT: Duration = Duration::from_secs(60);

/// What is known of a file's holders.
#[derive(Debug)]
pub struct Presence {
    holder: Holder,
    /// How the kernel is asked.
    lease: LeaseKind,
    /// The process that writes, where /proc has shown it.
    writer: Option<Writer>,
    /// The one that wrote before the producer was started anew.
    previous: Option<Writer>,
    /// When it was last read in /proc whether the writer runs.
    read: Instant,
    /// What is known of the last process that was seen to write; it stays when that has ended.
    process_facts: Option<Facts>,
    unlinked: bool,
    /// Since when nobody has had the file.
    nobody_since: Option<Instant>,
    last_check: Instant,
    last_event: Instant,
    /// Change time of the file at the last check.
    changed: (i64, i64),
    /// Whether /proc is to be asked who writes.
    asks: bool,
    /// The file's change time when it was asked last: an agent that starts changes it.
    asked: Option<(i64, i64)>,
    last_asked: Instant,
    /// How long after that it is asked again: at first not long where /proc did not show everything, since that passes where a
    /// process was just about to end.
    again: Duration,
    /// Whether it then showed nobody who writes: whoever has the file only reads it.
    bystanders: bool,
}

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Somebody has the file who may write to it.
    Held,
    /// The same, and the file has changed since nobody had it: a producer was started.
    Started,
    /// Nobody is known who could write.
    Silent,
    /// Certainly nobody, and the file is unlinked: nobody will.
    Gone,
}

impl Presence {
    /// Asks for the first time.
    #[must_use]
    pub fn new(file: &File, facts: &FileFacts, lease: LeaseKind, now: Instant) -> Self {
        let holder = writer::holder(file, lease);
        // Rings that were found together are not all asked for their writers in one tick.
        let offset = Duration::from_millis(facts.id.ino % 1000);
        Self {
            holder,
            lease,
            writer: None,
            previous: None,
            read: now,
            process_facts: None,
            unlinked: false,
            nobody_since: (holder == Holder::Nobody).then_some(now),
            last_check: now.checked_sub(offset).unwrap_or(now),
            last_event: now,
            changed: facts.changed,
            asks: holder != Holder::Nobody,
            asked: None,
            last_asked: now,
            again: CHECK,
            bystanders: false,
        }
    }

    /// There were events, so that a process wrote. If none had the file before, a process scan is to find it: while events keep
    /// coming the kernel is not asked, and only whether the process that is known to write still runs: another may have taken
    /// its place.
    pub fn saw_events(&mut self, now: Instant, every: Duration) {
        self.asks |= self.holder == Holder::Nobody;
        if self.is_read_due(now, every) && !self.writer_runs(now, every) {
            self.asks |= self.writer.take().is_some();
        }
        (self.last_event, self.last_check) = (now, now);
        self.holder = Holder::Somebody;
        (self.bystanders, self.nobody_since) = (false, None);
    }

    /// The file was removed: in a while it is asked whether somebody met it before.
    pub fn unlinked(&mut self, now: Instant) {
        (self.unlinked, self.last_check) = (true, now);
        self.holder = Holder::Unknown;
        self.last_event = now;
    }

    /// Somebody had the file when it was to be removed.
    pub fn saw_somebody(&mut self, now: Instant) {
        self.nobody_since = None;
        self.last_check = now;
    }

    /// The producer was started anew: it may be another process.
    pub fn renewed(&mut self) {
        self.previous = self.writer.take();
        self.process_facts = None;
        self.asks = true;
    }

    /// Whether its agent lives: somebody writes, or has done so lately.
    #[must_use]
    pub fn life(&self, lately: bool) -> Life {
        let bystanders = self.bystanders && self.asked == Some(self.changed);
        if self.holder == Holder::Nobody || bystanders {
            return Life::Exited;
        }
        let is_writer = self.lease == LeaseKind::NoWriter && self.holder == Holder::Somebody;
        match self.writer.is_some() || lately || is_writer {
            true => Life::Live,
            false => Life::Unknown,
        }
    }

    /// The process that wrote when that was asked last.
    #[must_use]
    pub fn writer(&self) -> Option<Writer> {
        self.writer
    }

    /// What is known of that process, and after its end, of what it was. `None` until a survey has shown it, and again from the
    /// start of a new producer on.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        self.process_facts.as_ref()
    }

    /// Whether the kernel says that nobody else has the file.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.holder == Holder::Nobody
    }

    /// Whether the kernel says that somebody has it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.holder == Holder::Somebody
    }

    /// For how long it has said so.
    #[must_use]
    pub fn abandoned_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.nobody_since?))
    }

    /// Whether the file has no name any more.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.unlinked
    }

    /// Asks the kernel now.
    pub fn ask_kernel(&mut self, file: &File, now: Instant) -> Holder {
        self.last_check = now;
        self.holder = writer::holder(file, self.lease);
        match self.holder {
            Holder::Nobody => {
                self.nobody_since.get_or_insert(now);
                self.writer = None;
            }
            Holder::Somebody | Holder::Unknown => self.nobody_since = None,
        }
        self.holder
    }

    /// Finds out who has a ring without new events, if that was not asked for as long as `every`.
    pub fn check(&mut self, file: &File, now: Instant, every: Duration) -> Seen {
        let (was_abandoned, changed) = (self.is_abandoned(), self.changed);
        if now >= self.next_check(every) {
            self.ask_kernel(file, now);
            if let Ok(stat) = fstat(file) {
                let facts = FileFacts::new(&stat);
                (self.unlinked, self.changed) = (facts.links == 0, facts.changed);
            }
            if self.holder != Holder::Nobody {
                if !self.writer_runs(now, every) {
                    // The one that has ended may not have been the only one.
                    let ended = self.writer.take().is_some();
                    if ended || self.asked != Some(self.changed) {
                        (self.asks, self.last_asked, self.again) = (true, now, CHECK);
                    }
                }
                let idle = now.saturating_duration_since(self.last_event.max(self.last_asked));
                if idle >= self.again {
                    (self.asks, self.last_asked) = (true, now);
                }
            }
        }
        let bystanders = self.bystanders && self.asked == Some(self.changed);
        match self.holder {
            Holder::Nobody if self.unlinked => Seen::Gone,
            Holder::Nobody => Seen::Silent,
            _ if bystanders => Seen::Silent,
            Holder::Somebody if was_abandoned && self.changed != changed => Seen::Started,
            Holder::Somebody => Seen::Held,
            Holder::Unknown => {
                let doubt = now.saturating_duration_since(self.last_event) < BENEFIT_OF_DOUBT;
                if self.writer.is_some() || doubt {
                    Seen::Held
                } else {
                    Seen::Silent
                }
            }
        }
    }

    /// Whether the process that wrote still runs, as far as that is asked now.
    fn writer_runs(&mut self, now: Instant, every: Duration) -> bool {
        let is_read = self.is_read_due(now, every);
        if is_read {
            self.read = now;
        }
        // Where /proc is another PID namespace's, kill(2) knows nobody in it: only /proc says that one has ended.
        let runs = |writer: Writer| (!is_read && writer.has_process()) || writer.is_running();
        self.writer.is_some_and(runs)
    }

    fn is_read_due(&self, now: Instant, every: Duration) -> bool {
        now.saturating_duration_since(self.read) >= READ * every
    }

    /// When it is time to find out who has the file, where that is asked so often.
    #[must_use]
    pub fn next_check(&self, every: Duration) -> Instant {
        self.last_check + every
    }

    /// Whether a survey of /proc could tell more.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.asks
    }

    /// Has the next survey ask who writes, whatever is known.
    pub fn ask_again(&mut self) {
        self.asks = self.holder != Holder::Nobody;
    }

    /// A survey begins: what it shows holds for the file as it is now.
    pub fn begin_survey(&mut self, file: &File) {
        self.asks = false;
        let changed = fstat(file).ok().map(|stat| FileFacts::new(&stat).changed);
        self.bystanders &= changed == self.asked;
        self.asked = changed;
    }

    /// Takes what a survey showed of the file.
    pub fn end_survey(&mut self, mappers: &Mappers, facts: &FileFacts, path: &Path) {
        let (dev, ino) = (facts.id.dev, facts.id.ino);
        let shown = mappers.of(dev, ino, path).into_iter();
        let shown = Vec::from_iter(shown.filter(|mapper| mapper.is_agent()));
        let (before, previous) = (self.writer, self.previous);
        let is_store = self.lease == LeaseKind::NoWriter;
        // The process before a restart may go on for a while, and a scan that began before may show it once more. Of several
        // agents it is the first that was started.
        let writers = without_children(&shown).into_iter();
        self.writer = writers
            .map(|mapper| mapper.process)
            .min_by_key(|&writer| {
                let is = |other| Some(writer) == other;
                (is(previous), !is(before), writer.start)
            })
            // A store is locked as well, which is shown to everybody.
            .or_else(|| mappers.locker(dev, ino).filter(|_| is_store));
        if let Some(writer) = self.writer {
            // Of one process what was shown stays: a title that it gives itself writes over its arguments and its environment.
            let known = self.process_facts.take();
            let known = known.filter(|_| before == self.writer);
            self.process_facts = match mappers.facts(writer) {
                Some(facts) => Some(facts.clone().merge(&known.unwrap_or_default())),
                None => known,
            };
        }
        // Seen through a container's layers a file may have another device, but keeps its number.
        self.bystanders = (mappers.complete && !mappers.is_possible(ino))
            || (is_store && self.writer.is_none() && mappers.is_unlocked(dev, ino));
        self.again = match mappers.complete {
            true => ASK,
            false => (self.again * 2).min(ASK),
        };
    }
}

#[cfg(test)]
mod tests;
