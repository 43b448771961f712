//! A drain passes over agents in which nothing happens. What happens all the same is seen at the next one.

// By path, as in support/mod.rs, whose other parts need pmcd.
#[path = "support/world.rs"]
mod world;
#[path = "support/writer.rs"]
mod writer;

use pmdanixl::event::EventType;
use pmdanixl::producer::life::Life;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use world::{LONG, SECOND, World, push};
use writer::{Layout, RingWriter};

const TICK: Duration = Duration::from_millis(50);

/// An agent that has sent 7 bytes and is passed over.
fn quiet() -> (World, RingWriter) {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    push(&mut ring, 7);
    world.pass(2);
    world.tick(3, TICK, SECOND);
    assert_eq!(world.account(), [7, 0, 0]);
    (world, ring)
}

fn file(world: &World) -> File {
    let mut options = OpenOptions::new();
    options.write(true).open(world.path("a")).expect("there")
}

#[test]
fn events_are_counted_at_the_next_tick() {
    let (mut world, mut ring) = quiet();
    for turn in 1..40_u32 {
        push(&mut ring, 1);
        world.tick(1, TICK, SECOND);
        assert_eq!(world.account(), [7 + u64::from(turn), 0, 0]);
        world.tick(turn % 3, TICK, SECOND);
    }
}

#[test]
fn a_restart_in_place_is_counted_at_the_next_tick() {
    let (mut world, _old) = quiet();
    push(&mut world.ring("a"), 5);
    world.tick(1, TICK, SECOND);
    assert_eq!(world.account(), [12, 1, 0]);
}

#[test]
fn so_is_one_without_an_event() {
    let (mut world, _old) = quiet();
    let _new = world.ring("a");
    world.tick(1, TICK, SECOND);
    assert_eq!(world.account(), [7, 1, 0]);
}

#[test]
fn a_restart_with_another_size_or_layout_is_counted_at_the_next_ticks() {
    for (layout, capacity) in [
        (Layout::V4, 64),
        (Layout::V4, 8),
        (Layout::V3, 16),
        (Layout::V1, 16),
    ] {
        let (mut world, _old) = quiet();
        let mut new = RingWriter::create(&world.path("a"), layout, capacity).expect("a ring");
        push(&mut new, 5);
        world.tick(3, TICK, SECOND);
        assert_eq!(world.account()[0], 12, "{layout:?}, {capacity}");
    }
}

#[test]
fn what_another_reader_takes_is_noticed_at_the_next_tick() {
    let (mut world, mut ring) = quiet();
    push(&mut ring, 1);
    push(&mut ring, 2);
    file(&world)
        .write_all_at(&3_u64.to_le_bytes(), 8)
        .expect("written");
    world.tick(1, TICK, SECOND);
    assert_eq!(world.account(), [7, 0, 2]);
}

#[test]
fn the_end_of_its_writer_is_found_out_within_a_second() {
    let (mut world, ring) = quiet();
    let life = |world: &World| world.agents.iter().next().expect("an agent").state;
    assert_ne!(life(&world), Life::Exited);
    drop(ring);
    world.tick(21, TICK, SECOND);
    assert_eq!(life(&world), Life::Exited);
    // And its return.
    push(&mut world.ring("a"), 5);
    world.tick(2, TICK, SECOND);
    assert_eq!(world.account(), [12, 1, 0]);
}

#[test]
fn a_ring_whose_directory_is_not_looked_at_any_more_is_not_held() {
    let (mut world, mut ring) = quiet();
    world.config.telemetry_dir.clear();
    world.configure();
    push(&mut ring, 1);
    world.tick(1, TICK, SECOND);
    let mapped = std::fs::read_to_string("/proc/self/maps").expect("there");
    let path = world.path("a");
    let maps = mapped
        .lines()
        .filter(|line| line.ends_with(&*path.to_string_lossy()));
    // That of its writer, which is this process too.
    assert_eq!((maps.count(), ring.pending()), (1, 1));
}

#[test]
fn a_drain_that_goes_on_gives_no_second_turn_to_those_that_had_nothing_more() {
    let mut world = World::new(|_| ());
    let (mut one, mut other) = (world.ring("a"), world.ring("b"));
    push(&mut one, 1);
    push(&mut other, 1);
    world.pass(2);
    let began = world.now + TICK;
    let drain = |world: &mut World, began| {
        world.now += TICK;
        let agents = &mut world.agents;
        assert!(agents.drain_on(began, world.now, LONG, &mut Vec::new()));
        agents.host_total(EventType::TxBytes)
    };
    push(&mut one, 10);
    assert_eq!(drain(&mut world, began), 12);
    push(&mut one, 100);
    push(&mut other, 100);
    let after = drain(&mut world, began);
    assert_eq!(after, 112, "one had its turn, the other was passed over");
    // One that holds more than is taken at a time has as many turns as that takes.
    let mut full = RingWriter::create(&world.path("full"), Layout::V4, 1 << 14).expect("a ring");
    push(&mut full, 1);
    world.pass(2);
    let before = world.agents.host_total(EventType::TxBytes);
    let began = world.now + TICK;
    for _ in 0..10_000 {
        push(&mut full, 1);
    }
    assert_eq!(drain(&mut world, began), before + 10_000);
    // The next drain, and an answer, leave nobody out.
    push(&mut one, 1000);
    world.tick(1, TICK, SECOND);
    push(&mut other, 1000);
    let began = world.now + TICK;
    assert_eq!(drain(&mut world, began), before + 10_000 + 2000);
}

#[test]
fn a_full_ring_is_counted_at_one_tick_also_where_a_batch_would_end_at_its_end() {
    const CAPACITY: u64 = 1 << 14;
    let mut world = World::new(|_| ());
    let mut ring = RingWriter::create(&world.path("a"), Layout::V4, CAPACITY).expect("a ring");
    world.pass(2);
    // Three quarters of a round: the first batch of what comes then is up to the end.
    for quarter in 1..=3 {
        (0..CAPACITY / 4).for_each(|_| push(&mut ring, 1));
        world.tick(1, TICK, LONG);
        assert_eq!(world.account()[0], quarter * CAPACITY / 4);
    }
    for most in [CAPACITY / 3, CAPACITY - 1] {
        let before = world.account()[0];
        (0..most).for_each(|_| push(&mut ring, 1));
        world.tick(1, TICK, LONG);
        assert_eq!(world.account()[0], before + most);
        // To where it was.
        (0..CAPACITY - most).for_each(|_| push(&mut ring, 1));
        world.tick(2, TICK, LONG);
    }
}
