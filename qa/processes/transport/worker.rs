// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: its rights and descriptors, its end and that of the daemon, and the settings that it depends on.

use super::connections::server;
use super::{Process, exact_row, home, row_goes, row_when, rows, sender, workers};
use crate::support::other_user::{STRANGER, VICTIM, open_to_all};
use crate::support::pdu::{Link, Sent};
use crate::support::scripted::observers;
use crate::support::{Home, PMDANIXL, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Command;

/// Pid of the only worker.
fn worker() -> u32 {
    wait_for("there is a worker", || match workers()[..] {
        [(pid, _)] => Some(pid),
        _ => None,
    })
}

/// A field of /proc/PID/status.
fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.expect(field).trim().to_owned()
}

/// Kills a process.
fn end(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, Signal::SIGKILL).expect("it runs");
}

fn reload(home: &Home, link: &mut Link, settings: &str) {
    home.set(settings);
    link.be_user(0).expect("sent");
    let reload = [("control.reload", Sent::Numbers(vec![1]))];
    link.store(&reload).expect("accepted");
}

#[test]
fn killed_worker_moves_no_counter_back() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = Process::start(&home);
    process.run(&format!("both = connect({to}, 2); send(both, 1000)"));
    let mut link = Link::open(&home);
    let pid = process.pid();
    let mut last = row_when(&mut link, pid, "there", |_| true);
    for _ in 0..2 {
        let killed = worker();
        end(killed);
        wait_for("another worker counts", || {
            process.run("send(both, 100)");
            let row = rows(&mut link)[&pid];
            assert!(row.sent >= last.sent, "{row:?} after {last:?}");
            assert!(row.sent <= process.counts("both").sent, "{row:?}");
            (row.sent > last.sent).then_some(())
        });
        assert_ne!(worker(), killed);
        last = rows(&mut link)[&pid];
    }
    // What was read is known to the observer.
    exact_row(&mut link, &mut process, "both");
    // A kill between two readings costs nothing.
    let messages = home.log().matches("a worker cannot go on: ").count();
    assert!(messages <= 2, "{}", home.log());
    let mut new = Process::start(&home);
    new.run(&format!("one = connect({to}); send(one, 5000)"));
    let _ring = super::ring(&home, "new");
    exact_row(&mut link, &mut new, "one");
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
    let control = |link: &mut Link, name: &str| {
        let values = link.values(&format!("control.{name}")).expect("an answer");
        values.values().next().copied().expect("a value")
    };
    assert_eq!(control(&mut link, "observer"), 1);
    let used = control(&mut link, "cpu_time");
    end(observers()[0].0);
    wait_for_end();
    wait_for("the daemon says so", || {
        assert!(link.sent().is_empty());
        let log = home.log();
        log.contains("observer: has ended (signal 9); processes are not looked at any more: ")
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

#[test]
fn worker_of_another_user_keeps_two_capabilities() {
    const DAC_READ_SEARCH: u64 = 1 << 2;
    const SYS_PTRACE: u64 = 1 << 19;
    let Some(home) = home() else { return };
    open_to_all(home.dir(), 0o755);
    home.set("user = \"nobody\"");
    let (_server, to) = server();
    let users = [0, 65_534, VICTIM];
    let mut processes = users.map(|uid| sender(&home, &to, uid));
    let mut link = Link::open(&home);
    for process in &mut processes {
        exact_row(&mut link, process, "one");
    }
    let worker = worker();
    let kept = format!("{:016x}", DAC_READ_SEARCH | SYS_PTRACE);
    for set in ["CapEff", "CapPrm"] {
        assert_eq!(status(worker, set), kept, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(status(worker, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(worker, "NoNewPrivs"), "1");
    assert_eq!(status(worker, "Uid"), "65534\t65534\t65534\t65534");
    assert_eq!(status(link.pid(), "CapAmb"), "0000000000000000");
}

#[test]
fn worker_has_only_its_pipes_open() {
    let Some(home) = home() else { return };
    let _process = Process::start(&home);
    // pmcd leaves some of its descriptors open in the daemon.
    let mut daemon = Command::new("sh");
    daemon.args(["-c", "exec \"$0\" \"$@\" 7</dev/null 9</dev/zero", PMDANIXL]);
    let _link = Link::start(&home, daemon).expect("it starts");
    let worker = worker();
    let open = || {
        let names = fs::read_dir(format!("/proc/{worker}/fd")).expect("it runs");
        let names = names.flatten().map(|name| name.file_name());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names
    };
    // It closes the others at its start.
    let found = crate::support::soon(|| (open() == ["0", "1", "2"]).then_some(()));
    assert!(found.is_some(), "{:?}", open());
}
