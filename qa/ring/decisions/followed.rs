// SPDX-License-Identifier: GPL-2.0-or-later

//! Decisions for rings that are followed: recovery after a kill, and restarts of producers.

use super::{SETTINGS, counted, drain, push, set_read_pos};
use crate::support::kit::Core;
use crate::support::writer::{Layout, RingWriter};
use pmdanixl::shm;
use std::fs::OpenOptions;

/// Kills the daemon, and starts it with this value of `observe`.
fn start_as(core: &mut Core, observe: bool) {
    core.set(&format!("observe = {observe}\n{SETTINGS}"));
    core.restart();
}

#[test]
fn batch_left_by_a_kill_counts_once_in_a_ring_followed_later() {
    // read_pos after the kill, and the values with an event of a million after the batch.
    for (read_pos, foreign_reads) in [(10, 0), (4, 0), (7, 0), (12, 2)] {
        for locked in [false, true] {
            let (mut core, mut ring) = counted(Layout::V4);
            let more: &[u64] = if read_pos == 12 { &[7, 7] } else { &[] };
            push(&mut ring, more);
            push(&mut ring, &[1_000_000]);
            set_read_pos(&core, Layout::V4, read_pos);
            // The ring is detached, so that another process can drain it.
            core.kill_before_release();
            let drainer = OpenOptions::new()
                .read(true)
                .write(true)
                .open(core.path("agent"));
            let drainer = drainer.expect("there");
            if locked {
                assert!(shm::lock(&drainer).expect("it can be locked"));
            }
            start_as(&mut core, !locked);
            for _ in 0..2 {
                assert_eq!(
                    drain(&mut core),
                    [1_111_111, 0, foreign_reads],
                    "{read_pos} {locked}"
                );
                assert_eq!(ring.read_pos(), read_pos, "a followed ring does not change");
                // The values do not change after the next start.
                start_as(&mut core, !locked);
            }
            core.kill();
            drop(drainer);
            push(&mut ring, &[10_000_000]);
            start_as(&mut core, false);
            assert_eq!(drain(&mut core), [11_111_111, 0, foreign_reads]);
            assert_eq!(ring.pending(), 0);
        }
    }
    // The producer restarted, and the slots of the new ring were released.
    let mut core = Core::new(SETTINGS);
    let mut ring = core.ring("agent");
    push(&mut ring, &[1, 10]);
    assert_eq!(drain(&mut core), [11, 0, 0]);
    let mut ring = core.ring("agent");
    push(&mut ring, &[100, 1000, 10_000]);
    set_read_pos(&core, Layout::V4, 2);
    core.kill_before_release();
    start_as(&mut core, true);
    assert_eq!(drain(&mut core), [11_111, 1, 0]);
    assert_eq!(ring.read_pos(), 2);
}

/// A ring of equal events that has wrapped: `[4, 10)` was counted last, 26 bytes in total.
fn steady() -> (Core, RingWriter) {
    let mut core = Core::new(SETTINGS);
    let mut ring = core.ring("agent");
    for events in [10, 10, 6] {
        push(&mut ring, &vec![1; events]);
        drain(&mut core);
    }
    assert_eq!(drain(&mut core), [26, 0, 0]);
    (core, ring)
}

#[test]
fn followed_producer_repeating_its_bytes_is_no_restart() {
    for observe in [false, true] {
        let (mut core, mut ring) = steady();
        set_read_pos(&core, Layout::V4, 4);
        push(&mut ring, &[1]);
        core.kill_before_release();
        start_as(&mut core, observe);
        assert_eq!(drain(&mut core), [27, 0, 0], "{observe}");
    }
    // The ring is not drained, and the file time changes before each event, like at write-back of its pages.
    let (mut core, mut ring) = steady();
    start_as(&mut core, true);
    assert_eq!(drain(&mut core), [26, 0, 0]);
    for all in 27..32 {
        set_read_pos(&core, Layout::V4, 10);
        push(&mut ring, &[1]);
        assert_eq!(drain(&mut core), [all, 0, 0]);
    }
    start_as(&mut core, false);
    assert_eq!(drain(&mut core), [31, 0, 0], "drained after that");
    assert_eq!(ring.pending(), 0);
}

#[test]
fn restart_of_a_followed_producer_is_recognised_by_its_events() {
    // Positions before, in and after the batch.
    for count in [2, 8, 12] {
        let (mut core, _old) = counted(Layout::V4);
        start_as(&mut core, true);
        assert_eq!(drain(&mut core), [111_111, 0, 0]);
        let mut ring = core.ring("agent");
        push(&mut ring, &vec![1_000_000; count]);
        let expected = 111_111 + 1_000_000 * count as u64;
        assert_eq!(drain(&mut core), [expected, 1, 0], "{count}");
    }
}
