// SPDX-License-Identifier: GPL-2.0-or-later

//! Verdicts for a ring with a `read_pos` other than the daemon left it: each case, in a running daemon and after a restart.

mod followed;

use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{PATIENCE, example};
use pmdanixl::collector::Collector;
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use pmdanixl::journal::record::SavedAgent;
use pmdanixl::journal::{Journal, RecordId};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time budget that never runs out.
const LONG: Duration = Duration::from_secs(3600);

/// A daemon without pmcd, with its directory of rings and its state file.
struct Daemon {
    dir: tempfile::TempDir,
    agents: Option<Collector>,
}

impl Daemon {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("rings")).expect("made");
        let mut daemon = Self { dir, agents: None };
        daemon.start(|_| ());
        daemon
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("rings/agent")
    }

    /// Starts, with what the state file says, in which a test may change something.
    fn start(&mut self, change: impl Fn(&mut SavedAgent)) {
        self.start_as(false, change);
    }

    /// The same; `observe` is as in the configuration.
    fn start_as(&mut self, observe: bool, change: impl Fn(&mut SavedAgent)) {
        self.agents = None;
        let config = Config {
            telemetry_dir: vec![DirectoryPattern {
                path: self
                    .dir
                    .path()
                    .join("rings")
                    .to_str()
                    .expect("UTF-8")
                    .into(),
                label: None,
                literal: true,
            }],
            observe,
            experimental_layouts: pmdanixl::ring::layout::Layout::experimental().collect(),
            ..Config::default()
        };
        let mut journal = Journal::open(&self.dir.path().join("nixl/state"));
        let taken = journal.start().expect("taken");
        let taken = taken.expect("nobody else has it");
        let mut records: Vec<(RecordId, SavedAgent)> = taken.records;
        records.iter_mut().for_each(|(_, saved)| change(saved));
        let mut agents = Collector::new(&config);
        agents.restore(journal, records);
        self.agents = Some(agents);
    }

    /// Scans and drains twice: the second pass recovers what the first one found. Returns bytes, resets and foreign reads.
    fn drain(&mut self) -> [u64; 3] {
        let agents = self.agents.as_mut().expect("a running daemon");
        for _ in 0..2 {
            agents.scan(Instant::now(), LONG);
            agents.drain(None, Instant::now(), LONG);
        }
        let mut all = agents.iter();
        let agent = all.next().expect("one agent");
        let entry = &agent.entry;
        [
            agent.total(EventType::TxBytes),
            entry.resets,
            entry.foreign_reads,
        ]
    }

    /// Sets `read_pos`, as another reader does.
    fn set_read_pos(&self, layout: Layout, position: u64) {
        layout.set_read_pos(&self.path(), position);
    }
}

fn push(ring: &mut RingWriter, values: &[u64]) {
    for &value in values {
        assert!(ring.push(Kind::TxBytes, value));
    }
}

/// A kill between counting a batch and giving its slots back: the state says so, and the ring is as it was before.
fn killed(saved: &mut SavedAgent) {
    let checkpoint = saved.entry.checkpoint.as_mut().expect("a batch");
    checkpoint.released = false;
}

/// A ring of 16 slots after a daemon has counted `[4, 10)`. The values are powers of ten, so that an event counted twice or not at
/// all is visible.
fn counted(layout: Layout) -> (Daemon, RingWriter) {
    let mut daemon = Daemon::new();
    let mut ring = RingWriter::create(&daemon.path(), layout, 16).expect("a ring");
    push(&mut ring, &[0, 0, 0, 0]);
    daemon.drain();
    push(&mut ring, &[1, 10, 100, 1000, 10_000, 100_000]);
    assert_eq!(daemon.drain(), [111_111, 0, 0]);
    (daemon, ring)
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
            let (mut daemon, mut ring) = counted(layout);
            push(&mut ring, &[1_000_000]);
            daemon.set_read_pos(layout, read_pos);
            daemon.start(killed);
            assert_eq!(daemon.drain(), expected, "{layout:?} {read_pos}");
            assert_eq!((ring.read_pos(), ring.pending()), (11, 0));
        }
        // Another reader read two events that the daemon never saw, and left one.
        let (mut daemon, mut ring) = counted(layout);
        push(&mut ring, &[7, 7, 1_000_000]);
        daemon.set_read_pos(layout, 12);
        daemon.start(killed);
        assert_eq!(daemon.drain(), [1_111_111, 0, 2], "{layout:?}");
        // A new ring of equal size, at any position.
        let (mut daemon, _old) = counted(layout);
        let mut ring = RingWriter::create(&daemon.path(), layout, 16).expect("a ring");
        push(&mut ring, &[1_000_000]);
        daemon.start(killed);
        assert_eq!(daemon.drain(), [1_111_111, 1, 0], "{layout:?}");
    }
}

#[test]
fn read_pos_in_a_running_daemon_gives_the_right_verdict() {
    for layout in Layout::ALL {
        // The batch is released.
        let (mut daemon, mut ring) = counted(layout);
        push(&mut ring, &[1_000_000]);
        assert_eq!(daemon.drain(), [1_111_111, 0, 0]);
        // Another reader read two events that the daemon never saw, and left one.
        let (mut daemon, mut ring) = counted(layout);
        push(&mut ring, &[7, 7, 1_000_000]);
        daemon.set_read_pos(layout, 12);
        assert_eq!(daemon.drain(), [1_111_111, 0, 2], "{layout:?}");
        // A new ring of equal size, of another size, and of another version.
        for (layout, slots) in [(layout, 16), (layout, 8), (layout, 64), (other(layout), 16)] {
            let (mut daemon, _old) = counted(layout);
            let mut ring = RingWriter::create(&daemon.path(), layout, slots).expect("a ring");
            push(&mut ring, &[1_000_000]);
            // A directory is scanned again only after its pause.
            let end = Instant::now() + PATIENCE;
            while daemon.drain() != [1_111_111, 1, 0] {
                assert!(
                    Instant::now() < end,
                    "{layout:?} {slots} {:?}",
                    daemon.drain()
                );
            }
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
    fn start(daemon: &Daemon) -> Self {
        let mut child = Command::new(example("producer"))
            .arg("--dir")
            .arg(daemon.dir.path().join("rings"))
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
    // A batch at slot 0 is counted, and the daemon is killed before the release. Then the agent restarts or not. The two cases are
    // not distinguishable: the new batch is lost rather than the old one counted twice.
    for restarted in [false, true] {
        let mut daemon = Daemon::new();
        let mut writer = Agent::start(&daemon);
        assert_eq!(daemon.drain(), [1000, 0, 0]);
        if restarted {
            drop(writer);
            writer = Agent::start(&daemon);
        } else {
            daemon.set_read_pos(Layout::V4, 0);
        }
        daemon.start(|saved| {
            killed(saved);
            let checkpoint = saved.entry.checkpoint.expect("a batch");
            assert_eq!((checkpoint.from, checkpoint.end), (0, 4));
        });
        assert_eq!(daemon.drain(), [1000, 0, 0], "{restarted}");
        let doubtful = daemon
            .agents
            .as_ref()
            .expect("it runs")
            .activity()
            .doubtful_batches;
        // A restart always changes the file times. Whether a store to a mapping does depends on the file system.
        assert!(doubtful == 1 || !restarted, "{doubtful}");
        drop(writer);
    }
}

#[test]
fn agent_recovers_one_ring_before_it_drains_another() {
    // A kill during the last drain of a removal: the ring has its private name, its last batch is not released, and the agent
    // has made another ring.
    for is_met_first in [true, false] {
        let (mut daemon, old) = counted(Layout::V4);
        daemon.set_read_pos(Layout::V4, 4);
        drop(old);
        let private = daemon.dir.path().join("rings/.pmdanixl-agent");
        fs::rename(daemon.path(), &private).expect("renamed");
        let mut new = RingWriter::create(&daemon.path(), Layout::V4, 16).expect("a ring");
        push(&mut new, &[1_000_000]);
        let elsewhere = daemon.dir.path().join("elsewhere");
        if !is_met_first {
            fs::rename(&private, &elsewhere).expect("renamed");
        }
        daemon.start(killed);
        if !is_met_first {
            // The new ring is found before the old one, and both before the first drain. A directory that changes twice within
            // the resolution of its time may be read again only after a while.
            let agents = daemon.agents.as_mut().expect("a running daemon");
            agents.scan(Instant::now(), LONG);
            fs::rename(&elsewhere, &private).expect("renamed");
            let end = Instant::now() + PATIENCE;
            while agents.activity().attached_files < 2 {
                assert!(Instant::now() < end, "the old ring is not found");
                agents.scan(Instant::now(), LONG);
            }
        }
        let end = Instant::now() + PATIENCE;
        while daemon.drain()[0] != 1_111_111 {
            assert!(Instant::now() < end, "{is_met_first} {:?}", daemon.drain());
        }
        assert_eq!(new.pending(), 0);
        let agents = daemon.agents.as_ref().expect("a running daemon");
        assert_eq!(agents.iter().count(), 1, "{is_met_first}");
        assert_eq!(agents.host_total(EventType::TxBytes), 1_111_111);
    }
}
