//! The loop: pmcd's requests, the timer, and signals.

use super::current::{self, with_server};
use super::ffi::{Pmda, Status};
use super::server::Server;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::AsFd;
use std::panic::catch_unwind;
use std::time::Duration;

/// Answers pmcd and drains the rings, until pmcd closes the connection or `signals` brings SIGTERM or SIGINT. After a last
/// drain it returns.
///
/// # Errors
/// The system lacks what the loop is made of.
pub fn serve(mut pmda: Pmda, server: Server, mut signals: SignalFd) -> Result<(), ServeError> {
    let pmcd = pmda.descriptor()?;
    let timer = TimerFd::new(
        ClockId::CLOCK_MONOTONIC,
        TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
    )?;
    let (mut interval, mut patience) = (Duration::ZERO, Patience::default());
    current::set(Some(server));
    loop {
        let wanted = with_server(|server| server.drain_interval()).unwrap_or(interval);
        if wanted != interval {
            interval = wanted;
            timer.set(
                Expiration::Interval(TimeSpec::from_duration(interval)),
                TimerSetTimeFlags::empty(),
            )?;
        }
        let mut fds =
            [pmcd, timer.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let has_work = with_server(|server| server.has_work()).unwrap_or(false);
        let wait = match has_work {
            true => PollTimeout::ZERO,
            false => PollTimeout::NONE,
        };
        if let Err(errno) = poll(&mut fds, wait) {
            patience.lose(errno)?;
            continue;
        }
        let [pmcd_ready, timer_ready, signal_ready] = fds.map(|fd| fd.any().unwrap_or(true));
        if signal_ready && patience.of(ends(&mut signals))?.unwrap_or(false) {
            tracing::info!("asked to end");
            break;
        }
        // A client waits for it.
        if pmcd_ready {
            match pmda.serve_one() {
                Ok(()) => {}
                Err(Status::END) => {
                    tracing::info!("pmcd has closed the connection");
                    break;
                }
                Err(status) => {
                    tracing::error!("the connection to pmcd is broken: {status}");
                    break;
                }
            }
        }
        if timer_ready {
            // Nothing to read is no harm: the timer was set anew meanwhile.
            match timer.wait() {
                Err(Errno::EAGAIN) => {}
                waited => {
                    patience.of(waited)?;
                }
            }
        }
        // A panic is logged by its hook; as within a request, it costs this tick and not what was counted.
        if has_work {
            // A tick that comes meanwhile brings nothing new.
            let _ = catch_unwind(|| with_server(Server::go_on));
        } else if timer_ready {
            let _ = catch_unwind(|| with_server(Server::tick));
        }
    }
    let _ = catch_unwind(|| with_server(Server::finish));
    current::set(None);
    Ok(())
}

/// What the loop is made of may fail now and then, but not for ever: the loop would do nothing else.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
}

impl Patience {
    const END: u32 = 100;

    /// One more failure.
    fn lose(&mut self, errno: Errno) -> Result<(), Errno> {
        self.failures += 1;
        if self.failures < Self::END {
            Ok(())
        } else {
            Err(errno)
        }
    }

    /// What came of a call; `None`: it has failed.
    fn of<T>(&mut self, result: Result<T, Errno>) -> Result<Option<T>, Errno> {
        match result {
            Ok(found) => {
                self.failures = 0;
                Ok(Some(found))
            }
            Err(errno) => self.lose(errno).map(|()| None),
        }
    }
}

/// Whether one of the signals that came in is one to end at. SIGHUP (pmcd's to its agents) and SIGIO (a lease was asked for)
/// are none.
fn ends(signals: &mut SignalFd) -> Result<bool, Errno> {
    let mut ends = false;
    while let Some(info) = signals.read_signal()? {
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        ends |= [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(&number);
    }
    Ok(ends)
}

/// Why the loop could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A system call.
    #[error("the loop cannot run: {0}")]
    System(#[from] Errno),
    /// libpcp_pmda.
    #[error("no connection to pmcd: {0}")]
    Pmda(#[from] Status),
}
