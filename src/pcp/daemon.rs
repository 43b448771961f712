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
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::catch_unwind;
use std::time::Duration;

/// So many waits may fail one after the other.
const MAX_FAILURES: u32 = 100;

/// Answers pmcd and drains the rings, until pmcd closes the connection or `signals` brings SIGTERM or SIGINT. After a last
/// drain it returns.
///
/// # Errors
/// The system lacks what the loop is made of.
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
            // These may fail now and then, but not for ever: the loop would do nothing else.
            Err(errno) if failures == MAX_FAILURES => return Err(errno.into()),
            Err(_) => {
                failures += 1;
                continue;
            }
        };
        failures = 0;
        if ready.has_end_signal {
            tracing::info!("asked to end");
            break;
        }
        // A client waits for it.
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
        // A panic is logged by its hook; as within a request, it costs this tick and not what was counted.
        if has_work {
            // A tick that comes meanwhile brings nothing new.
            let _ = catch_unwind(|| with_server(Server::continue_tick));
        } else if ready.has_tick {
            let _ = catch_unwind(|| with_server(Server::tick));
        }
    }
    let _ = catch_unwind(|| with_server(Server::finish));
    current::set(None);
    Ok(())
}

/// What there is to be done.
struct Ready {
    has_request: bool,
    has_tick: bool,
    /// A signal to end at came in.
    has_end_signal: bool,
}

/// Waits for pmcd, the timer or a signal; if there is work, it only looks.
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
            // It was set again meanwhile.
            Err(Errno::EAGAIN) => true,
            waited => waited.map(|()| true)?,
        };
    // Last, since a signal that was read comes only once.
    let has_end_signal = is_signal_ready && read_end_signal(signals)?;
    Ok(Ready {
        has_request,
        has_tick,
        has_end_signal,
    })
}

/// Whether one of the signals that came in is one to end at. SIGHUP (pmcd's to its agents) and SIGIO (a lease was asked for)
/// are none.
fn read_end_signal(signals: &mut SignalFd) -> Result<bool, Errno> {
    let mut has_end_signal = false;
    while let Some(info) = signals.read_signal()? {
        let number = i32::try_from(info.ssi_signo).unwrap_or_default();
        has_end_signal |= [Signal::SIGTERM as i32, Signal::SIGINT as i32].contains(&number);
    }
    Ok(has_end_signal)
}

/// Why the loop could not go on.
#[derive(Debug, thiserror::Error)]
pub enum EventLoopError {
    /// A system call.
    #[error("the loop cannot run: {0}")]
    System(#[from] Errno),
    /// libpcp_pmda.
    #[error("no connection to pmcd: {0}")]
    Pmda(#[from] Status),
}
