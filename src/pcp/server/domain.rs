//! The instance domains, which follow the agents.

use super::Server;
use crate::agents::agent::Agent;
use crate::agents::{AgentKey, Change};
use crate::log;
use crate::metrics::{AGENTS, CUMULATIVE_TIMES};
use crate::pcp::{buckets, serial};
use std::collections::HashSet;

impl Server {
    /// Brings the instance domains after the agents: first who leaves, all at once, since each look through the ranges of all
    /// agents takes long, and then who comes.
    pub(super) fn update_indoms(&mut self) {
        let changes = self.agents.take_changes();
        if !changes.is_empty() {
            self.ids.mark_changed();
        }
        let (mut withdrawn, mut published) = (HashSet::new(), Vec::new());
        for change in changes {
            match change {
                Change::Appeared(key) => published.push(key),
                Change::Left { key, id } => {
                    // It may have come and gone since the last time.
                    published.retain(|&other| other != key);
                    withdrawn.extend(id);
                }
                // The file is to name it no more: its counters begin at zero under another id, and never go back under one.
                Change::Forgotten(_) => {}
            }
        }
        self.indoms.agents.remove(&withdrawn);
        self.indoms.buckets.remove(&withdrawn);
        published.into_iter().for_each(|key| self.publish(key));
    }

    /// An agent is an instance from now on.
    fn publish(&mut self, key: AgentKey) {
        let Some(agent) = self.agents.get(key) else {
            return;
        };
        let _about = log::about(Some(agent.name.owner));
        let name = agent.name.instance.as_str();
        let (known_id, taken) = (agent.id, || self.agents.taken_ids());
        let Some(id) = known_id.or_else(|| self.ids.assign(name, taken)) else {
            return tracing::error!("agent {name} cannot be an instance: no instance id is left");
        };
        if !self.indoms.agents.add(id, name, key) {
            return tracing::error!("agent {name} cannot be an instance: another has its id, {id}");
        }
        // The first base is the agent's id; with other ranges it needs one that no archive knows.
        let base = match (agent.entry.account.bucket_base, known_id) {
            (Some(base), _) => Some(base),
            (None, None) => Some(id),
            (None, Some(_)) => self.ids.allocate(taken),
        };
        // Before anybody is told of it.
        self.agents.set_next_id(self.ids.next());
        self.agents.set_id(key, id, base);
        if let Some(agent) = self.agents.get(key) {
            self.indoms.buckets.add(id, agent);
        }
    }

    /// The agent that is this instance.
    fn agent(&self, inst: u32) -> Option<&Agent> {
        self.agents.get(self.indoms.agents.get(inst)?)
    }

    /// The labels of an instance, as JSON.
    #[must_use]
    pub fn labels(&self, indom: u32, inst: u32) -> Option<String> {
        let serial = serial(indom);
        if serial == AGENTS {
            return Some(self.agent(inst)?.label_text().to_string());
        }
        let id = self.indoms.buckets.agent_id(serial, inst)?;
        let agent = self.agent(id)?;
        let (_, ranges) = self.indoms.buckets.base_and_ranges(serial, id, agent)?;
        let (lower, upper) = ranges.label(buckets::bucket_index(ranges, inst)?);
        let labels = agent.label_text();
        // An object that is not empty. Bounds are numbers, of which JSON takes all characters.
        let labels = labels.strip_suffix('}')?;
        Some(match serial {
            CUMULATIVE_TIMES => format!("{labels},\"le\":\"{upper}\"}}"),
            _ => format!("{labels},\"lower_bound\":\"{lower}\",\"upper_bound\":\"{upper}\"}}"),
        })
    }
}
