//! Which files are attached: what the scanner finds, as far as there is room. `stores` says whose a store is.

use super::Agents;
use super::place::name_of;
use crate::agents::removal;
use crate::discovery::scan::{Found, Opened};
use crate::error::Refusal;
use crate::log;
use crate::procfs::process;
use crate::ring::candidate::{Access, Candidate};
use crate::ring::commit::Commit;
use crate::shm::LeaseKind;
use crate::source::Source;
use crate::source::ring::Mode;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long an agent that is new is no instance while /proc is asked who it is: its labels are to be right from the first
/// moment on, and one that cannot be known is not to be waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long the first scan of everything may take.
const FIRST_SCAN: Duration = Duration::from_secs(5);

/// Files that were found and not looked at yet.
#[derive(Debug)]
pub(super) struct Candidates {
    queue: VecDeque<Found>,
    /// Stores that no agent knows, with the time of their last update, until everything was scanned once: one that an agent knows
    /// may still be found.
    pub unknown: Vec<(u64, Found)>,
    /// When that is no longer waited for.
    first_scan_ends: Instant,
}

impl Candidates {
    /// None yet: everything is scanned from now on.
    pub fn new(now: Instant) -> Self {
        Self {
            queue: VecDeque::new(),
            unknown: Vec::new(),
            first_scan_ends: now + FIRST_SCAN,
        }
    }
}

impl Agents {
    /// Looks for rings that came or went, for as long as the budget lasts; the next call goes on from there. Whether nothing
    /// is left for it.
    pub fn scan(&mut self, now: Instant, budget: Duration) -> bool {
        let started = Instant::now();
        if self.candidates.queue.is_empty() {
            self.limits.turned_away.clear();
            // The other half is for what is found.
            let end = started + budget / 2;
            let found = self.scanner.scan(now, end, self.agents.attached());
            self.candidates.queue = found.into();
        }
        while let Some(found) = self.next_candidate(now) {
            // One inode met by two paths is one ring.
            if !self.agents.attached().contains(&found.facts.id) && !self.is_turned_away(&found) {
                let file = (
                    found.directory.path.clone(),
                    found.name.clone(),
                    found.facts,
                );
                if catch_unwind(AssertUnwindSafe(|| self.look_at(found, now))).is_err() {
                    // A defect of ours; the next file is not to suffer from it.
                    let (directory, name, facts) = file;
                    self.scanner
                        .reject(&directory, &name, &facts, Refusal::Failed);
                }
            }
            if started.elapsed() >= budget {
                break;
            }
        }
        let is_done = self.candidates.queue.is_empty() && self.scanner.is_done();
        if is_done && !self.books.early {
            let stamp = self.clock.at(now).stamp;
            let counted = self.counted_stores.all_found(stamp, self.limits.refused);
            if let Some(until) = counted {
                self.books.journal.set_stores_counted_until(until);
            }
        }
        is_done
    }

    /// The next file to be looked at. When everything was scanned once, the stores that no agent knew then, the oldest first.
    fn next_candidate(&mut self, now: Instant) -> Option<Found> {
        let is_scanned = self.scanner.is_done() || now >= self.candidates.first_scan_ends;
        if self.books.early && self.candidates.queue.is_empty() && is_scanned {
            self.books.early = false;
            let mut unknown = std::mem::take(&mut self.candidates.unknown);
            // Of several stores that an agent has had, each counts before the next takes its place.
            unknown.sort_by_key(|&(updated, _)| updated);
            self.candidates.queue = unknown.into_iter().map(|(_, found)| found).collect();
        }
        self.candidates.queue.pop_front()
    }

    fn look_at(&mut self, mut found: Found, now: Instant) {
        let _about = log::about(Some(found.facts.uid));
        let Ok(opened) = self.scanner.open(&mut found) else {
            return;
        };
        // The name may have been given to another file since it was found, and that may have an agent.
        if self.agents.attached().contains(&found.facts.id) {
            return;
        }
        let candidate = match opened {
            Opened::Ring(candidate) => candidate,
            Opened::Store(candidate) => return self.look_at_store(found, *candidate, now),
        };
        let raw = self.name_before(&found);
        let known = self.ring_agent(&found, &raw).map(|(key, _)| key);
        if self.has_room(
            now,
            known,
            candidate.header.pending() > 0,
            || process::holder(&candidate.file, LeaseKind::Exclusive),
            &found,
        ) {
            self.attach(&found, &raw, candidate, now);
        }
    }

    pub(super) fn set_aside(&mut self, found: &Found, refusal: Refusal) {
        self.scanner
            .reject(&found.directory.path, &found.name, &found.facts, refusal);
    }

    fn attach(&mut self, found: &Found, raw: &OsStr, candidate: Candidate, now: Instant) {
        let (header, layout) = (candidate.header, candidate.layout);
        let file = found.directory.path.join(&found.name);
        let before = match self.ring_agent(found, raw) {
            Some((_, agent)) => agent.entry.commit,
            None => self.commit_of_store_agent(found),
        };
        let source = match Source::ring(candidate, file, before.as_ref(), now) {
            Ok(source) => source,
            Err(refusal) => return self.set_aside(found, refusal),
        };
        self.scanner
            .remove_rejection(&found.directory.path, source.id());
        let name = name_of(found, raw, String::new());
        let key = self.agent_of(&found.directory, name, now);
        let Some(agent) = self.agents.get_mut(key) else {
            return;
        };
        agent.waiting = None;
        let Some(ring) = source.as_ring() else {
            return;
        };
        let commit = ring.commit;
        if agent
            .entry
            .commit
            .is_none_or(|before| !before.ring.is_same_file(&commit.ring))
        {
            agent.entry.stats.set_bounds(&self.books.config.bounds);
            agent.started(self.clock.at(now).stamp, &mut self.books.journal);
            // What became of a batch in flight, of another of its rings, is found out first.
            if !agent
                .entry
                .commit
                .is_some_and(|before| before.is_in_flight())
            {
                agent.entry.commit = Some(commit);
            }
        }
        let (capacity, pending) = (header.capacity, header.pending());
        let (version, instance) = (layout.name(), &agent.name.instance);
        let path = log::shown(&source.file.path);
        let how = match ring.mode {
            Mode::Drain => String::new(),
            Mode::Locked => {
                "; another process has locked it, so it is only followed until that lock ends"
                    .into()
            }
            Mode::Observe(Access::Denied(errno)) => {
                format!("; it may not be written to ({errno}), so it is only followed")
            }
            Mode::Observe(_) => "; it is only followed".into(),
        };
        tracing::info!(
            "agent {instance}: ring {version}, {capacity} events, {pending} pending, {path}{how}"
        );
        // A ring that is empty and that nobody writes to has nothing to say; it is watched for its agent's return.
        let is_abandoned = source.file.liveness.has_no_holder();
        if pending > 0 || !is_abandoned {
            let is_asked = self.books.config.proc_facts && !is_abandoned;
            let patience = if is_asked { PATIENCE } else { Duration::ZERO };
            agent.entry.lifecycle.wake(now + patience);
        }
        agent.sources.push(source);
        self.books.journal.commit(agent.record, &agent.entry);
        self.wake(key);
    }

    /// The last batch of a ring that an earlier version let an agent of stores go over to: that is counted.
    fn commit_of_store_agent(&self, found: &Found) -> Option<Commit> {
        let same = self.agents.named(&found.name);
        let mut commits = same.filter_map(|(_, agent)| agent.entry.commit);
        commits.find(|commit| commit.ring.id == found.facts.id)
    }

    /// The name of the agent that a file belongs to: the file's, or, if that was being removed when the daemon was killed, what it
    /// was before. Only of a ring that is known to be that agent's, or anybody could add to another's counts.
    fn name_before(&self, found: &Found) -> OsString {
        let was = removal::original_name(&found.name).filter(|was| {
            self.ring_agent(found, was).is_some_and(|(_, agent)| {
                let commit = agent.entry.commit;
                commit.is_some_and(|commit| commit.ring.id == found.facts.id)
            })
        });
        was.unwrap_or_else(|| found.name.clone())
    }
}
