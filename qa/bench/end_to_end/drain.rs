// SPDX-License-Identifier: GPL-2.0-or-later

//! The cost of an event by layout, in rings of 4,096 and of a million slots, inside and outside the CPU's cache.

use super::Extent;
use super::report::Table;
use super::rings::{Host, Layout, Memory, check, cold_rings};
use super::runs::Runs;
use pmdanixl::event::Events;
use std::array;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Table of drains.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "Drains",
        "layout, slots, cache | counters only / pop | at most | sums alone, not the daemon's / pop | at most | \
         counters only / plain read | all figures / pop | at most | pop, ns per event",
        "All in turn. `pop` takes one event at a time as NIXL's own reader does, and only sums; `plain read` reads the words of the \
         ring. To count each event once, the daemon copies the events, takes their fingerprint, and loads the positions a second time. A \
         loop that sums without that is in the benchmark only (qa/bench/rings.rs). All figures go through files and into a state file: \
         last values, and four distributions with their percentiles. Tried with v4 on 26 November 2026 and not kept: recognising the four \
         events of a transfer together. It takes 58 instructions per event instead of 65 (`pop`: 39) and 13 % less time, for 25 more \
         lines of code.",
    );
    let layouts = Layout::ALL.into_iter();
    for layout in layouts.take(extent.of(Layout::ALL.len(), 1)) {
        for capacity in [1 << 12, 1 << 20] {
            for (cache, rings) in [("warm", 1), ("cold", cold_rings(layout, capacity))] {
                let rings = usize::try_from(rings).expect("fits in memory");
                let [read, pop, sum, counters, everything] =
                    per_event(extent, layout, capacity, rings);
                // Limits: 1.5 times as fast with counting each event once, 2.5 times without, and as fast with all
                // stats.
                let most = match layout {
                    Layout::V4 => ["0.67", "0.40", "1.00"],
                    _ => ["-"; 3],
                };
                table.row([
                    format!("{}, {capacity}, {cache}", layout.name()),
                    counters.ratios(&pop).bold(2),
                    most[0].into(),
                    sum.ratios(&pop).bold(2),
                    most[1].into(),
                    counters.ratios(&read).bold(2),
                    everything.ratios(&pop).bold(2),
                    most[2].into(),
                    pop.shown(2),
                ]);
            }
        }
    }
    table
}

/// Nanoseconds per event of a plain read, of `pop`, of sums, of counters, and of the whole work of the daemon, measured
/// in turn.
fn per_event(extent: Extent, layout: Layout, capacity: u64, rings: usize) -> [Runs; 5] {
    let first = Memory::new(layout, capacity);
    let memory = std::iter::repeat_with(|| first.copy()).take(rings);
    let memory: Vec<Memory> = memory.collect();
    let mut host = Host::new(layout, capacity, rings);
    let mut events = Events::default();
    let mut next = memory.iter().cycle();
    // Time of one call, without what fills the ring before it.
    let mut timed = |what: &mut dyn FnMut(&Memory) -> u64| {
        let ring = next.next().expect("one at least");
        ring.refill();
        let start = Instant::now();
        black_box(what(ring));
        (start.elapsed(), ring.events())
    };
    let rounds = extent.of(15, 2);
    let mut runs: [Vec<f64>; 5] = array::from_fn(|_| Vec::new());
    for _ in 0..rounds {
        let results = [
            repeated(|| timed(&mut Memory::read)),
            repeated(|| timed(&mut Memory::pop)),
            repeated(|| timed(&mut Memory::sum)),
            repeated(|| timed(&mut |ring| check(&ring.counters(&mut events)))),
            repeated(|| {
                let start = Instant::now();
                host.refill();
                let count = host.drain();
                (start.elapsed(), count)
            }),
        ];
        for (runs, result) in runs.iter_mut().zip(results) {
            runs.push(result);
        }
    }
    runs.map(Runs::from_iter)
}

/// Nanoseconds per event of repeated calls.
fn repeated(mut call: impl FnMut() -> (Duration, u64)) -> f64 {
    let (mut time, mut events) = (Duration::ZERO, 0);
    while time < Duration::from_millis(20) {
        let (took, count) = call();
        time += took;
        events += count;
    }
    time.as_nanos() as f64 / events as f64
}
