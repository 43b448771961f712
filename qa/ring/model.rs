// SPDX-License-Identifier: GPL-2.0-or-later

//! Random sequences of everything that can happen to a ring, compared with a model: a queue of the events that must be counted.

use crate::support::writer::{Kind, Layout, RingWriter};
use pmdanixl::collector::Collector;
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use pmdanixl::journal::record::SavedAgent;
use pmdanixl::journal::{Journal, RecordId};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);
/// Time budget that never runs out.
const LONG: Duration = Duration::from_secs(3600);

/// Step of a sequence.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The agent pushes so many events of this value, as far as they fit.
    Push(u64, u64),
    /// The daemon scans and drains.
    Drain,
    /// The daemon is killed and started again.
    Kill,
    /// The daemon is killed between commit and release of its last batch. Another reader reads so many events of it. Then the
    /// daemon starts again.
    KillInFlight(u64),
    /// The agent restarts in place with a ring of this layout and size.
    Reset(Layout, u64),
    /// Another reader reads so many events.
    Foreign(u64),
    /// The file is removed, and the agent restarts.
    Replace,
    /// The change time of the file advances.
    Touch,
}

fn step() -> impl Strategy<Value = Step> {
    let layouts = [
        Layout::V4,
        Layout::V4,
        Layout::V1,
        Layout::V2,
        Layout::V2Named,
        Layout::V5,
    ];
    let layout = prop::sample::select(layouts.to_vec());
    prop_oneof![
        // Few values, so that a restarted agent often writes equal bytes into a slot.
        6 => (1..20_u64, 1..3_u64).prop_map(|(count, value)| Step::Push(count, value)),
        6 => Just(Step::Drain),
        2 => Just(Step::Kill),
        2 => (0..4_u64).prop_map(Step::KillInFlight),
        2 => (layout, prop::sample::select(vec![8, 8, 16])).prop_map(|(layout, size)| Step::Reset(layout, size)),
        2 => (1..8_u64).prop_map(Step::Foreign),
        1 => Just(Step::Replace),
        1 => Just(Step::Touch),
    ]
}

/// The daemon, the agent, and the expected values.
struct World {
    dir: tempfile::TempDir,
    config: Config,
    agents: Option<Collector>,
    now: Instant,
    ring: RingWriter,
    /// Pending events in the ring.
    queue: VecDeque<u64>,
    counted: u64,
    foreign: u64,
    /// True if the daemon drained the events that left the ring last: only then can a kill have come before their release.
    drained_last: bool,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("rings")).expect("made");
        let path = dir.path().join("rings");
        let config = Config {
            telemetry_dir: vec![DirectoryPattern {
                path: path.to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            experimental_layouts: pmdanixl::ring::layout::Layout::experimental().collect(),
            ..Config::default()
        };
        let mut world = Self {
            ring: RingWriter::create(&path.join("agent"), Layout::V4, 8).expect("a ring"),
            dir,
            config,
            agents: None,
            now: Instant::now(),
            queue: VecDeque::new(),
            counted: 0,
            foreign: 0,
            drained_last: false,
        };
        world.start();
        world
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("rings/agent")
    }

    fn start(&mut self) {
        self.start_after(|_, _| ());
    }

    /// Starts it after what a kill has left of the state was made to be so.
    fn start_after(&mut self, change: impl FnOnce(&mut Journal, &mut [(RecordId, SavedAgent)])) {
        // The one before holds the lock.
        self.agents = None;
        let path = self.dir.path().join("nixl/state");
        let mut journal = Journal::open(&path);
        let found = journal.start().expect("readable");
        let mut found = found.expect("an unlocked state file");
        change(&mut journal, &mut found.records);
        let mut agents = Collector::new(&self.config);
        agents.restore(journal, found.records);
        self.agents = Some(agents);
    }

    fn drain(&mut self) {
        let agents = self.agents.as_mut().expect("started");
        // Two ticks and an answer: one tick may find that the ring was replaced, and the next tick attaches the new one.
        for is_answer in [false, false, true] {
            self.now += 3 * SECOND;
            let now = self.now;
            agents.scan(now, LONG);
            match is_answer {
                true => agents.drain(None, now, LONG),
                false => agents.drain(Some(now), now, LONG),
            };
        }
        self.drained_last |= !self.queue.is_empty();
        self.counted += self.queue.drain(..).sum::<u64>();
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Push(count, value) => {
                for _ in 0..count {
                    if self.ring.push(Kind::TxBytes, value) {
                        self.queue.push_back(value);
                    }
                }
            }
            Step::Drain => self.drain(),
            Step::Kill => self.start(),
            Step::KillInFlight(taken) => {
                self.drain();
                if !self.drained_last {
                    return self.start();
                }
                let (ring, path, mut foreign) = (&self.ring, self.path(), 0);
                let (read_pos, mask) = (ring.read_pos(), ring.capacity() - 1);
                let layout = ring.layout();
                let back = |journal: &mut Journal, records: &mut [(RecordId, SavedAgent)]| {
                    for (record, saved) in records {
                        let checkpoint = saved.entry.checkpoint.as_mut();
                        // No event of a ring that has restarted since was counted.
                        let Some(checkpoint) = checkpoint.filter(|checkpoint| {
                            checkpoint.from != checkpoint.end && checkpoint.end == read_pos
                        }) else {
                            continue;
                        };
                        checkpoint.released = false;
                        foreign = taken.min(checkpoint.end.wrapping_sub(checkpoint.from) & mask);
                        let mut pos = (checkpoint.from + foreign) & mask;
                        if pos == 0 && pos != checkpoint.end {
                            // Where a restart puts it: it is taken for one.
                            (pos, foreign) = (checkpoint.from, 0);
                        }
                        layout.set_read_pos(&path, pos);
                        journal.commit(Some(*record), &saved.entry);
                    }
                };
                self.start_after(back);
                self.foreign += foreign;
            }
            Step::Reset(layout, size) => {
                self.ring = RingWriter::create(&self.path(), layout, size).expect("a ring");
                self.queue.clear();
                self.drained_last = false;
            }
            Step::Foreign(count) => {
                let count = count.min(self.queue.len() as u64);
                let pos = (self.ring.read_pos() + count) & (self.ring.capacity() - 1);
                self.ring.layout().set_read_pos(&self.path(), pos);
                self.queue.drain(..usize::try_from(count).expect("small"));
                self.foreign += count;
                self.drained_last &= count == 0;
            }
            Step::Replace => {
                // The old ring is still drained if it was attached.
                self.drain();
                fs::remove_file(self.path()).expect("there");
                self.ring = RingWriter::create(&self.path(), Layout::V4, 8).expect("a ring");
                self.drained_last = false;
            }
            Step::Touch => {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
                fs::set_permissions(self.path(), mode).expect("ours");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn counts_after_any_steps_match_the_model(
        steps in prop::collection::vec(step(), 1..40)
    ) {
        let mut world = World::new();
        for (at, step) in steps.iter().enumerate() {
            world.apply(*step);
            if !world.queue.is_empty() {
                continue;
            }
            world.drain();
            let agents = world.agents.as_ref().expect("started");
            let agent = agents.iter().next().expect("the agent");
            prop_assert_eq!(agent.total(EventType::TxBytes), world.counted, "after step {}: {:?}", at, step);
        }
        world.drain();
        let agents = world.agents.as_ref().expect("started");
        let agent = agents.iter().next().expect("the agent");
        prop_assert_eq!(agent.total(EventType::TxBytes), world.counted);
        prop_assert!(agent.entry.foreign_reads <= world.foreign);
    }
}
