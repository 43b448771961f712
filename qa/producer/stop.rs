//! Sleep that SIGTERM and SIGINT interrupt.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;

/// The request to stop: signals that stay blocked and make a descriptor readable.
#[derive(Debug)]
pub struct Stop {
    signals: SignalFd,
    requested: bool,
}

impl Stop {
    /// Blocks the signals; from here on only this type sees them.
    pub fn new() -> nix::Result<Self> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        signals.thread_block()?;
        Ok(Self {
            signals: SignalFd::new(&signals)?,
            requested: false,
        })
    }

    /// True once a signal came.
    pub fn requested(&self) -> bool {
        self.requested
    }

    /// Sleeps, or not at all once a signal came; true if one did.
    pub fn sleep(&mut self, time: Duration) -> bool {
        if !self.requested {
            let mut signals = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let ready = ppoll(&mut signals, Some(TimeSpec::from_duration(time)), None);
            self.requested = ready.is_ok_and(|ready| ready > 0);
        }
        self.requested
    }
}
