// SPDX-License-Identifier: GPL-2.0-or-later

//! Removal of rings of exited agents, through the test kit. An agent that starts during a removal must not lose an
//! event.

use crate::support::PATIENCE;
use crate::support::kit::writer::{HEADER, Kind, Layout, RingWriter};
use crate::support::kit::{Core, SECOND, push};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Runs for so many seconds.
fn run(core: &mut Core, seconds: u32) {
    for _ in 0..seconds {
        core.advance(SECOND);
        pass(core);
    }
}

fn pass(core: &mut Core) {
    core.scan();
    core.drain();
    core.tidy();
}

/// Bytes sent by the agent. `None`: nothing of it was counted.
fn sent(core: &Core) -> Option<u64> {
    core.all("transfer.tx_bytes").get("agent").copied()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("there");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("listed").file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn only_drained_unheld_rings_are_removed_if_configured() {
    let asked = "remove_exited_after = \"5s\"";
    let observed = format!("{asked}\nobserve = true");
    for (settings, removes) in [("", false), (asked, true), (observed.as_str(), false)] {
        let mut core = Core::new(settings);
        let dir = core.rings();
        let ring = |name: &str| {
            let mut ring = RingWriter::create(&dir.join(name), Layout::V4, 16);
            let ring = ring.as_mut().expect("a ring");
            assert!(ring.push(Kind::TxBytes, 7));
        };
        ring("agent");
        ring("read");
        fs::write(dir.join("notes"), "no ring").expect("written");
        fs::write(dir.join("zeros"), [0; 168]).expect("written");
        let live = RingWriter::create(&dir.join("live"), Layout::V4, 16).expect("a ring");
        let tail = fs::File::open(dir.join("read")).expect("there");
        run(&mut core, 4);
        assert_eq!(names(&dir).len(), 5, "5 s have not passed");
        run(&mut core, 9);
        let mut left = vec!["agent", "live", "notes", "read", "zeros"];
        left.retain(|&name| !removes || name != "agent");
        assert_eq!(names(&dir), left);
        assert_eq!(sent(&core), (settings != observed).then_some(7));
        drop((tail, live));
        run(&mut core, 9);
        left.retain(|&name| !removes || !["read", "live"].contains(&name));
        assert_eq!(names(&dir), left);
    }
}

#[test]
fn file_left_by_a_killed_removal_belongs_to_its_agent() {
    let mut core = Core::new("");
    let dir = core.rings();
    let path = dir.join("agent");
    let mut ring = RingWriter::create(&path, Layout::V4, 16).expect("a ring");
    assert!(ring.push(Kind::TxBytes, 1));
    run(&mut core, 1);
    // A kill between the rename and the unlink of a removal leaves this file. The agent has started again in between.
    fs::rename(&path, dir.join(".pmdanixl-agent")).expect("there");
    core.configure("telemetry_dir = []");
    let mut new = RingWriter::create(&path, Layout::V4, 16).expect("a ring");
    assert!(ring.push(Kind::TxBytes, 10) && new.push(Kind::TxBytes, 100));
    // A file with such a name that does not belong to a removed ring.
    let foreign = dir.join(".pmdanixl-other");
    let mut foreign = RingWriter::create(&foreign, Layout::V4, 16).expect("a ring");
    assert!(foreign.push(Kind::TxBytes, 1000));
    core.configure("remove_exited_after = \"1s\"");
    run(&mut core, 3);
    assert_eq!(sent(&core), Some(111));
    let all = core.all("transfer.tx_bytes");
    assert_eq!(all, [(".pmdanixl-other", 1000), ("agent", 111)].into());
    drop(ring);
    run(&mut core, 5);
    assert_eq!(names(&dir), [".pmdanixl-other", "agent"]);
}

/// An agent that exited after an event of 7 bytes. Its file is about to be removed: the next call of `tidy` does that.
fn exited() -> Core {
    let mut core = Core::new("remove_exited_after = \"5s\"");
    push(&mut core.ring("agent"), 7);
    run(&mut core, 4);
    core.advance(10 * SECOND);
    core.scan();
    core.drain();
    assert_eq!((names(&core.rings()).len(), sent(&core)), (1, Some(7)));
    core
}

#[test]
fn events_of_an_agent_that_ran_after_the_last_drain_are_counted() {
    let mut core = exited();
    push(&mut core.ring("agent"), 1);
    core.tidy();
    assert_eq!((names(&core.rings()).len(), sent(&core)), (0, Some(8)));
}

#[test]
fn file_of_an_interrupted_start_keeps_its_name() {
    let mut core = exited();
    // A starting agent first clears the version, and this one is killed then.
    let file = fs::OpenOptions::new().write(true).open(core.path("agent"));
    file.expect("there")
        .write_all_at(&[0; 8], 8 * HEADER.versions)
        .expect("written");
    core.tidy();
    assert_eq!(names(&core.rings()), ["agent"]);
}

/// Runs a test again in a process that ignores SIGIO, and returns true there. The daemon ignores SIGIO, too: the kernel
/// sends it when a process waits for a lease.
fn ignores_sigio(test: &str) -> bool {
    if std::env::var_os("IGNORES_SIGIO").is_some() {
        return true;
    }
    let status = Command::new("env")
        .arg("--ignore-signal=IO")
        .arg("IGNORES_SIGIO=1")
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .status()
        .expect("coreutils");
    assert!(status.success(), "{status}");
    false
}

/// Starts an agent with one name again and again, in place or in a new file. Returns the bytes that it sent, and the
/// number of starts without a file.
fn restarts(path: &Path, races: u64, pass: &AtomicU64, starts: &AtomicBool) -> (u64, u64) {
    let (mut sent, mut new) = (0, 0);
    for race in 0..races {
        new += u64::from(!path.exists());
        starts.store(true, Ordering::Release);
        let mut ring = RingWriter::create(path, Layout::V4, 16).expect("a ring");
        starts.store(false, Ordering::Release);
        for _ in 0..=race % 3 {
            assert!(ring.push(Kind::TxBytes, race + 1));
            sent += race + 1;
        }
        let end = Instant::now() + PATIENCE;
        // The restart of an agent discards the events in its ring, as in NIXL: so the ring must be empty before.
        while ring.pending() > 0 {
            assert!(
                Instant::now() < end,
                "the ring of race {race} is not drained, from {} to {}",
                ring.read_pos(),
                ring.write_pos()
            );
            std::thread::sleep(Duration::from_micros(20));
        }
        drop(ring);
        // The next start is at a random moment of the daemon's next passes. The daemon needs two passes to see that no
        // process has the file.
        let passes = 5 * pass.load(Ordering::Relaxed) + 1;
        let pause = race.wrapping_mul(0x9e37_79b9_7f4a_7c15) % passes;
        let until = Instant::now() + Duration::from_nanos(pause);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
    (sent, new)
}

#[test]
fn agents_that_start_during_a_removal_lose_no_event() {
    if !ignores_sigio("agents_that_start_during_a_removal_lose_no_event") {
        return;
    }
    let mut core = Core::new("remove_exited_after = \"0s\"");
    let dir = core.rings();
    let path = dir.join("agent");
    let (done, took, starts) = (
        AtomicBool::new(false),
        AtomicU64::new(0),
        AtomicBool::new(false),
    );
    let (truth, new) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let sent = std::panic::catch_unwind(|| restarts(&path, 10_000, &took, &starts));
            done.store(true, Ordering::Release);
            sent
        });
        while !done.load(Ordering::Acquire) {
            let started = Instant::now();
            // The daemon detaches a removed ring after one second, and cannot see an agent that is about to open the
            // file. On a real clock, an open takes less than a second, so the test clock stands still for it.
            if !starts.load(Ordering::Acquire) {
                core.advance(SECOND);
            }
            pass(&mut core);
            let elapsed = u64::try_from(started.elapsed().as_nanos()).unwrap_or(0);
            took.store(elapsed.min(10_000_000), Ordering::Relaxed);
        }
        let sent = writer.join().expect("caught");
        sent.unwrap_or_else(|_| panic!("each ring is drained: {core:#?}"))
    });
    run(&mut core, 5);
    assert_eq!(sent(&core), Some(truth));
    assert!(names(&dir).is_empty(), "{:?}", names(&dir));
    println!("{new} of 10000 starts found no file");
    assert!(new > 0 && new < 10_000, "no races: {new}");
}
