//! In which order files that were found are looked at: which agent a store belongs to depends on what was there before.

use super::Agents;
use crate::agents::agent::Agent;
use crate::base::file::FileId;
use crate::find::scan::Found;
use crate::store::is_store_name;
use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// How long the first scan of everything may take.
const FIRST_SCAN: Duration = Duration::from_secs(5);

/// Files that were found and not looked at yet.
#[derive(Debug)]
pub(super) struct Candidates {
    pub queue: VecDeque<Found>,
    /// New stores that were found before the first scan of everything has come to its end, and until when that is waited for;
    /// `None`: it has.
    pub early: Option<(Vec<Found>, Instant)>,
}

impl Candidates {
    /// None yet: everything is scanned from now on.
    pub fn new(now: Instant) -> Self {
        Self {
            queue: VecDeque::new(),
            early: Some((Vec::new(), now + FIRST_SCAN)),
        }
    }
}

impl Agents {
    /// Orders what was found: rings first, in any order; then stores that are known, or a new one would take the agent of one that
    /// is still to come; then new stores, the oldest first, so that of several that an agent has had each counts before the next
    /// takes its place.
    pub(super) fn in_turn(&mut self, mut found: Vec<Found>, now: Instant) -> Vec<Found> {
        let is_store = |found: &Found| found.directory.holds.stores && is_store_name(&found.name);
        // Rings alone need no order.
        if self.candidates.early.is_none() && !found.iter().any(is_store) {
            return found;
        }
        let seen = |agent: &Agent| Some(agent.entry.store.as_ref()?.id.file);
        let known: HashSet<FileId> = self.agents.values().filter_map(seen).collect();
        let is_known = |found: &Found| known.contains(&found.facts.id);
        if let Some((mut early, until)) = self.candidates.early.take() {
            if self.scanner.is_done() || now >= until {
                found.extend(early);
            } else {
                let is_new_store = |found: &Found| is_store(found) && !is_known(found);
                let (later, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(is_new_store);
                early.extend(later);
                self.candidates.early = Some((early, until));
                found = rest;
            }
        }
        found.sort_by_key(|found| match (is_store(found), is_known(found)) {
            (false, _) => (0, (0, 0)),
            (true, true) => (1, (0, 0)),
            (true, false) => (2, found.facts.changed),
        });
        found
    }
}
