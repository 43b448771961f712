// SPDX-License-Identifier: GPL-2.0-or-later

//! Cost for the application: the time of a push into a ring without a reader, a ring that NIXL's own reader reads, and
//! a ring that the daemon drains.

use super::Extent;
use super::report::Table;
use super::rings::pop_numbered;
use super::runs::Runs;
use super::support::pdu::Link;
use super::support::writer::{Kind, Layout, RingWriter};
use super::support::{Home, PMDANIXL, wait_for};
use pmdanixl::ring::layout::header;
use pmdanixl::shm::Mapping;
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of pushes between two readings of the clock.
const BLOCK: u64 = 64;
/// Interval of the drains.
const INTERVAL: Duration = Duration::from_millis(1);

/// Table of the three cases.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "What the application pays",
        "slots | pmdanixl / NIXL's reader | pmdanixl / not drained | ns per push, drained by pmdanixl | by NIXL's reader | not drained",
        "Blocks of 64 pushes as fast as they go, each an event of format v4, while there is room for them: medians of rounds in \
         turn. Without a reader, the ring is declared empty when it is full; else the producer waits, and that is not \
         counted. Both readers drain every millisecond, 50 times as often as the daemon does by itself; NIXL's is the loop that \
         pops, in a thread. Any reader loads cache lines that the producer's CPU then has to get back.",
    );
    let (runs, rounds, blocks) = extent.of((5, 8, 20_000), (2, 2, 2000));
    for capacity in [1 << 12, 1 << 16] {
        let home = Home::new();
        home.set("drain_interval = \"1ms\"");
        let mut drained = ring(&home, "drained", capacity);
        let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
        wait_for("the agent is shown", || {
            drained.push(Kind::TxBytes, 1);
            let shown = link.fetch(&["ring.events"]).expect("an answer");
            (shown[0].values().sum::<u64>() > 0).then_some(())
        });
        // In a directory that the daemon does not scan.
        let mut alone = ring(&home, "../alone", capacity);
        let mut popped = ring(&home, "../popped", capacity);
        let (place, done) = (home.ring("../popped"), AtomicBool::new(false));
        let wait = |_: &mut RingWriter| std::thread::sleep(Duration::from_micros(50));
        let mut times = [const { Vec::new() }; 3];
        std::thread::scope(|scope| {
            scope.spawn(|| read(place, capacity, &done));
            for _ in 0..runs * rounds {
                times[0].push(round(&mut drained, blocks, wait));
                times[1].push(round(&mut popped, blocks, wait));
                times[2].push(round(&mut alone, blocks, RingWriter::forget));
            }
            done.store(true, Relaxed);
        });
        let [with, reader, without] =
            times.map(|times| times.chunks(rounds).map(median).collect::<Runs>());
        table.row([
            capacity.to_string(),
            with.ratios(&reader).bold(2),
            with.ratios(&without).bold(2),
            with.shown(2),
            reader.shown(2),
            without.shown(2),
        ]);
        assert!(link.end().success());
    }
    table
}

fn ring(home: &Home, name: &str, capacity: u64) -> RingWriter {
    RingWriter::create(&home.ring(name), Layout::V4, capacity).expect("a ring")
}

/// Pops all events of a ring, again and again.
fn read(place: PathBuf, capacity: u64, done: &AtomicBool) {
    let file = File::options().read(true).write(true).open(place);
    let words = header::WORDS + 2 * usize::try_from(capacity).expect("in memory");
    let ring = Mapping::new(&file.expect("there"), words).expect("mapped");
    while !done.load(Relaxed) {
        std::hint::black_box(ring.access(pop_numbered).expect("whole"));
        std::thread::sleep(INTERVAL);
    }
}

/// Nanoseconds per push.
fn round(ring: &mut RingWriter, blocks: u64, make_room: impl Fn(&mut RingWriter)) -> f64 {
    let mut spent = Duration::ZERO;
    for _ in 0..blocks {
        while ring.pending() + BLOCK >= ring.capacity() {
            make_room(ring);
        }
        let start = Instant::now();
        for number in 0..BLOCK {
            let kind = Kind::ALL[(number % 4) as usize];
            assert!(ring.push_words(&[kind.raw().into(), number]));
        }
        spent += start.elapsed();
    }
    spent.as_nanos() as f64 / (blocks * BLOCK) as f64
}

fn median(times: &[f64]) -> f64 {
    times.iter().copied().collect::<Runs>().median()
}
