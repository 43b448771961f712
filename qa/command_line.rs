//! The program by itself: its options, `--check`, and what it needs.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, PMDANIXL, needs_root, run, wait_for};

#[test]
fn check_tells_rings_their_writers_and_what_stops_it() {
    needs_root();
    let home = Home::new();
    let mut writer = RingWriter::create(&home.ring("agent"), Layout::V2, 4096).expect("a ring");
    (0..12).for_each(|_| assert!(writer.push(Kind::TxBytes, 1)));
    let me = Command::new("id").arg("-un").output().expect("id").stdout;
    let me = String::from_utf8_lossy(&me).trim().to_owned();
    let (status, output) = home.check();
    let line = format!(
        "  agent: ring v2, 4096 events, 12 pending, written by pid {} (",
        std::process::id()
    );
    assert!(
        status == 0 && output.contains(&line) && output.contains(&format!(" user {me}\n")),
        "{status}\n{output}"
    );
    assert_eq!(writer.pending(), 12, "nothing is consumed");
    drop(writer);
    assert!(
        home.check()
            .1
            .contains("  agent: ring v2, 4096 events, 12 pending, no writer seen\n")
    );

    home.configure("[nixl]\ntelemetry_dir = \"/none/such\"\n");
    let (status, output) = home.check();
    assert!(
        status == 1 && output.contains("problem: cannot be looked through: ENOENT"),
        "{output}"
    );
    home.configure("[nixl]\nretain = 5\n");
    let (status, output) = home.check();
    assert!(
        status == 1 && output.contains("problem: ") && output.contains("nixl.conf:2: retain: "),
        "{output}"
    );
    // The Python PMDA's format, and beside the rings what UCX leaves there when it is killed: both are no problem.
    let segment = home.ring("ucx_shm_posix_2529def");
    fs::write(segment, [0; 4096]).expect("written");
    let rings = home.rings();
    home.configure(&format!(
        "[nixl]\nuser = root\ntelemetry_dir = {}\n",
        rings.display()
    ));
    let (status, output) = home.check();
    assert!(
        status == 0
            && output.contains("warning: ")
            && output.contains(&format!("telemetry_dir = {rings:?}"))
            && output.contains("  ucx_shm_posix_2529def: refused: no ring: "),
        "{output}"
    );
}

#[test]
fn check_as_another_user_says_what_it_may_and_which_rings_it_can_only_follow() {
    needs_root();
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let _ring = RingWriter::create(&home.ring("roots"), Layout::V4, 16).expect("a ring");
    home.set("user = \"nobody\"");
    let (status, output) = home.check();
    assert!(
        status == 0
            && output
                .contains("as user: nobody with CAP_DAC_OVERRIDE, CAP_LEASE, CAP_SYS_PTRACE\n"),
        "{output}"
    );
    // Without root there is nothing to keep.
    let mut check = Command::new("setpriv");
    check.args(["--reuid=65534", "--clear-groups", PMDANIXL, "--check", "-c"]);
    let output = support::output(check.arg(home.conf()));
    let said = support::text(&output);
    assert!(
        !output.status.success() && said.contains("as user: nobody with no capabilities\n"),
        "{said}"
    );
    let line = "may not be written to (EACCES: Permission denied) and is only followed; run as root or as the user of";
    assert!(said.contains(line), "{said}");
}

#[test]
fn a_wrong_option_is_answered_with_the_usage() {
    let output = Command::new(PMDANIXL)
        .arg(OsString::from("--chek"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("invalid option '--chek'")
            && said.contains("Usage: pmdanixl")
    );
    assert!(run(Command::new(PMDANIXL).arg("--version")).starts_with("pmdanixl "));
    assert!(run(Command::new(PMDANIXL).arg("--help")).contains("--check"));
}

#[test]
fn the_binary_needs_libpcp_pmda_and_no_libpcp() {
    let shown = run(Command::new("readelf").args(["-d", PMDANIXL]));
    let needed: Vec<&str> = shown
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect();
    assert!(needed.contains(&"libpcp_pmda.so.3"), "{needed:?}");
    let allowed = [
        "libpcp_pmda.so.3",
        "libc.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
    ];
    for library in needed {
        assert!(
            allowed.contains(&library) || library.starts_with("ld-linux"),
            "{library} is needed"
        );
    }
}

#[test]
fn it_can_be_ended_while_it_waits_for_pmcd() {
    let home = Home::new();
    let socket = home.path("socket");
    let mut child = Command::new(PMDANIXL)
        .arg("-u")
        .arg(&socket)
        .arg("-c")
        .arg(home.conf())
        .arg("-l")
        .arg(home.path("nixl.log"))
        .stdin(Stdio::null())
        .spawn()
        .expect("it starts");
    wait_for("it waits", || socket.exists().then_some(()));
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    let status = wait_for("its end", || child.try_wait().expect("our child"));
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn without_pmcd_it_drains_nothing_and_says_so() {
    let home = Home::new();
    let mut ring = RingWriter::create(&home.ring("agent"), Layout::V4, 16).expect("a ring");
    ring.push(Kind::TxBytes, 1);
    let output = Command::new(PMDANIXL)
        .args(["-l", "-", "-c"])
        .arg(home.conf())
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let said = support::text(&output);
    assert!(
        !output.status.success() && said.contains("cannot connect to pmcd"),
        "{said}"
    );
    assert_eq!(ring.pending(), 1);
}

#[test]
fn a_live_agent_is_found_though_descriptors_are_few_and_dead_rings_many() {
    let home = Home::new();
    // The first answer is to have the agent.
    home.set("proc_facts = false");
    for number in 0..60 {
        let path = home.ring(format!("dead-{number}"));
        drop(RingWriter::create(&path, Layout::V4, 16).expect("a ring"));
    }
    let mut ring = RingWriter::create(&home.ring("live"), Layout::V4, 16).expect("a ring");
    ring.push(Kind::TxBytes, 77);
    let wrapper = home.path("pmdanixl");
    script(&wrapper, "ulimit -n 90", "");
    let answer = home.dbpmda_with(&wrapper, "fetch nixl.transfer.tx_bytes");
    assert!(answer.contains("value 77"), "{answer}\n{}", home.log());
    assert!(
        home.log()
            .contains("max_agents is 4096, but only 90 files may be open"),
        "{}",
        home.log()
    );
}

/// A program that starts pmdanixl after a command of the shell, with a redirection.
fn script(path: &Path, before: &str, behind: &str) {
    let text = format!("#!/bin/sh\n{before}\nexec \"{PMDANIXL}\" \"$@\" {behind}\n");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("ours");
}

#[test]
fn a_log_that_cannot_be_written_costs_nothing_but_its_lines() {
    let home = Home::new();
    // The first answer is to have the agent.
    home.set("proc_facts = false");
    let mut ring = RingWriter::create(&home.ring("agent"), Layout::V4, 16).expect("a ring");
    ring.push(Kind::TxBytes, 77);
    // As on a full disk: each write fails with ENOSPC.
    let wrapper = home.path("pmdanixl");
    script(&wrapper, "", "-l - 2>/dev/full");
    let answer = home.dbpmda_with(&wrapper, "fetch nixl.transfer.tx_bytes\nstore nixl.control.version \"1\"\nfetch nixl.transfer.tx_bytes");
    assert_eq!(answer.matches("value 77").count(), 2, "{answer}");
}
