//! What of the agents outlives the daemon, and which of them are forgotten.

use super::{AgentKey, Agents, Change};
use crate::journal::record::Entry;
use crate::journal::{RecordId, Retired};

impl Agents {
    /// Looks after the state file: writes all that is known to it where it was made again, and looks for room for the agents that
    /// have no record.
    pub fn check_state(&mut self) {
        if self.books.journal.check() {
            let mut forgotten = Retired {
                totals: self.books.host.clone(),
                full: self.books.forgotten_full,
            };
            for agent in self.agents.values_mut() {
                forgotten.totals.take_away(&agent.entry.stats.totals);
                agent.record = None;
            }
            self.books.journal.set_retired(&forgotten);
        }
        if !self.is_persistent() {
            // One that has a record tries nothing, and says nothing of whether the file can grow now.
            let without = self
                .agents
                .iter()
                .filter(|(_, agent)| agent.record.is_none());
            let keys: Vec<AgentKey> = without.map(|(key, _)| key).collect();
            for key in keys {
                self.keep(key);
                if self.books.journal.is_full() {
                    break;
                }
            }
        }
    }

    /// Gives an agent a record, if it has none and there is room.
    pub(super) fn keep(&mut self, key: AgentKey) {
        let journal = &mut self.books.journal;
        let Some(agent) = self
            .agents
            .get_mut(key)
            .filter(|agent| agent.record.is_none())
        else {
            return;
        };
        agent.record = journal.create(&agent.name, &agent.entry);
        if let Some(id) = agent.id {
            journal.set_id(agent.record, id);
        }
        journal.set_facts(agent.record, agent.own_facts());
    }

    /// Forgets an agent: what it has counted stays in the sums of the host.
    pub(super) fn retire(&mut self, record: Option<RecordId>, entry: &Entry) {
        let full = &mut self.books.forgotten_full;
        *full = full.saturating_add(entry.full);
        self.books.journal.retire(record, entry);
    }

    /// Forgets an agent whose files are gone, and its name.
    pub(super) fn forget_one(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.remove(key) else {
            return;
        };
        if let Some(seen) = &agent.entry.store {
            self.counted_stores.add(seen.id, seen.values.updated);
        }
        self.retire(agent.record, &agent.entry);
        if agent.is_published() {
            self.changes.push(Change::Left { key, id: agent.id });
        }
        self.changes.push(Change::Forgotten(agent.name.instance));
    }
}
