// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: its rights and descriptors, its end and that of the daemon, and the settings that it depends on.

use super::connections::server;
use super::{Process, exact_row, home, row_goes, row_when, rows, sender, workers};
use crate::support::other_user::{STRANGER, VICTIM, open_to_all};
use crate::support::pdu::{Link, Sent};
use crate::support::{Home, PMDANIXL, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::process::Command;

/// Pid of the only worker.
fn worker(link: &Link) -> u32 {
    wait_for("there is a worker", || match workers(link.pid())[..] {
        [(pid, _)] => Some(pid),
        _ => None,
    })
}

/// Waits until there is no worker.
fn worker_goes(link: &Link) {
    wait_for("the worker is gone", || {
        workers(link.pid()).is_empty().then_some(())
    });
}

/// A field of /proc/PID/status.
fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.expect(field).trim().to_owned()
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
        let killed = worker(&link);
        kill(
            Pid::from_raw(i32::try_from(killed).expect("a pid")),
            Signal::SIGKILL,
        )
        .expect("it runs");
        wait_for("another worker counts", || {
            process.run("send(both, 100)");
            let row = rows(&mut link)[&pid];
            assert!(row.sent >= last.sent, "{row:?} after {last:?}");
            assert!(row.sent <= process.counts("both").sent, "{row:?}");
            (row.sent > last.sent).then_some(())
        });
        assert_ne!(worker(&link), killed);
        last = rows(&mut link)[&pid];
    }
    let messages = home.log().matches("transport worker: ").count();
    // A kill between two scans costs nothing.
    assert!(messages <= 2, "{}", home.log());
    // A process that no worker has counted before counts as a whole.
    let mut new = Process::start(&home);
    new.run(&format!("one = connect({to}); send(one, 5000)"));
    let _ring = super::ring(&home, "new");
    exact_row(&mut link, &mut new, "one");
}

#[test]
fn worker_ends_with_a_killed_daemon() {
    let Some(home) = home() else { return };
    let _process = Process::start(&home);
    let link = Link::open(&home);
    worker(&link);
    // As by kill -9.
    drop(link);
    wait_for("the worker ends", || {
        let runs = |(_, state): &(u32, char)| *state != 'Z';
        (!workers(0).iter().any(runs)).then_some(())
    });
}

#[test]
fn worker_runs_only_while_a_process_uses_nixl() {
    let Some(home) = home() else { return };
    let process = Process::start(&home);
    let mut link = Link::open(&home);
    let pid = process.pid();
    row_when(&mut link, pid, "there", |_| true);
    drop(process);
    row_goes(&mut link, pid);
    worker_goes(&link);
    assert!(!home.log().contains("sockets"), "{}", home.log());
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
        worker_goes(&link);
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
    assert!(rows(&mut link).is_empty() && workers(link.pid()).is_empty());
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
    const DAC_OVERRIDE: u64 = 1 << 1;
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
    let worker = worker(&link);
    let kept = format!("{:016x}", DAC_OVERRIDE | SYS_PTRACE);
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
    let link = Link::start(&home, daemon).expect("it starts");
    let worker = worker(&link);
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
