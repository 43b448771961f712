// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings that are followed because another process has locked them: random sequences of events, locks, reads of that process and
//! restarts of the daemon. Each event counts once.

use super::ring_readers::locked;
use crate::support::kit::Core;
use crate::support::kit::writer::Kind;

/// Slots of the ring, of which one stays free.
const SLOTS: u64 = 16;

/// Runs a sequence of 60 steps. `locks_end`: the other process ends and starts again.
fn run_sequence(seed: u64, locks_end: bool) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut core = Core::new("");
    core.kill();
    let mut ring = core.ring_of("agent", SLOTS);
    let path = core.path("agent");
    let mut lock = Some(locked(&path, libc::F_WRLCK));
    core.start();
    let (mut sum, mut value, mut steps) = (0, 1, Vec::new());
    // The other process reads only what was counted: what it reads before is lost.
    let mut is_counted = true;
    for _ in 0..60 {
        match random.u32(0..10) {
            0..=3 => {
                let events = random.u64(0..SLOTS - ring.pending());
                for _ in 0..events {
                    assert!(ring.push(Kind::TxBytes, value));
                    (sum, value) = (sum + value, value + 1);
                }
                is_counted &= events == 0;
                steps.push(format!("push {events}"));
            }
            4 => {
                core.restart();
                steps.push("restart".into());
            }
            5 if locks_end && lock.take().is_some() => steps.push("unlock".into()),
            5 if locks_end => {
                core.kill();
                lock = Some(locked(&path, libc::F_WRLCK));
                core.start();
                steps.push("lock".into());
            }
            6 if is_counted && lock.is_some() && ring.pending() > 0 => {
                let events = random.u64(1..=ring.pending());
                ring.set_read_pos((ring.read_pos() + events) % SLOTS);
                steps.push(format!("read {events}"));
            }
            _ => {
                core.run(4);
                is_counted = true;
                let counted: u64 = core.all("transfer.tx_bytes").values().sum();
                steps.push("run".into());
                assert_eq!(counted, sum, "seed {seed}: {}", steps.join(", "));
            }
        }
    }
}

#[test]
fn followed_ring_counts_each_event_once_in_any_sequence() {
    (0..200).for_each(|seed| run_sequence(seed, false));
}

#[test]
fn ring_followed_at_times_counts_each_event_once_in_any_sequence() {
    (0..200).for_each(|seed| run_sequence(seed, true));
}

#[test]
fn producer_restart_after_uncounted_events_does_not_count_the_old_lap() {
    let slots = 256;
    for uncounted in [0, 1, 5] {
        let mut core = Core::new("");
        let mut ring = core.ring_of("agent", slots);
        // The ring has gone round once.
        for value in 1..slots + 10 {
            assert!(ring.push(Kind::TxBytes, 1000 + value));
            core.run(1);
        }
        core.configure("observe = true");
        core.run(2);
        for value in 1..4 {
            assert!(ring.push(Kind::TxBytes, 2000 + value));
        }
        core.run(2);
        let before = core.host_sent();
        for value in 0..uncounted {
            assert!(ring.push(Kind::TxBytes, 3000 + value));
        }
        let mut ring = core.ring_of("agent", slots);
        assert!(ring.push(Kind::TxBytes, 7));
        core.run(3);
        assert_eq!(core.host_sent() - before, 7, "{uncounted} uncounted events");
        assert_eq!(core.value("ring.resets", "agent"), 1);
    }
}
