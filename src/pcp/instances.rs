// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains with one instance for each agent, process or peer. They have the present ones only and remember
//! nothing of others.

use super::ffi::Instances;
use crate::agents::AgentKey;
use std::collections::{BTreeMap, HashSet};
use std::ffi::CString;

/// Instances, each with a key that finds its values.
#[derive(Debug)]
pub struct KeyedInstances<K> {
    /// Instances in the table of libpcp_pmda.
    instances: Instances,
    /// Keys by instance id.
    keys: BTreeMap<u32, K>,
}

/// Published agents.
pub type AgentInstances = KeyedInstances<AgentKey>;

impl<K: Copy> KeyedInstances<K> {
    /// Creates the domain without instances.
    #[must_use]
    pub fn new(instances: Instances) -> Self {
        Self {
            instances,
            keys: BTreeMap::new(),
        }
    }

    /// Adds an instance. Returns false if the id is in use, or if PCP accepts no such id (more than 31 bits) or name
    /// (with a NUL).
    pub fn add(&mut self, id: u32, name: &str, key: K) -> bool {
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

    /// Removes the instances with these ids.
    pub fn remove(&mut self, ids: &HashSet<u32>) {
        if !ids.is_empty() {
            self.keys.retain(|id, _| !ids.contains(id));
            self.instances
                .retain(|id| !ids.contains(&id.unsigned_abs()));
        }
    }

    /// Replaces all instances: id, name and key of each.
    pub fn replace(&mut self, wanted: &[(u32, String, K)]) {
        self.keys.clear();
        self.instances.retain(|_| false);
        for (id, name, key) in wanted {
            self.add(*id, name, *key);
        }
    }

    /// Returns the key of the instance with this id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<K> {
        self.keys.get(&id).copied()
    }

    /// Returns ids and values of instances that have one, in the order of the ids.
    pub fn values<V>(
        &self,
        is_requested: impl Fn(u32) -> bool,
        get: impl Fn(K) -> Option<V>,
    ) -> impl Iterator<Item = (u32, V)> {
        let all = self.iter().filter(move |(id, _)| is_requested(*id));
        all.filter_map(move |(id, key)| Some((id, get(key)?)))
    }

    /// Returns ids and keys of all instances, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, K)> {
        self.iter_from(0)
    }

    /// Returns ids and keys of the instances from an id on, in the order of the ids.
    pub fn iter_from(&self, first: u32) -> impl Iterator<Item = (u32, K)> {
        self.keys.range(first..).map(|(&id, &key)| (id, key))
    }
}
