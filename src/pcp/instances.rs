// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains with one instance for each agent, process or peer. They have the present ones only and remember
//! nothing of others.

use super::ffi::Instances;
use crate::agents::AgentKey;
use std::collections::{BTreeMap, HashMap, HashSet};
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

impl<K: Copy + Eq> KeyedInstances<K> {
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
        let by_id: HashMap<u32, (&[u8], K)> = { wanted.iter() }
            .map(|(id, name, key)| (*id, (name.as_bytes(), *key)))
            .collect();
        let present = self.instances.iter().filter_map(|(id, name)| {
            let id = id.unsigned_abs();
            Some((id, (name.to_bytes(), self.get(id)?)))
        });
        let unwanted = present.filter(|(id, instance)| by_id.get(id) != Some(instance));
        let unwanted = unwanted.map(|(id, _)| id).collect();
        self.remove(&unwanted);
        for (id, name, key) in wanted {
            // False for those that are there.
            self.add(*id, name, *key);
        }
    }

    /// Returns the key of the instance with this id.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<K> {
        self.keys.get(&id).copied()
    }

    /// Returns ids and keys of all instances, in the order of the ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, K)> {
        self.keys.iter().map(|(&id, &key)| (id, key))
    }
}
