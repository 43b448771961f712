// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads what processes transfer by TCP, and gives agents their part of it.

use super::Collector;
use crate::agents::Agent;
use crate::event::EventType;
use crate::observer::protocol::Request;
use crate::procfs::process::ProcessId;
use crate::transport::share::Bytes;
use crate::transport::{AgentTransport, Transports};
use std::collections::HashMap;
use std::time::Instant;

impl Collector {
    /// Returns the processes that use NIXL.
    #[must_use]
    pub fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Begins a socket scan if one is due, and gives agents what the observer has read since the last call. Never waits.
    pub(super) fn read_transports(&mut self, now: Instant) {
        if self.observes() {
            if let Some(processes) = self.transports.begin_scan(now) {
                self.observer.send(&Request::Sockets(processes));
            }
        }
        let outdated = self.transports.drop_old(now);
        if outdated.is_none() && self.read_processes.is_empty() {
            return;
        }
        let mut read = std::mem::take(&mut self.read_processes);
        read.extend(outdated.into_iter().flatten());
        let agents = self.count_agents();
        for agent in self.agents.values_mut() {
            let process = process_of(agent).filter(|process| agents[process] == 1);
            let process = process.and_then(|process| self.transports.get(process));
            if process.is_none_or(|process| read.contains(&process.found.id)) {
                let nixl = Bytes {
                    sent: agent.total(EventType::TxBytes),
                    received: agent.total(EventType::RxBytes),
                };
                let ids = &mut self.clock_ids;
                agent.transport.update(process, nixl, ids, now);
            }
        }
        self.have_transports_changed = true;
    }

    /// Notes how many agents each process runs, and returns these numbers.
    pub(super) fn count_agents(&mut self) -> HashMap<ProcessId, u32> {
        let mut agents: HashMap<ProcessId, u32> = HashMap::new();
        for process in self.agents.values().filter_map(process_of) {
            *agents.entry(process).or_default() += 1;
        }
        self.transports.set_agents(&agents);
        agents
    }

    /// Removes all that is known of processes, if another configuration has switched that off.
    pub(super) fn configure_transports(&mut self) {
        let config = &self.shared.config;
        if config.transport && config.proc_facts {
            return;
        }
        self.transports.clear();
        for agent in self.agents.values_mut() {
            agent.transport = AgentTransport::default();
        }
        self.have_transports_changed = true;
    }
}

/// Returns the process that writes the files of an agent. `None`: it is not known, or there are several.
pub(super) fn process_of(agent: &Agent) -> Option<ProcessId> {
    let mut writers = agent
        .sources
        .iter()
        .map(|source| source.file.liveness.writer());
    let first = writers.next()??;
    let is_only = !agent.is_shared() && writers.all(|writer| writer == Some(first));
    is_only.then_some(first)
}
