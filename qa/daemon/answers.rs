// SPDX-License-Identifier: GPL-2.0-or-later

//! Completeness of answers, without pmcd: an answer has all events that were written before the request.

use crate::support::kit::writer::{Kind, Layout, RingWriter};
use crate::support::kit::{Core, LONG, SECOND, push};
use crate::support::pdu::{Figures, Link};
use crate::support::{Home, wait_for};
use std::fs;

/// Bytes that an answer has of the only agent.
fn answer(core: &mut Core) -> u64 {
    core.answer();
    core.all("transfer.tx_bytes")["a"]
}

#[test]
fn answer_has_the_last_event_at_any_position_and_fill_level() {
    // On a tmpfs, a write through a mapping does not change the file's times, which would show the restart.
    let mut core = Core::in_memory("");
    let mut ring = core.ring("a");
    push(&mut ring, 1);
    core.tick(1, SECOND, LONG);
    // The times of files have the resolution of a clock tick.
    wait_for("the file is older than a tick", || {
        let changed = fs::metadata(core.path("a")).expect("there").modified();
        let age = changed.expect("known").elapsed().unwrap_or_default();
        (age > SECOND / 5).then_some(())
    });
    let mut sent = 1;
    for events in [
        15,
        8,
        9,
        7,
        1,
        2,
        14,
        13,
        12,
        11,
        10,
        6,
        5,
        4,
        3,
        15,
        15,
        16 - 2,
    ] {
        for _ in 0..4 {
            for _ in 0..events {
                assert!(ring.push(Kind::TxBytes, 1));
            }
            sent += events;
            let at = ring.write_pos();
            assert_eq!(answer(&mut core), sent, "{events} events up to slot {at}");
        }
    }
}

#[test]
fn answer_has_events_of_a_restart_with_another_ring_size() {
    let mut core = Core::new("");
    let start = |core: &Core, capacity| {
        let path = core.path("a");
        let mut ring = RingWriter::create(&path, Layout::V4, capacity).expect("a ring");
        for _ in 0..3 {
            push(&mut ring, 1);
        }
        ring
    };
    let _first = start(&core, 16);
    core.tick(1, SECOND, LONG);
    assert_eq!(answer(&mut core), 3);
    assert!(!core.wants_scan());
    let mut rings = Vec::new();
    for (round, capacity) in (2..).zip([64, 256, 16, 64]) {
        rings.push(start(&core, capacity));
        answer(&mut core);
        assert!(core.wants_scan(), "the file was replaced");
        core.scan();
        assert_eq!(answer(&mut core), 3 * round);
        assert!(!core.wants_scan());
    }
}

#[test]
fn answers_never_exceed_what_a_restart_of_another_size_wrote() {
    let home = Home::new();
    home.set("drain_interval = \"1s\"");
    let start = |round: u32| {
        let capacity = [16, 64, 256][round as usize % 3];
        let path = home.ring("agent");
        let mut ring = RingWriter::create(&path, Layout::V4, capacity).expect("a ring");
        for _ in 0..3 {
            push(&mut ring, 1);
        }
        ring
    };
    let mut rings = vec![start(0)];
    let mut link = Link::open(&home);
    let shown = |link: &mut Link| {
        let values = link.sent();
        values.get("agent").copied().unwrap_or(0)
    };
    for round in 0..=20 {
        if round > 0 {
            rings.push(start(round));
        }
        let sent = 3 * (u64::from(round) + 1);
        wait_for("all is counted", || {
            let now = shown(&mut link);
            assert!(now <= sent, "{now} of {sent}");
            (now == sent).then_some(())
        });
    }
    assert!(link.end().success());
}

#[test]
fn instance_requests_within_a_timer_period_refresh_once() {
    const REQUESTS: u64 = 2000;
    let home = Home::new();
    home.set("drain_interval = \"1s\"");
    drop(home.new_ring("agent", 64));
    let mut link = Link::open(&home);
    let drains = |link: &mut Link| -> u64 {
        link.figures(&home);
        let log = home.log();
        let line = Figures::lines(&log).last().expect("logged");
        let (before, _) = line.split_once(" drains,").expect("a count");
        let (_, count) = before.rsplit_once(' ').expect("a count");
        count.parse().expect("a number")
    };
    let before = drains(&mut link);
    for _ in 0..REQUESTS {
        link.instances().expect("instances");
    }
    // A tick drains as well, once a second.
    let made = drains(&mut link) - before;
    assert!(made < REQUESTS / 2, "{made} drains for {REQUESTS} requests");
}
