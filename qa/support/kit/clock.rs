//! The test clock, and the work of the daemon in a tick, for an answer and between them.

use super::{Core, LONG, SECOND};
use std::time::{Duration, Instant};

impl Core {
    /// The time of the test clock.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Moves the test clock on; the daemon does nothing.
    pub fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// Runs for so many seconds, with a tick in each.
    pub fn run(&mut self, seconds: u32) {
        self.tick(seconds, SECOND, LONG);
    }

    /// Runs for so many seconds, with fifty ticks in each that scan one or two files each.
    pub fn run_in_pieces(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.advance(SECOND);
            for _ in 0..50 {
                self.scan_within(Duration::ZERO);
                self.drain();
            }
        }
    }

    /// Ticks so often at an interval. The budget is that of the scan, and that of the drain.
    pub fn tick(&mut self, ticks: u32, interval: Duration, budget: Duration) {
        for _ in 0..ticks {
            self.advance(interval);
            self.scan_within(budget);
            self.drain_since(self.now, budget);
        }
    }

    /// Looks for files.
    pub fn scan(&mut self) {
        self.scan_within(LONG);
    }

    /// Looks for files for as long as the budget says.
    pub fn scan_within(&mut self, budget: Duration) {
        self.ahead = self.now.saturating_duration_since(Instant::now());
        let now = self.now;
        self.running_mut().agents.scan(now, budget);
    }

    /// Drains as for an answer, once.
    pub fn drain(&mut self) {
        self.drain_only();
        self.publish();
    }

    /// Drains as [`Core::drain`] does, and leaves the instances as they are until the next operation.
    pub fn drain_only(&mut self) {
        let now = self.now;
        self.running_mut().agents.drain(now, LONG);
    }

    /// Goes on with the drain of a tick that began then; true if nothing was left for the next tick.
    pub fn drain_since(&mut self, began: Instant, budget: Duration) -> bool {
        let now = self.now;
        let agents = &mut self.running_mut().agents;
        let is_all = agents.drain_on(began, now, budget);
        self.publish();
        is_all
    }

    /// Drains before an answer; the test clock stands still.
    pub fn answer(&mut self) {
        self.drain();
    }

    /// True if the last drain found rings that the next scan has to attach again.
    pub fn wants_scan(&self) -> bool {
        self.agents().wants_rescan()
    }

    /// Asks /proc about processes, and removes the rings of agents that have exited, where it is time.
    pub fn tidy(&mut self) {
        let now = self.now;
        let agents = &mut self.running_mut().agents;
        agents.maintain(now, Instant::now() + LONG);
    }

    /// Waits for what /proc shows of new agents, as before an answer.
    pub fn reveal(&mut self) {
        self.running_mut().agents.publish_waiting(LONG);
        self.publish();
    }
}
