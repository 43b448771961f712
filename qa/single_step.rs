//! Wherever a drain is killed, the next start has every event once: a drain is single-stepped, and the restart's decision is
//! run on each state that shared memory was in on the way.
//!
//! Another process sees nothing of a drain but what it stores in the ring and in the state file, so that those states stand for
//! a kill after each instruction. qa/every_instruction.rs kills for real.

mod support;

use support::drain::{BATCH, Bench, Contents, Meanwhile};
use support::{example, leave_out};

/// A moment of a drain at which shared memory changed.
struct Moment {
    /// The instruction, from the drain's first on, and what it changed.
    name: String,
    contents: Contents,
}

/// All of a drain, in a mode of qa/one_drain.rs, from what was before it to its end; and its instructions.
fn moments(bench: &Bench, mode: &str) -> (Vec<Moment>, usize) {
    let drain = bench.stopped_as(mode);
    let files = bench.files();
    let mut moments = vec![Moment {
        name: "the beginning".into(),
        contents: Contents::read(&files),
    }];
    let mut steps = 0;
    while drain.step() {
        steps += 1;
        let contents = Contents::read(&files);
        let before = &moments.last().expect("the beginning").contents;
        if contents != *before {
            let name = format!("instruction {steps} changes {}", contents.changed(before));
            moments.push(Moment { name, contents });
        }
    }
    (moments, steps)
}

/// The moments after which a kill costs or doubles events, with what was counted and what is right.
fn wrong(before: u64, meanwhile: Meanwhile, mode: &str) -> (Vec<(String, u64, u64)>, usize) {
    let program = example("one_drain");
    let mut bench = Bench::new(&program, before);
    let pushed = bench.pushed;
    let (moments, steps) = moments(&bench, mode);
    assert!(
        steps > 1000 && moments.len() > 5,
        "a drain writes its record and a position: {} changes in {steps} steps",
        moments.len()
    );
    let mut wrong = Vec::new();
    for moment in moments {
        bench.restore(&moment.contents);
        bench.pushed = pushed;
        bench.pass(meanwhile);
        let [bytes, resets, foreign] = bench.finish();
        if (bytes, resets, foreign) != (bench.pushed, 0, 0) {
            wrong.push((moment.name, bytes, bench.pushed));
        }
    }
    (wrong, steps)
}

fn every_event_once(before: u64, meanwhile: Meanwhile) {
    let (wrong, steps) = wrong(before, meanwhile, "step");
    assert!(
        wrong.is_empty(),
        "{before} events before, {meanwhile:?}, of {steps} instructions: {wrong:#?}"
    );
}

#[test]
fn a_kill_after_any_instruction_at_the_start_of_a_ring() {
    every_event_once(0, Meanwhile::Nothing);
    every_event_once(0, Meanwhile::Touched);
}

#[test]
fn a_kill_after_any_instruction_in_the_midst_of_a_ring() {
    every_event_once(5, Meanwhile::Nothing);
    every_event_once(5, Meanwhile::Touched);
}

#[test]
fn a_kill_after_any_instruction_where_a_ring_begins_anew_and_is_filled_meanwhile() {
    every_event_once(14, Meanwhile::Filled);
    every_event_once(16, Meanwhile::Filled);
}

#[test]
fn slots_that_are_given_back_before_they_are_counted_are_found_out_and_named() {
    if !cfg!(debug_assertions) {
        leave_out("the steps can only be swapped with debug assertions");
    }
    let (wrong, _) = wrong(5, Meanwhile::Nothing, "swapped");
    let batch: u64 = BATCH.iter().sum();
    let (name, counted, right) = wrong.first().expect("it is found out");
    assert!(
        name.ends_with("changes the ring's read position"),
        "{wrong:#?}"
    );
    assert_eq!((*counted, *right), (5, 5 + batch), "the batch is lost");
}
