//! In which order files that were found are looked at: which agent a store or a ring belongs to depends on what was there before.

use super::{AgentKey, Agents, Place};
use crate::base::file::FileId;
use crate::find::scan::Found;
use crate::store::is_store_name;
use std::collections::HashSet;
use std::time::Instant;

impl Agents {
    /// Orders what was found: files that are known first, or a new one would take the agent of one that is still to come; then
    /// rings; then stores, the oldest first, so that of several that an agent has had each counts before the next takes its
    /// place.
    pub(super) fn in_turn(&mut self, mut found: Vec<Found>, now: Instant) -> Vec<Found> {
        let is_store = |found: &Found| found.directory.holds.stores && is_store_name(&found.name);
        // Rings alone need no order.
        if self.early.is_none() && !found.iter().any(is_store) {
            return found;
        }
        let entries = self.agents.values().map(|agent| &agent.entry);
        let known: HashSet<FileId> = entries
            .flat_map(|entry| {
                let store = entry.store.as_ref().map(|seen| seen.id.file);
                store
                    .into_iter()
                    .chain(entry.commit.map(|commit| commit.ring.id))
            })
            .collect();
        let is_known = |found: &Found| known.contains(&found.facts.id);
        if let Some((mut early, until)) = self.early.take() {
            if self.scanner.is_done() || now >= until {
                found.extend(early);
            } else {
                let (later, rest): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| {
                    !is_known(found) && (is_store(found) || self.may_adopt(found))
                });
                early.extend(later);
                self.early = Some((early, until));
                found = rest;
            }
        }
        found.sort_by_key(|found| match (is_known(found), is_store(found)) {
            (true, _) => (0, (0, 0)),
            (false, false) => (1, (0, 0)),
            (false, true) => (2, found.facts.changed),
        });
        found
    }

    /// Whether a ring without an agent could be one's whose store is still to be found.
    fn may_adopt(&self, found: &Found) -> bool {
        let place = Place::of_ring(&found.directory.path, &found.name, found.facts.uid);
        let has_agent = self.known_at(&place).is_some();
        let is_awaited = |&key: &AgentKey| {
            let agent = self.agents.get(key);
            agent.is_some_and(|agent| agent.entry.store.is_some() && agent.store.is_none())
        };
        !has_agent && self.named(&found.name).iter().any(is_awaited)
    }
}
