// SPDX-License-Identifier: GPL-2.0-or-later

//! A drain in a process that a test steps instruction by instruction (qa/one_drain.rs), and the result of the next
//! start.

use super::kit::layers::RECORD;
use super::memory::in_memory;
use super::writer::{HEADER, Kind, Layout, RingWriter};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// A ring and a state file for one drain. Events before the batch have the value 1, those of the batch [`BATCH`], and
/// those of a restarted agent [`NEW`], so that the sum shows how often each was counted.
pub struct Bench<'a> {
    program: &'a Path,
    pub dir: TempDir,
    pub ring: RingWriter,
    layout: Layout,
    /// Sum of all events that were pushed.
    pub pushed: u64,
}

pub const BATCH: [u64; 3] = [1000, 10_000, 100_000];
pub const NEW: u64 = 100_000_000;

/// Change of the ring between the kill and the next start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meanwhile {
    Nothing,
    /// The change time of the ring advances, as after a write or a writeback of a mapping.
    Touched,
    /// The producer continues, and fills the ring.
    Filled,
}

impl<'a> Bench<'a> {
    /// Makes a v4 ring with `before` counted events before the next batch.
    pub fn new(program: &'a Path, before: u64) -> Self {
        Self::of(program, Layout::V4, before)
    }

    /// Makes a ring of any layout with `before` counted events before the next batch.
    pub fn of(program: &'a Path, layout: Layout, before: u64) -> Self {
        let dir = in_memory();
        fs::create_dir(dir.path().join("rings")).expect("made");
        let ring = RingWriter::create(&dir.path().join("rings/agent"), layout, 16);
        let mut bench = Self {
            program,
            dir,
            ring: ring.expect("a ring"),
            layout,
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

    pub fn push(&mut self, value: u64) {
        assert!(self.ring.push(Kind::TxBytes, value));
        self.pushed += value;
    }

    /// Restarts the agent in place, and pushes `events` events.
    pub fn restart(&mut self, events: u64) {
        let path = self.dir.path().join("rings/agent");
        self.ring = RingWriter::create(&path, self.layout, 16).expect("a ring");
        (0..events).for_each(|_| self.push(NEW));
    }

    /// Makes the change between the kill and the next start.
    pub fn pass(&mut self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Touched => {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(self.dir.path().join("rings/agent"), mode).expect("ours");
            }
            Meanwhile::Filled => {
                // In a steady load, half of the events equal those of the lap before. The other half are times, which
                // differ.
                for value in [1, 1, 2, 2].into_iter().cycle() {
                    if !self.ring.push(Kind::TxBytes, value) {
                        break;
                    }
                    self.pushed += value;
                }
            }
        }
    }

    /// Makes the state file say that the slots of the last batch are not released, and sets `read_pos`. A kill, maybe
    /// together with another reader, leaves this.
    pub fn leave_at(&self, read_pos: u64) {
        let put = |file: &str, at: usize, word: u64| {
            let file = fs::File::options()
                .write(true)
                .open(self.dir.path().join(file));
            file.and_then(|file| file.write_all_at(&word.to_ne_bytes(), at as u64))
                .expect("ours");
        };
        let at = usize::try_from(8 * HEADER.read_pos).expect("small");
        put("rings/agent", at, read_pos);
        // Word of the record with the generation (src/journal/record.rs).
        put("nixl/state", RECORD + 8 * 4, u64::MAX);
    }

    /// Sets `read_pos` like another reader. A store to a mapping does not change the change time of the file.
    pub fn take_up_to(&self, read_pos: u64) {
        self.ring.set_read_pos(read_pos);
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .arg(self.dir.path().join("rings"))
            .arg(self.dir.path().join("nixl/state"));
        command
    }

    /// Starts the drain. Returns when it has stopped itself before its first instruction.
    pub fn stopped(&self) -> Traced {
        Traced::start(self.command().arg("step"))
    }

    /// Starts the drain. Returns about so many instructions before it releases slots from 0 on.
    pub fn before_release(&self, instructions: usize) -> Traced {
        let files = self.files();
        let beginning = Contents::read(&files);
        let is_before = || self.ring.read_pos() == 0;
        // The number of instructions varies between runs, and that of one run may be an exception.
        for _ in 0..100 {
            let drain = self.stopped();
            let steps = (0..).take_while(|_| drain.step() && is_before()).count();
            drop(drain);
            self.restore(&beginning);
            let drain = self.stopped();
            if drain.steps(steps - instructions) && is_before() {
                return drain;
            }
            drop(drain);
            self.restore(&beginning);
        }
        panic!("the slots are always released before");
    }

    /// Files in shared memory, for [`Contents::read`].
    pub fn files(&self) -> [fs::File; 2] {
        ["rings/agent", "nixl/state"]
            .map(|name| fs::File::open(self.dir.path().join(name)).expect("there"))
    }

    /// Restores the files of an earlier moment. The ring is written through the mapping of its producer, so its change
    /// time stays.
    pub fn restore(&self, contents: &Contents) {
        self.ring.restore(&contents.ring);
        let state = fs::File::options()
            .write(true)
            .open(self.dir.path().join("nixl/state"));
        let written = state.and_then(|file| file.write_all_at(&contents.state[..], 0));
        written.expect("ours");
    }

    /// Drains to the end. Returns bytes, resets and foreign reads.
    pub fn finish(&self) -> [u64; 3] {
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

/// Shared memory that a drain may change: the ring, and header and first record of the state file.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    pub ring: Vec<u8>,
    pub state: Box<[u8; 2 * RECORD]>,
}

impl Contents {
    pub fn read([ring, state]: &[fs::File; 2]) -> Self {
        let len = ring.metadata().expect("open").len();
        let mut contents = Self {
            ring: vec![0; usize::try_from(len).expect("small")],
            state: Box::new([0; 2 * RECORD]),
        };
        let read = ring.read_exact_at(&mut contents.ring, 0);
        read.expect("a whole ring");
        let read = state.read_exact_at(&mut contents.state[..], 0);
        read.expect("a header and a record");
        contents
    }

    /// Number of writes of the first record of the state file.
    pub fn generation(state: &fs::File) -> u64 {
        word(state, RECORD + 8)
    }

    /// Names of the parts that differ from `before`.
    pub fn changed(&self, before: &Self) -> &'static str {
        if self.ring[8..16] != before.ring[8..16] {
            "the ring's read position"
        } else if self.ring != before.ring {
            "the ring"
        } else if self.state[..RECORD] != before.state[..RECORD] {
            "the state's header"
        } else {
            "the record"
        }
    }
}

fn word(file: &fs::File, at: usize) -> u64 {
    let mut word = [0; 8];
    file.read_exact_at(&mut word, at as u64).expect("whole");
    u64::from_ne_bytes(word)
}

/// A drain that runs instruction by instruction. Dropping it sends SIGKILL.
pub struct Traced {
    child: Child,
    pid: Pid,
    /// True if the drain has stopped itself after its last instruction.
    ended: Cell<bool>,
}

impl Traced {
    /// Starts a program, and returns when it has stopped itself.
    pub fn start(command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).spawn();
        let child = child.expect("it starts");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
        let stopped = WaitStatus::Stopped(pid, Signal::SIGSTOP);
        assert_eq!(waitpid(pid, None), Ok(stopped));
        Self {
            child,
            pid,
            ended: Cell::new(false),
        }
    }

    /// Runs one instruction. Returns false if the drain has ended, also before: the number of instructions varies
    /// between runs.
    pub fn step(&self) -> bool {
        self.go_on(|pid| ptrace::step(pid, None))
    }

    /// Runs to the beginning or the end of the next system call. Returns false if the drain has ended.
    pub fn to_system_call(&self) -> bool {
        self.go_on(|pid| ptrace::syscall(pid, None))
    }

    /// Runs to the end of the drain.
    pub fn to_end(&self) {
        let has_more = self.go_on(|pid| ptrace::cont(pid, None));
        assert!(!has_more, "nothing else stops it");
    }

    fn go_on(&self, request: impl Fn(Pid) -> nix::Result<()>) -> bool {
        if self.ended.get() {
            return false;
        }
        request(self.pid).expect("it is stopped");
        match waitpid(self.pid, None).expect("our child") {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => true,
            WaitStatus::Stopped(_, Signal::SIGSTOP) => {
                self.ended.set(true);
                false
            }
            other => panic!("{other:?}"),
        }
    }

    /// Runs so many instructions. Returns false if the drain has ended before.
    pub fn steps(&self, count: usize) -> bool {
        (0..count).all(|_| self.step())
    }

    /// Runs until shared memory has changed `count` times. Returns the number of instructions, or `None` at the end of
    /// the drain.
    pub fn stores(&self, bench: &Bench, count: usize) -> Option<usize> {
        let files = bench.files();
        let (mut before, mut left, mut steps) = (Contents::read(&files), count, 0);
        while left > 0 {
            if !self.step() {
                return None;
            }
            steps += 1;
            let now = Contents::read(&files);
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
