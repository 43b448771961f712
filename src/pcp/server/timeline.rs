// SPDX-License-Identifier: GPL-2.0-or-later

//! Event records of the timeline for a client, and the comparison of agents for the timeline.

use super::Server;
use crate::metrics::peer_ratio;
use crate::pcp::event_records;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Period of the comparison of agents with their peers.
const PERIOD: Duration = Duration::from_secs(10);

impl Server {
    /// Returns records of the events that a client has not read, as a value block. They count as read.
    pub(super) fn take_event_records(&mut self, client: i32) -> Vec<u8> {
        let (missed, events) = self.collector.timeline().unread(client);
        let block = event_records::value_block(self.domain, missed, events);
        self.collector.timeline_mut().set_read(client);
        block
    }

    /// Compares the agents with their peers, if that is due, and notes which are slow. Ends a minute of the timeline.
    pub(super) fn note_slow_agents(&mut self, now: Instant) {
        self.collector.timeline_mut().end_minute(now);
        if now.saturating_duration_since(self.compared) < PERIOD {
            return;
        }
        self.compared = now;
        let agents = self.indoms.agents.iter();
        let agents = agents.filter_map(|(id, key)| Some((id, self.collector.get(key)?)));
        let ratios = HashMap::from_iter(peer_ratio::of_agents(agents));
        self.collector.note_ratios(&ratios);
    }
}
