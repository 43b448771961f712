// SPDX-License-Identifier: GPL-2.0-or-later

//! Which agents a drain passes over, and what a process scan tells of an agent.

use super::{Collector, transports};
use crate::agents::Agent;
use crate::base::file::FileFacts;
use crate::config::{Config, DirectoryPattern};
use crate::log;
use crate::observer::client::ObserverHandle;
use crate::procfs::facts::Facts;
use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::ProcessScan;
use crate::ring::tests::bytes_of_ring;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
const RETAIN: Duration = Duration::from_millis(2500);
/// A budget that is never used up.
const LONG: Duration = Duration::from_secs(3600);

/// Makes a v4 ring of four slots with one event. No process has it open. Returns a collector that scans its directory.
fn agent(observe: bool) -> (tempfile::TempDir, Collector, Instant) {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a"), bytes_of_ring(4, &[5])).expect("written");
    let agents = Collector::new(&Config {
        telemetry_dir: vec![DirectoryPattern::of(dir.path())],
        proc_facts: false,
        retain: RETAIN,
        observe,
        ..Config::default()
    });
    (dir, agents, Instant::now())
}

/// Starts a script of sh in place of the observer.
pub(super) fn observer(directory: &Path, script: &str) -> ObserverHandle {
    let path = directory.join("observer");
    // By another process: a file that this one writes cannot be executed while a thread forks.
    let written = Command::new("/bin/sh")
        .args(["-c", "printf %s \"$1\" >\"$0\"; chmod 700 \"$0\""])
        .arg(&path)
        .arg(script)
        .status();
    assert!(written.expect("sh is there").success());
    ObserverHandle::start(&path, &[]).expect("it starts")
}

fn tick(agents: &mut Collector, now: Instant) {
    agents.scan(now, LONG);
    agents.drain(None, now, LONG);
}

#[test]
fn exited_agent_is_skipped_until_it_is_withdrawn() {
    let (_dir, mut agents, mut now) = agent(false);
    while agents
        .iter()
        .all(|agent| agent.entry.lifecycle.exited_since().is_none())
    {
        now += SECOND;
        tick(&mut agents, now);
    }
    let exited = now;
    for half_seconds in 0..5 {
        let now = exited + half_seconds * SECOND / 2;
        tick(&mut agents, now);
        assert!(agents.agents.poll(0).is_idle(now + SECOND / 4));
        assert!(agents.iter().all(|agent| agent.is_published()));
    }
    assert!(!agents.agents.poll(0).is_idle(exited + RETAIN));
    tick(&mut agents, exited + RETAIN);
    assert!(agents.iter().all(|agent| !agent.is_published()));
}

#[test]
fn values_of_1000_agents_leave_their_windows_within_70_s() {
    // Each ring takes a descriptor, and the usual limit leaves no room for all.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("up to its own limit");
    let (dir, mut agents, start) = agent(false);
    let path = dir.path().join("a");
    for number in 1..1000 {
        fs::copy(&path, dir.path().join(number.to_string())).expect("copied");
    }
    // A process has the ring open, so that its agent stays.
    let ring = File::options().write(true).open(&path).expect("there");
    let named = |agent: &&mut Agent| agent.name.instance == "a";
    tick(&mut agents, start);
    let found = agents.agents.values_mut().find(named).expect("one");
    found.windows.xfer_time.record(7);
    for second in 1..=70 {
        if second == 8 {
            // Now the agent is due five seconds after this one.
            ring.write_all_at(&2_u64.to_le_bytes(), 0).expect("written");
        }
        tick(&mut agents, start + second * SECOND);
        let mut all = agents.iter();
        let found = all.find(|agent| agent.name.instance == "a").expect("one");
        let is_there = found.windows.xfer_time.max().is_some();
        assert_eq!(is_there, second < 70, "after {second} s");
    }
}

#[test]
fn withdrawn_agent_without_a_file_is_skipped() {
    let (dir, mut agents, mut now) = agent(false);
    tick(&mut agents, now);
    fs::remove_file(dir.path().join("a")).expect("there");
    while agents
        .iter()
        .any(|agent| !agent.entry.lifecycle.is_dormant())
    {
        now += SECOND;
        tick(&mut agents, now);
    }
    assert!(agents.agents.poll(0).is_idle(now + LONG / 2));
    // Its file is there again, with what it was.
    fs::write(dir.path().join("a"), bytes_of_ring(4, &[5])).expect("written");
    while agents
        .iter()
        .all(|agent| agent.entry.lifecycle.is_dormant())
    {
        now += SECOND;
        tick(&mut agents, now);
    }
    let sent = |agent: &Agent| agent.total(crate::event::EventType::TxBytes);
    assert_eq!(agents.iter().map(sent).collect::<Vec<_>>(), [10]);
}

#[test]
fn an_agent_of_two_rings_is_passed_over_while_nothing_happens_in_either() {
    let (dir, mut agents, mut now) = agent(false);
    let path = dir.path().join("a");
    tick(&mut agents, now);
    // The first stays open, and is no file of that name any more.
    let open = |path: &Path| File::options().write(true).open(path).expect("there");
    let first = open(&path);
    let bytes = fs::read(&path).expect("there");
    fs::rename(&path, dir.path().join(".old")).expect("there");
    fs::remove_file(dir.path().join(".old")).expect("there");
    fs::write(&path, &bytes).expect("written");
    let second = open(&path);
    let rings = |agents: &Collector| {
        let rings = agents.iter().map(|agent| agent.sources.len());
        rings.sum::<usize>()
    };
    while rings(&agents) < 2 {
        now += SECOND;
        tick(&mut agents, now);
    }
    tick(&mut agents, now);
    let sent = |agents: &Collector| {
        let agent = agents.iter().next().expect("one");
        agent.total(crate::event::EventType::TxBytes)
    };
    let mut expected = sent(&agents);
    assert_eq!(
        expected, 5,
        "the second is a copy of the first as it was drained"
    );
    for (ring, upto) in [(&first, 2_u64), (&second, 2), (&first, 3), (&second, 3)] {
        assert!(agents.agents.poll(0).is_idle(now));
        let slot = [0, 7_u64].map(u64::to_le_bytes).concat();
        ring.write_all_at(&slot, 8 * (5 + 2 * (upto - 1)))
            .expect("written");
        ring.write_all_at(&upto.to_le_bytes(), 0).expect("written");
        assert!(!agents.agents.poll(0).is_idle(now));
        now += SECOND;
        tick(&mut agents, now);
        expected += 7;
        assert_eq!(sent(&agents), expected);
        tick(&mut agents, now);
    }
    assert!(
        !agents.agents.poll(0).is_idle(now + SECOND),
        "their holders are checked"
    );
}

#[test]
fn ring_that_is_not_drained_is_skipped_while_its_positions_stay() {
    let (dir, mut agents, mut now) = agent(true);
    let ring = dir.path().join("a");
    let ring = File::options().write(true).open(ring).expect("there");
    let put = |word: u64, value: u64| {
        ring.write_all_at(&value.to_le_bytes(), 8 * word)
            .expect("written");
    };
    let pending = |agents: &Collector| agents.iter().next().expect("one").pending();
    // The first check of its holders comes within a second.
    for _ in 0..2 {
        tick(&mut agents, now);
        now += SECOND;
    }
    tick(&mut agents, now);
    for (word, value, waits) in [(0, 2, 2), (1, 1, 1), (1, 2, 0), (0, 3, 1), (0, 1, 3)] {
        put(word, value);
        assert!(!agents.agents.poll(0).is_idle(now));
        now += SECOND;
        tick(&mut agents, now);
        tick(&mut agents, now);
        assert_eq!(pending(&agents), Some(waits));
        assert!(agents.agents.poll(0).is_idle(now + SECOND / 2));
    }
}

#[test]
fn unchanged_store_is_skipped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nixl.4242.17.0.mmap");
    fs::write(&path, crate::store::format::tests::store("a", "0", &[1.0])).expect("written");
    let mut agents = Collector::new(&Config {
        telemetry_dir: Vec::new(),
        multiproc_dir: vec![DirectoryPattern::of(dir.path())],
        proc_facts: false,
        ..Config::default()
    });
    let mut now = Instant::now();
    let store = File::options().write(true).open(&path).expect("there");
    for time in 10..15_u64 {
        now += SECOND;
        tick(&mut agents, now);
        assert!(agents.agents.poll(0).is_idle(now + SECOND / 2));
        // A counter, and then the time of the change.
        for (word, value) in [(94, 1000 + time), (3, time)] {
            store
                .write_all_at(&value.to_le_bytes(), 8 * word)
                .expect("written");
        }
        assert!(!agents.agents.poll(0).is_idle(now + SECOND / 2));
    }
}

#[test]
fn agent_with_several_writers_is_of_no_process() {
    for observe in [false, true] {
        let (dir, mut agents, now) = agent(observe);
        let ring = File::options().write(true).open(dir.path().join("a"));
        let ring = ring.expect("there");
        tick(&mut agents, now);
        let facts = FileFacts::new(&fstat(&ring).expect("open"));
        let [first, second] = [1, 2].map(|start| ProcessId {
            pid: u32::MAX,
            start,
        });
        for (processes, is_known) in [
            (&[(first, 1)][..], true),
            // A program that does not drain the ring cannot tell a consumer from an agent.
            (&[(first, 1), (second, 2)][..], observe),
        ] {
            let mut found = ProcessScan::of_processes(&facts, &dir.path().join("a"), processes);
            let mut of_process = Facts::default();
            of_process.set("command", Some("serve"));
            found.facts.insert(first, of_process);
            agents.begin_application(found);
            agents.continue_application(now, now);
            let found = agents.iter().next().expect("one");
            assert_eq!(found.pid().is_some(), is_known, "{processes:?}");
            let process = transports::process_of(found);
            assert_eq!(process.is_some(), is_known, "{processes:?}");
            let facts = found.labelled_facts();
            assert_eq!(facts.get("command").is_some(), is_known, "{processes:?}");
        }
    }
}

#[test]
fn agent_with_files_of_two_processes_is_of_neither() {
    let (dir, mut agents, now) = agent(false);
    let path = dir.path().join("a");
    let [first, second] = [1, 2].map(|start| ProcessId {
        pid: u32::MAX,
        start,
    });
    // A producer that has replaced its ring, and another process that has the one before.
    let before = File::options().write(true).open(&path).expect("there");
    tick(&mut agents, now);
    let other = dir.path().join(".b");
    fs::write(&other, bytes_of_ring(4, &[5])).expect("written");
    fs::rename(&other, &path).expect("renamed");
    let after = File::options().write(true).open(&path).expect("there");
    for writer_of_other in [first, second] {
        let mut now = now;
        while agents.iter().all(|agent| agent.sources.len() < 2) {
            now += SECOND;
            tick(&mut agents, now);
        }
        for (file, writer) in [(&before, first), (&after, writer_of_other)] {
            let facts = FileFacts::new(&fstat(file).expect("open"));
            let found = ProcessScan::of_processes(&facts, &path, &[(writer, 1)]);
            agents.begin_application(found);
            agents.continue_application(now, now + LONG);
        }
        let found = agents.iter().next().map(transports::process_of);
        let expected = (writer_of_other == first).then_some(first);
        assert_eq!(found, Some(expected));
    }
}

#[test]
fn panic_over_the_processes_of_one_agent_costs_the_others_nothing() {
    let (dir, mut agents, now) = agent(false);
    let rings = ["a", "b"].map(|name| dir.path().join(name));
    fs::copy(&rings[0], &rings[1]).expect("copied");
    tick(&mut agents, now);
    let [bad, good] = rings.clone().map(|path| {
        let file = File::open(path).expect("there");
        FileFacts::new(&fstat(file).expect("open"))
    });
    let writers = [1, 2].map(|start| {
        (
            ProcessId {
                pid: u32::MAX,
                start,
            },
            start,
        )
    });
    let mut found = ProcessScan::of_processes(&bad, &rings[0], &writers);
    found.files.insert(good.id, good);
    let fail = move |event: &str| {
        assert!(!event.contains("processes can write"), "a defect");
        let of_owner = log::tests::begin_of_event(Some(bad.uid));
        assert!(event.starts_with(&of_owner), "{event}");
    };
    log::tests::with_events(fail, || {
        agents.begin_application(found);
        agents.continue_application(now, now + LONG);
    });
    let seen = agents.iter().map(|agent| {
        let has_facts = agent.facts.current().is_some();
        (
            agent.name.instance.to_string(),
            agent.sources.len(),
            has_facts,
        )
    });
    let mut seen = Vec::from_iter(seen);
    seen.sort();
    assert_eq!(seen, [("a".into(), 0, false), ("b".into(), 1, true)]);
}

#[test]
fn rejection_after_a_panic_counts_against_the_owner() {
    let (_dir, mut agents, now) = agent(false);
    let rejected = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&rejected);
    let fail = move |event: &str| {
        assert!(!event.contains("agent a: ring v4"), "a defect");
        seen.lock().expect("one thread").push(event.to_owned());
    };
    log::tests::with_events(fail, || agents.scan(now, LONG));
    let of_owner = log::tests::begin_of_event(Some(geteuid().as_raw()));
    let rejected = rejected.lock().expect("one thread");
    assert!(
        matches!(&rejected[..], [line] if line.starts_with(&of_owner)),
        "{rejected:?}"
    );
}
