// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::observer::protocol::{Halt, QueueReading, QueueRequest, Sign, SocketRequest};
use crate::observer::workers::{MAX_BLOCKED, SKIP_TIME};
use std::path::Path;
use std::process::Command;

/// Commands of a worker that answers that each process has ended.
const SERVE: &str = "while read -r line; do echo '{\"Unread\":\"Ended\"}'; done";

/// Returns an observer whose workers are shell scripts. The first runs are `first`, one each, all later ones serve
/// orders.
fn supervisor(directory: &Path, first: &[&str]) -> Supervisor {
    let program = directory.join("worker");
    let mut script = format!("#!/bin/sh\ncd {}\n", directory.display());
    for (number, commands) in first.iter().enumerate() {
        script += &format!("if mkdir ran{number} 2>/dev/null; then\n{commands}\nexit\nfi\n");
    }
    script += SERVE;
    // By another process: a file that this one writes cannot be executed while a thread forks.
    let written = Command::new("/bin/sh")
        .args(["-c", "printf '%s\\n' \"$1\" >\"$0\"; chmod 700 \"$0\""])
        .arg(&program)
        .arg(script)
        .status();
    assert!(written.expect("sh is there").success());
    Supervisor::new(program)
}

/// Process that does not run. It has ended if it has stalled a worker.
fn process(pid: u32) -> ProcessId {
    ProcessId {
        pid: (1 << 30) + pid,
        start: 9,
    }
}

/// Begins a request of the sockets of processes, each of another user.
fn begin(supervisor: &mut Supervisor, processes: &[ProcessId], now: Instant) {
    let request = |&id: &ProcessId| SocketRequest {
        id,
        uid: id.pid,
        was_counted: false,
        library: None,
    };
    let requests = processes.iter().map(request).collect();
    supervisor.begin(Request::Sockets(requests), now);
}

/// Polls at a moment until there is a response that `is_last` is true for. Returns all.
fn poll_until(
    supervisor: &mut Supervisor,
    now: Instant,
    is_last: impl Fn(&Response) -> bool,
) -> Vec<Response> {
    let mut responses = Vec::new();
    while !responses.iter().any(&is_last) {
        responses.extend(supervisor.poll(now));
        std::thread::yield_now();
    }
    responses
}

/// Polls until a request is served. Returns the processes that have ended, and how many workers have failed.
fn serve(supervisor: &mut Supervisor, now: Instant) -> (Vec<u32>, usize) {
    let responses = poll_until(supervisor, now, |one| matches!(one, Response::Done(..)));
    let ended = responses.iter().filter_map(|response| match response {
        Response::Ended(id) => Some(id.pid - (1 << 30)),
        _ => None,
    });
    let failed = responses.iter();
    let failed = failed.filter(|one| matches!(one, Response::WorkerFailed(_)));
    let mut ended: Vec<u32> = ended.collect();
    ended.sort_unstable();
    (ended, failed.count())
}

/// Polls until a worker reads something, and so many workers have begun. None answers before it was polled again.
fn poll_until_read(supervisor: &mut Supervisor, directory: &Path, count: usize, now: Instant) {
    let has_begun = |number| directory.join(format!("ran{number}")).exists();
    while supervisor.errands.is_empty() || !(0..count).all(has_begun) {
        if supervisor.errands.is_empty() {
            assert_eq!(supervisor.poll(now), []);
        }
        std::thread::yield_now();
    }
}

#[test]
fn bad_answer_costs_one_process_and_one_worker() {
    for first in [
        "read -r line",
        "exit 0",
        "read -r line; echo '{\"Unread\":'",
        "read -r line; echo '\"Finished\"'; while read -r line; do :; done",
        "read -r line; printf '\\377\\000\\n'; while read -r line; do :; done",
        // Longer than the limit, without an end of the line.
        "read -r line; exec cat /dev/zero",
        "read -r line; exec 1>&-; while read -r line; do :; done",
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut supervisor = supervisor(directory.path(), &[first]);
        let now = Instant::now();
        begin(&mut supervisor, &[process(1), process(2)], now);
        let responses = poll_until(&mut supervisor, now, |one| {
            matches!(one, Response::WorkerFailed(_))
        });
        assert_eq!(responses.len(), 1, "{first}: {responses:?}");
        assert_eq!(supervisor.poll(now), [], "{first}: a pause");
        let later = now + Duration::from_secs(1);
        assert_eq!(serve(&mut supervisor, later), (vec![2], 0), "{first}");
        begin(&mut supervisor, &[process(1), process(2)], later);
        assert_eq!(serve(&mut supervisor, later), (vec![1, 2], 0), "{first}");
        // The first one was killed if it has not ended.
        while supervisor.workers.killed() > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn pause_after_workers_that_cannot_start_doubles_to_a_minute() {
    let mut supervisor = Supervisor::new("/none".into());
    let mut now = Instant::now();
    begin(&mut supervisor, &[1, 2, 3, 4, 5, 6, 7, 8].map(process), now);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        let responses = supervisor.poll(now);
        let [Response::WorkerFailed(why)] = &responses[..] else {
            panic!("{responses:?}");
        };
        let pause =
            format!("No such file or directory (os error 2); the next one starts in {seconds} s");
        assert_eq!(why, &pause);
        let next = now + Duration::from_secs(seconds);
        assert_eq!(supervisor.poll(next - Duration::from_millis(1)), []);
        now = next;
    }
}

#[test]
fn exit_status_of_a_worker_that_fails_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    for (first, expected) in [
        ("exit 127", "it has ended (exit status: 127); "),
        ("kill -9 $$", "it has ended (signal: 9 (SIGKILL)); "),
    ] {
        let mut supervisor = supervisor(directory.path(), &[first]);
        let _ = std::fs::remove_dir(directory.path().join("ran0"));
        begin(&mut supervisor, &[process(1)], Instant::now());
        let responses = poll_until(&mut supervisor, Instant::now(), |one| {
            matches!(one, Response::WorkerFailed(_))
        });
        let [Response::WorkerFailed(why)] = &responses[..] else {
            panic!("{responses:?}");
        };
        assert!(why.starts_with(expected), "{why}");
    }
}

#[test]
fn worker_that_does_not_answer_is_set_aside_and_killed_after_ten_seconds() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut supervisor = supervisor(directory.path(), &["while read -r line; do :; done"]);
    let start = Instant::now();
    let all = [process(1), process(2), process(3)];
    begin(&mut supervisor, &all, start);
    poll_until_read(&mut supervisor, directory.path(), 1, start);
    let early = start + SOFT_TIMEOUT - Duration::from_millis(1);
    assert_eq!(supervisor.poll(early), []);
    assert_eq!(supervisor.aside().count(), 0);
    let aside = start + SOFT_TIMEOUT;
    assert_eq!(serve(&mut supervisor, aside), (vec![], 0));
    // Its group is left out while it waits, which this worker does not do.
    begin(&mut supervisor, &all, aside);
    assert_eq!(serve(&mut supervisor, aside), (vec![1, 2, 3], 0));
    begin(&mut supervisor, &all, aside);
    let stalled = Response::Stalled(Stalled {
        kind: RequestKind::Sockets,
        process: Some((all[0], Group::User(all[0].pid))),
        uid: all[0].pid,
        blocked: 1,
    });
    let killed = start + HARD_TIMEOUT;
    let early = killed - Duration::from_millis(1);
    serve(&mut supervisor, early);
    assert_eq!(supervisor.aside().count(), 1);
    let responses = supervisor.poll(killed);
    let is_stalled = |one: &Response| match (one, &stalled) {
        (Response::Stalled(one), Response::Stalled(other)) => {
            (one.kind, one.process) == (other.kind, other.process)
        }
        _ => false,
    };
    assert!(responses.iter().any(is_stalled), "{responses:?}");
    assert_eq!(supervisor.aside().count(), 0);
    while supervisor.workers.killed() > 0 {
        std::thread::yield_now();
    }
    let skipped = |supervisor: &Supervisor| supervisor.workers.skipped().count();
    supervisor.poll(killed + SKIP_TIME - Duration::from_millis(1));
    assert_eq!(skipped(&supervisor), 1, "for ten minutes");
    supervisor.poll(killed + SKIP_TIME);
    assert_eq!(skipped(&supervisor), 0);
}

#[test]
fn late_answer_is_passed_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = format!(
        "read -r line; while ! [ -e go ]; do sleep 0.01; done; echo '{{\"Unread\":\"Ended\"}}'; {SERVE}"
    );
    let mut supervisor = supervisor(directory.path(), &[&first]);
    let start = Instant::now();
    begin(&mut supervisor, &[process(1), process(2)], start);
    poll_until_read(&mut supervisor, directory.path(), 1, start);
    let aside = start + SOFT_TIMEOUT;
    assert_eq!(serve(&mut supervisor, aside), (vec![], 0));
    std::fs::write(directory.path().join("go"), "").expect("written");
    let late = poll_until(&mut supervisor, aside, |one| {
        matches!(one, Response::Ended(_))
    });
    assert_eq!(late, [Response::Ended(process(1))]);
    assert_eq!(supervisor.aside().count(), 0);
    assert_eq!(supervisor.workers.skipped().count(), 0);
}

#[test]
fn ancestor_that_stalls_is_blamed_instead_of_the_process() {
    let directory = tempfile::tempdir().expect("a directory");
    let ancestor = serde_json::to_string(&Reply::Ancestor(process(7))).expect("JSON");
    let first = format!("read -r line; echo '{ancestor}'; while read -r line; do :; done");
    let mut supervisor = supervisor(directory.path(), &[&first]);
    let start = Instant::now();
    begin(&mut supervisor, &[process(1)], start);
    let knows = |supervisor: &Supervisor| {
        let mut errands = supervisor.errands.iter();
        errands.any(|errand| errand.ancestor.is_some())
    };
    while !knows(&supervisor) {
        assert_eq!(supervisor.poll(start), []);
    }
    supervisor.poll(start + SOFT_TIMEOUT);
    let aside = supervisor.aside().next();
    let (blamed, _) = aside.and_then(|one| one.stalled).expect("known");
    assert_eq!(blamed, process(7));
}

#[test]
fn worker_killed_between_two_orders_costs_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let first = format!("echo $$ >pid; {SERVE}");
    let mut supervisor = supervisor(directory.path(), &[&first]);
    let now = Instant::now();
    begin(&mut supervisor, &[process(1)], now);
    assert_eq!(serve(&mut supervisor, now), (vec![1], 0));
    let pid = std::fs::read_to_string(directory.path().join("pid")).expect("written");
    let killed = Command::new("kill").args(["-9", pid.trim()]).status();
    assert!(killed.expect("it is there").success());
    let pid: u32 = pid.trim().parse().expect("a pid");
    while ProcessId::of(pid).is_ok_and(|process| process.is_running()) {
        std::thread::yield_now();
    }
    begin(&mut supervisor, &[process(2)], now);
    assert_eq!(serve(&mut supervisor, now), (vec![2], 0));
}

#[test]
fn with_8_workers_that_wait_no_other_one_is_started() {
    let directory = tempfile::tempdir().expect("a directory");
    let hangs = "while read -r line; do :; done";
    let mut first = vec![hangs.to_owned(); MAX_BLOCKED];
    // All users are light when their processes begin to block.
    first[0] = format!(
        "for n in 1 2 3 4 5 6 7 8 9; do read -r line; echo '{{\"Unread\":\"Ended\"}}'; done; {hangs}"
    );
    let first = Vec::from_iter(first.iter().map(String::as_str));
    let mut supervisor = supervisor(directory.path(), &first);
    let mut now = Instant::now();
    let all: Vec<_> = (1..10).map(process).collect();
    begin(&mut supervisor, &all, now);
    assert_eq!(serve(&mut supervisor, now).0.len(), all.len());
    for count in 1..=MAX_BLOCKED {
        begin(&mut supervisor, &all, now);
        assert_eq!(supervisor.poll(now), []);
        poll_until_read(&mut supervisor, directory.path(), count, now);
        now += SOFT_TIMEOUT;
        if count < MAX_BLOCKED {
            assert_eq!(serve(&mut supervisor, now), (vec![], 0));
        }
    }
    assert_eq!(supervisor.poll(now), []);
    assert_eq!(supervisor.aside().count(), MAX_BLOCKED);
    assert_eq!(supervisor.poll(now), []);
    assert_eq!(supervisor.errands.len(), MAX_BLOCKED, "one process is left");
    supervisor
        .workers
        .kill(supervisor.errands.remove(0).worker, None, now);
    while supervisor.workers.killed() > 0 {
        std::thread::yield_now();
    }
    assert_eq!(serve(&mut supervisor, now), (vec![], 0));
    begin(&mut supervisor, &all, now);
    assert_eq!(serve(&mut supervisor, now), (vec![9], 0));
}

#[test]
fn process_scan_is_complete_if_all_that_run_were_read() {
    let denied = || Unread::Denied("EACCES".into());
    for (pid, why, is_complete) in [
        (7, Unread::Ended, true),
        (7, denied(), false),
        // Some kernels deny access to the host's init process, which is not an agent.
        (INIT_PID, denied(), true),
        (INIT_PID, Unread::Skipped, false),
        (7, Unread::Skipped, false),
        (7, Unread::Failed("EIO".into()), false),
    ] {
        let mut supervisor = Supervisor::new("/none".into());
        supervisor.job(RequestKind::Scan).end.is_complete = true;
        let queued = QueuedOrder {
            uid: 0,
            rank: 0,
            order: Order::Scan(pid),
            is_sought: false,
        };
        supervisor.respond(&queued, Reply::Unread(why.clone()));
        let found = supervisor.job(RequestKind::Scan).end.is_complete;
        assert_eq!(found, is_complete, "{pid} {why:?}");
        assert_eq!(supervisor.responses, []);
    }
}

#[test]
fn sign_of_a_silent_process_precedes_the_end_of_its_request() {
    let directory = tempfile::tempdir().expect("a directory");
    let stopped = "while read -r line; do echo '{\"Queues\":{\"halt\":\"Stopped\",\"network\":1,\"connections\":[]}}'; done";
    let mut supervisor = supervisor(directory.path(), &[stopped]);
    let now = Instant::now();
    let request = |pid, is_silent| QueueRequest {
        id: process(pid),
        uid: pid,
        is_silent,
    };
    for time in [Duration::ZERO, Duration::from_secs(10)] {
        let now = now + time;
        let requests = vec![request(1, true), request(2, false)];
        supervisor.begin(Request::Queues(requests), now);
        let responses = poll_until(&mut supervisor, now, |one| {
            matches!(one, Response::Done(..))
        });
        let sign = Sign {
            halt: Some(Halt::Stopped),
            time,
            ..Sign::default()
        };
        let reading = QueueReading {
            id: process(1),
            sign: Some(sign),
        };
        assert_eq!(responses[0], Response::Queues(reading));
        assert!(matches!(
            responses[1],
            Response::Done(RequestKind::Queues, _)
        ));
    }
}
