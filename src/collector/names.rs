// SPDX-License-Identifier: GPL-2.0-or-later

//! Names agents: finds the agent of a file, and makes instance names of new agents.

use super::Collector;
use super::stores::rank;
use crate::agents::Agent;
use crate::agents::AgentKey;
use crate::discovery::directory::Directory;
use crate::discovery::name;
use crate::discovery::scan::Found;
use crate::entry::{Entry, Name};
use crate::procfs::facts::kubelet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Longest local rank in an instance name, in bytes after escaping. A hash replaces a longer one.
const MAX_RANK: usize = 64;

/// Returns the name of the agent of a ring, without an instance name.
pub(super) fn name_of(found: &Found, raw: &OsStr) -> Name {
    Name {
        raw: raw.to_owned(),
        instance: String::new(),
        directory: found.directory.path.clone(),
        part: String::new(),
        owner: found.facts.uid,
    }
}

impl Collector {
    /// Returns the agent of the rings of this name, in the directory and of the owner of a file.
    pub(super) fn ring_agent(&self, found: &Found, raw: &OsStr) -> Option<(AgentKey, &Agent)> {
        self.agents.find(&name_of(found, raw))
    }

    /// Returns the agent with this name, whatever its instance name is. Adds it if there is none.
    pub(super) fn agent_of(
        &mut self,
        directory: &Directory,
        mut name: Name,
        now: Instant,
    ) -> AgentKey {
        if let Some((key, _)) = self.agents.find(&name) {
            return key;
        }
        self.make_room_for_record();
        let label = self.label_of(directory, &name);
        name.instance =
            name::instance_names(name.raw.as_bytes(), &directory.path, label.as_deref())
                .find(|name| !self.agents.has_instance(name))
                .expect("candidates has no end");
        let moment = self.clock.at(now);
        let mut entry = Entry {
            last_seen: moment.stamp,
            last_event: moment.stamp,
            first_seen: moment.seconds,
            ..Entry::default()
        };
        entry.stats.set_bounds(&self.shared.config.bounds);
        let key = self.agents.insert(Agent::new(name, entry, now));
        self.files_changed(key);
        self.create_record(key);
        key
    }

    /// Returns what distinguishes a new agent from others of its name: the label or pod of its directory, its owner,
    /// its local rank, or what it writes. `None`: nothing.
    fn label_of(&self, directory: &Directory, name: &Name) -> Option<String> {
        let label = directory.label.clone();
        if let Some(label) = label.or_else(|| kubelet::pod_uid(&directory.path)) {
            return Some(label);
        }
        let others = Vec::from_iter(self.agents.named(&name.raw).map(|(_, agent)| agent));
        let own_rank = rank(&name.part);
        // The number, since a directory service may take any time to look up the name.
        if others.iter().any(|Agent { name: other, .. }| {
            let is_same = other.directory == directory.path && rank(&other.part) == own_rank;
            is_same && other.owner != name.owner
        }) {
            return Some(format!("uid{}", name.owner));
        }
        // The local rank of a store is untrusted, and may be too long for a record.
        let own_rank = own_rank.map(|rank| name::instance_name(rank.as_bytes()));
        if let Some(rank) = own_rank.filter(|rank| (1..=MAX_RANK).contains(&rank.len())) {
            return Some(rank);
        }
        let is_ring = name.part.is_empty();
        let has_other_kind = others.iter().any(|agent| agent.has_stores() == is_ring);
        has_other_kind.then(|| (if is_ring { "ring" } else { "store" }).into())
    }
}
