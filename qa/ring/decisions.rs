// SPDX-License-Identifier: GPL-2.0-or-later

//! Verdicts for a ring with a `read_pos` other than the daemon left it: each case, in a running daemon and after a
//! restart.

use crate::support::example;
use crate::support::kit::{self, Core, SECOND};
use crate::support::writer::{Layout, RingWriter};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Scans and drains twice: the second pass recovers what the first one found. Returns bytes, resets and foreign reads.
fn drain(core: &mut Core) -> [u64; 3] {
    for _ in 0..2 {
        // Directories are scanned every 2 s.
        core.advance(3 * SECOND);
        core.scan();
        core.drain();
    }
    core.only()
}

fn push(ring: &mut RingWriter, values: &[u64]) {
    values.iter().for_each(|&value| kit::push(ring, value));
}

/// A ring of 16 slots after a daemon has counted `[4, 10)`. The values are powers of ten, so that an event counted
/// twice or not at all is visible.
fn counted(layout: Layout) -> (Core, RingWriter) {
    let mut core = Core::new("");
    let mut ring = core.ring_as(layout, "agent", 16);
    push(&mut ring, &[0, 0, 0, 0]);
    drain(&mut core);
    push(&mut ring, &[1, 10, 100, 1000, 10_000, 100_000]);
    assert_eq!(drain(&mut core), [111_111, 0, 0]);
    (core, ring)
}

/// Kills the daemon between counting a batch and releasing its slots, and starts it with `observe`, which leaves the
/// ring as it is.
fn observe_before_release(core: &mut Core, ring: &RingWriter) {
    let read_pos = ring.read_pos();
    core.kill_before_release();
    core.set("observe = true");
    core.restart();
    let before = drain(core);
    assert_eq!((before, drain(core)), ([111_111, 0, 0], before));
    assert_eq!(ring.read_pos(), read_pos);
    core.set("");
}

#[test]
fn batch_left_by_a_kill_counts_once_after_a_time_without_drains() {
    for (read_pos, between, foreign_reads) in
        [(10, &[][..], 0), (4, &[], 0), (7, &[], 3), (12, &[7, 7], 2)]
    {
        let (mut core, mut ring) = counted(Layout::V4);
        push(&mut ring, between);
        push(&mut ring, &[1_000_000]);
        core.set_read_pos(4);
        observe_before_release(&mut core, &ring);
        core.set_read_pos(read_pos);
        core.restart();
        let expected = [1_111_111, 0, foreign_reads];
        assert_eq!(drain(&mut core), expected, "{read_pos}");
        assert_eq!(ring.pending(), 0);
    }
    // The producer restarted meanwhile.
    let (mut core, ring) = counted(Layout::V4);
    observe_before_release(&mut core, &ring);
    let mut ring = core.ring("agent");
    push(&mut ring, &[1_000_000]);
    core.restart();
    assert_eq!(drain(&mut core), [1_111_111, 1, 0]);
    assert_eq!(ring.pending(), 0);
}

/// Kills the daemon between counting a batch and releasing its slots, and starts it again.
fn restart_before_release(core: &mut Core) {
    core.kill_before_release();
    core.start();
}

#[test]
fn read_pos_after_a_kill_gives_the_right_verdict() {
    for layout in Layout::ALL {
        // read_pos, and the values with one more event of a million after the batch.
        for (read_pos, expected) in [
            (10, [1_111_111, 0, 0]),
            (4, [1_111_111, 0, 0]),
            (7, [1_111_111, 0, 3]),
        ] {
            let (mut core, mut ring) = counted(layout);
            push(&mut ring, &[1_000_000]);
            core.set_read_pos(read_pos);
            restart_before_release(&mut core);
            assert_eq!(drain(&mut core), expected, "{layout:?} {read_pos}");
            assert_eq!((ring.read_pos(), ring.pending()), (11, 0));
        }
        // Another reader read two events that the daemon never saw, and left one.
        let (mut core, mut ring) = counted(layout);
        push(&mut ring, &[7, 7, 1_000_000]);
        core.set_read_pos(12);
        restart_before_release(&mut core);
        assert_eq!(drain(&mut core), [1_111_111, 0, 2], "{layout:?}");
        // A new ring of equal size, at any position.
        let (mut core, _old) = counted(layout);
        let mut ring = core.ring_as(layout, "agent", 16);
        push(&mut ring, &[1_000_000]);
        restart_before_release(&mut core);
        assert_eq!(drain(&mut core), [1_111_111, 1, 0], "{layout:?}");
    }
}

#[test]
fn read_pos_in_a_running_daemon_gives_the_right_verdict() {
    for layout in Layout::ALL {
        // The batch is released.
        let (mut core, mut ring) = counted(layout);
        push(&mut ring, &[1_000_000]);
        assert_eq!(drain(&mut core), [1_111_111, 0, 0]);
        // Another reader read two events that the daemon never saw, and left one.
        let (mut core, mut ring) = counted(layout);
        push(&mut ring, &[7, 7, 1_000_000]);
        core.set_read_pos(12);
        assert_eq!(drain(&mut core), [1_111_111, 0, 2], "{layout:?}");
        // A new ring of equal size, of another size, and of another version.
        for (layout, slots) in [(layout, 16), (layout, 8), (layout, 64), (other(layout), 16)] {
            let (mut core, _old) = counted(layout);
            let mut ring = core.ring_as(layout, "agent", slots);
            push(&mut ring, &[1_000_000]);
            assert_eq!(drain(&mut core), [1_111_111, 1, 0], "{layout:?} {slots}");
        }
    }
}

fn other(layout: Layout) -> Layout {
    if layout == Layout::V4 {
        Layout::V3
    } else {
        Layout::V4
    }
}

/// Agent in another process. Dropping it kills the process.
struct Agent(Child);

impl Agent {
    /// Starts an agent that pushes one transfer, always with equal values, and stays.
    fn start(core: &Core) -> Self {
        let mut child = Command::new(example("producer"))
            .arg("--dir")
            .arg(core.rings())
            .args("--name agent --layout v2 --capacity 16 --transfers 1 --read-every 0".split(' '))
            .args("--size 1000 --linger 600 --full-timeout 120".split(' '))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut line = String::new();
        let said = child.stdout.take().expect("piped");
        let agent = Self(child);
        BufReader::new(said)
            .read_line(&mut line)
            .expect("its report");
        assert!(line.contains("tx_bytes"), "{line}");
        agent
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn identical_batch_at_the_start_of_a_v2_ring_is_not_counted() {
    // A batch at slot 0 is counted, and the daemon is killed before the release. Then the agent restarts or not. The
    // two cases are not distinguishable: the new batch is lost rather than the old one counted twice.
    for restarted in [false, true] {
        let mut core = Core::new("");
        let mut writer = Agent::start(&core);
        assert_eq!(drain(&mut core), [1000, 0, 0]);
        if restarted {
            drop(writer);
            writer = Agent::start(&core);
        } else {
            core.set_read_pos(0);
        }
        let checkpoint = core.kill_before_release();
        assert_eq!((checkpoint.from, checkpoint.end), (0, 4));
        core.start();
        assert_eq!(drain(&mut core), [1000, 0, 0], "{restarted}");
        let doubtful = core.host("control.drain.doubtful");
        // A restart always changes the file times. Whether a store to a mapping does depends on the file system.
        assert!(doubtful == 1 || !restarted, "{doubtful}");
        drop(writer);
    }
}

#[test]
fn agent_recovers_one_ring_before_it_drains_another() {
    // A kill during the last drain of a removal: the ring has its private name, its last batch is not released, and the
    // agent has made another ring.
    for is_met_first in [true, false] {
        let (mut core, old) = counted(Layout::V4);
        core.set_read_pos(4);
        drop(old);
        let private = core.path(".pmdanixl-agent");
        fs::rename(core.path("agent"), &private).expect("renamed");
        let mut new = core.ring("agent");
        push(&mut new, &[1_000_000]);
        let elsewhere = core.path("../elsewhere");
        if !is_met_first {
            fs::rename(&private, &elsewhere).expect("renamed");
        }
        restart_before_release(&mut core);
        if !is_met_first {
            // The new ring is found before the old one, and both before the first drain.
            core.scan();
            assert_eq!(core.attached(), 1);
            fs::rename(&elsewhere, &private).expect("renamed");
            core.advance(3 * SECOND);
            core.scan();
            assert_eq!(core.attached(), 2);
        }
        assert_eq!(drain(&mut core)[0], 1_111_111, "{is_met_first}");
        assert_eq!(new.pending(), 0);
        assert_eq!(core.known(), 1, "{is_met_first}");
        core.assert_host_sent(1_111_111);
    }
}
