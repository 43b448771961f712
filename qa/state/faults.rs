// SPDX-License-Identifier: GPL-2.0-or-later

//! Every system call of the daemon fails once, by strace(1). The daemon must continue, and every event must be counted
//! once.
//!
//! [`scene`] is the load. A run without faults finds the calls. Then each kind of call, by its target, fails in
//! separate runs. With `TORTURE=1`, each call that events and totals depend on fails in every possible way.

use scene::{Before, Fault, Scene};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use trace::{Call, Kind};

mod scene;
mod trace;

const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EMFILE", "EINTR", "EACCES", "ENOMEM"];

/// Number of runs at a time: a run mostly waits.
const WORKERS: usize = 12;
/// Limit of the attempts if another call failed in place of the chosen one.
const TRIES: u32 = 4;

/// Calls without a guarantee: start of the name, target, and reason.
const LEFT_OUT: [(&str, &str, &str); 17] = [
    (
        "",
        "pmcd",
        "libpcp takes an error for the end of the connection, and so does the daemon",
    ),
    (
        "",
        "configuration",
        "without a readable configuration, the daemon does not scan",
    ),
    ("", "users", "the user in the configuration"),
    (
        "mmap",
        "memory",
        "the allocator ends the process without memory",
    ),
    ("mprotect", "", "likewise"),
    ("brk", "", "likewise"),
    (
        "futex",
        "",
        "the C library ends the process when that fails",
    ),
    (
        "set",
        "",
        "user and rights: the daemon must not run with others than the configured ones",
    ),
    ("cap", "", "likewise"),
    ("prctl", "", "likewise"),
    (
        "rt_sig",
        "",
        "the main loop needs it: the daemon logs the error and ends, and pmcd starts another",
    ),
    ("signalfd4", "", "likewise"),
    ("timerfd_", "", "likewise"),
    ("exit", "", "cannot fail"),
    (
        "close",
        "",
        "Linux closes the descriptor also if it fails (close(2)). Without the call it stays open, with the lock of its ring",
    ),
    (
        "clock_nanosleep",
        "",
        "only a signal interrupts it, and the standard library asserts that",
    ),
    ("restart_syscall", "", "likewise"),
];

/// Errors that the daemon takes as an answer, and its reaction.
const ANSWERS: [(&str, &str, &str, &str); 1] = [(
    "openat2",
    "ring",
    "EACCES",
    "an unreadable file is not opened until it changes, and an unwritable ring is not drained",
)];

/// Number of calls of each name before the daemon is connected to pmcd. They have no guarantee: pmcd needs the
/// connection.
type Start = BTreeMap<String, usize>;

/// True if this call may fail in this way.
fn is_promised(call: &Call, error: &str, start: &Start) -> bool {
    let is_left_out = LEFT_OUT
        .iter()
        .any(|(name, on, _)| call.name.starts_with(name) && (on.is_empty() || *on == call.on));
    let is_answer = ANSWERS
        .iter()
        .any(|(name, on, answer, _)| (&*call.name, &*call.on, error) == (*name, *on, *answer));
    let connected = start.get(&call.name).copied().unwrap_or_default();
    let is_start = call.is_first && call.number <= connected;
    !is_left_out && !is_answer && !is_start
}

/// Call that fails, and its error.
#[derive(Clone, Debug)]
struct Case {
    before: Before,
    call: Call,
    error: &'static str,
    start: Arc<Start>,
}

/// Calls of a run without a fault, and those of its start. Process scans have a separate thread; strace counts its
/// first calls like those of the daemon.
fn calls(before: Before) -> (Vec<Call>, Start) {
    let scene = Scene::new(before);
    scene.run(None).expect("a run without a fault");
    let mut calls = scene.calls();
    let connected = calls
        .iter()
        .position(|call| call.on == "pmcd" && call.name == "read");
    let mut start = Start::new();
    for call in &calls[..connected.expect("pmcd says hello")] {
        start.insert(call.name.clone(), call.number);
    }
    calls.retain(|call| call.is_first && is_promised(call, "", &start));
    (calls, start)
}

/// Targets that events and totals depend on.
const HEART: [&str; 4] = ["ring", "state", "lock", "directory of the rings"];

/// Selection of the failing calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// One call of each kind that events and totals depend on, in each way.
    Heart,
    /// One call of each kind in two ways, and in one way a third of the calls that events and totals depend on.
    Some,
    /// Each call that events and totals depend on, and one of each other kind, in each way.
    All,
}

fn cases(which: Which) -> Vec<Case> {
    let (mut cases, mut kinds) = (Vec::new(), BTreeSet::new());
    let scenes: &[Before] = match which {
        Which::Heart => &[Before::Kept],
        Which::Some | Which::All => &Before::ALL,
    };
    for &before in scenes {
        let (calls, start) = calls(before);
        let start = Arc::new(start);
        for (turn, call) in calls.into_iter().enumerate() {
            let error = |step: usize| ERRORS[(turn + step) % ERRORS.len()];
            let is_heart = before == Before::Kept && HEART.contains(&call.on.as_str());
            let is_next = is_heart && turn % 3 == 0;
            let errors = match (which, kinds.insert(call.kind()), is_next) {
                (Which::All, true, _) => ERRORS.to_vec(),
                (Which::All, ..) if HEART.contains(&call.on.as_str()) => ERRORS.to_vec(),
                (Which::All, ..) => vec![],
                (Which::Heart, true, _) if is_heart => ERRORS.to_vec(),
                (Which::Heart, ..) => vec![],
                (_, true, _) => vec![error(0), error(3)],
                (_, _, true) => vec![error(0)],
                _ => vec![],
            };
            let case = |error| Case {
                before,
                call: call.clone(),
                error,
                start: Arc::clone(&start),
            };
            let cases_of = errors.into_iter().map(case);
            cases.extend(cases_of.filter(|case| is_promised(&call, case.error, &start)));
        }
    }
    cases
}

/// Runs a case. The calls before the chosen one may differ between runs, so that another call fails: then the case is
/// repeated with the number of that run. Returns the kind of the failed call if it has a guarantee, or an error.
fn play(case: &Case) -> Result<Option<Kind>, String> {
    let mut when = case.call.number;
    for _ in 0..TRIES {
        let scene = Scene::new(case.before);
        let fault = Fault {
            call: case.call.name.clone(),
            when,
            error: case.error,
        };
        let run = catch_unwind(AssertUnwindSafe(|| scene.run(Some(&fault))));
        let run = run.unwrap_or_else(|_| Err("it did not go on".into()));
        let calls = scene.calls();
        let met: Vec<&Call> = calls.iter().filter(|call| call.injected).collect();
        let promised = |call: &&Call| is_promised(call, case.error, &case.start);
        // If another call without a guarantee failed instead, the run proves nothing.
        if met.iter().all(promised) {
            run.map_err(|why| format!("{case:?}, met {met:?}: {why}\n{}", scene.log()))?;
            if met.iter().any(|met| met.kind() == case.call.kind()) {
                return Ok(Some(case.call.kind()));
            }
        }
        let is_near = |call: &Call| call.is_first && call.number + 20 > when;
        let near = |call: &&Call| call.kind() == case.call.kind() && is_near(call);
        when = calls.iter().find(near).map_or(when, |call| call.number);
    }
    Ok(None)
}

#[test]
fn failed_call_on_a_ring_or_state_counts_every_event_once() {
    play_all(cases(Which::Heart));
}

#[test]
#[ignore = "minutes: make torture runs all of it"]
fn any_failed_system_call_counts_every_event_once() {
    let all = std::env::var_os("TORTURE").is_some();
    play_all(cases(if all { Which::All } else { Which::Some }));
}

fn play_all(cases: Vec<Case>) {
    let count = cases.len();
    // Every kind of call in every way.
    let kinds = cases.iter().map(|case| (case.call.kind(), case.error));
    let kinds: BTreeSet<_> = kinds.collect();
    let left = Mutex::new(cases.into_iter().enumerate());
    let (met, wrong) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some((turn, case)) = next(&left) {
                    if turn % 500 == 499 {
                        eprintln!("{turn} of {count} faults");
                    }
                    match play(&case) {
                        Ok(kind) => {
                            let kind = kind.map(|kind| (kind, case.error));
                            met.lock().expect("no panic").extend(kind);
                        }
                        Err(why) => wrong.lock().expect("no panic").push(why),
                    }
                }
            });
        }
    });
    let (met, wrong) = (
        met.into_inner().expect("no panic"),
        wrong.into_inner().expect("no panic"),
    );
    let missed: Vec<_> = kinds.difference(&met).collect();
    println!(
        "{count} faults, {} kinds of calls and ways; without a failure: {missed:?}",
        kinds.len()
    );
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    // On a slow machine, a call that depends on time may not happen; most do.
    assert!(missed.len() <= kinds.len() / 2, "{missed:?}");
}

fn next<T>(left: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    left.lock().expect("no panic").next()
}
