// SPDX-License-Identifier: GPL-2.0-or-later

//! Publishes agents in the instance domains and withdraws them. Returns the labels of instances.

use super::Server;
use crate::agents::Agent;
use crate::agents::{AgentKey, Change};
use crate::log;
use crate::metrics::{
    AGENTS, CUMULATIVE_TIMES, PEERS, PROCESSES, ROLE_TIMES, TRACED, TRACED_TIMES,
};
use crate::pcp::{buckets, role_times, serial};
use std::collections::HashSet;

impl Server {
    /// Updates the instance domains with the changes of the agents. Agents are withdrawn first, all at once,
    /// because a walk through the buckets of all agents takes long.
    pub(super) fn update_indoms(&mut self) {
        let changes = self.collector.take_changes();
        let (has_changes, are_transports_new) =
            (!changes.is_empty(), self.collector.take_transport_change());
        if has_changes {
            self.ids.mark_changed();
        }
        let (mut withdrawn, mut gone, mut published) = (HashSet::new(), HashSet::new(), Vec::new());
        for change in changes.into_iter().rev() {
            match change {
                // The agent may have been published and withdrawn since the last update.
                Change::Published(key) if gone.contains(&key) => {}
                Change::Published(key) => published.push(key),
                Change::Withdrawn { key, id } => {
                    gone.insert(key);
                    withdrawn.extend(id);
                }
                // The id file no longer has its name. A new agent of this name gets another id, so that no counter of
                // an id decreases.
                Change::Expired(_) => {}
            }
        }
        self.indoms.agents.remove(&withdrawn);
        self.indoms.buckets.remove(&withdrawn);
        { published.into_iter().rev() }.for_each(|key| self.publish(key));
        if has_changes || are_transports_new {
            self.update_transport_indoms();
        }
        if self.collector.take_traced_change() {
            self.update_traced_indoms();
        }
    }

    /// Makes the instances of the sums by role, which all roles have. The bounds may be others.
    pub(super) fn update_role_times(&mut self) {
        let instances = role_times::instances(self.collector.time_bounds());
        self.indoms.role_times.replace(&instances);
    }

    /// Publishes an agent: assigns an instance id and adds its instances.
    fn publish(&mut self, key: AgentKey) {
        let Some(agent) = self.collector.get(key) else {
            return;
        };
        let _span = log::span(Some(agent.name.owner));
        let name = agent.name.instance.as_str();
        let (known_id, taken) = (agent.id, || self.collector.taken_ids());
        let Some(id) = known_id.or_else(|| self.ids.assign(name, taken)) else {
            return tracing::error!(
                "agent {name}: not published: no instance id is left; run ./Remove in $PCP_PMDAS_DIR/nixl, delete $PCP_VAR_DIR/config/pmda/39.0, run ./Install"
            );
        };
        if !self.indoms.agents.add(id, name, key) {
            return tracing::error!(
                "agent {name}: not published: PCP accepts no second instance with id {id}; please report it"
            );
        }
        // The first base is the instance id. Other bounds need a base that no archive has.
        let base = match (agent.entry.stats.bucket_base, known_id) {
            (Some(base), _) => Some(base),
            (None, None) => Some(id),
            (None, Some(_)) => self.ids.allocate(taken),
        };
        // The next id is saved before the new one is visible to pmcd.
        self.collector.set_next_id(self.ids.next());
        self.collector.set_id(key, id, base);
        if let Some(agent) = self.collector.get(key) {
            let (name, times) = (&agent.name.instance, buckets::time_bounds(agent));
            self.indoms.buckets.add(id, name, times);
        }
    }

    /// Returns the published agent with this instance id.
    fn agent(&self, inst: u32) -> Option<&Agent> {
        self.collector.get(self.indoms.agents.get(inst)?)
    }

    /// Returns the labels of an instance as a JSON object. `None`: there is no such instance.
    #[must_use]
    pub fn labels(&self, indom: u32, inst: u32) -> Option<String> {
        let serial = serial(indom);
        match serial {
            AGENTS => return Some(self.agent(inst)?.label_text().to_string()),
            PROCESSES => return self.process_labels(inst),
            PEERS => return self.peer_labels(inst),
            TRACED => return Some(self.traced_labels(inst, None)?.to_string()),
            TRACED_TIMES => {
                let (inst, bucket) = self.indoms.traced_times.get(inst)?;
                return Some(self.traced_labels(inst, Some(bucket))?.to_string());
            }
            ROLE_TIMES => {
                let bucket = self.indoms.role_times.get(inst)?;
                return Some(role_times::labels(bucket, self.collector.time_bounds()));
            }
            _ => {}
        }
        let id = self.indoms.buckets.agent_id(serial, inst)?;
        let agent = self.agent(id)?;
        let (_, bounds) = self.indoms.buckets.base_and_bounds(serial, id, agent)?;
        let (lower, upper) = bounds.label(buckets::bucket_index(bounds, inst)?);
        let labels = agent.label_text();
        // The labels are a JSON object that is not empty. Bounds need no escapes. They are text, because +Inf is not a
        // number in JSON.
        let labels = labels.strip_suffix('}')?;
        Some(match serial {
            CUMULATIVE_TIMES => format!("{labels},\"le\":\"{upper}\"}}"),
            _ => format!("{labels},\"lower_bound\":\"{lower}\",\"upper_bound\":\"{upper}\"}}"),
        })
    }
}
