// SPDX-License-Identifier: GPL-2.0-or-later

//! Rights and open files of the daemon, its observer and the worker, with each kind of configuration that decides them.

use super::connections::server;
use super::{Process, exact_row, home, pids, ring_in, sender, workers};
use crate::support::other_user::open_to_all;
use crate::support::pdu::Link;
use crate::support::scripted::{observers, tracers};
use crate::support::writer::RingWriter;
use crate::support::{Home, PMDANIXL, soon, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const SYS_PTRACE: u64 = 1 << 19;
const LEASE: u64 = 1 << 28;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;
const DRAINS: u64 = DAC_OVERRIDE | LEASE;
const READS: u64 = SYS_PTRACE | DAC_READ_SEARCH;
const NOBODY: u32 = 65_534;

/// Settings, the user, the capabilities of the daemon, and those of observer and worker if there are such processes.
const CASES: [(&str, u32, u64, Option<u64>); 9] = [
    ("", 0, DRAINS, Some(READS)),
    ("user = \"nobody\"", NOBODY, DRAINS, Some(READS)),
    (
        "user = \"nobody\"\nobserve = true",
        NOBODY,
        DAC_READ_SEARCH | LEASE,
        Some(READS),
    ),
    ("transport = false", 0, DRAINS, Some(READS)),
    (
        "user = \"nobody\"\nowners = [\"nobody\"]",
        NOBODY,
        0,
        Some(0),
    ),
    ("trace = true", 0, DRAINS, Some(READS)),
    (
        "user = \"nobody\"\ntrace = true",
        NOBODY,
        DRAINS,
        Some(READS),
    ),
    ("proc_facts = false", 0, DRAINS, None),
    (
        "user = \"nobody\"\nproc_facts = false",
        NOBODY,
        DRAINS,
        None,
    ),
];

/// What [`rights`] returns: user, capabilities as of capabilities(7), and whether a program can have more.
const RIGHTS: [&str; 6] = ["Uid", "CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs"];

/// Rights of a process, by /proc/PID/status.
pub fn rights(pid: u32) -> [String; RIGHTS.len()] {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    RIGHTS.map(|field| {
        let mut lines = status.lines();
        let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.expect(field).trim().to_owned()
    })
}

/// Result of [`rights`] for a process of a user with these capabilities, some of which each program has that it starts.
fn with(uid: u32, capabilities: u64, passed_on: u64) -> [String; RIGHTS.len()] {
    let [own, passed_on] = [capabilities, passed_on].map(|mask| format!("{mask:016x}"));
    [
        format!("{uid}\t{uid}\t{uid}\t{uid}"),
        own.clone(),
        own,
        passed_on.clone(),
        passed_on,
        "1".into(),
    ]
}

/// Waits until a process has given up all rights but these.
fn gets(pid: u32, expected: &[String; RIGHTS.len()], settings: &str) {
    let found = soon(|| (rights(pid) == *expected).then_some(()));
    assert!(found.is_some(), "{settings}: {:?}", rights(pid));
}

/// Open files of a process, by descriptor.
fn open_files(pid: u32) -> BTreeMap<u32, PathBuf> {
    let names = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let file = |name: fs::DirEntry| {
        let fd = name.file_name().to_str()?.parse().ok()?;
        Some((fd, fs::read_link(name.path()).ok()?))
    };
    names.flatten().filter_map(file).collect()
}

/// Checks that a process has the log and so many pipes open, and none of the files of a home mapped.
fn has_only_pipes(home: &Home, pid: u32, count: usize) {
    let is_right = |files: &BTreeMap<u32, PathBuf>| {
        let others = files.iter().filter(|(fd, _)| **fd != 2);
        let is_pipe = |path: &PathBuf| path.to_string_lossy().starts_with("pipe:");
        let mut others = others.map(|(_, path)| path);
        files.len() == count + 1 && others.all(is_pipe) && files[&2] == home.path("nixl.log")
    };
    // It opens files of /proc for a moment.
    let found = soon(|| is_right(&open_files(pid)).then_some(()));
    assert!(found.is_some(), "pid {pid}: {:?}", open_files(pid));
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    assert!(
        !maps.contains(home.dir().to_str().expect("UTF-8")),
        "{maps}"
    );
}

/// Makes a directory with a directory that has a ring of nobody.
fn with_ring(directory: &Path, name: &str) -> RingWriter {
    let below = directory.join("a");
    fs::create_dir_all(&below).expect("made");
    for path in [directory, &below] {
        open_to_all(path, 0o755);
    }
    let ring = ring_in(&below, name);
    chown(below.join(name), Some(NOBODY), Some(NOBODY)).expect("root");
    ring
}

/// Lets a symbolic link name another directory.
fn point(link: &Path, target: &Path) {
    let new = link.with_extension("new");
    symlink(target, &new).expect("made");
    fs::rename(&new, link).expect("ours");
}

/// Waits until so many telemetry directories are scanned. Rings elsewhere are never found.
fn becomes_watched(link: &mut Link, count: u64) {
    wait_for("the link was followed again", || {
        assert!(!link.sent().contains_key("elsewhere"), "not locked in");
        let watched = link.values("control.directories.watched");
        (watched.expect("an answer")[""] == count).then_some(())
    });
}

#[test]
fn each_process_has_only_the_rights_that_it_needs() {
    if home().is_none() {
        return;
    }
    let (_server, to) = server();
    for (settings, uid, of_daemon, of_observer) in CASES {
        let home = Home::new();
        open_to_all(home.dir(), 0o755);
        let elsewhere = tempfile::tempdir().expect("a directory");
        let pods = home.path("pods");
        let _rings = [
            with_ring(&home.path("here"), "here"),
            with_ring(elsewhere.path(), "elsewhere"),
        ];
        point(&pods, &home.path("here"));
        home.configure(&format!(
            "[nixl]\ntelemetry_dir = \"{}/*\"\n{settings}\n",
            pods.display()
        ));
        // Without a capability, a process of the own user can be read, unless it has become that user.
        let owner = if of_observer == Some(0) { NOBODY } else { 0 };
        let mut process = sender(&home, &to, owner);
        process.run("LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)");
        // pmcd leaves some of its descriptors open in the daemon.
        let mut daemon = Command::new("sh");
        daemon.args(["-c", "exec \"$0\" \"$@\" 7</dev/null 9</dev/zero", PMDANIXL]);
        let mut link = Link::start(&home, daemon).expect("it starts");
        wait_for("the agent is there", || {
            let states = link.values("agent.state").expect("an answer");
            states.contains_key("here").then_some(())
        });
        assert_eq!(rights(link.pid()), with(uid, of_daemon, 0), "{settings}");
        let files = open_files(link.pid());
        for file in ["run/nixl/state", "here/a/here"] {
            let mut paths = files.values();
            assert!(paths.any(|path| *path == home.path(file)), "{files:?}");
        }
        match of_observer {
            None => assert_eq!((observers(), workers()), (vec![], vec![]), "{settings}"),
            Some(kept) => {
                let worker = super::worker::worker();
                let observer = observers()[0].0;
                let traces = settings.contains("trace = true");
                has_only_pipes(&home, observer, if traces { 6 } else { 4 });
                has_only_pipes(&home, worker, 2);
                let mut of_observer = with(uid, kept, kept);
                if traces {
                    // It starts tracers.
                    of_observer[2] = format!("{:016x}", kept | BPF | PERFMON);
                    let mut of_tracer = with(uid, kept | BPF, 0);
                    of_tracer[2] = format!("{:016x}", kept | BPF | PERFMON);
                    let tracer = || tracers().first().map(|(pid, _)| *pid);
                    gets(wait_for("there is a tracer", tracer), &of_tracer, settings);
                }
                assert_eq!(tracers().len(), usize::from(traces), "{settings}");
                gets(observer, &of_observer, settings);
                gets(worker, &with(uid, kept, 0), settings);
                // Landlock would forbid to read the process, and its sockets.
                is_read(&mut link, &mut process, settings, kept);
            }
        }
        let log = home.log();
        assert!(log.contains(", locked in by Landlock"), "{settings}: {log}");
        // Only Landlock forbids it.
        becomes_watched(&mut link, 1);
        point(&pods, elsewhere.path());
        becomes_watched(&mut link, 0);
        point(&pods, &home.path("here"));
        becomes_watched(&mut link, 1);
        drop((link, process));
        wait_for("all have ended", || {
            (observers().is_empty() && workers().is_empty() && tracers().is_empty()).then_some(())
        });
    }
}

/// Waits until the worker has read a process, with its sockets if it has the capabilities.
fn is_read(link: &mut Link, process: &mut Process, settings: &str, kept: u64) {
    if settings.contains("transport = false") {
        return;
    }
    let pid = process.pid();
    wait_for("the process has a row", || {
        pids(link).values().any(|&row| row == pid).then_some(())
    });
    if kept == READS {
        exact_row(link, process, "one");
    }
}
