// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains of processes that use NIXL and of the peers of agents.

use super::Server;
use crate::agents::{Agent, AgentKey};
use crate::procfs::process::ProcessId;
use crate::transport::TransportProcess;
use crate::transport::peers::Peer;
use serde_json::{Value, json};

/// Agent and instance id of a peer.
pub type PeerKey = (AgentKey, u32);

impl Server {
    /// Updates the instance domains of processes and of peers.
    pub(super) fn update_transport_indoms(&mut self) {
        let processes = self.collector.transports().iter();
        let processes = processes.map(|process| {
            (
                process.instance,
                process.instance_name(),
                process.found.info.id,
            )
        });
        self.indoms.processes.replace(&Vec::from_iter(processes));
        let mut peers = Vec::new();
        for (_, key) in self.indoms.agents.iter() {
            let Some(agent) = self.collector.get(key) else {
                continue;
            };
            for peer in agent.transport.peers.iter() {
                let name = format!("{}::{}", agent.name.instance, peer.address);
                if let Some(instance) = peer.instance {
                    peers.push((instance, name, (key, instance)));
                }
            }
        }
        self.indoms.peers.replace(&peers);
    }

    /// Returns a process that uses NIXL.
    pub(super) fn process(&self, id: ProcessId) -> Option<&TransportProcess> {
        self.collector.transports().get(id)
    }

    /// Returns a peer and its agent.
    pub(super) fn peer(&self, (key, instance): PeerKey) -> Option<(&Agent, &Peer)> {
        let agent = self.collector.get(key)?;
        Some((agent, agent.transport.peers.get(instance)?))
    }

    /// Returns the labels of a process as a JSON object.
    pub(super) fn process_labels(&self, inst: u32) -> Option<String> {
        let process = self.process(self.indoms.processes.get(inst)?)?;
        let found = &process.found.info;
        let user = self.collector.user_name(found.uid);
        let labels =
            json!({"pid": found.id.pid, "command": found.command, "uid": found.uid, "user": user});
        Some(labels.to_string())
    }

    /// Returns the labels of a peer as a JSON object: those of its agent, and the address.
    pub(super) fn peer_labels(&self, inst: u32) -> Option<String> {
        let (agent, peer) = self.peer(self.indoms.peers.get(inst)?)?;
        let mut labels: Value = serde_json::from_str(&agent.label_text()).ok()?;
        labels["peer"] = peer.address.to_string().into();
        Some(labels.to_string())
    }
}
