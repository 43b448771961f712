//! What names an agent's files, and whose they are.

use super::stores::rank;
use super::{AgentKey, Agents};
use crate::agents::agent::Agent;
use crate::find::directory::Directory;
use crate::find::name;
use crate::producer::facts::kubelet;
use crate::state::record::{Entry, Name};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes of a local rank, escaped, that tells agents of one name apart; a hash does where it is longer.
const MAX_RANK: usize = 64;

/// What names an agent's files.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) directory: PathBuf,
    /// The agent's name.
    pub(super) raw: OsString,
    /// As in [`Name`].
    pub(super) part: String,
    /// As there: a stranger's file of the same name is another agent's.
    pub(super) owner: u32,
}

impl Place {
    pub(super) fn of(name: &Name) -> Self {
        Self {
            directory: name.directory.clone(),
            raw: name.raw.clone(),
            part: name.part.clone(),
            owner: name.owner,
        }
    }

    pub(super) fn of_ring(directory: &Path, raw: &OsStr, owner: u32) -> Self {
        Self {
            directory: directory.to_owned(),
            raw: raw.to_owned(),
            part: String::new(),
            owner,
        }
    }
}

impl Agents {
    /// The agent of that place, which is in this directory, made if there is none.
    pub(super) fn agent_at(
        &mut self,
        directory: &Directory,
        place: Place,
        now: Instant,
    ) -> AgentKey {
        if let Some(key) = self.agents.known_at(&place) {
            return key;
        }
        self.make_room_for_record();
        let Place {
            raw, part, owner, ..
        } = place;
        let pod = || kubelet::pod_uid(&directory.path);
        // The local rank, of a store that has one: a stranger's text, which may be too long to be kept.
        let of_rank = || {
            let rank = name::instance_name(rank(&part)?.as_bytes());
            (1..=MAX_RANK).contains(&rank.len()).then_some(rank)
        };
        // Whether there is such an agent of this name, in any directory.
        let has_other = |is_other: &dyn Fn(&Agent) -> bool| {
            let mut same = self.agents.named(&raw);
            same.any(|(_, agent)| is_other(agent))
        };
        // A number: to look up the owner's name may take as long as a directory service likes.
        let of_owner = || {
            let is_other = |agent: &Agent| {
                let name = &agent.name;
                let is_same = name.directory == directory.path && rank(&name.part) == rank(&part);
                is_same && name.owner != owner
            };
            has_other(&is_other).then(|| format!("uid{owner}"))
        };
        let of_kind = || {
            let kind = if part.is_empty() { "ring" } else { "store" };
            has_other(&|agent| agent.has_stores() == part.is_empty()).then(|| kind.into())
        };
        let label = directory.label.clone().or_else(pod);
        let label = label.or_else(of_owner).or_else(of_rank).or_else(of_kind);
        let instance = name::candidates(raw.as_bytes(), &directory.path, label.as_deref())
            .find(|name| !self.agents.has_instance(name))
            .expect("candidates has no end");
        let name = Name {
            raw,
            instance,
            directory: directory.path.clone(),
            part,
            owner,
        };
        let moment = self.clock.at(now);
        let mut entry = Entry {
            last_seen: moment.stamp,
            last_event: moment.stamp,
            first_seen: moment.seconds,
            ..Entry::default()
        };
        entry.account.set_bounds(&self.books.bounds);
        let key = self.insert(Agent::new(name, entry, now));
        self.wake(key);
        self.keep(key);
        key
    }
}
