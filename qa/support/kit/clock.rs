// SPDX-License-Identifier: GPL-2.0-or-later

//! The test clock, and the work of the daemon in a tick and for an answer.

use super::{Core, LONG, SECOND};
use std::time::{Duration, Instant};

impl Core {
    /// The time of the test clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Advances the test clock. The daemon does nothing.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// Runs one tick in each of so many seconds.
    pub fn run(&mut self, seconds: u32) {
        self.tick(seconds, SECOND, LONG);
    }

    /// Runs 50 ticks in each of so many seconds. Each tick scans one or two files.
    pub fn run_in_pieces(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.advance(SECOND);
            for _ in 0..50 {
                self.scan_within(Duration::ZERO);
                self.drain();
            }
        }
    }

    /// Runs so many ticks at an interval. The scan and the drain of a tick have this budget each.
    pub fn tick(&mut self, ticks: u32, interval: Duration, budget: Duration) {
        for _ in 0..ticks {
            self.advance(interval);
            self.scan_within(budget);
            self.drain_since(self.now, budget);
        }
    }

    /// Scans all directories.
    pub fn scan(&mut self) {
        self.scan_within(LONG);
    }

    /// Scans directories within a time budget.
    pub fn scan_within(&mut self, budget: Duration) {
        let now = self.now;
        self.running_mut().agents.scan(now, budget);
    }

    /// Drains once, as for an answer.
    pub fn drain(&mut self) {
        self.drain_only();
        self.publish();
    }

    /// Drains as [`Core::drain`] does, but does not update the instances.
    pub fn drain_only(&mut self) {
        let now = self.now;
        self.running_mut().agents.drain(None, now, LONG);
    }

    /// Continues the drain of a tick with this start time. Returns true if nothing is left for the next tick.
    pub fn drain_since(&mut self, began: Instant, budget: Duration) -> bool {
        let now = self.now;
        let agents = &mut self.running_mut().agents;
        let is_all = agents.drain(Some(began), now, budget);
        self.publish();
        is_all
    }

    /// Drains before an answer, without a change of the test clock.
    pub fn answer(&mut self) {
        self.drain();
    }

    /// True if the last drain found rings that the next scan has to attach again.
    pub fn wants_scan(&self) -> bool {
        self.agents().wants_rescan()
    }

    /// Scans processes, and removes rings of exited agents, if either is due.
    pub fn tidy(&mut self) {
        let now = self.now;
        let agents = &mut self.running_mut().agents;
        agents.maintain(now, Instant::now() + LONG);
    }
}
