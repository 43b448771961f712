// SPDX-License-Identifier: GPL-2.0-or-later

//! Liveness of a ring or a store: whether a process still writes it, and which one.

use crate::base::file::FileFacts;
use crate::procfs::facts::Facts;
use crate::procfs::process::{Presence, ProcessId};
use crate::procfs::process_scan::{ProcessScan, openers};
use crate::procfs::sharers::Sharers;
use crate::shm::LeaseKind;
use nix::sys::stat::fstat;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two checks of a file without new events, if there are few files.
const CHECK_PERIOD: Duration = Duration::from_secs(1);
/// Longest time between two checks of a file.
const MAX_CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Limit of checks per second. [`MAX_CHECK_PERIOD`] comes before it.
const CHECKS_PER_SECOND: u32 = 200;

/// Returns the time between two checks of each of `files` files.
#[must_use]
pub fn check_period(files: usize) -> Duration {
    let files = u32::try_from(files).unwrap_or(u32::MAX);
    (CHECK_PERIOD * files / CHECKS_PER_SECOND).clamp(CHECK_PERIOD, MAX_CHECK_PERIOD)
}

/// Time after the last event in which a ring counts as live, if the kernel does not tell whether a process has it.
const UNKNOWN_HOLDER_GRACE: Duration = Duration::from_secs(60);

/// Whether a process still writes a file, and what is known of that process.
#[derive(Debug)]
pub struct Liveness {
    /// As the kernel tells by a lease.
    holder: Presence,
    lease_kind: LeaseKind,
    /// Process that writes, as of the last process scan.
    writer: Option<ProcessId>,
    /// Processes that write at the same time, as of the last process scan.
    sharers: Option<Sharers>,
    /// Last known writer before the last producer restart.
    previous_writer: Option<ProcessId>,
    /// Facts of the last known writer, also after its end.
    process_facts: Option<Facts>,
    unlinked: bool,
    /// Time since when no other process has had the file.
    no_holder_since: Option<Instant>,
    last_check: Instant,
    /// When the writers were last looked at.
    writers_checked: Instant,
    last_event: Instant,
    /// Change time of the file at the last check.
    change_time: (i64, i64),
    /// True if the next process scan is to look for the writer.
    needs_scan: bool,
    /// Change time of the file at the last check before a process scan that showed no writer. While it is the current
    /// one, processes that have the file only read it: an agent that starts changes the file.
    only_readers_since: Option<(i64, i64)>,
}

impl Liveness {
    /// Checks a file for the first time.
    #[must_use]
    pub fn new(file: &File, facts: &FileFacts, lease_kind: LeaseKind, now: Instant) -> Self {
        let holder = Presence::by_lease(file, lease_kind);
        // Spreads the next checks of rings that were found together over a second.
        let offset = Duration::from_millis(facts.id.ino % 1000);
        Self {
            holder,
            lease_kind,
            writer: None,
            sharers: None,
            previous_writer: None,
            process_facts: None,
            unlinked: false,
            no_holder_since: (holder == Presence::Gone).then_some(now),
            last_check: now.checked_sub(offset).unwrap_or(now),
            writers_checked: now,
            last_event: now,
            change_time: facts.changed,
            needs_scan: holder != Presence::Gone,
            only_readers_since: None,
        }
    }

    /// Notes that there were events, so that a process has the file. If none had it before, a process scan is to find
    /// the writer. While events come, the kernel is not asked about the file, but every `period` whether the known
    /// writers still run.
    pub fn saw_events(&mut self, now: Instant, period: Duration) {
        self.needs_scan |= self.has_no_holder();
        (self.last_event, self.last_check) = (now, now);
        self.holder = Presence::of_holder(self.lease_kind);
        (self.only_readers_since, self.no_holder_since) = (None, None);
        if now >= self.writers_checked + period {
            self.check_writers(now);
        }
    }

    /// Forgets the writer if it has ended. If it or one of several writers has, a process scan is to find those that
    /// are left. Returns true if the writer has ended.
    fn check_writers(&mut self, now: Instant) -> bool {
        self.writers_checked = now;
        // `has_process` costs a tenth of `is_running`, but is also true for a zombie. If /proc belongs to another PID
        // namespace, kill(2) knows none of its processes.
        let has_ended = |process: &ProcessId| !process.has_process() && !process.is_running();
        let ended = self.writer.take_if(|writer| has_ended(writer));
        let mut sharers = self.sharers.iter().flat_map(Sharers::named);
        self.needs_scan |= ended.is_some() || sharers.any(has_ended);
        ended.is_some()
    }

    /// Notes that the file was removed. The next check shows whether a process opened it before.
    pub fn unlinked(&mut self, now: Instant) {
        (self.unlinked, self.last_check) = (true, now);
        self.holder = Presence::Unknown;
        self.last_event = now;
    }

    /// Notes that a process had the file when it was to be removed.
    pub fn saw_holder(&mut self, now: Instant) {
        self.no_holder_since = None;
        self.last_check = now;
    }

    /// Notes that the producer restarted. It may be another process.
    pub fn producer_restarted(&mut self) {
        self.previous_writer = self.writer.take().or(self.previous_writer);
        self.process_facts = None;
        self.needs_scan = true;
    }

    /// Returns what other processes do with the file, as of the last check and the last process scan. If the kernel
    /// does not tell, the file counts as held for a minute after its last event.
    #[must_use]
    pub fn presence(&self, now: Instant) -> Presence {
        let since_event = now.saturating_duration_since(self.last_event);
        match self.holder {
            Presence::Gone => Presence::Gone,
            _ if self.only_readers_since == Some(self.change_time) => Presence::Readers,
            _ if self.writer.is_some() => Presence::Writing,
            Presence::Unknown if since_event < UNKNOWN_HOLDER_GRACE => Presence::Held,
            holder => holder,
        }
    }

    /// Returns the process that writes, as of the last process scan.
    #[must_use]
    pub fn writer(&self) -> Option<ProcessId> {
        self.writer
    }

    /// Returns the processes that write at the same time, as of the last process scan; `None` if there are not several.
    #[must_use]
    pub fn sharers(&self) -> Option<&Sharers> {
        self.sharers.as_ref()
    }

    /// Returns the facts of the last known writer, also after its end. `None` before a process scan has shown the
    /// writer, and after a producer restart.
    #[must_use]
    pub fn facts(&self) -> Option<&Facts> {
        self.process_facts.as_ref()
    }

    /// True if the kernel says that no other process has the file.
    #[must_use]
    pub fn has_no_holder(&self) -> bool {
        self.holder == Presence::Gone
    }

    /// Returns the change time of the file at the last check.
    #[must_use]
    pub fn change_time(&self) -> (i64, i64) {
        self.change_time
    }

    /// Returns for how long no other process has had the file; `None` if one has it or it is not known.
    #[must_use]
    pub fn no_holder_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.no_holder_since?))
    }

    /// True if the file is unlinked.
    #[must_use]
    pub fn is_unlinked(&self) -> bool {
        self.unlinked
    }

    /// Asks the kernel whether another process has the file. Returns true if none has.
    pub fn update_holder(&mut self, file: &File, now: Instant) -> bool {
        self.last_check = now;
        self.holder = Presence::by_lease(file, self.lease_kind);
        let has_no_holder = self.has_no_holder();
        self.no_holder_since = has_no_holder.then(|| self.no_holder_since.unwrap_or(now));
        if has_no_holder {
            (self.writer, self.sharers) = (None, None);
        }
        has_no_holder
    }

    /// Checks a file without new events, if the last check is `period` ago. Returns true if a producer has started: a
    /// process has the file, whose last known writer has ended or which had no holder before, and the file has changed.
    pub fn check(&mut self, file: &File, now: Instant, period: Duration) -> bool {
        if now < self.next_check(period) {
            return false;
        }
        let (had_no_holder, old_time) = (self.has_no_holder(), self.change_time);
        self.update_holder(file, now);
        if let Ok(stat) = fstat(file) {
            let facts = FileFacts::new(&stat);
            (self.unlinked, self.change_time) = (facts.links == 0, facts.changed);
        }
        let has_ended = self.check_writers(now);
        let has_changed = self.change_time != old_time;
        // Another process may write.
        let may_have_writer = !self.has_no_holder() && self.writer.is_none();
        self.needs_scan |= may_have_writer && (had_no_holder || has_changed);
        (had_no_holder || has_ended) && has_changed && self.holder >= Presence::Held
    }

    /// Returns the time of the next check.
    #[must_use]
    pub fn next_check(&self, period: Duration) -> Instant {
        self.last_check + period
    }

    /// True if a process scan could find the writer.
    #[must_use]
    pub fn needs_scan(&self) -> bool {
        self.needs_scan
    }

    /// True if a process scan that starts now is to look for the writer: a scan is needed, or this scan is for all
    /// files that a process may have.
    pub fn begin_process_scan(&mut self, is_full: bool) -> bool {
        let needs_scan = std::mem::take(&mut self.needs_scan);
        needs_scan || (is_full && !self.has_no_holder())
    }

    /// Applies the result of a process scan, if the scan looked for the writer of this file. Returns the processes that
    /// write at the same time, if their set is another one than before.
    pub fn end_process_scan(
        &mut self,
        process_scan: &ProcessScan,
        file: &FileFacts,
        path: &Path,
    ) -> Option<&Sharers> {
        let before_scan = process_scan.files.get(&file.id)?;
        let agents = process_scan.processes_of(file, path).into_iter();
        let agents = Vec::from_iter(agents.filter(|process| process.info.is_agent()));
        let (old_writer, previous_writer) = (self.writer, self.previous_writer);
        // The process from before a restart may run on, and a scan from before the restart may still show it. So it
        // comes last. Of several agents, the one that started first counts.
        let writers = openers(&agents).into_iter();
        self.writer = writers
            .map(|process| process.info.id)
            .min_by_key(|&writer| {
                let is_previous = Some(writer) == previous_writer;
                (is_previous, Some(writer) != old_writer, writer.start)
            });
        if let Some(writer) = self.writer {
            // Facts of one process stay, since a title that it gives itself overwrites its arguments and environment.
            let old_facts = self.process_facts.take();
            let old_facts = old_facts.filter(|_| old_writer == self.writer);
            self.process_facts = match process_scan.facts.get(&writer) {
                Some(facts) => Some(facts.clone().merge(&old_facts.unwrap_or_default())),
                None => old_facts,
            };
        }
        self.needs_scan |= process_scan.has_postponed && self.writer.is_none();
        // overlayfs shows a file with another device number, but with its inode number.
        let has_only_readers =
            process_scan.is_complete && !process_scan.may_have_writer(file.id.ino);
        self.only_readers_since = has_only_readers.then_some(before_scan.changed);
        let old_sharers = std::mem::replace(&mut self.sharers, Sharers::of(&agents));
        self.sharers
            .as_ref()
            .filter(|sharers| Some(*sharers) != old_sharers.as_ref())
    }
}

#[cfg(test)]
mod tests;
