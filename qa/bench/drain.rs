// SPDX-License-Identifier: GPL-2.0-or-later

//! `cargo bench --bench drain`: the cost of an event by layout, in rings of 4,096 and of a million slots, inside and outside
//! the processor's cache.
//!
//! `read` reads the words of the ring. `pop` pops one event at a time as NIXL's own reader does, and adds its value. `sum` adds
//! all values at once, without a checkpoint. `counters` reads and adds as the daemon does. `everything` is the whole work of
//! the daemon, through files and into a state file.

mod rings;
#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../support/writer.rs"]
mod writer;

use criterion::{BatchSize, Criterion, Throughput};
use pmdanixl::event::Events;
use rings::{Host, Layout, Memory, check, cold_rings};
use std::hint::black_box;
use std::time::Duration;

fn drain(criterion: &mut Criterion, layout: Layout) {
    for capacity in [1 << 12, 1 << 20] {
        for (state, rings) in [("warm", 1), ("cold", cold_rings(layout, capacity))] {
            compare(criterion, layout, capacity, state, rings);
        }
    }
}

fn compare(criterion: &mut Criterion, layout: Layout, capacity: u64, state: &str, rings: u64) {
    let name = format!("{}/{capacity}/{state}", layout.name());
    let mut group = criterion.benchmark_group(name);
    let first = Memory::new(layout, capacity);
    group.throughput(Throughput::Elements(first.events()));
    let rings = usize::try_from(rings).expect("fits in memory");
    let memory: Vec<Memory> = std::iter::repeat_with(|| first.copy())
        .take(rings)
        .collect();
    let mut events = Events::default();
    let mut turn = memory.iter().cycle();
    let mut next = || {
        let ring = turn.next().expect("one at least");
        ring.refill();
        ring
    };
    group.bench_function("read", |bench| {
        bench.iter_batched(&mut next, Memory::read, BatchSize::PerIteration);
    });
    group.bench_function("pop", |bench| {
        bench.iter_batched(&mut next, Memory::pop, BatchSize::PerIteration);
    });
    group.bench_function("sum", |bench| {
        bench.iter_batched(&mut next, Memory::sum, BatchSize::PerIteration);
    });
    group.bench_function("counters", |bench| {
        let counters = |ring: &Memory| check(&ring.counters(&mut events));
        bench.iter_batched(&mut next, counters, BatchSize::PerIteration);
    });
    drop(memory);
    let mut host = Host::new(layout, capacity, rings);
    group.throughput(Throughput::Elements(host.events()));
    group.bench_function("everything", |bench| {
        bench.iter(|| {
            host.refill();
            black_box(host.drain())
        });
    });
}

fn main() {
    let criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    let mut criterion = criterion.configure_from_args();
    for layout in Layout::RELEASED {
        drain(&mut criterion, layout);
    }
    criterion.final_summary();
}
