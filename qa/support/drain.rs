//! A drain that another process traces, instruction by instruction (qa/one_drain.rs), and the result of the next start.
#![allow(dead_code)] // each test binary uses a part of it

use super::kit::layers::RECORD;
use super::memory::in_memory;
use super::writer::{Kind, Layout, RingWriter};
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

/// What one turn of the harness works on. Events before the batch have the value 1, the batch's are [`BATCH`], and those of a
/// restarted agent [`NEW`], so that the sum tells how often each was counted.
pub struct Bench<'a> {
    program: &'a Path,
    pub dir: TempDir,
    pub ring: RingWriter,
    layout: Layout,
    /// The sum of all that was pushed.
    pub pushed: u64,
}

pub const BATCH: [u64; 3] = [1000, 10_000, 100_000];
pub const NEW: u64 = 100_000_000;

/// What becomes of the ring between the kill and the next start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Meanwhile {
    Nothing,
    /// Its change time moves, as it does when a mapping is written to or written out.
    Touched,
    /// Its producer goes on, and fills it.
    Filled,
}

impl<'a> Bench<'a> {
    /// A ring with `before` counted events before its next batch.
    pub fn new(program: &'a Path, before: u64) -> Self {
        Self::of(program, Layout::V4, before)
    }

    /// The same of any layout.
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

    /// Restarts the agent in place, and writes `events` events.
    pub fn restart(&mut self, events: u64) {
        let path = self.dir.path().join("rings/agent");
        self.ring = RingWriter::create(&path, self.layout, 16).expect("a ring");
        (0..events).for_each(|_| self.push(NEW));
    }

    /// What becomes of the ring between the kill and the next start.
    pub fn pass(&mut self, meanwhile: Meanwhile) {
        match meanwhile {
            Meanwhile::Nothing => {}
            Meanwhile::Touched => {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                fs::set_permissions(self.dir.path().join("rings/agent"), mode).expect("ours");
            }
            Meanwhile::Filled => {
                // Of a steady load, half of the events are those of the lap before; the other half are times, which differ.
                for value in [1, 1, 2, 2].into_iter().cycle() {
                    if !self.ring.push(Kind::TxBytes, value) {
                        break;
                    }
                    self.pushed += value;
                }
            }
        }
    }

    /// Of a batch that was counted it is forgotten that its slots were given back, and `read_pos` is here: as a kill, and maybe
    /// another reader, leave it.
    pub fn leave_at(&self, read_pos: u64) {
        let put = |file: &str, at: usize, word: u64| {
            let file = fs::File::options()
                .write(true)
                .open(self.dir.path().join(file));
            file.and_then(|file| file.write_all_at(&word.to_ne_bytes(), at as u64))
                .expect("ours");
        };
        put("rings/agent", 8, read_pos);
        // The word of the record that names the generation (src/journal/record.rs).
        put("nixl/state", RECORD + 8 * 4, u64::MAX);
    }

    /// Another reader takes all events before this position. It maps the ring, which leaves its change time as it is.
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

    /// The drain, up to where it stops itself first.
    pub fn stopped(&self) -> Traced {
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

    /// What is in shared memory, for [`Contents::read`].
    pub fn files(&self) -> [fs::File; 2] {
        ["rings/agent", "nixl/state"]
            .map(|name| fs::File::open(self.dir.path().join(name)).expect("there"))
    }

    /// Puts back what was there at a moment of a drain that has ended by now. The ring is written through the mapping of its
    /// producer, which leaves its change time as it is.
    pub fn restore(&self, contents: &Contents) {
        self.ring.restore(&contents.ring);
        let state = fs::File::options()
            .write(true)
            .open(self.dir.path().join("nixl/state"));
        let written = state.and_then(|file| file.write_all_at(&contents.state[..], 0));
        written.expect("ours");
    }

    /// Drains to the end: bytes, resets and foreign reads.
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

/// What of shared memory a drain may change: the ring, and the state's header with the first record.
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

    /// How often the first record of a state file was written.
    pub fn generation(state: &fs::File) -> u64 {
        word(state, RECORD + 8)
    }

    /// Where the consumer of a ring is.
    pub fn read_pos(ring: &fs::File) -> u64 {
        word(ring, 8)
    }

    /// What is not as it was before.
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

/// A drain that goes on instruction by instruction. Ends with the value, by SIGKILL.
pub struct Traced {
    child: Child,
    pid: Pid,
    /// Whether it has stopped itself behind its last instruction.
    ended: Cell<bool>,
}

impl Traced {
    /// One instruction; `false`: the drain has ended. Runs are not quite alike, so that it may have done so before.
    pub fn step(&self) -> bool {
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
    pub fn steps(&self, count: usize) -> bool {
        (0..count).all(|_| self.step())
    }

    /// Goes on until shared memory has changed so many times; how many instructions that took, or `None` at the end.
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
