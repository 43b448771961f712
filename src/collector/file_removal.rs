// SPDX-License-Identifier: GPL-2.0-or-later

//! Removes the ring files of exited agents, if `remove_exited_after` is set.

use super::Collector;
use crate::log;
use std::time::{Duration, Instant};

/// Pause between two searches for files to remove.
const PAUSE: Duration = Duration::from_secs(1);

impl Collector {
    /// Removes ring files that no process has had open for `remove_exited_after`, until `end`.
    pub(super) fn remove_exited_files(&mut self, now: Instant, end: Instant) {
        let is_early = self.next_removal.is_some_and(|next| now < next);
        if is_early || Instant::now() >= end {
            return;
        }
        let Some(after) = self.shared.config.remove_exited_after else {
            return;
        };
        let (scanner, moment) = (&self.scanner, self.clock.at(now));
        for agent in self.agents.values_mut() {
            let due = |ago: Duration| ago >= after;
            let mut sources = agent.sources.iter();
            if !sources.any(|source| source.abandoned_for(now).is_some_and(due)) {
                continue;
            }
            let Some(directory) = scanner.directory(&agent.name.directory) else {
                continue;
            };
            let _span = log::span(Some(agent.name.owner));
            agent.remove_exited_files(directory, moment, after, &mut self.shared);
            if Instant::now() >= end {
                return;
            }
        }
        self.next_removal = Some(now + PAUSE);
    }
}
