// SPDX-License-Identifier: GPL-2.0-or-later

//! Rings that other processes use, or that are incomplete: other readers and drainers, moved positions, holes, full
//! rings, and rings that wait for a later tick. Through the test kit.

use crate::support::kit::layers::BATCH;
use crate::support::kit::writer::{Kind, Layout, RingWriter};
use crate::support::kit::{Core, SECOND, push};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Locks a whole file until the descriptor is closed.
pub fn locked(path: &Path, kind: i32) -> File {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(kind == libc::F_WRLCK);
    let file = options.open(path).expect("there");
    let lock = libc::flock {
        l_type: libc::c_short::try_from(kind).expect("small"),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).expect("an unlocked file");
    file
}

#[test]
fn read_lock_of_another_user_does_not_stop_draining() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    let _lock = locked(&core.path("a"), libc::F_RDLCK);
    push(&mut ring, 1);
    core.run(1);
    assert_eq!((core.only(), ring.pending()), ([1, 0, 0], 0));
}

#[test]
fn drain_lock_is_taken_when_a_read_lock_ends() {
    let (mut one, state) = (Core::new(""), tempfile::tempdir().expect("a directory"));
    let mut ring = one.ring("a");
    let lock = locked(&one.path("a"), libc::F_RDLCK);
    push(&mut ring, 1);
    one.run(1);
    // Without a lock, a second daemon cannot see the first one.
    let mut other = Core::on(&one.rings(), &state.path().join("state"), "");
    other.run(1);
    drop(lock);
    one.run(2);
    other.run(2);
    let mode = |core: &Core| core.text("agent.mode", "a").expect("known");
    assert_eq!([mode(&one), mode(&other)], ["drain", "observe"]);
    push(&mut ring, 10);
    other.run(1);
    assert_eq!(ring.pending(), 1, "not drained");
    one.run(1);
    assert_eq!(
        (ring.pending(), one.value("transfer.tx_bytes", "a")),
        (0, 11)
    );
}

#[test]
fn busy_ring_is_taken_over_soon_after_its_drainer_ended() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    let lock = locked(&core.path("a"), libc::F_WRLCK);
    push(&mut ring, 1);
    core.run(1);
    assert_eq!((core.sent(), ring.pending()), ([].into(), 1));
    drop(lock);
    for _ in 0..12 {
        push(&mut ring, 1);
        core.tick(1, SECOND / 5, SECOND);
    }
    assert_eq!((core.only(), ring.pending()), ([13, 0, 0], 0));
}

#[test]
fn rewound_read_pos_gets_at_most_two_batches_a_drain() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    for _ in 0..16 {
        push(&mut ring, 1);
        core.run(1);
    }
    let file = fs::OpenOptions::new().write(true).open(core.path("a"));
    let (file, done) = (file.expect("there"), AtomicBool::new(false));
    let counted = |core: &Core| core.all("ring.events")["a"];
    // Two slots and one slot before the end, twice.
    let positions = [0_u64, 13].map(u64::to_le_bytes).concat();
    let most = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                file.write_all_at(&positions, 0).expect("written");
            }
        });
        let drains = (0..50_000).map(|_| {
            let before = counted(&core);
            core.drain();
            counted(&core) - before
        });
        let most = drains.max();
        done.store(true, Relaxed);
        most
    });
    assert!(most <= Some(4), "{most:?}");
}

/// Fills a ring with events of an unknown type.
fn fill(file: &File, slots: u64) {
    let len = file.metadata().expect("open").len() - 40;
    let zeros = vec![0; usize::try_from(len).expect("small")];
    file.write_all_at(&zeros, 40).expect("written");
    file.write_all_at(&(slots - 1).to_le_bytes(), 0)
        .expect("written");
}

#[test]
fn slots_in_a_hole_of_the_file_are_not_read() {
    let mut core = Core::in_memory("");
    let path = core.path("sparse");
    let mut ring = RingWriter::create(&path, Layout::V4, 1 << 36).expect("a sparse ring");
    push(&mut ring, 1);
    core.run(1);
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("there");
    for position in [1_u64 << 35, (1 << 36) - 1, 1000] {
        file.write_all_at(&position.to_le_bytes(), 0)
            .expect("written");
        core.run(5);
    }
    assert_eq!(core.sent(), [("sparse", 1)].into());
    assert_eq!(core.value("ring.unknown", "sparse"), 0);
    // No page was allocated for the holes.
    assert!(file.metadata().expect("open").blocks() < 100);
}

#[test]
fn position_that_moves_during_a_read_fills_no_hole() {
    let mut core = Core::in_memory("");
    let path = core.path("a");
    let mut ring = RingWriter::create(&path, Layout::V4, 1 << 20).expect("a ring");
    push(&mut ring, 1);
    core.run(1);
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("there");
    let blocks = || file.metadata().expect("open").blocks();
    let before = blocks();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // From one event that may exist to all that were never written.
                for (pos, word) in [(2_u64, 0), (1, 8), (1 << 19, 0)] {
                    file.write_all_at(&pos.to_le_bytes(), word)
                        .expect("written");
                }
            }
        });
        for _ in 0..10_000 {
            core.run(1);
        }
        done.store(true, Relaxed);
    });
    // The next slot and the last slot of the ring are always read: one page each.
    assert!(blocks() <= before + 2 * 8, "{} and {before}", blocks());
}

#[test]
fn rings_of_one_agent_are_drained_a_batch_a_tick() {
    let mut core = Core::new("");
    let slots = 1 << 16;
    for _ in 0..20 {
        // Unlinked and made again, while the old file is still open.
        let path = core.path("flood");
        std::mem::forget(RingWriter::create(&path, Layout::V1, slots).expect("a ring"));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("there");
        core.scan();
        core.advance(3 * SECOND);
        fill(&file, slots);
        fs::remove_file(path).expect("there");
    }
    // Without time, each tick counts one batch of one ring.
    core.tick(1, SECOND, Duration::ZERO);
    let drained = |core: &Core| core.all("ring.unknown").values().sum::<u64>();
    assert_eq!(drained(&core), BATCH);
    for _ in 0..20 * slots / BATCH {
        core.tick(1, SECOND, Duration::ZERO);
    }
    assert_eq!(drained(&core), 20 * (slots - 1));
}

#[test]
fn events_around_an_overflow_are_not_paired() {
    for before in [0, 1] {
        for (requests, pairs) in [(14, 0), (5, 1)] {
            let mut core = Core::new("");
            let mut ring = core.ring("a");
            for _ in 0..before {
                push(&mut ring, 1);
                core.run(1);
            }
            for _ in 0..requests {
                assert!(ring.push(Kind::TxRequests, 1));
            }
            assert!(ring.push(Kind::XferTime, 10));
            // The full ring loses the bytes of this transfer. The next bytes are those of another one.
            let is_full = !ring.push(Kind::TxBytes, 1 << 20);
            assert_eq!(is_full, requests == 14);
            core.run(1);
            if is_full {
                assert!(ring.push(Kind::TxBytes, 1 << 30));
                core.run(1);
            }
            let bandwidths = core.transfers("operation.bandwidth.histogram", "a");
            assert_eq!(bandwidths, pairs, "{before} {requests}");
        }
    }
}

/// CPU time of this thread.
fn own_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("Linux has it").into()
}

#[test]
#[ignore = "measures CPU time"]
fn ring_is_drained_among_rings_that_exceed_the_budget() {
    let mut core = Core::new("");
    let slots = 1 << 16;
    for number in 0..30 {
        let path = core.path(&format!("flood-{number}"));
        drop(RingWriter::create(&path, Layout::V1, slots).expect("a ring"));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("there");
        fill(&file, slots);
    }
    push(&mut core.ring("good"), 1);
    core.scan();
    let started = own_time();
    let budget = Duration::from_millis(5);
    let mut ticks = 0;
    while !core
        .all("transfer.tx_bytes")
        .values()
        .any(|&sent| sent == 1)
    {
        core.tick(1, Duration::from_millis(50), budget);
        ticks += 1;
    }
    // At most one batch more than the budget, on a machine that may be slow.
    let each = (own_time() - started) / ticks;
    assert!(each < 20 * budget, "{each:?} for each of {ticks} ticks");
    assert!(
        ticks <= 31,
        "at least one agent is drained in each tick: {ticks}"
    );
}

#[test]
fn ring_under_two_paths_is_counted_once() {
    let mut core = Core::new("");
    let rings = core.rings();
    let again = rings.join("../rings");
    core.configure(&format!("telemetry_dir = [{rings:?}, {again:?}]"));
    push(&mut core.ring("a"), 9);
    core.run(3);
    assert_eq!(core.sent(), [("a", 9)].into());
}

#[test]
fn batch_in_flight_of_a_lost_ring_does_not_stop_the_next_ring() {
    let mut core = Core::new("");
    let mut lost = core.ring("a");
    push(&mut lost, 1);
    core.run(1);
    push(&mut lost, 2);
    core.drain();
    core.kill_before_release();
    lost.set_read_pos(1);
    let elsewhere = core.rings().join("../elsewhere");
    fs::rename(core.path("a"), elsewhere).expect("renamed");
    let mut ring = core.ring("a");
    push(&mut ring, 4);
    core.start();
    core.run(3);
    assert_eq!(core.sent(), [("a", 7)].into());
    assert_eq!(ring.pending(), 0);
}

#[test]
fn answer_has_the_last_event_before_the_end_of_a_ring() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    (0..8).for_each(|_| push(&mut ring, 1));
    core.run(2);
    (0..8).for_each(|_| push(&mut ring, 1));
    // After this time, a later change of the file shows in its times.
    std::thread::sleep(Duration::from_millis(50));
    core.answer();
    assert_eq!(core.sent(), [("a", 16)].into());
}

#[test]
fn ring_is_drained_soon_after_its_positions_become_valid() {
    let mut core = Core::in_memory("");
    let mut ring = core.ring("a");
    push(&mut ring, 3);
    ring.set_read_pos(1 << 40);
    core.run(5);
    // Until the file times are old enough to show a later change.
    std::thread::sleep(Duration::from_millis(60));
    core.run(60);
    assert_eq!(core.sent(), [].into());
    // A store through the mapping does not change the times of the file.
    ring.set_read_pos(0);
    core.run(5);
    assert_eq!((core.sent(), ring.pending()), ([("a", 3)].into(), 0));
}
