//! What names an agent's files, and whose they are.

use super::stores::rank;
use super::{AgentKey, Agents};
use crate::agents::agent::Agent;
use crate::discovery::directory::Directory;
use crate::discovery::name;
use crate::discovery::scan::Found;
use crate::journal::record::{Entry, Name};
use crate::procfs::facts::kubelet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

/// Bytes of a local rank, escaped, that tells agents of one name apart; a hash does where it is longer.
const MAX_RANK: usize = 64;

/// Names the agent that has a file, without its instance.
pub(super) fn name_of(found: &Found, raw: &OsStr, part: String) -> Name {
    Name {
        raw: raw.to_owned(),
        instance: String::new(),
        directory: found.directory.path.clone(),
        part,
        owner: found.facts.uid,
    }
}

impl Agents {
    /// The agent of the rings of this name, in the directory and of the owner of a file that was found.
    pub(super) fn ring_agent(&self, found: &Found, raw: &OsStr) -> Option<(AgentKey, &Agent)> {
        self.agents.find(&name_of(found, raw, String::new()))
    }

    /// The agent of this name, but for its instance, made if there is none; its files are in this directory.
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
        // The local rank, of a store that has one: a stranger's text, which may be too long to be kept.
        let of_rank = || {
            let rank = name::instance_name(rank(part)?.as_bytes());
            (1..=MAX_RANK).contains(&rank.len()).then_some(rank)
        };
        // Whether there is such an agent of this name, in any directory.
        let has_other = |is_other: &dyn Fn(&Agent) -> bool| {
            let mut same = self.agents.named(raw);
            same.any(|(_, agent)| is_other(agent))
        };
        // A number: to look up the owner's name may take as long as a directory service likes.
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
        entry.stats.set_bounds(&self.books.config.bounds);
        let key = self.agents.insert(Agent::new(name, entry, now));
        self.wake(key);
        self.keep(key);
        key
    }
}
