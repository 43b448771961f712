// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: its end and that of the daemon, and the settings that it depends on.

use super::connections::server;
use super::rights::rights;
use super::{Process, exact_row, home, row_goes, row_when, rows, sender, workers};
use crate::support::other_user::{STRANGER, VICTIM};
use crate::support::pdu::{Link, Sent};
use crate::support::scripted::observers;
use crate::support::{Home, wait_for};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::chown;

/// Pid of the only worker.
pub fn worker() -> u32 {
    wait_for("there is a worker", || match workers()[..] {
        [(pid, _)] => Some(pid),
        _ => None,
    })
}

/// Sends a signal to a process, unless it has ended.
pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    let _ = kill(pid, signal);
}

fn reload(home: &Home, link: &mut Link, settings: &str) {
    home.set(settings);
    link.be_user(0).expect("sent");
    let reload = [("control.reload", Sent::Numbers(vec![1]))];
    link.store(&reload).expect("accepted");
}

/// True if a worker has something to read that it has not begun with, or has been killed: one that was stopped in the
/// middle of an order does not answer it, and gets no other.
fn has_order_or_is_killed(worker: u32) -> bool {
    let Ok(orders) = fs::File::open(format!("/proc/{worker}/fd/0")) else {
        return true;
    };
    let mut orders = [PollFd::new(orders.as_fd(), PollFlags::POLLIN)];
    poll(&mut orders, PollTimeout::ZERO).expect("asked") == 1
}

#[test]
fn ten_killed_workers_move_no_counter_back() {
    const KILLS: u32 = 10;
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = Process::start(&home);
    process.run(&format!("both = connect({to}, 2); send(both, 1000)"));
    let mut link = Link::open(&home);
    let pid = process.pid();
    let mut last = exact_row(&mut link, &mut process, "both");
    let of_first = rights(worker());
    for kill in 0..KILLS {
        let killed = worker();
        // Each second one has not read what was ordered.
        let is_reading = kill % 2 == 1;
        if is_reading {
            signal(killed, Signal::SIGSTOP);
        }
        process.run("send(both, 100)");
        // A ring causes a process scan, unless its user has caused many, and a new process a socket scan.
        let child = process.number("fork('[each.close() for each in both]')");
        let name = format!("new-{kill}");
        let _ring = super::ring_in(home.dir(), &name);
        chown(home.path(&name), Some(VICTIM + kill), None).expect("root");
        fs::rename(home.path(&name), home.ring(&name)).expect("ours");
        if is_reading {
            wait_for("the worker has an order", || {
                has_order_or_is_killed(killed).then_some(())
            });
        }
        signal(killed, Signal::SIGKILL);
        let expected = process.counts("both");
        wait_for("another worker counts", || {
            let row = rows(&mut link).remove(&pid)?;
            assert!(row.sent >= last.sent, "{row:?} after {last:?}");
            assert!(row.sent <= expected.sent, "{row:?}");
            last = row;
            (row == expected).then_some(())
        });
        let next = worker();
        assert_ne!(next, killed);
        assert_eq!(rights(next), of_first, "after {kill} kills");
        process.run(&format!("end({child})"));
    }
    // A kill between two readings costs nothing, and an answer ends a series of failures.
    let log = home.log();
    let failures = log
        .lines()
        .filter(|line| line.contains(": a worker cannot go on: "));
    let failures = Vec::from_iter(failures);
    let count = u32::try_from(failures.len()).expect("few");
    assert!((KILLS / 2..=KILLS).contains(&count), "{log}");
    let is_first = |line: &&str| line.ends_with("the next one starts in 1 s");
    assert!(failures.iter().all(is_first), "{failures:?}");
    let mut new = Process::start(&home);
    new.run(&format!("one = connect({to}); send(one, 5000)"));
    let _ring = super::ring(&home, "new");
    exact_row(&mut link, &mut new, "one");
}

fn control(link: &mut Link, name: &str) -> u64 {
    let values = link.values(&format!("control.{name}")).expect("an answer");
    values.values().next().copied().expect("a value")
}

#[test]
#[ignore = "an observer counts as stopped after a minute"]
fn observer_that_is_stopped_counts_as_ended_until_it_goes_on() {
    let Some(home) = home() else { return };
    let _process = Process::start(&home);
    let mut link = Link::open(&home);
    worker();
    let (stopped, _) = observers()[0];
    let wait_for_value = |link: &mut Link, value| {
        wait_for("the daemon says so", || {
            link.sent();
            (control(link, "observer") == value).then_some(())
        });
    };
    wait_for_value(&mut link, 1);
    signal(stopped, Signal::SIGSTOP);
    let _ring = super::ring(&home, "new");
    wait_for_value(&mut link, 0);
    signal(stopped, Signal::SIGCONT);
    wait_for_value(&mut link, 1);
}

#[test]
fn observer_and_worker_end_with_a_killed_daemon_and_worker_with_a_killed_observer() {
    let Some(home) = home() else { return };
    let _process = Process::start(&home);
    let mut link = Link::open(&home);
    let wait_for_end = || {
        wait_for("all have ended", || {
            (workers().is_empty() && observers().is_empty()).then_some(())
        });
    };
    worker();
    // As by kill -9.
    drop(link);
    wait_for_end();
    link = Link::open(&home);
    worker();
    assert_eq!(control(&mut link, "observer"), 1);
    let used = control(&mut link, "cpu_time");
    signal(observers()[0].0, Signal::SIGKILL);
    wait_for_end();
    wait_for("the daemon says so", || {
        assert!(link.sent().is_empty());
        let log = home.log();
        log.contains(
            "observer: has ended (signal: 9 (SIGKILL)); processes are not scanned any more: ",
        )
        .then_some(())
    });
    assert_eq!(control(&mut link, "observer"), 0);
    assert!(control(&mut link, "cpu_time") >= used);
    // It counts on.
    let mut agent = super::ring(&home, "agent");
    assert!(agent.push(crate::support::writer::Kind::TxBytes, 1));
    wait_for("the agent is shown", || {
        let values = link.sent();
        (values == [("agent".into(), 2)].into()).then_some(())
    });
}

#[test]
fn transport_setting_removes_and_restores_rows() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = sender(&home, &to, 0);
    let mut link = Link::open(&home);
    let pid = process.pid();
    for settings in ["transport = false", "owners = [4242]"] {
        exact_row(&mut link, &mut process, "one");
        reload(&home, &mut link, settings);
        row_goes(&mut link, pid);
        reload(&home, &mut link, "");
    }
    exact_row(&mut link, &mut process, "one");
}

#[test]
fn without_proc_facts_no_process_has_a_row() {
    let Some(home) = home() else { return };
    home.set("proc_facts = false");
    let _process = Process::start(&home);
    let mut agent = super::ring(&home, "agent");
    let mut link = Link::open(&home);
    wait_for("the agent is shown", || {
        let values = link.sent();
        (values == [("agent".into(), 1)].into()).then_some(())
    });
    assert!(agent.push(crate::support::writer::Kind::TxBytes, 1));
    assert!(rows(&mut link).is_empty() && workers().is_empty());
}

#[test]
fn only_processes_of_owners_have_rows() {
    let Some(home) = home() else { return };
    home.set(&format!("owners = [{VICTIM}]"));
    let mut processes = [STRANGER, VICTIM].map(|uid| {
        let mut process = Process::start(&home);
        process.run(&format!("become({uid})"));
        process
    });
    let mut link = Link::open(&home);
    row_when(&mut link, processes[1].pid(), "there", |_| true);
    assert_eq!(rows(&mut link).len(), 1);
    // A user that is no owner cannot hide another one.
    assert_eq!(processes[0].run("1"), "1");
}
