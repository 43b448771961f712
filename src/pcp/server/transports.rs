// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance domains of processes that use NIXL and of the peers of agents.

use super::Server;
use crate::agents::{Agent, AgentKey};
use crate::procfs::process::ProcessId;
use crate::stats::bucket_bounds::BucketBounds;
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

    /// Updates the instance domains of traced pairs and their times.
    pub(super) fn update_traced_indoms(&mut self) {
        let bounds = BucketBounds::of(self.collector.time_bounds());
        let (mut pairs, mut times) = (Vec::new(), Vec::new());
        for (id, pair) in self.collector.traced().iter() {
            pairs.push((id, pair.name.clone(), id));
            // With other bounds they are those of the last reading for a moment.
            let count = pair.reading.buckets.len().min(bounds.bucket_count());
            for (instance, bucket) in (pair.first_bucket..).zip(0..count) {
                let name = format!("{}::{}", pair.name, bounds.le_suffix(bucket));
                times.push((instance, name, (id, bucket)));
            }
        }
        self.indoms.traced.replace(&pairs);
        self.indoms.traced_times.replace(&times);
    }

    /// Returns the labels of a traced pair: those of its agent or process, the remote agent and, of a bucket, its upper
    /// bound.
    pub(super) fn traced_labels(&self, inst: u32, bucket: Option<usize>) -> Option<Value> {
        let pair = self.collector.traced().get(inst)?;
        let agent = { pair.agent }.and_then(|id| self.collector.get(self.indoms.agents.get(id)?));
        let labels = match agent {
            Some(agent) => agent.label_text().to_string(),
            None => self.labels_of_process(pair.reading.process)?,
        };
        let mut labels: Value = serde_json::from_str(&labels).ok()?;
        labels["remote"] = pair.reading.remote.clone().into();
        if let Some(bucket) = bucket {
            let bounds = BucketBounds::of(self.collector.time_bounds());
            labels["le"] = bounds.label(bucket).1.into();
        }
        Some(labels)
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
        self.labels_of_process(self.indoms.processes.get(inst)?)
    }

    fn labels_of_process(&self, id: ProcessId) -> Option<String> {
        let process = self.process(id)?;
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
