// SPDX-License-Identifier: GPL-2.0-or-later

//! A drain that is killed at any instruction: the next start must count every event once. The drain is single-stepped,
//! and recovery runs on each state of shared memory on the way.
//!
//! Another process sees only the stores of a drain, in the ring and in the state file. So those states represent a kill
//! after each instruction. qa/ring/every_instruction.rs uses real kills.

use crate::support::drain::{Bench, Contents, Meanwhile, NEW, Traced};
use crate::support::release_example;
use crate::support::writer::{Layout, RingWriter};
use std::path::Path;

/// Moment of a drain at which shared memory changed.
struct Moment {
    /// Number of the instruction, from the first of the drain on, and the changed part.
    name: String,
    contents: Contents,
}

/// Steps through a drain. Returns its moments, the first one before the drain, and the number of instructions.
fn moments(bench: &Bench) -> (Vec<Moment>, usize) {
    let drain = bench.stopped();
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

/// Result of a kill at a moment of a drain and of the next drain.
#[derive(Debug)]
pub struct Outcome {
    moment: String,
    /// Bytes, resets and foreign reads.
    found: [u64; 3],
    /// Sum of the pushed bytes.
    pushed: u64,
}

/// Results of a kill at each moment of a drain, and the number of instructions.
fn after_each(bench: &mut Bench, meanwhile: Meanwhile) -> (Vec<Outcome>, usize) {
    let pushed = bench.pushed;
    let (moments, steps) = moments(bench);
    assert!(
        steps > 1000 && moments.len() > 5,
        "a drain writes its record and a position: {} changes in {steps} steps",
        moments.len()
    );
    let mut found = Vec::new();
    for moment in moments {
        bench.restore(&moment.contents);
        bench.pushed = pushed;
        bench.pass(meanwhile);
        found.push(Outcome {
            moment: moment.name,
            found: bench.finish(),
            pushed: bench.pushed,
        });
    }
    (found, steps)
}

/// Moments after which a kill loses or doubles events.
pub fn wrong(bench: &mut Bench, meanwhile: Meanwhile) -> (Vec<Outcome>, usize) {
    let (mut outcomes, steps) = after_each(bench, meanwhile);
    outcomes.retain(|outcome| outcome.found != [outcome.pushed, 0, 0]);
    (outcomes, steps)
}

/// All layouts with `TORTURE`, otherwise the newest one, and the oldest one, which has the longest slots.
fn layouts() -> Vec<Layout> {
    match torture() {
        true => Layout::ALL.to_vec(),
        false => vec![Layout::V4, Layout::V1],
    }
}

fn torture() -> bool {
    std::env::var_os("TORTURE").is_some()
}

fn every_event_once(before: u64, meanwhile: Meanwhile) {
    let program = release_example("one_drain");
    for layout in layouts() {
        let mut bench = Bench::of(&program, layout, before);
        let (wrong, steps) = wrong(&mut bench, meanwhile);
        assert!(
            wrong.is_empty(),
            "{layout:?}, {before} events before, {meanwhile:?}, of {steps} instructions: {wrong:#?}"
        );
    }
}

#[test]
fn kill_at_any_instruction_at_the_start_of_a_ring_is_exact() {
    every_event_once(0, Meanwhile::Nothing);
    every_event_once(0, Meanwhile::Touched);
}

#[test]
fn kill_at_any_instruction_in_the_middle_of_a_ring_is_exact() {
    every_event_once(5, Meanwhile::Nothing);
    every_event_once(5, Meanwhile::Touched);
}

#[test]
fn kill_at_any_instruction_where_a_full_ring_wraps_is_exact() {
    every_event_once(14, Meanwhile::Filled);
    every_event_once(16, Meanwhile::Filled);
}

/// State after a kill, when the batch in slots 5 to 8 was counted.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// The slots are released, but the state file does not say so.
    Released,
    /// The slots are not released.
    Unreleased,
    /// Another reader read one event of the batch.
    Between,
    /// Another reader read one of two events after the batch.
    Behind,
    /// The agent restarted in place and has sent two events.
    NewRing,
    /// The batch was in slots 0 to 3. The agent restarted in place, and the slots were released in the new ring.
    NewRingReleased,
}

impl Left {
    const ALL: [Self; 6] = [
        Self::Released,
        Self::Unreleased,
        Self::Between,
        Self::Behind,
        Self::NewRing,
        Self::NewRingReleased,
    ];

    /// Number of events before the batch.
    fn before(self) -> u64 {
        match self {
            Self::NewRingReleased => 0,
            _ => 5,
        }
    }

    /// Makes this state. Returns the right bytes, resets and foreign reads.
    fn leave(self, bench: &mut Bench) -> [u64; 3] {
        bench.finish();
        let counted = bench.pushed;
        match self {
            Self::Released | Self::Unreleased | Self::Between => bench.push(NEW),
            Self::Behind => (0..2).for_each(|_| bench.push(NEW)),
            Self::NewRing | Self::NewRingReleased => bench.restart(2),
        }
        let all = bench.pushed;
        match self {
            Self::Released => bench.leave_at(8),
            Self::Unreleased => bench.leave_at(5),
            Self::Between => bench.leave_at(6),
            Self::Behind => bench.leave_at(9),
            Self::NewRing => bench.leave_at(0),
            Self::NewRingReleased => bench.leave_at(3),
        }
        match self {
            Self::Released | Self::Unreleased => [all, 0, 0],
            Self::Between => [all, 0, 1],
            Self::Behind => [counted + NEW, 0, 1],
            Self::NewRing | Self::NewRingReleased => [all, 1, 0],
        }
    }
}

/// A start that recovers the state of the previous daemon is killed during recovery as well.
#[test]
fn kill_at_any_instruction_of_a_recovery_is_exact() {
    let program = release_example("one_drain");
    for layout in layouts() {
        for left in Left::ALL {
            let mut bench = Bench::of(&program, layout, left.before());
            let [bytes, resets, foreign] = left.leave(&mut bench);
            let (outcomes, steps) = after_each(&mut bench, Meanwhile::Nothing);
            let last = outcomes.last().expect("there are some");
            let right = [bytes, resets, foreign];
            assert_eq!(last.found, right, "{layout:?} {left:?}, without a kill");
            for Outcome { moment, found, .. } in outcomes {
                // Foreign reads are counted when the position is corrected. A kill before that loses this count, but no
                // event.
                let is_right = found[..2] == right[..2] && found[2] <= foreign;
                assert!(
                    is_right,
                    "{layout:?} {left:?}, {moment} of {steps}: {found:?}, and {right:?} is right"
                );
            }
        }
    }
}

/// Event between the commit of a batch and the compare-and-swap that releases its slots.
#[derive(Clone, Copy, Debug)]
enum Between {
    /// Another reader reads one of three events of the batch.
    OneTaken,
    /// Another reader reads the whole batch.
    AllTaken,
    /// Another reader reads the whole batch, and one of two later events.
    MoreTaken,
    /// The agent restarts in place and sends two events.
    Restart,
}

/// Runs a drain up to the commit of its batch, lets `between` happen, and runs the drain to its end. Returns the values
/// of the next start.
fn interrupted(bench: &mut Bench, between: Between, from: u64) -> [u64; 3] {
    let [_, state] = bench.files();
    let words = || (Contents::generation(&state), bench.ring.read_pos());
    // Number of writes of the record before the release.
    let beginning = Contents::read(&bench.files());
    let drain = bench.stopped();
    let (start, mut counted) = (words(), 0);
    while drain.step() && words().1 == start.1 {
        counted = words().0.wrapping_sub(start.0);
    }
    drop(drain);
    bench.restore(&beginning);
    let drain = bench.stopped();
    while words().0.wrapping_sub(start.0) < counted {
        assert!(drain.step(), "the record is written again");
    }
    assert_eq!(words().1, from, "not released");
    match between {
        Between::OneTaken => bench.take_up_to(from + 1),
        Between::AllTaken => bench.take_up_to(from + 3),
        Between::MoreTaken => {
            (0..2).for_each(|_| bench.push(NEW));
            bench.take_up_to(from + 4);
        }
        Between::Restart => bench.restart(2),
    }
    drain.to_end();
    drop(drain);
    bench.finish()
}

#[test]
fn change_before_the_release_is_noticed_by_the_drain() {
    let program = release_example("one_drain");
    // The number is equal for all cases.
    let layouts = layouts().into_iter();
    for layout in layouts.filter(|layout| *layout == Layout::V4 || torture()) {
        for from in [0, 5] {
            for between in [
                Between::OneTaken,
                Between::AllTaken,
                Between::MoreTaken,
                Between::Restart,
            ] {
                let mut bench = Bench::of(&program, layout, from);
                let found = interrupted(&mut bench, between, from);
                let all = bench.pushed;
                let right = match between {
                    Between::OneTaken => [all, 0, 1],
                    Between::AllTaken => [all, 0, 0],
                    Between::MoreTaken => [all - NEW, 0, 1],
                    Between::Restart => [all, 1, 0],
                };
                assert_eq!(found, right, "{layout:?} {between:?} {from}");
            }
        }
    }
}

/// A drain of 15 events in the first slots of a ring, where the positions of a restarted ring fit the batch. It has
/// found out which ring this is, and is about to copy the slots.
fn about_to_copy(program: &Path) -> (Bench<'_>, Traced) {
    let mut bench = Bench::new(program, 0);
    (0..12).for_each(|_| bench.push(1_000_000));
    let drain = bench.stopped();
    // Up to the end of a system call.
    assert!(drain.to_system_call() && drain.to_system_call());
    (bench, drain)
}

#[test]
fn restart_while_a_batch_is_read_is_noticed() {
    let program = release_example("one_drain");
    let (bench, drain) = about_to_copy(&program);
    let [_, state] = bench.files();
    let generation = Contents::generation(&state);
    let steps = (0..).take_while(|_| drain.step() && Contents::generation(&state) == generation);
    let until_commit = steps.count();
    for steps in (0..24).map(|part| until_commit * part / 24) {
        let (mut bench, drain) = about_to_copy(&program);
        let old = bench.pushed;
        assert!(drain.steps(steps), "the same drain again");
        bench.restart(15);
        drain.to_end();
        drop(drain);
        let found = bench.finish()[0];
        let right = [15 * NEW, 15 * NEW + old];
        assert!(
            right.contains(&found),
            "{found} after {steps} of {until_commit}"
        );
    }
}

#[test]
fn restart_before_the_release_of_a_recovery_is_noticed() {
    let program = release_example("one_drain");
    // The release is from 0, where a new ring begins as well.
    for instructions in [1, 1000, 3000] {
        let mut bench = Bench::new(&program, 16);
        bench.finish();
        bench.leave_at(0);
        let drain = bench.before_release(instructions);
        bench.restart(2);
        drain.to_end();
        drop(drain);
        assert_eq!(
            bench.finish(),
            [bench.pushed, 1, 0],
            "{instructions} before"
        );
    }
}

#[test]
fn release_in_the_midst_of_a_restart_is_undone() {
    let program = release_example("one_drain");
    let mut bench = Bench::new(&program, 0);
    let drain = bench.before_release(1);
    // The new ring has its positions, and not yet a version.
    let path = bench.dir.path().join("rings/agent");
    bench.ring = RingWriter::begin(&path, Layout::V4, 64).expect("a ring");
    drain.to_end();
    drop(drain);
    bench.ring.publish().expect("a ring");
    // More than would fit if the slots were released.
    (0..5).for_each(|_| bench.push(NEW));
    assert_eq!(bench.finish(), [bench.pushed, 1, 0]);
}
