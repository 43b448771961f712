// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domain of agents. It has published agents only and remembers nothing of withdrawn
//! ones.

use super::ffi::Instances;
use crate::agents::AgentKey;
use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;

/// Published agents.
#[derive(Debug)]
pub struct AgentInstances {
    /// Instances in the table of libpcp_pmda.
    instances: Instances,
    /// Keys of the agents, by instance id.
    keys: BTreeMap<u32, AgentKey>,
}

impl AgentInstances {
    /// Creates the domain without instances.
    #[must_use]
    pub fn new(instances: Instances) -> Self {
        Self {
            instances,
            keys: BTreeMap::new(),
        }
    }

    /// Adds an agent. Returns false if the id is in use, or if PCP accepts no such id (more than 31 bits) or name (with
    /// a NUL).
    pub fn add(&mut self, id: u32, name: &str, key: AgentKey) -> bool {
        let (Ok(inst), Ok(name)) = (i32::try_from(id), CString::new(name)) else {
            return false;
        };
        if self.keys.contains_key(&id) {
            return false;
        }
        self.keys.insert(id, key);
        self.instances.push(inst, name);
        true
    }

    /// Removes the agents with these instance ids.
    pub fn remove(&mut self, ids: &HashSet<u32>) {
        if !ids.is_empty() {
            self.keys.retain(|id, _| !ids.contains(id));
            self.instances
                .retain(|id| !ids.contains(&id.unsigned_abs()));
        }
    }

    /// Returns the agent that has this instance id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<AgentKey> {
        self.keys.get(&id).copied()
    }

    /// Returns instance ids and keys of all published agents, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, AgentKey)> {
        self.keys.iter().map(|(&id, &key)| (id, key))
    }
}
