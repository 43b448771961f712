// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes that stall the worker: one that keeps the lock of its socket, and one that exchanges its descriptors.

use super::connections::{SYN, server};
use super::{Process, exact_row, home, pids, ring, row_goes, row_when, rows, sender, workers};
use crate::support::other_user::{STRANGER, VICTIM};
use crate::support::pdu::Link;
use crate::support::scripted::{libraries, observers};
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, leave_out, output, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

/// Limit of workers that wait.
const MOST_WAITING: usize = 8;

/// Starts a process of a user that can keep the lock of its connection.
fn lockable(home: &Home, to: &str, uid: u32) -> Process {
    let mut process = Process::start(home);
    if process.run("(memory := missing_memory())") == "0" {
        leave_out("no userfaultfd(2) here");
    }
    process.run(&format!("become({uid}); one = connect({to})"));
    process
}

/// Starts a process of a user that keeps the lock of its connection.
pub fn staller(home: &Home, to: &str, uid: u32) -> Process {
    let mut process = lockable(home, to, uid);
    process.run("keep_lock(one[0], memory)");
    process
}

/// True if a process is an instance.
fn has_row(link: &mut Link, pid: u32) -> bool {
    pids(link).values().any(|&row| row == pid)
}

/// Number of workers that were given up.
fn given_up(home: &Home) -> usize {
    home.log().matches("reading its sockets blocks").count()
}

/// Waits until so many workers were given up. Meanwhile an agent transfers, and each event is in the next answer.
fn wait_until_given_up(home: &Home, link: &mut Link, ring: &mut RingWriter, count: usize) {
    let sent = |link: &mut Link| {
        let values = link.sent();
        values.get("agent").copied()
    };
    let mut expected = wait_for("the agent is there", || sent(link));
    wait_for("the worker is given up", || {
        assert!(ring.push(Kind::TxBytes, 1));
        expected += 1;
        assert_eq!(sent(link), Some(expected));
        (given_up(home) >= count).then_some(())
    });
}

#[test]
fn locked_socket_costs_one_worker_and_no_other_user() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let staller = staller(&home, &to, STRANGER);
    let mut victim = sender(&home, &to, VICTIM);
    let mut agent = ring(&home, "agent");
    let mut link = Link::open(&home);
    wait_for("the worker waits for the socket", || {
        workers()
            .iter()
            .any(|(_, state)| *state == 'D')
            .then_some(())
    });
    wait_until_given_up(&home, &mut link, &mut agent, 1);
    assert!(
        home.log()
            .contains(&format!("processes of uid {STRANGER} are skipped"))
    );
    exact_row(&mut link, &mut victim, "one");
    victim.run("send(one, 500)");
    exact_row(&mut link, &mut victim, "one");
    // Its row has no values, and stays.
    assert!(!rows(&mut link).contains_key(&staller.pid()));
    assert!(has_row(&mut link, staller.pid()));
    assert_eq!(given_up(&home), 1);

    let is_stuck = || workers().iter().any(|(_, state)| *state == 'D');
    assert!(is_stuck(), "the worker cannot be killed");
    let counted = link.sent()["agent"];
    kill(pid_of(link.pid()), Signal::SIGTERM).expect("it runs");
    wait_for("the daemon ends", || link.ended());
    assert!(agent.push(Kind::TxBytes, 1));
    let mut link = Link::open(&home);
    let now = link.sent()["agent"];
    assert_eq!(now, counted + 1, "{}", home.log());
    assert!(is_stuck(), "the worker still waits");
    drop(staller);
    wait_for("the worker ends", || (!is_stuck()).then_some(()));
}

#[test]
#[ignore = "a reading counts for a minute"]
fn process_that_stalls_keeps_its_row_and_loses_its_values() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = lockable(&home, &to, STRANGER);
    process.run("send(one, 1000)");
    let mut victim = sender(&home, &to, VICTIM);
    let mut link = Link::open(&home);
    let pid = process.pid();
    let before = exact_row(&mut link, &mut process, "one");
    process.run("keep_lock(one[0], memory)");
    wait_for("the values go", || {
        let row = rows(&mut link).remove(&pid);
        assert!(row.is_none_or(|row| row == before), "{row:?}");
        row.is_none().then_some(())
    });
    assert!(has_row(&mut link, pid));
    assert_eq!(given_up(&home), 1);
    victim.run("send(one, 500)");
    exact_row(&mut link, &mut victim, "one");
    drop(process);
    row_goes(&mut link, pid);
    wait_for("its row goes", || (!has_row(&mut link, pid)).then_some(()));
}

#[test]
#[ignore = "each takes ten seconds"]
fn with_8_workers_given_up_none_starts_until_one_ends() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let users = STRANGER..;
    let mut stallers: Vec<Process> = { users }
        .take(MOST_WAITING)
        .map(|uid| staller(&home, &to, uid))
        .collect();
    let mut victim = sender(&home, &to, VICTIM);
    let mut agent = ring(&home, "agent");
    let mut link = Link::open(&home);
    for count in 1..=MOST_WAITING {
        wait_until_given_up(&home, &mut link, &mut agent, count);
    }
    assert_eq!(workers().len(), MOST_WAITING);
    assert!(!rows(&mut link).contains_key(&victim.pid()));
    drop(stallers.pop());
    exact_row(&mut link, &mut victim, "one");
    assert_eq!(given_up(&home), MOST_WAITING);
    drop(stallers);
    wait_for("one worker is left", || {
        (workers().len() == 1).then_some(())
    });
}

fn pid_of(process: u32) -> Pid {
    Pid::from_raw(i32::try_from(process).expect("a pid"))
}

/// Starts strace(1), which delays the second of two system calls of these processes. Without this, hardly a descriptor
/// changes between them.
fn with_time_to_swap(pids: &[u32], trace: &Path) -> Child {
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-f", "-e", "trace=pidfd_getfd", "-o"]);
    strace.arg(trace);
    strace.args(["-e", "inject=pidfd_getfd:delay_enter=20000"]);
    for pid in pids {
        strace.args(["-p", &pid.to_string()]);
    }
    strace.spawn().expect("there")
}

/// True if a process is traced, false if it has ended, and nothing before.
fn traced(pid: u32) -> Option<bool> {
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) if status.contains("\nState:\tZ") => Some(false),
        Ok(status) => (!status.contains("\nTracerPid:\t0\n")).then_some(true),
        Err(_) => Some(false),
    }
}

#[test]
fn swapped_descriptor_costs_one_worker_and_no_other_user() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    // In a mount namespace of its own: the file system would otherwise stay in the test's directory.
    let within = ["unshare", "--mount"].map(str::to_owned);
    let mut swaps = Process::with_files(&within, &libraries(&home));
    let directory = home.path("fuse");
    fs::create_dir(&directory).expect("made");
    let file = swaps.run(&format!("(file := fuse.mount({directory:?}))"));
    if file == "-1" {
        leave_out("no FUSE here");
    }
    swaps.run(&format!("become({STRANGER}); all = connect({to}, 20)"));
    let mut victim = sender(&home, &to, VICTIM);
    let mut agent = ring(&home, "agent");
    let mut link = Link::open(&home);
    row_when(&mut link, swaps.pid(), "of its connections", |row| {
        row.sent == 20 * SYN
    });
    let trace = home.path("trace");
    let probe = output(Command::new("strace").arg("-o").arg(&trace).arg("true"));
    if !probe.status.success() {
        leave_out("strace(1) cannot trace here");
    }
    // A worker may end before it is traced.
    let mut strace = wait_for("the only worker is traced", || {
        let [(worker, _)] = workers()[..] else {
            return None;
        };
        let mut strace = with_time_to_swap(&[worker, observers()[0].0], &trace);
        let is_traced = || wait_for("a worker is traced, or ends", || traced(worker));
        if is_traced() {
            return Some(strace);
        }
        // It lets go of the observer.
        kill(pid_of(strace.id()), Signal::SIGTERM).expect("our child");
        strace.wait().expect("our child");
        None
    });
    swaps.run("swap(all, file)");
    wait_until_given_up(&home, &mut link, &mut agent, 1);
    // The next worker counts what is sent after its first scan.
    let before = rows(&mut link)[&victim.pid()].sent;
    wait_for("the next worker counts", || {
        victim.run("send(one, 500)");
        let now = rows(&mut link)[&victim.pid()].sent;
        assert!(now <= victim.counts("one").sent);
        (now > before).then_some(())
    });
    assert_eq!(given_up(&home), 1);
    kill(pid_of(link.pid()), Signal::SIGTERM).expect("it runs");
    wait_for("the daemon ends", || link.ended());
    drop(swaps);
    // It ends with the worker that it traces.
    strace.wait().expect("our child");
}
