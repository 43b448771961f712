// SPDX-License-Identifier: GPL-2.0-or-later

//! SIGTERM of the daemon while its worker waits, is stopped, or has nothing to read.

use super::connections::server;
use super::stalls::staller;
use super::worker::{signal, worker};
use super::{exact_row, home, sender, workers};
use crate::support::other_user::{STRANGER, VICTIM};
use crate::support::pdu::Link;
use crate::support::scripted::observers;
use crate::support::{soon, wait_for};
use nix::sys::signal::Signal;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What the worker does when the daemon gets SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    /// Nothing: it waits for its next order.
    None,
    /// Nothing: a signal has stopped it.
    Stopped,
    /// It waits for the lock of a socket, which no signal ends.
    Stalled,
    /// As before, and another one reads the other processes.
    SetAside,
}

const ALL: [Work; 4] = [Work::None, Work::Stopped, Work::Stalled, Work::SetAside];

/// Number of workers in a state (proc_pid_stat(5)).
fn count(state: char) -> usize {
    let all = workers().into_iter();
    all.filter(|(_, other)| *other == state).count()
}

/// True if one worker waits in the kernel in each of twenty looks. One that waits for a disk for a moment does not.
fn is_one_stalled() -> bool {
    (0..20).all(|_| {
        sleep(Duration::from_millis(5));
        count('D') == 1
    })
}

/// Ends a daemon by SIGTERM. Returns the time until it and its observer have ended. All workers end, a stalled one
/// after the process that stalls it.
fn time_to_end(work: Work) -> Option<Duration> {
    let home = home()?;
    let (_server, to) = server();
    let is_stalled = matches!(work, Work::Stalled | Work::SetAside);
    let staller = is_stalled.then(|| staller(&home, &to, STRANGER));
    let mut victim = sender(&home, &to, VICTIM);
    let mut link = Link::open(&home);
    match work {
        Work::None | Work::Stopped => {
            exact_row(&mut link, &mut victim, "one");
        }
        Work::Stalled => wait_for("the worker is stalled", || is_one_stalled().then_some(())),
        Work::SetAside => {
            exact_row(&mut link, &mut victim, "one");
            wait_for("there are two workers", || {
                (is_one_stalled() && count('S') == 1).then_some(())
            });
        }
    }
    if work == Work::Stopped {
        signal(worker(), Signal::SIGSTOP);
        wait_for("it is stopped", || (count('T') == 1).then_some(()));
    }
    let start = Instant::now();
    signal(link.pid(), Signal::SIGTERM);
    let status = wait_for("the daemon ends", || link.ended());
    assert!(status.success(), "{work:?}: {status}");
    wait_for("the observer ends", || observers().is_empty().then_some(()));
    let time = start.elapsed();
    // A busy host may have set aside more than one of those that are stalled.
    let ended = soon(|| {
        let left = workers().len();
        (left == count('D') && is_stalled == (left > 0)).then_some(())
    });
    assert!(ended.is_some(), "{work:?}: {:?} are left", workers());
    drop(staller);
    wait_for("all workers end", || workers().is_empty().then_some(()));
    Some(time)
}

#[test]
fn sigterm_ends_all_processes_but_a_stalled_worker() {
    for work in ALL {
        if time_to_end(work).is_none() {
            return;
        }
    }
}

#[test]
#[ignore = "elapsed times"]
fn sigterm_ends_daemon_and_observer_within_a_second() {
    for work in ALL {
        match time_to_end(work) {
            Some(time) => assert!(time < Duration::from_secs(1), "{work:?}: {time:?}"),
            None => return,
        }
    }
}
