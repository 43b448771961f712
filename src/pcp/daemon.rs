// SPDX-License-Identifier: GPL-2.0-or-later

//! Event loop: requests of pmcd, the drain timer, and signals. It does not know what a tick does; see
//! `server/ticks.rs`.

use super::current::{self, with_server};
use super::ffi::{Pmda, Status};
use super::server::Server;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::catch_unwind;
use std::time::Duration;

/// Failed waits in a row after which the loop ends.
const MAX_FAILURES: u32 = 100;

/// Answers pmcd and drains the rings until pmcd closes the connection, or SIGTERM or SIGINT arrives. Drains once more,
/// then returns.
///
/// # Errors
/// If the timer or the connection is not available, or waiting fails repeatedly.
pub fn serve(mut pmda: Pmda, server: Server, mut signals: SignalFd) -> Result<(), EventLoopError> {
    let pmcd = pmda.descriptor()?;
    let timer = TimerFd::new(
        ClockId::CLOCK_MONOTONIC,
        TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
    )?;
    let (mut interval, mut failures) = (Duration::ZERO, 0);
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
        let has_work = with_server(|server| server.has_work()).unwrap_or(false);
        let ready = match wait(pmcd, &timer, &mut signals, has_work) {
            Ok(ready) => ready,
            // poll(2) can fail for a moment, such as with EINTR. If it always fails, the loop would only spin.
            Err(errno) if failures == MAX_FAILURES => return Err(errno.into()),
            Err(_) => {
                failures += 1;
                continue;
            }
        };
        failures = 0;
        if ready.has_end_signal {
            tracing::info!("SIGTERM or SIGINT received; ending after a last drain");
            break;
        }
        // Before the work of the tick, because a client waits for the answer.
        if ready.has_request {
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
        // The panic hook logs a panic. It ends this tick, and nothing that was counted is lost.
        if has_work {
            // The last tick is not done, so a new one is ignored.
            let _ = catch_unwind(|| with_server(Server::continue_tick));
        } else if ready.has_tick {
            let _ = catch_unwind(|| with_server(Server::tick));
        }
    }
    let _ = catch_unwind(|| with_server(Server::finish));
    current::set(None);
    Ok(())
}

/// What [`wait`] found.
struct Ready {
    has_request: bool,
    has_tick: bool,
    /// True if SIGTERM or SIGINT arrived.
    has_end_signal: bool,
}

/// Waits for pmcd, the timer or a signal. Returns at once if `has_work`.
fn wait(
    pmcd: BorrowedFd,
    timer: &TimerFd,
    signals: &mut SignalFd,
    has_work: bool,
) -> Result<Ready, Errno> {
    let fds = [pmcd, timer.as_fd(), signals.as_fd()];
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    let timeout = match has_work {
        true => PollTimeout::ZERO,
        false => PollTimeout::NONE,
    };
    poll(&mut fds, timeout)?;
    let [has_request, is_timer_ready, is_signal_ready] = fds.map(|fd| fd.any().unwrap_or(true));
    let has_tick = is_timer_ready
        && match timer.wait() {
            // The timer was set again after poll(2).
            Err(Errno::EAGAIN) => true,
            waited => waited.map(|()| true)?,
        };
    // Last, because an error above would lose a signal that was already read.
    let has_end_signal = is_signal_ready && read_end_signal(signals)?;
    Ok(Ready {
        has_request,
        has_tick,
        has_end_signal,
    })
}

/// Reads all pending signals. Returns true if one is SIGTERM or SIGINT. SIGHUP (for example of a terminal) and SIGIO
/// (a lease is broken) only wake the loop.
fn read_end_signal(signals: &mut SignalFd) -> Result<bool, Errno> {
    let mut has_end_signal = false;
    while let Some(info) = signals.read_signal()? {
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        has_end_signal |= [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(&number);
    }
    Ok(has_end_signal)
}

/// Reason why the event loop ended or could not start.
#[derive(Debug, thiserror::Error)]
pub enum EventLoopError {
    /// A system call failed.
    #[error("the event loop cannot run: {0}")]
    System(#[from] Errno),
    /// libpcp_pmda reported an error.
    #[error("no connection to pmcd: {0}")]
    Pmda(#[from] Status),
}
