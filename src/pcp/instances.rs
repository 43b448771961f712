//! The instance domain of agents: those that are instances now, in the order of their ids, and nothing of those that left.

use super::ffi::Instances;
use crate::agents::AgentKey;
use std::collections::HashSet;
use std::ffi::CString;

/// The agents that are instances.
#[derive(Debug)]
pub struct AgentInstances {
    /// As libpcp_pmda sees them.
    instances: Instances,
    /// The same ones, in the same order.
    keys: Vec<(u32, AgentKey)>,
}

impl AgentInstances {
    /// None yet.
    #[must_use]
    pub fn new(instances: Instances) -> Self {
        Self {
            instances,
            keys: Vec::new(),
        }
    }

    /// An agent is an instance now; `false`: one of that id is already, or PCP takes neither such an id nor such a name.
    pub fn add(&mut self, id: u32, name: &str, key: AgentKey) -> bool {
        let (Ok(inst), Ok(name)) = (i32::try_from(id), CString::new(name)) else {
            return false;
        };
        let Err(at) = self.find(id) else {
            return false;
        };
        self.keys.insert(at, (id, key));
        self.instances.insert(at, inst, name);
        true
    }

    /// These are none any more.
    pub fn remove(&mut self, ids: &HashSet<u32>) {
        if !ids.is_empty() {
            self.keys.retain(|(id, _)| !ids.contains(id));
            self.instances
                .retain(|id| !ids.contains(&id.unsigned_abs()));
        }
    }

    /// Who has this id, of those that are instances.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<AgentKey> {
        self.find(id).ok().map(|at| self.keys[at].1)
    }

    /// Ids and agents, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, AgentKey)> {
        self.keys.iter().copied()
    }

    fn find(&self, id: u32) -> Result<usize, usize> {
        self.keys.binary_search_by_key(&id, |&(id, _)| id)
    }
}
