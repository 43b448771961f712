// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings that are not drained, because another process has locked them or the configuration says so: they are shown and
//! not counted. When they are drained, each event that nobody else has read counts once.

use super::ring_readers::locked;
use crate::support::kit::writer::Kind;
use crate::support::kit::{Core, push};

/// Slots of the ring, of which one stays free.
const SLOTS: u64 = 16;

/// Runs a sequence of 60 steps: events, reads of another process, locks of that process, restarts of the daemon.
fn run_sequence(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut core = Core::new("");
    let mut ring = core.ring_of("agent", SLOTS);
    let path = core.path("agent");
    core.run(1);
    let mut lock = None;
    // Values that are pending, and the sum of those that nobody else has read.
    let (mut pending, mut sum, mut value, mut steps) = (Vec::new(), 0, 1, Vec::new());
    for _ in 0..60 {
        match random.u32(0..10) {
            0..=3 => {
                let events = random.u64(0..SLOTS - ring.pending());
                for _ in 0..events {
                    assert!(ring.push(Kind::TxBytes, value));
                    pending.push(value);
                    value += 1;
                }
                steps.push(format!("push {events}"));
            }
            4 => {
                core.restart();
                steps.push("restart".into());
            }
            5 if lock.take().is_some() => steps.push("unlock".into()),
            5 => {
                core.kill();
                lock = Some(locked(&path, libc::F_WRLCK));
                core.start();
                steps.push("lock".into());
            }
            6 if lock.is_some() && ring.pending() > 0 => {
                let events = random.u64(1..=ring.pending());
                ring.set_read_pos((ring.read_pos() + events) % SLOTS);
                pending.drain(..usize::try_from(events).expect("small"));
                steps.push(format!("read {events}"));
            }
            _ => {
                core.run(4);
                steps.push("run".into());
                let waits = ring.pending();
                if lock.is_none() {
                    sum += pending.drain(..).sum::<u64>();
                    assert_eq!(waits, 0, "seed {seed}: {}", steps.join(", "));
                }
                assert_eq!(core.value("ring.pending", "agent"), waits);
                let counted: u64 = core.all("transfer.tx_bytes").values().sum();
                assert_eq!(counted, sum, "seed {seed}: {}", steps.join(", "));
            }
        }
    }
}

#[test]
fn ring_not_drained_at_times_counts_each_event_once_in_any_sequence() {
    (0..200).for_each(run_sequence);
}

#[test]
fn agent_whose_ring_was_never_drained_is_shown_without_totals() {
    let mut core = Core::new("observe = true");
    let mut ring = core.ring("agent");
    push(&mut ring, 5);
    core.run(2);
    let totals = [
        "transfer.tx_bytes",
        "errors.backend",
        "errors.total",
        "memory.current",
        "ring.events",
        "ring.full",
        "queue.dropped",
        "ring.foreign_reads",
    ];
    for total in totals {
        assert_eq!(core.all(total), [].into(), "{total}");
    }
    assert_eq!(core.text("agent.mode", "agent").as_deref(), Some("observe"));
    assert_eq!(core.value("ring.pending", "agent"), 1);
    assert_eq!(core.value("agent.starts", "agent"), 1);
    assert_eq!(core.host_sent(), 0);
    core.restart();
    core.run(2);
    assert_eq!(core.value("agent.starts", "agent"), 1);
    assert_eq!(ring.pending(), 1);
    core.configure("observe = false");
    core.run(2);
    for total in totals {
        assert_eq!(core.all(total).len(), 1, "{total}");
    }
    assert_eq!((core.only(), ring.pending()), ([5, 0, 0], 0));
}

#[test]
fn totals_stay_while_a_ring_is_not_drained() {
    let mut core = Core::new("");
    let mut ring = core.ring("agent");
    push(&mut ring, 1);
    core.run(2);
    core.configure("observe = true");
    push(&mut ring, 10);
    core.run(2);
    assert_eq!((core.only(), ring.pending()), ([1, 0, 0], 1));
    // Its agent starts again, and writes one event.
    let mut ring = core.ring("agent");
    push(&mut ring, 100);
    core.run(2);
    assert_eq!((core.only(), ring.pending()), ([1, 0, 0], 1));
    core.configure("observe = false");
    core.run(2);
    assert_eq!((core.only(), ring.pending()), ([101, 1, 0], 0));
}

#[test]
fn answer_has_the_events_of_a_ring_whose_lock_has_just_ended() {
    let mut core = Core::new("");
    let mut ring = core.ring("agent");
    push(&mut ring, 1);
    core.run(1);
    core.kill();
    let lock = locked(&core.path("agent"), libc::F_WRLCK);
    push(&mut ring, 10);
    core.start();
    core.scan();
    core.answer();
    assert_eq!((core.only(), ring.pending()), ([1, 0, 0], 1));
    drop(lock);
    core.answer();
    assert_eq!((core.only(), ring.pending()), ([11, 0, 0], 0));
}
