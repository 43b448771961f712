// SPDX-License-Identifier: GPL-2.0-or-later

//! Event records of the timeline for a client, and the comparison of agents for the timeline.

use super::Server;
use crate::metrics::peer_ratio::Comparison;
use crate::pcp::event_records;
use std::time::{Duration, Instant};

/// Period of the comparison of agents with their peers.
const PERIOD: Duration = Duration::from_secs(10);

/// When agents are compared with their peers.
#[derive(Debug)]
pub(super) struct Comparisons {
    /// When the last comparison began.
    began: Instant,
    /// Comparison that is not complete, with the instance id at which it goes on.
    current: Option<(Comparison, u32)>,
}

impl Comparisons {
    /// Returns the begin: the first comparison is due after a period.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            current: None,
        }
    }
}

impl Server {
    /// Returns records of the events that a client has not read, as a value block. They count as read.
    pub(super) fn take_event_records(&mut self, client: i32) -> Vec<u8> {
        let (missed, events) = self.collector.timeline().unread(client);
        let block = event_records::value_block(self.domain, missed, events);
        self.collector.timeline_mut().set_read(client);
        block
    }

    /// Compares the agents with their peers until `until`, if that is due, and notes which are slow. Returns false if
    /// the comparison goes on at the next call.
    pub(super) fn note_slow_agents(&mut self, now: Instant, until: Instant) -> bool {
        let current = match self.comparisons.current.take() {
            None if now.saturating_duration_since(self.comparisons.began) < PERIOD => return true,
            None => {
                self.comparisons.began = now;
                (Comparison::default(), 0)
            }
            Some(current) => current,
        };
        let (mut comparison, first) = current;
        for (id, key) in self.indoms.agents.iter_from(first) {
            if let Some(agent) = self.collector.get(key) {
                comparison.add(id, agent);
            }
            if Instant::now() >= until {
                self.comparisons.current = Some((comparison, id + 1));
                return false;
            }
        }
        let ratios = comparison.ratios().collect();
        self.collector.note_ratios(&ratios);
        true
    }
}
