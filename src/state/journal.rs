//! What outlives the daemon, for callers that need not know whether there is a state file, or whether it still works.

use super::record::{Entry, Name};
use super::{RecordId, Retired, State};
use crate::producer::facts::Facts;
use crate::shm::Broken;
use std::io;
use std::time::Duration;

/// The state file, as long as there is one. Where it breaks, that is logged once, and what is counted is kept in memory only,
/// until [`Journal::open`]. Records of a state file that is gone are without effect.
#[derive(Debug, Default)]
pub struct Journal {
    state: Option<State>,
}

impl Journal {
    /// Writes to this state from now on. Records of the one before are not records of this one.
    pub fn open(&mut self, state: State) {
        self.state = Some(state);
    }

    /// The state, if there is one.
    #[must_use]
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// Goes on without the state file, of which this has become.
    pub fn close(&mut self, what: &str) {
        if self.state.take().is_some() {
            tracing::error!(
                "the state file {what}; totals begin at zero after a restart of pmdanixl, unless another can be made"
            );
        }
    }

    /// Replaces what changes of an agent, in one step: from here on a kill leaves that.
    pub fn commit(&mut self, record: Option<RecordId>, entry: &Entry) {
        self.record(record, |state, record| state.replace(record, entry));
    }

    /// Notes that the slots of the last batch were given back.
    pub fn released(&mut self, record: Option<RecordId>) {
        self.record(record, State::set_released);
    }

    /// Notes what is known of an agent's process and place, if anything is.
    pub fn set_facts(&mut self, record: Option<RecordId>, facts: Option<&Facts>) {
        self.record(record, |state, record| state.set_facts(record, facts));
    }

    /// Notes an agent's instance id.
    pub fn set_id(&mut self, record: Option<RecordId>, id: u32) {
        self.record(record, |state, record| state.set_id(record, id));
    }

    /// Notes whose an agent's files are, which was not known.
    pub fn set_owner(&mut self, record: Option<RecordId>, uid: u32) {
        self.record(record, |state, record| state.set_owner(record, uid));
    }

    /// Notes what is more than any instance id that was given.
    pub fn set_next_id(&mut self, next: u32) {
        self.run(|state| state.set_next_id(next));
    }

    /// Notes when the configuration was last read, in time since the epoch.
    pub fn set_config_read(&mut self, when: Duration) {
        self.run(|state| state.set_config_read(when));
    }

    /// Replaces the sums of agents that are forgotten.
    pub fn set_retired(&mut self, sums: &Retired) {
        self.run(|state| state.set_retired(sums));
    }

    /// The sums of agents that are forgotten; `None`: nothing is kept.
    pub fn retired(&mut self) -> Option<Retired> {
        self.run(|state| state.retired())
    }

    /// What is kept of an agent; `None`: nothing, or it is damaged.
    #[must_use]
    pub fn entry(&self, record: Option<RecordId>) -> Option<Entry> {
        self.state.as_ref()?.entry(record?)
    }

    /// A record for a new agent; `None`: its names have no room in one, or there is no state file.
    ///
    /// # Errors
    /// The file cannot grow.
    pub fn create(&mut self, name: &Name, entry: &Entry) -> io::Result<Option<RecordId>> {
        match &mut self.state {
            Some(state) => state.create(name, entry),
            None => Ok(None),
        }
    }

    /// Forgets an agent, and its record if it has one, but for what it has counted.
    pub fn retire(&mut self, record: Option<RecordId>, entry: &Entry) {
        self.run(|state| state.retire(record, entry));
    }

    fn record(
        &mut self,
        record: Option<RecordId>,
        write: impl FnOnce(&State, RecordId) -> Result<(), Broken>,
    ) {
        if let Some(record) = record {
            self.run(|state| write(state, record));
        }
    }

    fn run<T>(&mut self, run: impl FnOnce(&mut State) -> Result<T, Broken>) -> Option<T> {
        let done = run(self.state.as_mut()?);
        if done.is_err() {
            self.close("was truncated");
        }
        done.ok()
    }
}
