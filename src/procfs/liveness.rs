//! Whether somebody still writes to a file, and who: to a ring or a store.

use crate::base::file::{FileFacts, FileId};
use crate::procfs::agent_state::AgentState;
use crate::procfs::facts::Facts;
use crate::procfs::process::{self, Holder, ProcessId};
use crate::procfs::process_scan::{ProcessScan, topmost};
use crate::shm::LeaseKind;
use nix::sys::stat::fstat;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// How often this is asked of a ring without new events, where there are not many.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// How often at least.
const MAX_CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Of how many rings it is asked in a second, unless it would be asked of one too rarely.
const CHECKS_PER_SECOND: u32 = 200;

/// How often it is asked of each of so many.
#[must_use]
pub fn check_period(files: usize) -> Duration {
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    (CHECK_PERIOD * files / CHECKS_PER_SECOND).clamp(CHECK_PERIOD, MAX_CHECK_PERIOD)
}
/// How long a ring is taken for live after its last event where the kernel does not tell who has it.
const UNKNOWN_HOLDER_GRACE: Duration = Duration::from_secs(60);

/// What is known of a file's holders.
#[derive(Debug)]
pub struct Liveness {
    holder: Holder,
    /// How the kernel is asked.
    lease_kind: LeaseKind,
    /// The process that writes, where /proc has shown it.
    writer: Option<ProcessId>,
    /// The last one that is known to have written before the producer was started anew.
    previous_writer: Option<ProcessId>,
    /// What is known of the last process that was seen to write; it stays when that has ended.
    process_facts: Option<Facts>,
    unlinked: bool,
    /// Since when nobody has had the file.
    no_holder_since: Option<Instant>,
    last_check: Instant,
    last_event: Instant,
    /// Change time of the file at the last check.
    change_time: (i64, i64),
    /// Whether /proc is to be asked who writes.
    needs_scan: bool,
    /// Change time of the file before a process scan that showed no writer. Until the file changes, which an agent that starts
    /// does, processes that have it only read it.
    only_readers_since: Option<(i64, i64)>,
}

/// What a check comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderCheck {
    /// Somebody has the file who may write to it.
    Held,
    /// The same, and the file has changed since nobody had it: a producer was started.
    ProducerStarted,
    /// Nobody is known who could write.
    NoWriter,
    /// Certainly nobody, and the file is unlinked: nobody will.
    Gone,
}

impl Liveness {
    /// Asks for the first time.
    #[must_use]
    pub fn new(file: &File, facts: &FileFacts, lease_kind: LeaseKind, now: Instant) -> Self {
        let holder = process::holder(file, lease_kind);
        // Rings that were found together are not all asked for their writers in one tick.
        let offset = Duration::from_millis(facts.id.ino % 1000);
        Self {
            holder,
            lease_kind,
            writer: None,
            previous_writer: None,
            process_facts: None,
            unlinked: false,
            no_holder_since: (holder == Holder::Absent).then_some(now),
            last_check: now.checked_sub(offset).unwrap_or(now),
            last_event: now,
            change_time: facts.changed,
            needs_scan: holder != Holder::Absent,
            only_readers_since: None,
        }
    }

    /// There were events, so that a process wrote. If none had the file before, a process scan is to find that process. The kernel
    /// is not asked while events keep coming.
    pub fn saw_events(&mut self, now: Instant) {
        self.needs_scan |= self.holder == Holder::Absent;
        (self.last_event, self.last_check) = (now, now);
        self.holder = Holder::Present;
        (self.only_readers_since, self.no_holder_since) = (None, None);
    }

    /// The file was removed: in a while it is asked whether somebody met it before.
    pub fn unlinked(&mut self, now: Instant) {
        (self.unlinked, self.last_check) = (true, now);
        self.holder = Holder::Unknown;
        self.last_event = now;
    }

    /// Somebody had the file when it was to be removed.
    pub fn saw_holder(&mut self, now: Instant) {
        self.no_holder_since = None;
        self.last_check = now;
    }

    /// The producer was started anew: it may be another process.
    pub fn producer_restarted(&mut self) {
        self.previous_writer = self.writer.take().or(self.previous_writer);
        self.process_facts = None;
        self.needs_scan = true;
    }

    /// Whether its agent lives: somebody writes, or has done so lately.
    #[must_use]
    pub fn state(&self, is_recent: bool) -> AgentState {
        if self.holder == Holder::Absent || self.has_only_readers() {
            return AgentState::Exited;
        }
        let is_writer = self.lease_kind == LeaseKind::NoWriter && self.holder == Holder::Present;
        match self.writer.is_some() || is_recent || is_writer {
            true => AgentState::Live,
            false => AgentState::Unknown,
        }
    }

    fn has_only_readers(&self) -> bool {
        self.only_readers_since == Some(self.change_time)
    }

    /// The process that wrote when that was asked last.
    #[must_use]
    pub fn writer(&self) -> Option<ProcessId> {
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
    pub fn has_no_holder(&self) -> bool {
        self.holder == Holder::Absent
    }

    /// For how long it has said so.
    #[must_use]
    pub fn no_holder_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.no_holder_since?))
    }

    /// Whether the file has no name any more.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.unlinked
    }

    /// Asks the kernel now; true if nobody else has the file.
    pub fn update_holder(&mut self, file: &File, now: Instant) -> bool {
        self.last_check = now;
        self.holder = process::holder(file, self.lease_kind);
        let has_no_holder = self.has_no_holder();
        self.no_holder_since = has_no_holder.then(|| self.no_holder_since.unwrap_or(now));
        self.writer = self.writer.filter(|_| !has_no_holder);
        has_no_holder
    }

    /// Finds out who has a ring without new events, if that was not asked for as long as `every`.
    pub fn check(&mut self, file: &File, now: Instant, period: Duration) -> HolderCheck {
        let (had_no_holder, changed) = (self.has_no_holder(), self.change_time);
        if now >= self.next_check(period) {
            self.update_holder(file, now);
            if let Ok(stat) = fstat(file) {
                let facts = FileFacts::new(&stat);
                (self.unlinked, self.change_time) = (facts.links == 0, facts.changed);
            }
            // Whether a process has the id, which costs a tenth of reading /proc, is told for one that has ended too, until its
            // parent waits for it. Where /proc is another PID namespace's, kill(2) knows no process in it.
            let runs = |writer: &ProcessId| writer.has_process() || writer.is_running();
            if self.holder != Holder::Absent && !self.writer.as_ref().is_some_and(runs) {
                // The one that has ended may not have been the only one.
                let has_ended = self.writer.take().is_some();
                self.needs_scan |= has_ended || had_no_holder || self.change_time != changed;
            }
        }
        let since_event = now.saturating_duration_since(self.last_event);
        match self.holder {
            Holder::Absent if self.unlinked => HolderCheck::Gone,
            Holder::Absent => HolderCheck::NoWriter,
            _ if self.has_only_readers() => HolderCheck::NoWriter,
            Holder::Present if had_no_holder && self.change_time != changed => {
                HolderCheck::ProducerStarted
            }
            Holder::Unknown if self.writer.is_none() && since_event >= UNKNOWN_HOLDER_GRACE => {
                HolderCheck::NoWriter
            }
            Holder::Present | Holder::Unknown => HolderCheck::Held,
        }
    }

    /// When it is time to find out who has the file, where that is asked so often.
    #[must_use]
    pub fn next_check(&self, period: Duration) -> Instant {
        self.last_check + period
    }

    /// True if a process scan could tell more.
    #[must_use]
    pub fn needs_scan(&self) -> bool {
        self.needs_scan
    }

    /// True if a process scan that begins now is to ask who has the file: it was to be asked, or the scan asks about all files
    /// that a process may have.
    pub fn begin_process_scan(&mut self, is_full: bool) -> bool {
        let needs_scan = std::mem::take(&mut self.needs_scan);
        needs_scan || (is_full && self.holder != Holder::Absent)
    }

    /// Takes what a process scan showed of the file, if that was asked.
    pub fn end_process_scan(&mut self, process_scan: &ProcessScan, id: FileId, path: &Path) {
        let Some(asked) = process_scan.request.files.get(&id) else {
            return;
        };
        let shown = process_scan.processes_of(id, path).into_iter();
        let shown = Vec::from_iter(shown.filter(|process| process.is_agent()));
        let (before, previous) = (self.writer, self.previous_writer);
        let is_store = self.lease_kind == LeaseKind::NoWriter;
        // The process before a restart may go on for a while, and a scan that began before may show it once more. Of several
        // agents it is the first that was started.
        let writers = topmost(&shown).into_iter();
        self.writer = writers
            .map(|process| process.id)
            .min_by_key(|&writer| {
                let is = |other| Some(writer) == other;
                (is(previous), !is(before), writer.start)
            })
            // A store is locked as well, which is shown to everybody.
            .or_else(|| process_scan.lock_holder(id).filter(|_| is_store));
        if let Some(writer) = self.writer {
            // Of one process what was shown stays: a title that it gives itself writes over its arguments and its environment.
            let known = self.process_facts.take();
            let known = known.filter(|_| before == self.writer);
            self.process_facts = match process_scan.facts.get(&writer) {
                Some(facts) => Some(facts.clone().merge(&known.unwrap_or_default())),
                None => known,
            };
        }
        // HolderCheck through a container's layers a file may have another device, but keeps its number.
        let has_only_readers = (process_scan.is_complete && !process_scan.may_have_writer(id.ino))
            || (is_store && self.writer.is_none() && process_scan.is_unlocked(id.ino));
        self.only_readers_since = has_only_readers.then_some(asked.changed);
    }
}

#[cfg(test)]
mod tests;
