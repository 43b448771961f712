// SPDX-License-Identifier: GPL-2.0-or-later

//! A drain that is killed after any of its stores, or a ring that is restarted before any of them. The next start must
//! count every event once. Each kill is real and needs a run of its own, so this takes long; qa/ring/single_step.rs
//! tests all moments of one run.
//!
//! Another process sees only the stores of a drain, in the ring and in the state file. So a kill after each store
//! represents a kill after each instruction. Every thousandth instruction is tested as well.

use crate::support::drain::{Bench, Meanwhile, NEW, Traced};
use crate::support::release_example;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Values after a killed drain and the next start, and the right values.
fn after_kill(mut bench: Bench, drain: Traced, meanwhile: Meanwhile) -> ([u64; 3], [u64; 3]) {
    drop(drain);
    bench.pass(meanwhile);
    (bench.finish(), [bench.pushed, 0, 0])
}

#[test]
#[ignore = "minutes: make torture runs all of it"]
fn drain_killed_after_any_instruction_counts_every_event_once() {
    let program = release_example("one_drain");
    for (before, meanwhile) in [
        (0, Meanwhile::Nothing),
        (0, Meanwhile::Touched),
        (5, Meanwhile::Touched),
        (14, Meanwhile::Filled),
        (16, Meanwhile::Filled),
    ] {
        let mut stores = 0;
        loop {
            let bench = Bench::new(&program, before);
            let drain = bench.stopped();
            let ended = drain.stores(&bench, stores).is_none();
            let (found, right) = after_kill(bench, drain, meanwhile);
            assert_eq!(
                found, right,
                "{before} events, killed after store {stores}, {meanwhile:?}"
            );
            if ended {
                break;
            }
            stores += 1;
        }
        assert!(
            stores > 5,
            "a drain writes its record and a position: {stores} stores"
        );
        // From the first instruction to the last, and somewhat more, since the number of instructions varies between
        // runs.
        let all = {
            let bench = Bench::new(&program, before);
            let drain = bench.stopped();
            (0..).take_while(|_| drain.step()).count() + 100
        };
        let every = 1000;
        in_parallel(0..all / every, |turn| {
            let steps = turn * every;
            let bench = Bench::new(&program, before);
            let drain = bench.stopped();
            let _ = drain.steps(steps);
            let (found, right) = after_kill(bench, drain, meanwhile);
            assert_eq!(
                found, right,
                "{before} events, killed after {steps} steps, {meanwhile:?}"
            );
        });
    }
}

/// Runs all cases in parallel, one on each CPU.
fn in_parallel(turns: std::ops::Range<usize>, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(turns.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // Only the thread that started a traced process can trace it.
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= turns.end {
                        break;
                    }
                    run(turn);
                }
            });
        }
    });
}

/// True if the events before the batch and the new ones were counted once, and those of the batch all or not at all: a
/// restart loses unread events.
fn is_right([bytes, resets, foreign]: [u64; 3], before: u64, events: u64) -> bool {
    let (new, rest) = (bytes / NEW, bytes % NEW);
    let batch = rest / 1000;
    new == events
        && rest % 1000 == before
        && [0, 111].contains(&batch)
        && resets <= 1
        && foreign == 0
}

#[test]
#[ignore = "minutes: make torture runs all of it"]
fn producer_restart_at_any_moment_of_a_drain_counts_once() {
    let program = release_example("one_drain");
    let mut turns = 0;
    for before in [0, 14, 16] {
        for events in [0, 4] {
            for restart in 0.. {
                let mut bench = Bench::new(&program, before);
                let drain = bench.stopped();
                let Some(steps) = drain.stores(&bench, restart) else {
                    break;
                };
                // Once without a kill, and once killed at a moment that differs between the cases.
                for kill in [None, Some(turns % 7 * 60)] {
                    let mut bench = Bench::new(&program, before);
                    let drain = bench.stopped();
                    // Right after a store, and right before the next one, as far as runs are equal.
                    if drain.stores(&bench, restart).is_none() {
                        break;
                    }
                    bench.restart(events);
                    match kill {
                        None => drain.to_end(),
                        Some(more) => {
                            let _ = drain.steps(more);
                        }
                    }
                    drop(drain);
                    let found = bench.finish();
                    assert!(
                        is_right(found, before, events),
                        "{found:?}: {before} events, restarted after store {restart} with {events}, killed after {kill:?}"
                    );
                    turns += 1;
                }
                // Half of the instructions before that store.
                bench.restart(events);
                drop(drain);
                let found = bench.finish();
                assert!(
                    is_right(found, before, events),
                    "{found:?} {before} {restart} {steps}"
                );
            }
            // During the copy of the slots, before any store.
            for steps in (0..6000).step_by(500) {
                let mut bench = Bench::new(&program, before);
                let drain = bench.stopped();
                if !drain.steps(steps) {
                    break;
                }
                bench.restart(events);
                drain.to_end();
                drop(drain);
                let found = bench.finish();
                assert!(
                    is_right(found, before, events),
                    "{found:?}: {before} events, restarted after {steps} steps with {events}"
                );
            }
        }
    }
    assert!(turns > 100, "{turns}");
}
