// SPDX-License-Identifier: GPL-2.0-or-later

//! A request that is being served.

use crate::observer::protocol::End;
use crate::observer::turns::{Turn, Turns};
use std::time::Instant;

/// The current request of one kind.
#[derive(Debug)]
pub struct Job {
    /// What is still to be read.
    pub turns: Turns,
    /// False once it was served, and before the first one.
    pub is_running: bool,
    /// When it began.
    pub began: Instant,
    /// What it leaves out so far.
    pub end: End,
}

impl Job {
    /// Returns no request. With a limit, requests may take a part of the time only.
    pub fn new(is_limited: bool) -> Self {
        Self {
            turns: Turns::new(is_limited),
            is_running: false,
            began: Instant::now(),
            end: End::default(),
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, turns: Vec<Turn>, now: Instant) {
        self.turns.begin(turns, now);
        (self.is_running, self.began, self.end) = (true, now, End::default());
    }
}
