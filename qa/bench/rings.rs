// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings full of events to drain, and the loops that the drain is compared with. Rings in memory have the bytes of a
//! file that the producer of the tests wrote.
#![allow(dead_code)] // each program that is made with it uses a part of it

use pmdanixl::collector::Collector;
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::{EventType, Events, Totals};
use pmdanixl::journal::Journal;
use pmdanixl::ring::BATCH;
use pmdanixl::ring::layout::header;
use pmdanixl::ring::protocol::{Consumer, Shape};
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub use super::writer::Layout;
use super::writer::{Kind, RingWriter};

/// Time budget that never runs out.
const LONG: Duration = Duration::from_secs(3600);
/// Longer than the resolution of file times.
const SETTLED: Duration = Duration::from_millis(100);

/// More memory than the cache of a CPU: rings that are visited one after the other are not in the cache.
const UNCACHED: u64 = 256 << 20;

/// Number of rings that fill this memory.
pub fn cold_rings(layout: Layout, capacity: u64) -> u64 {
    (UNCACHED / (layout.slot_size() * capacity)).max(2)
}

/// Makes a directory in /dev/shm.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

/// Makes a ring with an event in every slot: transfers as NIXL writes them, of 4 KiB to 16 MiB and 50 us to 5 ms.
fn fill(path: &Path, layout: Layout, capacity: u64) {
    let mut random = fastrand::Rng::with_seed(capacity);
    let mut ring = RingWriter::create(path, layout, capacity).expect("a ring");
    let mut events = std::iter::repeat_with(|| {
        let (read, bytes) = (random.bool(), 1 << random.u64(12..=24));
        RingWriter::transfer(read, bytes, random.u64(50..5000), random.u64(5..50))
    });
    for _ in 0..capacity / 4 {
        for (kind, value) in events.next().into_iter().flatten() {
            assert!(ring.push(kind, value));
        }
        // Room for the next events, as if a reader had read these.
        ring.forget();
    }
    assert_eq!(
        (ring.write_pos(), ring.pending(), ring.capacity()),
        (0, 0, capacity)
    );
}

/// Ring in memory.
pub struct Memory {
    layout: Layout,
    words: Vec<AtomicU64>,
    shape: Shape,
    /// Copy of the words, which no thread writes.
    plain: Vec<u64>,
}

impl Memory {
    /// Makes a ring with all slots written.
    pub fn new(layout: Layout, capacity: u64) -> Self {
        let dir = directory();
        let path = dir.path().join("ring");
        fill(&path, layout, capacity);
        let bytes = fs::read(&path).expect("there");
        let words = bytes.chunks_exact(8).map(|chunk| {
            let word = <[u8; 8]>::try_from(chunk).expect("chunks of eight");
            AtomicU64::new(u64::from_le_bytes(word))
        });
        let words: Vec<AtomicU64> = words.collect();
        let plain = words.iter().map(|word| word.load(Relaxed)).collect();
        let shape = Shape {
            layout: drained_as(layout),
            capacity: words[header::CAPACITY].load(Relaxed),
            versions: words[header::VERSIONS].load(Relaxed),
        };
        Self {
            layout,
            words,
            shape,
            plain,
        }
    }

    /// Copies the ring.
    pub fn copy(&self) -> Self {
        let words = self
            .words
            .iter()
            .map(|word| AtomicU64::new(word.load(Relaxed)));
        Self {
            layout: self.layout,
            words: words.collect(),
            shape: self.shape,
            plain: self.plain.clone(),
        }
    }

    /// Fills the ring with the events that are in its slots already, one fewer than there are slots.
    pub fn refill(&self) {
        let read_pos = self.words[header::READ_POS].load(Relaxed);
        let mask = self.shape.capacity - 1;
        self.words[header::WRITE_POS].store(read_pos.wrapping_sub(1) & mask, Release);
    }

    /// Number of events of [`Memory::refill`].
    pub fn events(&self) -> u64 {
        self.shape.capacity - 1
    }

    /// Sums one event at a time, with the loads and the store of NIXL's own reader. Uses no code of the drain.
    pub fn pop(&self) -> u64 {
        let words = &self.words;
        check_sums(&match self.layout {
            Layout::V1 => pop::<7>(words, names_of(|slot| &slot[1..6])),
            Layout::V2Named => pop::<6>(words, names_of(|slot| &slot[..5])),
            Layout::V2 => pop::<2>(words, |slot| (slot[0] >> 32) as usize),
            Layout::V3 | Layout::V4 => pop_numbered(words),
        })
    }

    /// Sums all events at once, without the parts that count each event once: no copy, no fingerprint, no second check
    /// of the positions. Their cost is the difference to [`Memory::counters`].
    pub fn sum(&self) -> u64 {
        let words = &self.words;
        check_sums(&match self.layout {
            Layout::V1 => sum::<7>(words, names_of(|slot| &slot[1..6])),
            Layout::V2Named => sum::<6>(words, names_of(|slot| &slot[..5])),
            Layout::V2 => sum::<2>(words, |slot| (slot[0] >> 32) as usize),
            Layout::V3 | Layout::V4 => sum::<2>(words, |slot| (slot[0] & HALF) as usize),
        })
    }

    /// Sums the events in batches, as the daemon reads them.
    pub fn counters(&self, events: &mut Events) -> Totals {
        let ring = Consumer::new(&self.words, self.shape);
        let mut totals = Totals::default();
        loop {
            let batch = ring.read_batch(BATCH, events).expect("a good ring");
            if batch.from == batch.end {
                return totals;
            }
            totals.add(events.totals());
            ring.release(batch.from, batch.end)
                .expect("nobody else reads");
        }
    }

    /// Reads each word once.
    pub fn read(&self) -> u64 {
        self.plain.iter().fold(0, |sum, word| sum ^ word)
    }
}

/// Sums the events of a ring of version 3 or 4 like [`Memory::pop`].
pub fn pop_numbered(words: &[AtomicU64]) -> [u64; KINDS + 1] {
    pop::<2>(words, |slot| (slot[0] & HALF) as usize)
}

fn pop<const N: usize>(words: &[AtomicU64], kind: impl Fn(&[u64; N]) -> usize) -> [u64; KINDS + 1] {
    let (mut slot, mut sums) = ([0; N], [0; KINDS + 1]);
    while pop_one(words, &mut slot) {
        let sum = &mut sums[kind(&slot).min(KINDS)];
        *sum = u64::wrapping_add(*sum, slot[N - 1]);
    }
    sums
}

/// Pops the next event. Returns false if the ring is empty. Called once per event, like NIXL's own function.
#[inline(never)]
fn pop_one<const N: usize>(words: &[AtomicU64], slot: &mut [u64; N]) -> bool {
    let read_pos = words[header::READ_POS].load(Relaxed);
    if read_pos == words[header::WRITE_POS].load(Acquire) {
        return false;
    }
    let start = header::WORDS + usize::try_from(read_pos).expect("in memory") * N;
    let words_of_slot = &words[start..start + N];
    *slot = std::array::from_fn(|at| words_of_slot[at].load(Relaxed));
    let mask = words[header::MASK].load(Relaxed);
    words[header::READ_POS].store((read_pos + 1) & mask, Release);
    true
}

/// Sums all events with one check of the positions and one release.
fn sum<const N: usize>(words: &[AtomicU64], kind: impl Fn(&[u64; N]) -> usize) -> [u64; KINDS + 1] {
    let mut sums = [0; KINDS + 1];
    let place = |pos: u64| header::WORDS + usize::try_from(pos).expect("in memory") * N;
    loop {
        let read_pos = words[header::READ_POS].load(Relaxed);
        let write_pos = words[header::WRITE_POS].load(Acquire);
        if read_pos == write_pos {
            return sums;
        }
        let upto = match write_pos < read_pos {
            true => words[header::CAPACITY].load(Relaxed),
            false => write_pos,
        };
        for words in words[place(read_pos)..place(upto)].chunks_exact(N) {
            let slot: [u64; N] = std::array::from_fn(|at| words[at].load(Relaxed));
            let sum = &mut sums[kind(&slot).min(KINDS)];
            *sum = u64::wrapping_add(*sum, slot[N - 1]);
        }
        words[header::READ_POS].store(upto & words[header::MASK].load(Relaxed), Release);
    }
}

/// Combination of two sums. Its use keeps the compiler from removing a loop.
fn check_sums(sums: &[u64; KINDS + 1]) -> u64 {
    sums[Kind::TxBytes.raw() as usize] ^ sums[Kind::XferTime.raw() as usize]
}

/// Number of event types.
pub const KINDS: usize = Kind::ALL.len();
/// Mask of the lower half of a word.
const HALF: u64 = u32::MAX as u64;
/// Words of a slot that contain the name, which begins and ends inside a word.
type NameWords = [u64; 5];

/// Finds the type of a slot by the words of its name.
fn names_of<const N: usize>(part: impl Fn(&[u64; N]) -> &[u64]) -> impl Fn(&[u64; N]) -> usize {
    let names = names();
    move |slot| named(&names, part(slot))
}

/// Names of all types, as in slots.
fn names() -> [NameWords; KINDS] {
    Kind::ALL.map(|kind| {
        let mut bytes = [0; 40];
        bytes[4..4 + kind.name().len()].copy_from_slice(kind.name().as_bytes());
        let word = |at: usize| bytes[8 * at..8 * at + 8].try_into().expect("eight bytes");
        std::array::from_fn(|at| u64::from_le_bytes(word(at)))
    })
}

/// Number of the type with this name, or one above the last number for an unknown name.
fn named(names: &[NameWords; KINDS], slot: &[u64]) -> usize {
    let name = [slot[0] & !HALF, slot[1], slot[2], slot[3], slot[4] & HALF];
    let found = names.iter().position(|other| *other == name);
    found.unwrap_or(KINDS)
}

/// Layout in the types of the drain.
fn drained_as(layout: Layout) -> pmdanixl::ring::layout::Layout {
    use pmdanixl::ring::layout::Layout as Drained;
    match layout {
        Layout::V1 => Drained::V1,
        Layout::V2Named => Drained::V2Named,
        Layout::V2 => Drained::V2,
        Layout::V3 => Drained::V3,
        Layout::V4 => Drained::V4,
    }
}

/// Agents with one ring each, drained like in the daemon: all stats, with a state file.
pub struct Host {
    dir: TempDir,
    agents: Collector,
    rings: Vec<RingWriter>,
    /// Time of the next tick. With a test clock, the number of ticks between scans is constant.
    now: Instant,
}

impl Host {
    /// Makes agents without pending events.
    pub fn new(layout: Layout, capacity: u64, agents: usize) -> Self {
        let dir = directory();
        let place = dir.path().join("rings");
        fs::create_dir(&place).expect("made");
        let config = Config {
            telemetry_dir: vec![DirectoryPattern::of(&place)],
            max_agents: agents.max(64),
            proc_facts: false,
            ..Config::default()
        };
        let first = place.join("agent-0");
        fill(&first, layout, capacity);
        let rings = (0..agents).map(|number| {
            let path = place.join(format!("agent-{number}"));
            if number > 0 {
                fs::copy(&first, &path).expect("copied");
            }
            // The agent restarts in place: its slots keep their contents.
            RingWriter::create(&path, layout, capacity).expect("a ring")
        });
        let rings = rings.collect();
        let mut host = Self {
            agents: Collector::new(&config),
            dir,
            rings,
            now: Instant::now(),
        };
        host.keep();
        let mut found = 0;
        for _ in 0..100 {
            host.agents.scan(Instant::now(), LONG);
            found = host.agents.iter().count();
            if found == agents {
                break;
            }
        }
        assert_eq!(found, agents, "agents: may so many files be open?");
        // A file that has just changed is checked twice.
        std::thread::sleep(SETTLED);
        host.now = Instant::now();
        host.refill();
        assert_eq!(host.drain(), host.events());
        host
    }

    fn keep(&mut self) {
        let mut journal = Journal::open(&self.dir.path().join("state/file"));
        let found = journal.start().expect("a state").expect("ours");
        self.agents.restore(journal, found.records);
    }

    /// Fills each ring, like [`Memory::refill`].
    pub fn refill(&mut self) {
        self.rings.iter_mut().for_each(RingWriter::push_again);
    }

    /// Pushes so many events for the first agent.
    pub fn push(&mut self, events: u64) {
        self.rings[0].push_some_again(events);
    }

    /// Number of events of [`Host::refill`].
    pub fn events(&self) -> u64 {
        self.rings.iter().map(|ring| ring.capacity() - 1).sum()
    }

    /// Runs a tick of the daemon.
    pub fn tick(&mut self) {
        let now = self.now;
        self.agents.scan(now, LONG);
        assert!(self.agents.drain(Some(now), now, LONG));
        self.agents.maintain(now, now + LONG);
    }

    /// Drains all rings. Returns the number of events.
    pub fn drain(&mut self) -> u64 {
        let before = self.agents.activity().events;
        assert!(self.agents.drain(None, self.now, LONG));
        self.agents.activity().events - before
    }
}

/// Sum of a type. Its use keeps the compiler from removing a loop.
pub fn check(totals: &Totals) -> u64 {
    totals.get(EventType::TxBytes) ^ totals.get(EventType::XferTime)
}
