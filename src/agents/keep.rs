//! What of the agents outlives the daemon, and which of them are forgotten.

use super::{AgentKey, Agents, Change, Place, RETRY};
use crate::state::record::{self, Entry};
use crate::state::{RecordId, Retired, State};
use std::time::Instant;

impl Agents {
    /// Goes on without the state file, of which this has become; until [`Agents::move_to`].
    pub fn lose_state(&mut self, what: &str) {
        self.books.journal.close(what);
    }

    /// The state that what is counted goes to, if there is one.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.books.journal.state()
    }

    /// Goes on with an empty state, to which all that is known is written.
    pub fn move_to(&mut self, state: State, now: Instant) {
        let mut forgotten = Retired {
            totals: self.books.host.clone(),
            full: self.books.forgotten_full,
        };
        for agent in self.agents.values_mut() {
            forgotten.totals.take_away(&agent.entry.account.totals);
            agent.record = None;
        }
        self.books.journal.open(state);
        self.books.journal.set_retired(&forgotten);
        self.keep_all(now);
    }

    /// Looks for room in the state file for the agents that have none.
    pub(super) fn keep_all(&mut self, now: Instant) {
        self.unkept = 0;
        let keys: Vec<AgentKey> = self.agents.iter().map(|(key, _)| key).collect();
        if keys.into_iter().all(|key| self.keep(key, now)) {
            self.retry = None;
        }
    }

    /// Gives an agent a record, if it has none; `false`: there is no room.
    pub(super) fn keep(&mut self, key: AgentKey, now: Instant) -> bool {
        let journal = &mut self.books.journal;
        let Some(agent) = self.agents.get_mut(key) else {
            return true;
        };
        if journal.state().is_none() || agent.record.is_some() {
            return true;
        }
        match journal.create(&agent.name, &agent.entry) {
            Ok(Some(record)) => {
                agent.record = Some(record);
                if let Some(id) = agent.id {
                    journal.set_id(agent.record, id);
                }
                if let Some(facts) = agent.own_facts() {
                    journal.set_facts(agent.record, Some(facts));
                }
            }
            Ok(None) => {
                let path = agent.name.directory.join(&agent.name.raw);
                tracing::debug!("{path:?} is too long for the state file; its totals are not kept");
                self.unkept += 1;
            }
            Err(err) => {
                if self.retry.is_none() {
                    tracing::warn!(
                        "the state file cannot grow: {err}; totals of new agents are not kept until it can"
                    );
                }
                self.retry = Some(now + RETRY);
                return false;
            }
        }
        true
    }

    /// Forgets an agent: what it has counted stays in the sums of the host.
    pub(super) fn retire(&mut self, record: Option<RecordId>, entry: &Entry) {
        let full = &mut self.books.forgotten_full;
        *full = full.saturating_add(entry.full);
        self.books.journal.retire(record, entry);
    }

    /// Forgets an agent whose files are gone, and its name.
    pub(super) fn forget_one(&mut self, key: AgentKey, changes: &mut Vec<Change>) {
        let Some(agent) = self.agents.remove(key) else {
            return;
        };
        self.uncount(&agent);
        self.instances.remove(&agent.name.instance);
        if agent.record.is_none() && !record::fits(&agent.name) {
            self.unkept = self.unkept.saturating_sub(1);
        }
        self.by_place.remove(&Place::of(&agent.name));
        if let Some(same) = self.by_name.get_mut(&agent.name.raw) {
            same.retain(|&other| other != key);
            if same.is_empty() {
                self.by_name.remove(&agent.name.raw);
            }
        }
        self.retire(agent.record, &agent.entry);
        if agent.shown {
            changes.push(Change::Left { key, id: agent.id });
        }
        changes.push(Change::Forgotten(agent.name.instance));
    }
}
