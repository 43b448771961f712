// SPDX-License-Identifier: GPL-2.0-or-later

//! Has transfers in flight read, and gives them the names of agents.

use super::Collector;
use super::transports::process_of;
use crate::observer::protocol::{Request, Response};
use crate::procfs::process::ProcessId;
use crate::trace::protocol::TraceReport;
use crate::transport::traced::{OnlyAgent, Traced};
use std::collections::HashMap;
use std::time::Instant;

impl Collector {
    /// Returns the pairs of processes and remote agents.
    #[must_use]
    pub fn traced(&self) -> &Traced {
        &self.traced
    }

    /// True if the configuration has transfers traced.
    #[must_use]
    pub fn traces(&self) -> bool {
        self.shared.config.traces()
    }

    /// Returns true if pairs have changed since the last call.
    #[must_use]
    pub fn take_traced_change(&mut self) -> bool {
        std::mem::take(&mut self.traced.has_changed)
    }

    /// Has transfers in flight read if it is time. Never waits.
    pub(super) fn trace(&mut self, now: Instant) {
        let config = &self.shared.config;
        if !config.traces() || !self.observes() {
            return self.traced.stop();
        }
        let (bounds, at_return) = (config.bounds.as_slice(), config.trace_failed_posts);
        if let Some(request) = self.traced.begin(&self.transports, bounds, at_return, now) {
            self.observer.send(&Request::Trace(request));
        }
    }

    /// Applies what the observer has read of transfers.
    pub(super) fn apply_response(&mut self, response: Response, now: Instant) {
        match response {
            Response::Trace(report) => self.apply_trace(report),
            response => self.transports.apply(response, now),
        }
    }

    /// Applies what the tracer has read.
    fn apply_trace(&mut self, report: TraceReport) {
        if !self.shared.config.traces() {
            return self.traced.stop();
        }
        let mut agents: HashMap<ProcessId, Option<OnlyAgent>> = HashMap::new();
        for agent in self.agents.values() {
            let (Some(process), Some(id)) = (process_of(agent), agent.id) else {
                continue;
            };
            let name = agent.name.instance.clone();
            let only = agents.entry(process);
            only.and_modify(|only| *only = None)
                .or_insert(Some(OnlyAgent { name, id }));
        }
        let agents = agents.into_iter();
        let agents = agents.filter_map(|(process, agent)| Some((process, agent?)));
        let agents = agents.collect();
        let ids = &mut self.clock_ids;
        self.traced.apply(report, &self.transports, &agents, ids);
    }
}
