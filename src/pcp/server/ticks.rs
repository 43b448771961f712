// SPDX-License-Identifier: GPL-2.0-or-later

//! Work of one tick, in pieces of 1 ms: scan, drain, maintain, compare.

use super::Server;
use crate::pcp::work::{FETCH, PIECE, TICK, Work};
use std::time::{Duration, Instant};

impl Server {
    /// Starts a tick: a scan and a drain with more time than [`Server::refresh`] has, then the work that no answer
    /// needs. Runs the first piece. [`Server::continue_tick`] does the rest.
    pub(in crate::pcp) fn tick(&mut self) {
        if !self.is_serving() {
            return self.collect(FETCH);
        }
        self.control.drains += 1;
        self.work = Work::Scan {
            end: Instant::now() + TICK.scan,
        };
        self.continue_tick();
    }

    /// True if the last tick is not done.
    pub(in crate::pcp) fn has_work(&self) -> bool {
        self.work != Work::Nothing
    }

    /// Runs the next piece of the tick, for at most 1 ms.
    pub(in crate::pcp) fn continue_tick(&mut self) {
        let until = Instant::now() + PIECE;
        loop {
            let now = Instant::now();
            let left = until.saturating_duration_since(now);
            // A panic in a piece ends the tick.
            self.work = match std::mem::replace(&mut self.work, Work::Nothing) {
                Work::Scan { end } => match self.scan(left) {
                    false if now < end => Work::Scan { end },
                    _ => {
                        self.control.scans_cut += u64::from(now >= end);
                        Work::Drain { start: now }
                    }
                },
                Work::Drain { start } => match self.drain(Some(start), left) {
                    false if now < start + TICK.drain => Work::Drain { start },
                    in_time => {
                        self.control.drains_cut += u64::from(!in_time);
                        Work::Maintain
                    }
                },
                Work::Maintain => match self.collector.maintain(now, until) {
                    false => Work::Maintain,
                    true => Work::Compare,
                },
                Work::Compare => match self.note_slow_agents(now, until) {
                    false => Work::Compare,
                    true => {
                        self.end_tick(now);
                        Work::Nothing
                    }
                },
                Work::Nothing => Work::Nothing,
            };
            if !self.has_work() || Instant::now() >= until {
                break;
            }
        }
    }

    /// Does what each tick does once, at its end.
    fn end_tick(&mut self, now: Instant) {
        self.check_state_file(now);
        self.collector.timeline_mut().end_minute(now);
        if self.ids.is_due() {
            self.save(false);
        }
    }

    /// Scans the directories for `budget`. Returns true if nothing is left to scan.
    pub(super) fn scan(&mut self, budget: Duration) -> bool {
        let start = Instant::now();
        let all = self.collector.scan(start, budget);
        self.control.scan_time += start.elapsed();
        all
    }

    /// Drains the rings for `budget`. Continues the drain of the tick that began at `began`; `None` begins one. Returns
    /// true if no event was left.
    pub(super) fn drain(&mut self, began: Option<Instant>, budget: Duration) -> bool {
        let start = Instant::now();
        let all = self.collector.drain(began, start, budget);
        self.control.drain_time += start.elapsed();
        self.update_indoms();
        all
    }
}
