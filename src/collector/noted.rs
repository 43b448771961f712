// SPDX-License-Identifier: GPL-2.0-or-later

//! Records in the timeline what is not found by the drain of one agent.

use super::Collector;
use crate::timeline::{Kind, Subject, Timeline};
use std::collections::HashMap;

/// Fewest transfers of the last minute of an agent that is compared, as in the rule `straggler`.
const MIN_TRANSFERS: u64 = 10;

impl Collector {
    /// Returns what happened.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.shared.timeline
    }

    /// Returns what happened, to record more or to note who has read it.
    pub fn timeline_mut(&mut self) -> &mut Timeline {
        &mut self.shared.timeline
    }

    /// Notes how many times as long as those of its peers the transfers of each agent took, by instance id.
    pub fn note_ratios(&mut self, ratios: &HashMap<u32, f64>) {
        for agent in self.agents.values_mut() {
            let ratio = agent.id.and_then(|id| ratios.get(&id)).copied();
            let is_compared = agent.windows.xfer_time.count() >= MIN_TRANSFERS;
            agent.note_ratio(ratio.filter(|_| is_compared), &mut self.shared.timeline);
        }
    }

    /// Records that the observer has ended or does not answer, and that it answers again.
    pub(super) fn note_observer(&mut self) {
        let is_lost = self.shared.config.proc_facts && !self.observer_answers();
        if is_lost == self.is_observer_lost {
            return;
        }
        self.is_observer_lost = is_lost;
        let (kind, text) = match is_lost {
            true => (
                Kind::ObserverLost,
                "observer lost: processes are not scanned, see the log; their labels may be old",
            ),
            false => (
                Kind::ObserverBack,
                "observer back: processes are scanned again, or proc_facts is off",
            ),
        };
        self.shared
            .timeline
            .record(kind, Subject::default(), 0, text);
    }

    /// Records the files of unsupported versions that were found.
    pub(super) fn note_unsupported(&mut self) {
        let files = self.scanner.unsupported() as u64;
        for (owner, text) in self.scanner.take_new_unsupported() {
            let subject = Subject {
                owner: Some(owner),
                ..Subject::default()
            };
            self.shared
                .timeline
                .record(Kind::Unsupported, subject, files, text);
        }
    }
}

#[cfg(test)]
mod tests;
