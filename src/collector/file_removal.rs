//! The rings of agents that have exited: which files are removed.

use super::Collector;
use crate::log;
use std::time::{Duration, Instant};

/// Whether there is something to remove is looked for this often.
const PAUSE: Duration = Duration::from_secs(1);

impl Collector {
    /// Finds out from /proc who writes to the rings whose writer is not known, and removes those of agents that have exited
    /// long enough ago, until `end`.
    pub fn tidy(&mut self, now: Instant, end: Instant) {
        self.scan_processes(now, Duration::ZERO);
        if now >= self.next_removal && Instant::now() < end {
            self.remove_exited(now, end);
        }
        self.give_back(now);
    }

    fn remove_exited(&mut self, now: Instant, end: Instant) {
        let Some(after) = self.books.config.remove_exited_after else {
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
            let _about = log::about(Some(agent.name.owner));
            agent.remove_exited(directory, moment, after, &mut self.books);
            if Instant::now() >= end {
                // The rest has its turn in the next tick.
                return;
            }
        }
        self.next_removal = now + PAUSE;
    }
}
