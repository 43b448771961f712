// SPDX-License-Identifier: GPL-2.0-or-later

use crate::base::file::FileFacts;
use crate::collector::Collector;
use crate::collector::tests::observer;
use crate::config::{Config, DirectoryPattern};
use crate::event::{Event, EventType};
use crate::observer::protocol::{Response, SocketReading, Traffic};
use crate::procfs::process::ProcessId;
use crate::procfs::process_scan::{NixlProcess, ProcessInfo, ProcessScan};
use crate::ring::tests::bytes_of_ring;
use crate::timeline::Kind;
use nix::sys::stat::fstat;
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// A budget that is never used up.
const LONG: Duration = Duration::from_secs(3600);

/// Returns a collector that scans a directory.
fn collector(dir: &Path) -> Collector {
    Collector::new(&Config {
        telemetry_dir: vec![DirectoryPattern::of(dir)],
        proc_facts: false,
        ..Config::default()
    })
}

/// Returns a collector with the agent `a`, which has appeared, and whose ring stays open.
fn with_agent(dir: &Path) -> (Collector, File) {
    let path = dir.join("a");
    fs::write(&path, bytes_of_ring(4, &[5])).expect("written");
    let ring = File::options().write(true).open(&path).expect("there");
    let mut agents = collector(dir);
    let now = Instant::now();
    agents.scan(now, LONG);
    agents.drain(None, now, LONG);
    assert_eq!(recorded(&mut agents), [(Kind::Appeared, 1)]);
    (agents, ring)
}

/// Returns what was recorded since the last call.
fn recorded(agents: &mut Collector) -> Vec<(Kind, u64)> {
    let events = agents.timeline().unread(0).1;
    let events = events.map(|event| (event.kind, event.value)).collect();
    agents.timeline_mut().set_read(0);
    events
}

#[test]
fn observer_that_ends_is_lost_until_another_one_runs() {
    const WAITS: &str = "#!/bin/sh\nwhile read -r request; do :; done\n";
    const ENDS: &str = "#!/bin/sh\nexit 1\n";
    let dir = tempfile::tempdir().expect("a directory");
    let mut agents = Collector::new(&Config::default());
    agents.set_observer(observer(dir.path(), WAITS));
    let now = Instant::now();
    agents.maintain(now, now + LONG);
    assert_eq!(recorded(&mut agents), []);
    agents.set_observer(observer(dir.path(), ENDS));
    while agents.observes() {
        agents.maintain(now, now + LONG);
        std::thread::yield_now();
    }
    for _ in 0..2 {
        agents.maintain(now, now + LONG);
    }
    assert_eq!(recorded(&mut agents), [(Kind::ObserverLost, 0)]);
    agents.set_observer(observer(dir.path(), WAITS));
    for _ in 0..2 {
        agents.maintain(now, now + LONG);
    }
    assert_eq!(recorded(&mut agents), [(Kind::ObserverBack, 0)]);
    // Without process scans there is nothing to lose.
    agents.configure(&Config {
        proc_facts: false,
        ..Config::default()
    });
    agents.set_observer(observer(dir.path(), ENDS));
    agents.maintain(now, now + LONG);
    assert_eq!(recorded(&mut agents), []);
}

#[test]
fn file_of_an_unsupported_version_is_recorded_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut agents = collector(dir.path());
    let mut now = Instant::now();
    let mut ring = bytes_of_ring(4, &[5]);
    // Both halves of the word are the version.
    ring[16..24].copy_from_slice(&[6, 0, 0, 0, 6, 0, 0, 0]);
    for (name, expected) in [("a", 1), ("b", 2)] {
        fs::write(dir.path().join(name), &ring).expect("written");
        for _ in 0..5 {
            now += SECOND;
            agents.scan(now, LONG);
        }
        let last = agents.timeline().last();
        assert!(last.contains(&format!("/{name}\\\": not read: ")), "{last}");
        assert_eq!(recorded(&mut agents), [(Kind::Unsupported, expected)]);
    }
}

#[test]
fn agent_with_few_transfers_is_not_slow() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut agents, _ring) = with_agent(dir.path());
    let agent = agents.agents.values_mut().next().expect("one");
    agent.id = Some(3);
    let slow = HashMap::from([(3, 3.5), (4, 9.0)]);
    let transfer = |agents: &mut Collector| {
        let agent = agents.agents.values_mut().next().expect("one");
        agent.windows.xfer_time.record(7);
    };
    for _ in 0..9 {
        transfer(&mut agents);
    }
    for _ in 0..3 {
        agents.note_ratios(&slow);
    }
    assert_eq!(recorded(&mut agents), []);
    transfer(&mut agents);
    for _ in 0..3 {
        agents.note_ratios(&slow);
    }
    assert_eq!(recorded(&mut agents), [(Kind::Slow, 350)]);
    for _ in 0..3 {
        agents.note_ratios(&HashMap::new());
    }
    assert_eq!(recorded(&mut agents), [(Kind::SlowEnd, 0)]);
}

/// Process that writes the ring of the agent. No such process runs.
const WRITER: ProcessId = ProcessId {
    pid: u32::MAX,
    start: 1,
};

/// Makes a process that uses NIXL the one of the agent.
fn add_process(agents: &mut Collector, ring: &File, path: &Path) {
    let facts = FileFacts::new(&fstat(ring).expect("open"));
    let now = Instant::now();
    agents.begin_application(ProcessScan::of_processes(&facts, path, &[(WRITER, 1)]));
    agents.continue_application(now, now + LONG);
    let process = NixlProcess {
        info: ProcessInfo {
            id: WRITER,
            uid: 0,
            command: "python3".into(),
        },
        ..NixlProcess::default()
    };
    let ids = &mut agents.clock_ids;
    agents.transports.set_processes(&[process], None, ids);
}

/// Moves bytes by NIXL and by TCP, and reads the sockets of the process.
fn move_over_tcp(agents: &mut Collector, now: Instant) {
    const BYTES: u64 = 1 << 30;
    let agent = agents.agents.values_mut().next().expect("one");
    let moved = Event::new(Some(EventType::TxBytes), BYTES);
    agent.entry.stats.totals.count(moved);
    let reading = SocketReading {
        id: WRITER,
        traffic: Traffic {
            sent: BYTES,
            ..Traffic::default()
        },
        ..SocketReading::default()
    };
    agents.transports.apply(Response::Sockets(reading), now);
    agents.read_transports(now);
}

#[test]
fn fallback_to_tcp_ends_with_the_readings_of_its_process() {
    let ends: [fn(&mut Collector, Instant); 3] = [
        |agents, now| {
            agents.transports.apply(Response::Ended(WRITER), now);
            agents.read_transports(now);
        },
        // The observer is lost.
        |agents, now| agents.read_transports(now + 2 * 60 * SECOND),
        // Another configuration, without process scans.
        |agents, _| {
            let config = agents.shared.config.clone();
            agents.configure(&config);
        },
    ];
    for end in ends {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut agents, ring) = with_agent(dir.path());
        add_process(&mut agents, &ring, &dir.path().join("a"));
        let mut now = Instant::now();
        while recorded(&mut agents).is_empty() {
            now += 10 * SECOND;
            move_over_tcp(&mut agents, now);
        }
        move_over_tcp(&mut agents, now + 10 * SECOND);
        assert_eq!(recorded(&mut agents), []);
        end(&mut agents, now + 10 * SECOND);
        assert_eq!(recorded(&mut agents), [(Kind::TcpFallbackEnd, 0)]);
    }
}
