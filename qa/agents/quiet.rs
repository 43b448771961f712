// SPDX-License-Identifier: GPL-2.0-or-later

//! Idle agents, which a drain skips, through the test kit. Every change of such an agent must be seen at the next
//! drain.

use crate::support::kit::writer::{Kind, Layout, RingWriter};
use crate::support::kit::{Core, LONG, SECOND, push};
use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

const TICK: Duration = Duration::from_millis(50);

/// An agent that has sent 7 bytes and is idle.
fn quiet() -> (Core, RingWriter) {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    push(&mut ring, 7);
    core.run(2);
    core.tick(3, TICK, SECOND);
    assert_eq!(core.only(), [7, 0, 0]);
    (core, ring)
}

fn file(core: &Core) -> File {
    let mut options = OpenOptions::new();
    options.write(true).open(core.path("a")).expect("there")
}

#[test]
fn events_are_counted_at_the_next_tick() {
    let (mut core, mut ring) = quiet();
    for turn in 1..40_u32 {
        push(&mut ring, 1);
        core.tick(1, TICK, SECOND);
        assert_eq!(core.only(), [7 + u64::from(turn), 0, 0]);
        core.tick(turn % 3, TICK, SECOND);
    }
}

#[test]
fn restart_in_place_is_counted_at_the_next_tick() {
    let (mut core, _old) = quiet();
    push(&mut core.ring("a"), 5);
    core.tick(1, TICK, SECOND);
    assert_eq!(core.only(), [12, 1, 0]);
}

#[test]
fn restart_without_an_event_is_counted_at_the_next_tick() {
    let (mut core, _old) = quiet();
    let _new = core.ring("a");
    core.tick(1, TICK, SECOND);
    assert_eq!(core.only(), [7, 1, 0]);
}

#[test]
fn restart_with_another_size_or_layout_is_counted() {
    for (layout, capacity) in [
        (Layout::V4, 64),
        (Layout::V4, 8),
        (Layout::V3, 16),
        (Layout::V1, 16),
    ] {
        let (mut core, _old) = quiet();
        let mut new = core.ring_as(layout, "a", capacity);
        push(&mut new, 5);
        core.tick(3, TICK, SECOND);
        assert_eq!(core.only()[0], 12, "{layout:?}, {capacity}");
    }
}

#[test]
fn foreign_read_is_counted_at_the_next_tick() {
    let (mut core, mut ring) = quiet();
    push(&mut ring, 1);
    push(&mut ring, 2);
    file(&core)
        .write_all_at(&3_u64.to_le_bytes(), 8)
        .expect("written");
    core.tick(1, TICK, SECOND);
    assert_eq!(core.only(), [7, 0, 2]);
}

#[test]
fn exit_and_return_of_the_writer_are_found_within_a_second() {
    let (mut core, mut ring) = quiet();
    assert!(ring.push(Kind::MemoryRegistered, 4096));
    core.tick(1, TICK, SECOND);
    assert_ne!(core.status("a"), "exited");
    assert_eq!(core.value("memory.current", "a"), 4096);
    drop(ring);
    core.tick(21, TICK, SECOND);
    assert_eq!(core.status("a"), "exited");
    assert_eq!(core.get("memory.current", "a"), None);
    assert_eq!(core.value("memory.registered", "a"), 4096);
    // The agent starts again.
    push(&mut core.ring("a"), 5);
    core.tick(2, TICK, SECOND);
    assert_eq!(core.only(), [12, 1, 0]);
    assert_eq!(core.value("memory.current", "a"), 0);
}

#[test]
fn program_that_opens_the_file_of_an_exited_agent_is_no_restart() {
    let (mut core, ring) = quiet();
    drop(ring);
    core.tick(21, TICK, SECOND);
    assert_eq!(core.status("a"), "exited");
    let opened = file(&core);
    let mode = Permissions::from_mode(0o640);
    opened.set_permissions(mode).expect("changed");
    core.tick(41, TICK, SECOND);
    assert_ne!(core.status("a"), "exited");
    assert_eq!(core.only(), [7, 0, 0]);
    assert_eq!(core.value("agent.starts", "a"), 1);
}

#[test]
fn ring_of_an_unconfigured_directory_is_detached() {
    let (mut core, mut ring) = quiet();
    core.configure("telemetry_dir = []");
    push(&mut ring, 1);
    core.tick(1, TICK, SECOND);
    let mapped = std::fs::read_to_string("/proc/self/maps").expect("there");
    let path = core.path("a");
    let maps = mapped
        .lines()
        .filter(|line| line.ends_with(&*path.to_string_lossy()));
    // The writer is this process, too.
    assert_eq!((maps.count(), ring.pending()), (1, 1));
}

#[test]
fn continued_drain_skips_agents_without_more_events() {
    let mut core = Core::new("");
    let (mut one, mut other) = (core.ring("a"), core.ring("b"));
    push(&mut one, 1);
    push(&mut other, 1);
    core.run(2);
    let began = core.now() + TICK;
    let drain = |core: &mut Core, began| {
        core.advance(TICK);
        assert!(core.drain_since(began, LONG));
        core.host_sent()
    };
    push(&mut one, 10);
    push(&mut other, 10);
    core.advance(TICK);
    assert!(!core.drain_since(began, Duration::ZERO), "one ring waits");
    core.assert_host_sent(12);
    push(&mut one, 100);
    let after = drain(&mut core, began);
    assert_eq!(after, 22, "the first ring was drained");
    push(&mut other, 100);
    let began = core.now() + TICK;
    assert_eq!(drain(&mut core, began), 222, "the next tick");
    // A ring with more than one batch is drained in as many batches.
    let mut full = core.ring_of("full", 1 << 14);
    push(&mut full, 1);
    core.run(2);
    let before = core.host_sent();
    let began = core.now() + TICK;
    for _ in 0..10_000 {
        push(&mut full, 1);
    }
    assert_eq!(drain(&mut core, began), before + 10_000);
    // The next drain, and an answer, include every agent.
    push(&mut one, 1000);
    core.tick(1, TICK, SECOND);
    push(&mut other, 1000);
    let began = core.now() + TICK;
    assert_eq!(drain(&mut core, began), before + 10_000 + 2000);
}

#[test]
fn full_ring_that_wraps_is_counted_in_one_tick() {
    const CAPACITY: u64 = 1 << 14;
    let mut core = Core::new("");
    let mut ring = core.ring_of("a", CAPACITY);
    core.run(2);
    // Three quarters of the slots: the next batch ends at the last slot.
    for quarter in 1..=3 {
        (0..CAPACITY / 4).for_each(|_| push(&mut ring, 1));
        core.tick(1, TICK, LONG);
        assert_eq!(core.only()[0], quarter * CAPACITY / 4);
    }
    for most in [CAPACITY / 3, CAPACITY - 1] {
        let before = core.only()[0];
        (0..most).for_each(|_| push(&mut ring, 1));
        core.tick(1, TICK, LONG);
        assert_eq!(core.only()[0], before + most);
        // Back to the earlier position.
        (0..CAPACITY - most).for_each(|_| push(&mut ring, 1));
        core.tick(2, TICK, LONG);
    }
}
