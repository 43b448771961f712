// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: a daemon that ends with a half drained ring, and starts again with a changed state file or a changed ring.

use super::state::{spoil, take};
use super::wire::{Kind, Layout};
use super::{Input, assert_instance_name, layout_of_number};
use pmdanixl::collector::Collector;
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use pmdanixl::shm::guard_against_sigbus;
use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const CAPACITY: u64 = 8;

/// The input is the layout, how many events there are before and after, how many words of the ring's file are written over,
/// those words, and what is written over the state file.
pub fn run(input: &[u8]) {
    guard_against_sigbus().expect("a handler");
    let mut input = Input(input);
    let layout = layout_of_number(input.u8());
    let world = World::new(layout);
    let places = layout.header();
    let (before, after) = (u64::from(input.u8()), u64::from(input.u8()));
    // As many events as fit: one drain may leave the last of them.
    let push = |events| (0..events).map(|_| u64::from(world.push())).sum::<u64>();
    let mut pushed = 0;
    for batch in [before % 5, before / 5 % CAPACITY] {
        pushed += push(batch);
        world.start(1);
    }
    pushed += push(after);

    let count = input.u8() % 8;
    let unspoilt = count == 0 && input.is_empty();
    for _ in 0..count {
        let (word, value) = (u64::from(input.u8()), input.u64());
        // Small values, so that most are valid positions.
        world.put(
            word % places.first_slot.max(8),
            if value >> 56 == 0 { value % 16 } else { value },
        );
    }
    spoil(&world.state(), &mut input);
    let ring = fs::read(world.ring()).expect("there");
    let read_pos = world.word(places.read_pos);

    let agents = world.start(3);
    // In the ring, only read_pos was changed, to a valid position.
    let now = fs::read(world.ring()).expect("there");
    assert!(now.len() == ring.len());
    let at = usize::try_from(8 * places.read_pos).expect("small");
    assert!(now[..at] == ring[..at] && now[at + 8..] == ring[at + 8..]);
    let read = world.word(places.read_pos);
    assert!(read == read_pos || read < CAPACITY);
    let mut names = HashSet::new();
    for agent in agents.iter() {
        assert_instance_name(&agent.name.instance);
        assert!(names.insert(&agent.name.instance));
    }
    if unspoilt {
        let agent = agents.iter().next().expect("the agent");
        assert_eq!(agent.total(EventType::TxBytes), pushed);
        assert_eq!((agent.entry.resets, agent.entry.foreign_reads), (0, 0));
    }
    // After another restart, all values are equal.
    let total = |agents: &Collector| {
        let mut all: Vec<_> = agents
            .iter()
            .map(|agent| (agent.name.clone(), agent.entry.stats.clone()))
            .collect();
        all.sort_by(|one, other| one.0.instance.cmp(&other.0.instance));
        all
    };
    let before = total(&agents);
    drop(agents);
    assert_eq!(total(&world.start(0)), before);
}

struct World {
    dir: tempfile::TempDir,
    layout: Layout,
    config: Config,
}

impl World {
    fn new(layout: Layout) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let rings = dir.path().join("rings");
        fs::create_dir(&rings).expect("made");
        let config = Config {
            telemetry_dir: vec![DirectoryPattern {
                path: rings.to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            // No process has the ring mapped, and a process scan would take long.
            proc_facts: false,
            experimental_layouts: pmdanixl::ring::layout::Layout::experimental().collect(),
            ..Config::default()
        };
        let world = Self {
            dir,
            layout,
            config,
        };
        let version = u64::from(layout.version());
        let places = layout.header();
        let len = layout.file_size(CAPACITY).expect("small");
        fs::write(world.ring(), vec![0; usize::try_from(len).expect("short")]).expect("room");
        world.put(places.versions, (version << 32) | version);
        world.put(places.capacity, CAPACITY);
        world.put(places.mask, CAPACITY - 1);
        world
    }

    fn ring(&self) -> PathBuf {
        self.dir.path().join("rings/agent")
    }

    fn state(&self) -> PathBuf {
        self.dir.path().join("nixl/state")
    }

    /// Starts the daemon, which scans and drains so many times.
    fn start(&self, times: u32) -> Collector {
        let (journal, found) = take(&self.state());
        let mut agents = Collector::new(&self.config);
        agents.restore(journal, found.records);
        let mut now = Instant::now();
        for _ in 0..times {
            now += 3 * SECOND;
            agents.scan(now, SECOND);
            agents.drain(None, now, SECOND);
        }
        agents
    }

    /// Pushes an event of 1 byte as NIXL does. Returns false if the ring is full.
    fn push(&self) -> bool {
        let places = self.layout.header();
        let (pos, kind) = (self.word(places.write_pos), Kind::TxBytes);
        let next = (pos + 1) % CAPACITY;
        if next == self.word(places.read_pos) {
            return false;
        }
        let slot = self
            .layout
            .slot(pos, kind.name(), kind.raw(), kind.category(), 1);
        let at = 8 * places.first_slot + pos * self.layout.slot_size();
        write(&self.ring(), &slot, at);
        self.put(places.write_pos, next);
        true
    }

    fn word(&self, word: u64) -> u64 {
        let bytes = fs::read(self.ring()).expect("there");
        let word = usize::try_from(word).expect("small");
        u64::from_le_bytes(std::array::from_fn(|index| bytes[8 * word + index]))
    }

    fn put(&self, word: u64, value: u64) {
        write(&self.ring(), &value.to_le_bytes(), 8 * word);
    }
}

fn write(path: &Path, bytes: &[u8], at: u64) {
    let file = OpenOptions::new().write(true).open(path).expect("ours");
    file.write_all_at(bytes, at).expect("room");
}
