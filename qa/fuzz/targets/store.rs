// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: a file of NIXL's `prometheus_mp`. It is a store or it is rejected. Changes of a store between reads are
//! followed by the totals, or ignored.

use super::daemon::{Home, SECOND, pass};
use super::{Input, assert_instance_name, assert_one_line};
use pmdanixl::base::file;
use pmdanixl::collector::Collector;
use pmdanixl::config::Config;
use pmdanixl::discovery::store;
use pmdanixl::event::EventType;
use pmdanixl::shm::guard_against_sigbus;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

const NAME: &str = "nixl.4242.1795272511722547987.0.mmap";
const LEN: usize = 6800;
/// Bytes of a step: the action, a word, and a value.
const STEP: usize = 11;
/// Indices of words: time of the last update, and first counter.
const UPDATED: usize = 3;
const COUNTERS: usize = 94;

/// The input is the number of bounds of a good store, the number of changed words, and these words; then the steps.
/// With 255, the file is so many bytes of the input.
pub fn run(input: &[u8]) {
    guard_against_sigbus().expect("a handler");
    let mut input = Input(input);
    let shape = input.u8();
    let mut bytes = good(usize::from(shape % 34));
    let mut spoilt = 0;
    if shape == 255 {
        let len = usize::from(input.u16());
        bytes = input.bytes(len).to_vec();
    } else {
        spoilt = usize::from(input.u8() % 16);
        for _ in 0..spoilt {
            let (at, value) = (8 * (usize::from(input.u16()) % (LEN / 8)), input.u64());
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    let world = World::new(&bytes);
    let is_good = world.check(&bytes);
    if spoilt == 0 && shape != 255 {
        assert_eq!(is_good, (1..=32).contains(&(shape % 34)));
    }
    let mut writer = Some(world.open());
    let mut agents = world.home.start();
    let (mut now, mut follows) = (Instant::now(), is_good);
    let mut total = is_good
        .then(|| bytes[8 * COUNTERS..][..168].to_vec())
        .map(words);
    let mut before = total.clone();
    loop {
        now += SECOND;
        pass(&mut agents, now);
        assert_usable(&agents);
        if follows {
            let agent = agents.iter().next().expect("a good store has an agent");
            let values: Vec<u64> = EventType::ALL
                .iter()
                .map(|kind| agent.total(*kind))
                .collect();
            assert_eq!(Some(&values), total.as_ref());
        }
        if input.is_empty() {
            break;
        }
        let mut step = Input(input.bytes(STEP));
        let (what, word, value) = (
            step.u8() % 8,
            usize::from(step.u16()) % (LEN / 8),
            step.u64(),
        );
        match what {
            0..=3 => {
                let at = if what < 2 { COUNTERS + word % 21 } else { word };
                // A changed header may make the store that of another agent.
                follows &= at >= COUNTERS || at == UPDATED;
                world.put(at, value);
                if let (Some(total), Some(before), true) = (&mut total, &mut before, follows) {
                    if let Some(counter) = at.checked_sub(COUNTERS).filter(|&at| at < 21) {
                        let came = value.checked_sub(before[counter]).unwrap_or(value);
                        total[counter] = total[counter].saturating_add(came);
                        before[counter] = value;
                    }
                }
            }
            4 => {
                follows = false;
                let len = value % (2 * LEN as u64);
                world.open().set_len(len).expect("room");
            }
            5 => {
                drop(agents);
                agents = world.home.start();
            }
            6 => {
                follows = false;
                fs::remove_file(world.path()).expect("there");
                fs::write(world.path(), &bytes).expect("room");
            }
            // The writer ends, only once.
            _ => writer = None,
        }
        // Writes after the end of the writer are not counted.
        follows &= writer.is_some();
    }
    world.home.assert_kept_by_a_restart(agents);
}

/// Asserts that PCP can use all names and values of the agents.
fn assert_usable(agents: &Collector) {
    for agent in agents.iter() {
        assert_instance_name(&agent.name.instance);
        assert!(!agent.label_text().contains('\n'));
        let ranges = agent.entry.stats.bucket_bounds();
        for range in 0..ranges.bucket_count() {
            assert_instance_name(&ranges.suffix(range));
        }
        for percent in [0, 50, 99, 100] {
            let values = agent
                .xfer_time(percent)
                .into_iter()
                .chain(agent.post_time(percent));
            values.for_each(|value| assert!(value.is_finite() && value >= 0.0, "{value}"));
        }
    }
}

/// Bytes of a store with so many bounds. It is valid if NIXL allows this number.
fn good(bounds: usize) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut put =
        |at: usize, word: u64| bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    put(0, u64::from_le_bytes(*b"NIXLMPS1"));
    put(1, (21 << 32) | 1);
    put(2, 4242);
    put(UPDATED, 7);
    put(5, bounds as u64);
    for bound in 0..bounds.min(32) {
        put(62 + bound, (bound as f64 * 2.5 + 0.5).to_bits());
    }
    for counter in 0..21 {
        put(COUNTERS + counter, counter as u64 * 100);
    }
    bytes[48..54].copy_from_slice(b"worker");
    bytes
}

fn words(bytes: Vec<u8>) -> Vec<u64> {
    let chunks = bytes.chunks_exact(8);
    chunks
        .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes")))
        .collect()
}

/// True if a file is a store. Written from the format.
fn is_store(bytes: &[u8]) -> bool {
    if bytes.len() != LEN {
        return false;
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[8 * at + index]));
    let text = |from: usize, upto: usize| bytes[from..upto].contains(&0);
    let bounds: Vec<f64> = (0..32).map(|at| f64::from_bits(word(62 + at))).collect();
    let count = usize::try_from(word(5)).unwrap_or(usize::MAX);
    &bytes[..8] == b"NIXLMPS1"
        && word(1) == (21 << 32) | 1
        && bytes[48] != 0
        && text(48, 304)
        && text(304, 432)
        && text(432, 496)
        && (1..=32).contains(&count)
        && bounds[..count]
            .iter()
            .all(|bound| bound.is_finite() && bound.is_sign_positive())
        && bounds[..count].windows(2).all(|pair| pair[0] < pair[1])
}

struct World {
    home: Home,
}

impl World {
    fn new(bytes: &[u8]) -> Self {
        let world = Self { home: Home::new() };
        fs::write(world.path(), bytes).expect("room");
        world
    }

    fn path(&self) -> PathBuf {
        self.home.path("stores").join(NAME)
    }

    /// Opens the file for writing. The daemon then sees a live agent.
    fn open(&self) -> File {
        let file = OpenOptions::new().read(true).write(true).open(self.path());
        file.expect("there")
    }

    /// True if the daemon accepts the file as a store. Asserts that this is right.
    fn check(&self, bytes: &[u8]) -> bool {
        let directory: OwnedFd = File::open(self.home.path("stores")).expect("there").into();
        let name = OsStr::new(NAME);
        let facts = file::facts(&directory, name).expect("there");
        let opened = store::open(&directory, name, &facts, &Config::default());
        if let Err(rejection) = &opened {
            assert_one_line(&rejection.to_string());
        }
        assert_eq!(opened.is_ok(), is_store(bytes));
        opened.is_ok()
    }

    /// Starts the daemon.
    fn put(&self, word: usize, value: u64) {
        let file = self.open();
        if file.metadata().expect("open").len() >= 8 * (word as u64 + 1) {
            file.write_all_at(&value.to_le_bytes(), 8 * word as u64)
                .expect("room");
        }
    }
}
