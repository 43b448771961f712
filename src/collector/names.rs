// SPDX-License-Identifier: GPL-2.0-or-later

//! Names agents: finds the agent of a file, and makes instance names of new agents.

use super::Collector;
use super::stores::rank;
use crate::agents::Agent;
use crate::agents::AgentKey;
use crate::discovery::directory::Directory;
use crate::discovery::name;
use crate::discovery::scan::Found;
use crate::journal::record::{Entry, Name};
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
        let Name {
            raw, part, owner, ..
        } = &name;
        let pod = || kubelet::pod_uid(&directory.path);
        // The local rank of a store is untrusted, and may be too long for a record.
        let of_rank = || {
            let rank = name::instance_name(rank(part)?.as_bytes());
            (1..=MAX_RANK).contains(&rank.len()).then_some(rank)
        };
        let has_other = |is_other: &dyn Fn(&Agent) -> bool| {
            let mut same = self.agents.named(raw);
            same.any(|(_, agent)| is_other(agent))
        };
        // The number, since a directory service may take any time to look up the name.
        let of_owner = || {
            let is_other = |agent: &Agent| {
                let name = &agent.name;
                let is_same = name.directory == directory.path && rank(&name.part) == rank(part);
                is_same && name.owner != *owner
            };
            has_other(&is_other).then(|| format!("uid{owner}"))
        };
        let of_kind = || {
            let kind = if part.is_empty() { "ring" } else { "store" };
            has_other(&|agent| agent.has_stores() == part.is_empty()).then(|| kind.into())
        };
        let label = directory.label.clone().or_else(pod);
        let label = label.or_else(of_owner).or_else(of_rank).or_else(of_kind);
        let instance = name::instance_names(raw.as_bytes(), &directory.path, label.as_deref())
            .find(|name| !self.agents.has_instance(name))
            .expect("candidates has no end");
        name.instance = instance;
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
}
