//! A drain is killed after any of its instructions, or its ring is set up anew before any of them: the next start has every
//! event once.
//!
//! Another process sees nothing of a drain but what it stores in the ring and in the state file, so that a kill after each of
//! these stores stands for a kill after each instruction. `TORTURE=1` takes each instruction all the same, about 16,000, and of
//! what may happen between the kill and the next start each eighth.

mod support;

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::writer::{Kind, Layout, RingWriter};
use support::{example, project, run};

/// What one turn of the harness works on. Events before the batch have the value 1, the batch's are [`BATCH`], and those of a
/// restarted agent [`NEW`], so that the sum tells how often each was counted.
struct Bench<'a> {
    program: &'a Path,
    dir: tempfile::TempDir,
    ring: RingWriter,
    pushed: u64,
}

const BATCH: [u64; 3] = [1000, 10_000, 100_000];
const NEW: u64 = 100_000_000;

/// What becomes of the ring between the kill and the next start.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Nothing,
    /// Its change time moves, as it does when a mapping is written to or written out.
    Touched,
    /// Its producer goes on, and fills it.
    Filled,
}

impl<'a> Bench<'a> {
    /// A ring whose next batch is behind `before` events that are counted already.
    fn new(program: &'a Path, before: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("rings")).expect("made");
        let ring = RingWriter::create(&dir.path().join("rings/agent"), Layout::V4, 16);
        let mut bench = Self {
            program,
            dir,
            ring: ring.expect("a ring"),
            pushed: 0,
        };
        bench.finish();
        for event in 1..=before {
            bench.push(1);
            if event % 10 == 0 || event == before {
                bench.finish();
            }
        }
        BATCH.iter().for_each(|&value| bench.push(value));
        bench
    }

    fn push(&mut self, value: u64) {
        assert!(self.ring.push(Kind::TxBytes, value));
        self.pushed += value;
    }

    /// The agent is started anew in place, and writes so many events.
    fn restart(&mut self, events: u64) {
        let path = self.dir.path().join("rings/agent");
        self.ring = RingWriter::create(&path, Layout::V4, 16).expect("a ring");
        (0..events).for_each(|_| self.push(NEW));
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .arg(self.dir.path().join("rings"))
            .arg(self.dir.path().join("nixl/state"));
        command
    }

    /// The drain, up to where it stops itself first.
    fn stopped(&self) -> Traced {
        let mut command = self.command();
        let child = command.arg("step").stdout(Stdio::null()).spawn();
        let child = child.expect("it starts");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        let stopped = WaitStatus::Stopped(pid, Signal::SIGSTOP);
        assert_eq!(waitpid(pid, None), Ok(stopped));
        Traced {
            child,
            pid,
            ended: Cell::new(false),
        }
    }

    /// What is in shared memory, for [`contents`].
    fn files(&self) -> [fs::File; 2] {
        ["rings/agent", "nixl/state"]
            .map(|name| fs::File::open(self.dir.path().join(name)).expect("there"))
    }

    /// Drains to the end: bytes, resets and foreign reads.
    fn finish(&self) -> [u64; 3] {
        let output = self.command().output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let said: Vec<&str> = said.split_whitespace().collect();
        match said[..] {
            ["agent", bytes, resets, foreign] => {
                [bytes, resets, foreign].map(|number| number.parse().expect("a number"))
            }
            _ => panic!("{said:?} {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
}

/// Bytes of a record, and of the header before the first.
const RECORD: usize = 8 * pmdanixl::record::RECORD_WORDS;

/// The ring, and the first record.
fn contents([ring, state]: &[fs::File; 2]) -> ([u8; 40 + 16 * 16], [u8; RECORD]) {
    let mut bytes = ([0; 40 + 16 * 16], [0; RECORD]);
    ring.read_exact_at(&mut bytes.0, 0).expect("a whole ring");
    state
        .read_exact_at(&mut bytes.1, RECORD as u64)
        .expect("a record");
    bytes
}

/// A drain that goes on instruction by instruction. Ends with the value, by SIGKILL.
struct Traced {
    child: Child,
    pid: Pid,
    /// Whether it has stopped itself behind its last instruction.
    ended: Cell<bool>,
}

impl Traced {
    /// One instruction; `false`: the drain has ended. Runs are not quite alike, so that it may have done so before.
    fn step(&self) -> bool {
        if self.ended.get() {
            return false;
        }
        ptrace::step(self.pid, None).expect("it is stopped");
        match waitpid(self.pid, None).expect("our child") {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                self.ended.set(true);
                false
            }
            other => panic!("{other:?}"),
        }
    }

    /// So many instructions; `false`: the drain has ended before.
    fn steps(&self, count: usize) -> bool {
        (0..count).all(|_| self.step())
    }

    /// Goes on until shared memory has changed so many times; how many instructions that took, or `None` at the end.
    fn stores(&self, bench: &Bench, count: usize) -> Option<usize> {
        let files = bench.files();
        let (mut before, mut left, mut steps) = (contents(&files), count, 0);
        while left > 0 {
            if !self.step() {
                return None;
            }
            steps += 1;
            let now = contents(&files);
            left -= usize::from(now != before);
            before = now;
        }
        Some(steps)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.child.kill().expect("it is stopped");
        self.child.wait().expect("our child");
    }
}

/// What the next start makes of a drain that was killed, and what is right.
fn after_kill(mut bench: Bench, drain: Traced, meanwhile: Meanwhile) -> ([u64; 3], [u64; 3]) {
    drop(drain);
    match meanwhile {
        Meanwhile::Nothing => {}
        Meanwhile::Touched => {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(bench.dir.path().join("rings/agent"), mode).expect("ours");
        }
        Meanwhile::Filled => {
            // Of a steady load, half of the events are those of the lap before; the other half are times, which differ.
            for value in [1, 1, 2, 2].into_iter().cycle() {
                if !bench.ring.push(Kind::TxBytes, value) {
                    break;
                }
                bench.pushed += value;
            }
        }
    }
    (bench.finish(), [bench.pushed, 0, 0])
}

#[test]
fn a_kill_after_any_instruction_of_a_drain_leaves_every_event_counted_once() {
    let program = example("one_drain");
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
        // From its first instruction to its last, and somewhat more, since runs are not quite alike.
        let all = {
            let bench = Bench::new(&program, before);
            let drain = bench.stopped();
            (0..).take_while(|_| drain.step()).count() + 100
        };
        let every = match (std::env::var_os("TORTURE"), meanwhile) {
            (None, _) => 1000,
            (Some(_), Meanwhile::Nothing) => 1,
            (Some(_), _) => 8,
        };
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

/// Each of the turns, as many at a time as there are processors.
fn in_parallel(turns: std::ops::Range<usize>, run: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(turns.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            // A traced process is its thread's.
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

/// Whether the events before and the new ones were counted once, and those of the batch all or none: what a restarted agent
/// leaves unread is lost.
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
fn a_ring_that_is_set_up_anew_at_any_moment_of_a_drain_is_counted_once_killed_or_not() {
    let program = example("one_drain");
    let mut turns = 0;
    for before in [0, 14, 16] {
        for events in [0, 4] {
            for restart in 0.. {
                let mut bench = Bench::new(&program, before);
                let drain = bench.stopped();
                let Some(steps) = drain.stores(&bench, restart) else {
                    break;
                };
                // Then once without a kill, and killed at a moment that differs from turn to turn.
                for kill in [None, Some(turns % 7 * 60)] {
                    let mut bench = Bench::new(&program, before);
                    let drain = bench.stopped();
                    // Right behind a store, and right before the next one, as far as runs are alike.
                    if drain.stores(&bench, restart).is_none() {
                        break;
                    }
                    bench.restart(events);
                    match kill {
                        None => while drain.step() {},
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
                // In the midst of the instructions before that store.
                bench.restart(events);
                drop(drain);
                let found = bench.finish();
                assert!(
                    is_right(found, before, events),
                    "{found:?} {before} {restart} {steps}"
                );
            }
            // While slots are copied, before anything is stored.
            for steps in (0..6000).step_by(500) {
                let mut bench = Bench::new(&program, before);
                let drain = bench.stopped();
                if !drain.steps(steps) {
                    break;
                }
                bench.restart(events);
                while drain.step() {}
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

#[test]
fn slots_that_are_given_back_before_they_are_counted_are_found_out_by_a_kill_in_between() {
    let directory = project("target/release_first");
    run(Command::new(env!("CARGO"))
        .args(["build", "--locked", "--example", "one_drain"])
        .args(["--features", "release_first", "--target-dir"])
        .arg(&directory)
        .current_dir(project(".")));
    let program = directory.join("debug/examples/one_drain");
    // The first store is the swap of read_pos.
    let sums = [0, 1].map(|stores| {
        let bench = Bench::new(&program, 5);
        let drain = bench.stopped();
        drain.stores(&bench, stores);
        after_kill(bench, drain, Meanwhile::Nothing)
    });
    let batch: u64 = BATCH.iter().sum();
    assert_eq!(sums[0].0, sums[0].1, "before it nothing is lost");
    assert_eq!((sums[1].0[0], sums[1].1[0]), (5, 5 + batch));
}
