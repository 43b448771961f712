//! What of the agents outlives the daemon, and which of them are forgotten.

use super::{AgentKey, Agents, Change};
use crate::state::record::{self, Entry};
use crate::state::{RecordId, Retired, State};
use std::time::{Duration, Instant};

/// How often room in the state file is tried for again after there was none.
const RETRY: Duration = Duration::from_secs(10);

/// Which agents have no record.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// When room for agents that have none is looked for again; `None`: there was room for all.
    pub retry: Option<Instant>,
    /// Agents whose names are too long for one.
    pub without: usize,
}

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
        self.kept.without = 0;
        let keys: Vec<AgentKey> = self.agents.iter().map(|(key, _)| key).collect();
        if keys.into_iter().all(|key| self.keep(key, now)) {
            self.kept.retry = None;
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
                self.kept.without += 1;
            }
            Err(err) => {
                if self.kept.retry.is_none() {
                    tracing::warn!(
                        "the state file cannot grow: {err}; totals of new agents are not kept until it can"
                    );
                }
                self.kept.retry = Some(now + RETRY);
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
    pub(super) fn forget_one(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.remove(key) else {
            return;
        };
        if agent.record.is_none() && !record::fits(&agent.name) {
            self.kept.without = self.kept.without.saturating_sub(1);
        }
        self.retire(agent.record, &agent.entry);
        if agent.is_published() {
            self.changes.push(Change::Left { key, id: agent.id });
        }
        self.changes.push(Change::Forgotten(agent.name.instance));
    }
}
