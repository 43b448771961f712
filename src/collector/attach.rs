// SPDX-License-Identifier: GPL-2.0-or-later

//! Attaches the files that a scan finds to agents, as far as there is room. `stores` has what is particular to stores.

use super::Collector;
use super::names::name_of;
use super::stores::CountedStores;
use crate::agents::AgentKey;
use crate::base::clock::Now;
use crate::discovery::scan::{Found, Opened};
use crate::error::Rejection;
use crate::log;
use crate::procfs::process::Presence;
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::checkpoint::Checkpoint;
use crate::shm::LeaseKind;
use crate::source::Source;
use crate::source::removal;
use crate::source::ring::Mode;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Longest wait of a new agent for its labels before it is published. Labels should be right when an instance appears,
/// but /proc may not tell them.
const LABEL_PATIENCE: Duration = Duration::from_secs(1);

/// Returns when an agent that is activated now is published without labels, in nanoseconds of CLOCK_MONOTONIC.
/// `is_scanned`: a process scan may tell the labels.
pub(super) fn label_deadline(clock: &Now, now: Instant, is_scanned: bool) -> u64 {
    clock.at(now + LABEL_PATIENCE * u32::from(is_scanned)).stamp
}

/// Longest duration of the first scan for which files wait.
const FIRST_SCAN: Duration = Duration::from_secs(5);

/// Files that were found and are not attached or rejected yet.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    queue: VecDeque<Found>,
    /// Files that wait for the end of the first scan, so that its order decides nothing: stores that are not the
    /// present one of any agent, with the time of their last update, and then rings that only take a place that no
    /// other file has taken.
    pub waiting: Vec<(u64, Found)>,
    /// Stores that were counted before this scan, or before the first one, and that no record has.
    pub counted_stores: CountedStores,
    /// When the wait ends, even if the first scan has not.
    first_scan_ends: Option<Instant>,
    /// True once a scan has found everything. Before that, an agent without a source may still have a file.
    pub all_found: bool,
}

impl Candidates {
    /// Returns an empty queue. The first scan begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            first_scan_ends: Some(now + FIRST_SCAN),
            ..Self::default()
        }
    }
}

impl Collector {
    /// Scans the directories and attaches what is found, for as long as the budget lasts; the next call goes on from
    /// there. Returns true if nothing is left for it.
    pub fn scan(&mut self, now: Instant, budget: Duration) -> bool {
        let started = Instant::now();
        self.wants_rescan = false;
        if self.candidates.queue.is_empty() {
            self.limits.rejected_users.clear();
            if !self.shared.in_first_scan {
                self.candidates.counted_stores = CountedStores::default();
            }
            let until = self.shared.journal.stores_until();
            self.candidates.counted_stores.begin(until);
            // The other half is for the files that are found.
            let end = started + budget / 2;
            let found = self.scanner.scan(now, end, self.agents.attached());
            self.candidates.queue = found.into();
        }
        while let Some(found) = self.next_candidate(now) {
            // A file that is found by two paths is one source.
            if !self.agents.attached().contains(&found.facts.id) && !self.is_user_rejected(&found) {
                let (path, facts) = (found.path(), found.facts);
                let _span = log::span(Some(facts.uid));
                if catch_unwind(AssertUnwindSafe(|| self.attach_found(found, now))).is_err() {
                    // A defect of the daemon costs this file only.
                    self.scanner.reject(&path, &facts, Rejection::Failed);
                }
            }
            if started.elapsed() >= budget {
                break;
            }
        }
        self.note_unsupported();
        self.candidates.queue.is_empty() && self.scanner.is_done()
    }

    /// Returns the next file to be attached. At the end of the first scan these are the files that have waited for it:
    /// stores, the oldest first, and then rings.
    fn next_candidate(&mut self, now: Instant) -> Option<Found> {
        let is_complete = self.scanner.is_done() && self.candidates.queue.is_empty();
        if is_complete && !self.candidates.all_found {
            self.candidates.all_found = true;
            self.detach_left_out();
        }
        let ends = self.candidates.first_scan_ends;
        let is_over = is_complete || ends.is_some_and(|end| now >= end);
        if self.shared.in_first_scan && self.candidates.queue.is_empty() && is_over {
            self.shared.in_first_scan = false;
            let mut waiting = std::mem::take(&mut self.candidates.waiting);
            // Each store of an agent is counted before the next replaces it.
            waiting.sort_by_key(|&(updated, _)| updated);
            self.candidates.queue = waiting.into_iter().map(|(_, found)| found).collect();
        }
        self.candidates.queue.pop_front()
    }

    fn attach_found(&mut self, mut found: Found, now: Instant) {
        let Ok(opened) = self.scanner.open(&mut found) else {
            return;
        };
        // The file may have been replaced by one that is attached.
        if self.agents.attached().contains(&found.facts.id) {
            return;
        }
        let candidate = match opened {
            Opened::Ring(candidate) => candidate,
            Opened::Store(candidate) => return self.attach_store(found, *candidate, now),
        };
        let raw = self.name_before(&found);
        let known = self.ring_agent(&found, &raw).map(|(key, _)| key);
        let presence = match candidate.header.pending() {
            0 => Presence::by_lease(&candidate.file, LeaseKind::Exclusive),
            _ => Presence::Writing,
        };
        if self.shared.in_first_scan && known.is_none() && presence == Presence::Gone {
            self.candidates.waiting.push((u64::MAX, found));
            return;
        }
        if self.make_room_for(now, known, presence, &found) {
            self.attach_ring(&found, &raw, candidate, now);
        } else if let Some(agent) = known.and_then(|key| self.agents.get_mut(key)) {
            // Its agent does not expire meanwhile.
            agent.waiting = (presence != Presence::Gone).then_some((found.name, found.facts.id));
        }
    }

    pub(super) fn reject(&mut self, found: &Found, rejection: Rejection) {
        self.scanner.reject(&found.path(), &found.facts, rejection);
    }

    fn attach_ring(&mut self, found: &Found, raw: &OsStr, candidate: RingCandidate, now: Instant) {
        let (header, layout) = (candidate.header, candidate.layout);
        let known = self.ring_agent(found, raw);
        let before = known.and_then(|(_, agent)| agent.entry.checkpoint);
        let source = match Source::ring(candidate, found.path(), before.as_ref(), now) {
            Ok(source) => source,
            Err(rejection) => return self.reject(found, rejection),
        };
        self.scanner
            .remove_rejection(&found.directory.path, source.id());
        let key = self.agent_of(&found.directory, name_of(found, raw), now);
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        let Some(ring) = source.as_ring() else {
            return;
        };
        let checkpoint = ring.checkpoint;
        let is_drained = ring.mode == Mode::Drain;
        agent.entry.is_counted |= is_drained;
        let was_counted = |last: Checkpoint| last.ring.is_same_file(&checkpoint.ring);
        // A ring that is not drained is not in the record, and counts as a start of its agent once.
        if !agent.entry.checkpoint.is_some_and(was_counted)
            && (is_drained || agent.entry.starts == 0)
        {
            agent.started(self.clock.at(now).stamp, &mut self.shared.journal);
            // A batch in flight, of another of its rings, is recovered first.
            if is_drained && agent.entry.in_flight().is_none() {
                agent.entry.checkpoint = Some(checkpoint);
            }
        }
        let (capacity, pending) = (header.capacity, header.pending());
        let (version, instance) = (layout.name(), &agent.name.instance);
        let path = log::shown(&source.file.path);
        let how = match ring.mode {
            Mode::Drain => String::new(),
            Mode::Locked => {
                "; another process has locked it, so it is not drained or counted until that lock ends"
                    .into()
            }
            Mode::Observe(Access::Denied(errno)) => {
                format!("; it may not be written to ({errno}), so it is not drained or counted")
            }
            Mode::Observe(_) => "; observe is on, so it is not drained or counted".into(),
        };
        tracing::info!(
            "agent {instance}: ring {version}, {capacity} slots, {pending} pending, {path}{how}"
        );
        if pending + 1 == capacity {
            tracing::warn!("agent {instance}: its ring was full, and NIXL may have dropped events");
        }
        // An empty ring without a process publishes no agent; its agent may return.
        let is_visible = pending > 0 || !source.file.liveness.has_no_holder();
        agent.sources.push(source);
        self.source_added(key, is_visible, now);
    }

    /// Completes the attachment of the last source of an agent. If `is_visible`, the agent is published, or waits for
    /// its labels.
    pub(super) fn source_added(&mut self, key: AgentKey, is_visible: bool, now: Instant) {
        let observes = self.observes();
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.waiting = None;
        agent.noted.in_first_scan |= self.shared.in_first_scan;
        let may_be_labelled = |source: &Source| !source.file.liveness.has_no_holder();
        let waits = observes && agent.sources.last().is_some_and(may_be_labelled);
        let deadline = label_deadline(&self.clock, now, waits);
        if is_visible {
            agent.entry.lifecycle.activate(deadline);
        }
        // An agent that awaited labels before a restart of the daemon may have exited meanwhile.
        if !waits && agent.sources.len() == 1 {
            agent.entry.lifecycle.limit_wait(deadline);
        }
        self.shared.journal.commit(agent.record, &agent.entry);
        self.files_changed(key);
    }

    /// Returns the name of the agent that a file belongs to: the file's, or the name before, if the daemon was killed
    /// while it removed the file. Then the ring must be known as that agent's, or any user could add to another agent's
    /// counts.
    fn name_before(&self, found: &Found) -> OsString {
        let was = removal::original_name(&found.name).filter(|was| {
            self.ring_agent(found, was).is_some_and(|(_, agent)| {
                let checkpoint = agent.entry.checkpoint;
                checkpoint.is_some_and(|checkpoint| checkpoint.ring.id == found.facts.id)
            })
        });
        was.unwrap_or_else(|| found.name.clone())
    }
}
