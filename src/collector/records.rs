// SPDX-License-Identifier: GPL-2.0-or-later

//! Records of the agents in the state file.

use super::Collector;
use crate::agents::AgentKey;
use crate::entry::Entry;
use crate::journal::record;
use crate::journal::{ExpiredTotals, RecordId};

impl Collector {
    /// Checks the state file. Writes all that is known to a file that was made again, and tries to create the records
    /// of agents that have none.
    pub fn check_state(&mut self) {
        if self.shared.journal.check() {
            let mut expired = ExpiredTotals {
                totals: self.shared.host.clone(),
                overflows: self.shared.expired_overflows,
            };
            for agent in self.agents.values_mut() {
                expired.totals.subtract(&agent.entry.stats.totals);
                agent.record = None;
            }
            self.shared.journal.set_expired(&expired);
        }
        if self.is_persistent() {
            return;
        }
        let all = self.agents.iter();
        let without_record =
            all.filter(|(_, agent)| agent.record.is_none() && record::fits(&agent.name));
        let keys: Vec<AgentKey> = without_record.map(|(key, _)| key).collect();
        for key in keys {
            self.create_record(key);
            if self.shared.journal.is_full() {
                break;
            }
        }
    }

    /// Creates the record of an agent that has none, if there is room for it.
    pub(super) fn create_record(&mut self, key: AgentKey) {
        let journal = &mut self.shared.journal;
        let agent = self.agents.get_mut(key);
        let Some(agent) = agent.filter(|agent| agent.record.is_none()) else {
            return;
        };
        agent.record = journal.create(&agent.name, &agent.entry);
        if let Some(id) = agent.id {
            journal.set_id(agent.record, id);
        }
        journal.set_facts(agent.record, agent.facts.current());
    }

    /// Removes the record of an agent and adds its totals to those of expired agents.
    pub(super) fn remove_record(&mut self, record: Option<RecordId>, entry: &Entry) {
        // Before the record: a kill in between leaves both, and then the record decides.
        if let Some(reading) = &entry.store {
            let counted = &mut self.candidates.counted_stores;
            counted.give_up(reading.id, &mut self.shared.journal);
        }
        let full = &mut self.shared.expired_overflows;
        *full = full.saturating_add(entry.overflows);
        self.shared.journal.expire(record, entry);
    }

    /// Removes an agent without files. Its totals stay in the host totals.
    pub(super) fn expire(&mut self, key: AgentKey) {
        if let Some(agent) = self.agents.remove(key) {
            self.remove_record(agent.record, &agent.entry);
        }
    }
}
