// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::process::{Child, Command};

fn sleeper() -> (Child, ProcessId) {
    let child = Command::new("sleep").arg("600").spawn().expect("it starts");
    let writer = ProcessId::of(child.id()).expect("it runs");
    (child, writer)
}

#[test]
fn stalled_process_is_skipped_with_its_user_or_user_namespaces() {
    let (mut child, process) = sleeper();
    let expected = match nix::unistd::geteuid().as_raw() {
        0 => format!("with pid {}", process.pid),
        uid => format!("of uid {uid}"),
    };
    assert_eq!(skip_group(process), expected);
    // Some hosts forbid user namespaces.
    let unshared = Command::new("unshare")
        .args(["--user", "sleep", "600"])
        .spawn();
    if let Ok(mut unshared) = unshared {
        let end = Instant::now() + Duration::from_secs(120);
        let process = ProcessId::of(unshared.id()).expect("it runs");
        while matches!(unshared.try_wait(), Ok(None)) && Instant::now() < end {
            if skip_group(process) == "with user namespaces of their own" {
                break;
            }
        }
        assert!(Instant::now() < end);
        let _ = unshared.kill();
        unshared.wait().expect("our child");
    }
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

/// Starts a scan that has reported a process, and waits until the sender is dropped.
fn start_stalled(threads: &mut ScanThreads<bool>, process: ProcessId, now: Instant) -> Sender<()> {
    let (go, wait) = mpsc::channel::<()>();
    assert!(threads.start(now, move |context| {
        let may_read = context.may_read(process);
        let _ = wait.recv();
        may_read
    }));
    while threads
        .running
        .as_ref()
        .is_some_and(|running| running.process.is_none())
    {
        assert_eq!(threads.wait(Duration::ZERO, now), None);
    }
    go
}

#[test]
fn stalled_process_is_skipped_until_it_answers_and_after() {
    let start = Instant::now();
    let mut threads = ScanThreads::default();
    let (mut child, process) = sleeper();
    let go = start_stalled(&mut threads, process, start);
    assert_eq!(
        threads.wait(Duration::ZERO, start + STALL_TIMEOUT / 2),
        None
    );
    assert!(threads.is_running());
    assert_eq!(
        threads.wait(Duration::ZERO, start + STALL_TIMEOUT),
        Some(Err(ScanFailed))
    );
    assert!(!threads.is_running());
    let reads = |threads: &mut ScanThreads<bool>, now| {
        assert!(threads.start(now, move |context| context.may_read(process)));
        loop {
            if let Some(ended) = threads.wait(STALL_TIMEOUT, now) {
                break ended.expect("it does not stall");
            }
        }
    };
    let late = start + STALL_TIMEOUT + SKIP_TIME;
    assert!(!reads(&mut threads, start + STALL_TIMEOUT));
    assert!(!reads(&mut threads, late), "it still waits");
    drop(go);
    while threads.abandoned.iter().any(AbandonedScan::is_running) {
        thread::yield_now();
    }
    assert!(
        !reads(&mut threads, start + STALL_TIMEOUT),
        "it may do so again"
    );
    assert!(reads(&mut threads, late));
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

#[test]
fn scan_that_stalls_before_any_process_is_abandoned() {
    let start = Instant::now();
    let mut threads = ScanThreads::default();
    let (go, wait) = mpsc::channel::<()>();
    assert!(threads.start(start, move |_| wait.recv().is_ok()));
    assert_eq!(
        threads.wait(Duration::ZERO, start + STALL_TIMEOUT / 2),
        None
    );
    assert_eq!(
        threads.wait(Duration::ZERO, start + STALL_TIMEOUT),
        Some(Err(ScanFailed))
    );
    assert_eq!(
        (threads.waiting().count(), threads.stalled_pids()),
        (1, Vec::new())
    );
    drop(go);
}

#[test]
fn no_scan_starts_while_eight_are_stalled() {
    let now = Instant::now();
    let mut threads = ScanThreads::default();
    let mut ends = Vec::new();
    for pid in 1..=8 {
        let process = ProcessId {
            pid: pid + (1 << 30),
            start: 1,
        };
        ends.push(start_stalled(&mut threads, process, now));
        assert_eq!(
            threads.wait(Duration::ZERO, now + STALL_TIMEOUT),
            Some(Err(ScanFailed))
        );
    }
    assert!(!threads.start(now + STALL_TIMEOUT, |_| true));
    assert!(
        !threads.start(now + 2 * SKIP_TIME, |_| true),
        "they still wait"
    );
    ends.pop();
    while threads.waiting().count() == MAX_ABANDONED {
        thread::yield_now();
    }
    assert!(threads.start(now + STALL_TIMEOUT, |_| true));
}

#[test]
fn scan_that_panics_has_failed() {
    let found: Option<()> = ScanThreads::default().run(|_| panic!("as the test wants it"));
    assert_eq!(found, None);
}
