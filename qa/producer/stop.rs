// SPDX-License-Identifier: GPL-2.0-or-later

//! Sleep that SIGTERM and SIGINT interrupt.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;

/// Request to stop: signals that stay blocked and make a descriptor readable.
#[derive(Debug)]
pub struct Stop {
    signals: SignalFd,
    requested: bool,
}

impl Stop {
    /// Blocks the signals, so that only this type receives them.
    pub fn new() -> nix::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        signals.thread_block()?;
        Ok(Self {
            signals: SignalFd::new(&signals)?,
            requested: false,
        })
    }

    /// True if a signal has come.
    pub fn requested(&self) -> bool {
        self.requested
    }

    /// Sleeps until a signal comes or the time ends. Returns true if a signal has come.
    pub fn sleep(&mut self, time: Duration) -> bool {
        if !self.requested {
            let mut signals = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let ready = ppoll(&mut signals, Some(TimeSpec::from_duration(time)), None);
            self.requested = ready.is_ok_and(|ready| ready > 0);
        }
        self.requested
    }
}
