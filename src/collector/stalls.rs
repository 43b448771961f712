// SPDX-License-Identifier: GPL-2.0-or-later

//! Finds agents whose transfers have stalled: has the queues of silent agents read, and of the processes that may be
//! their peers.

use super::Collector;
use super::transports::process_of;
use crate::agents::Agent;
use crate::event::EventType;
use crate::observer::protocol::{QueueReading, QueueRequest, Request};
use crate::procfs::process::ProcessId;
use crate::transport::TransportProcess;
use crate::transport::stall::{Stall, shortest_period};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time between two looks at all agents. None makes a system call.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// When agents are checked, and queues are read.
#[derive(Debug, Default)]
pub(super) struct Stalls {
    /// When all agents were checked last.
    checked: Option<Instant>,
    /// When queues were read last.
    read: Option<Instant>,
    /// True while queues are read.
    is_reading: bool,
    /// True if an agent may have a state.
    has_states: bool,
}

impl Collector {
    /// Checks which agents are silent, once a second, and has their queues read if that is due. Never waits.
    pub(super) fn check_stalls(&mut self, now: Instant) {
        let is_over = |last: Option<Instant>, period| last.is_none_or(|last| now >= last + period);
        if !is_over(self.stalls.checked, CHECK_PERIOD) {
            return;
        }
        self.stalls.checked = Some(now);
        let limit = self.shared.config.stalled_after;
        let has_processes = self.transports.iter().next().is_some();
        let is_on = self.observes() && !limit.is_zero() && has_processes;
        // Without processes, there is nothing to check in most ticks.
        if !is_on && !std::mem::take(&mut self.stalls.has_states) {
            return;
        }
        self.stalls.has_states = is_on;
        let mut is_due = false;
        for agent in self.agents.values_mut() {
            let process = process_of(agent).filter(|_| is_on && is_counted(agent));
            // Without a reading of the last minute, the process cannot be read.
            let process = process.filter(|process| {
                let process = self.transports.get(*process);
                process.is_some_and(|process| process.reading().is_some())
            });
            let completed = completed(agent);
            let stall = &mut agent.transport.stall;
            match process {
                Some(process) => stall.update(process, completed, limit, now),
                None => *stall = Stall::default(),
            }
            is_due |= stall.is_due(limit, now);
            agent.note_stall(now, &mut self.shared.timeline);
        }
        if is_due && !self.stalls.is_reading && is_over(self.stalls.read, shortest_period(limit)) {
            self.request_queues(limit, now);
        }
    }

    /// Requests the queues of all processes, since each may be a peer of a silent one.
    fn request_queues(&mut self, limit: Duration, now: Instant) {
        let agents = self.agents.values();
        let silent = agents.filter_map(|agent| agent.transport.stall.silent_process(limit, now));
        let silent: HashSet<ProcessId> = silent.collect();
        let request = |process: &TransportProcess| QueueRequest {
            id: process.found.info.id,
            uid: process.found.info.uid,
            is_silent: silent.contains(&process.found.info.id),
        };
        let requests = self.transports.iter().map(request).collect();
        self.observer.send(&Request::Queues(requests));
        (self.stalls.read, self.stalls.is_reading) = (Some(now), true);
    }

    /// Gives the agents of a process what its queues say.
    pub(super) fn add_queues(&mut self, reading: &QueueReading, now: Instant) {
        let limit = self.shared.config.stalled_after;
        let peer = reading
            .sign
            .and_then(|sign| self.transports.get(sign.process?));
        let name = peer.map(TransportProcess::instance_name);
        for agent in self.agents.values_mut() {
            let stall = &mut agent.transport.stall;
            stall.add(reading, name.clone(), limit, now);
        }
    }

    /// Ends a reading of queues.
    pub(super) fn end_queues(&mut self) {
        self.stalls.is_reading = false;
    }
}

/// True if completed transfers of an agent are counted, and its process runs.
fn is_counted(agent: &Agent) -> bool {
    agent.is_drained() && !agent.has_exited()
}

/// Returns a sum that each completed transfer of an agent raises, also if NIXL is configured to leave out some types of
/// events (`NIXL_TELEMETRY_ENABLED_METRICS`).
fn completed(agent: &Agent) -> u64 {
    let types = [
        EventType::TxBytes,
        EventType::RxBytes,
        EventType::TxRequests,
        EventType::RxRequests,
        EventType::XferTime,
    ];
    let totals = types.into_iter().map(|event| agent.total(event));
    totals.fold(0, u64::wrapping_add)
}
