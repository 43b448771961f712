// SPDX-License-Identifier: GPL-2.0-or-later

//! Random sequences of everything that can happen to a ring, compared with a model: a queue of the events that must be
//! counted.

use crate::support::kit::{Core, LONG, SECOND};
use crate::support::writer::{Kind, Layout, RingWriter};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::fs;

/// Step of a sequence.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The agent pushes so many events of this value, as far as they fit.
    Push(u64, u64),
    /// The daemon scans and drains.
    Drain,
    /// The daemon is killed and started again.
    Kill,
    /// The daemon is killed between commit and release of its last batch. Another reader reads so many events of it.
    /// Then the daemon starts again.
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
    core: Core,
    ring: RingWriter,
    /// Pending events in the ring.
    queue: VecDeque<u64>,
    counted: u64,
    foreign: u64,
    /// True if the daemon drained the events that left the ring last: only then can a kill have come before their
    /// release.
    drained_last: bool,
}

impl World {
    fn new() -> Self {
        let core = Core::new("");
        Self {
            ring: core.ring_of("agent", 8),
            core,
            queue: VecDeque::new(),
            counted: 0,
            foreign: 0,
            drained_last: false,
        }
    }

    fn drain(&mut self) {
        // Two ticks and an answer: one tick may find that the ring was replaced, and the next tick attaches the new
        // one.
        self.core.tick(2, 3 * SECOND, LONG);
        self.core.advance(3 * SECOND);
        self.core.scan();
        self.core.drain();
        self.drained_last |= !self.queue.is_empty();
        self.counted += self.queue.drain(..).sum::<u64>();
    }

    /// Kills the daemon between commit and release of its last batch. Another reader then reads so many events of the
    /// batch.
    fn kill_in_flight(&mut self, taken: u64) {
        let (agents, _) = self.core.kill_and_read();
        let checkpoint = agents.first().and_then(|agent| agent.entry.checkpoint);
        let (read_pos, mask) = (self.ring.read_pos(), self.ring.capacity() - 1);
        // No event of a ring that has restarted since was counted.
        if let Some(batch) = checkpoint.filter(|it| it.from != it.end && it.end == read_pos) {
            let mut foreign = taken.min(batch.end.wrapping_sub(batch.from) & mask);
            let mut pos = (batch.from + foreign) & mask;
            if pos == 0 && pos != batch.end {
                // Where a restart puts it: it is taken for one.
                (pos, foreign) = (batch.from, 0);
            }
            self.core.kill_before_release();
            self.core.set_read_pos(pos);
            self.foreign += foreign;
        }
    }

    /// Asserts that the daemon has counted each event once.
    fn assert_counted(&mut self, after: &str) -> Result<(), TestCaseError> {
        self.drain();
        let [bytes, _, foreign] = self.core.only();
        prop_assert_eq!(bytes, self.counted, "after {}", after);
        prop_assert!(foreign <= self.foreign, "after {}", after);
        Ok(())
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
            Step::Kill => self.core.restart(),
            Step::KillInFlight(taken) => {
                self.drain();
                if self.drained_last {
                    self.kill_in_flight(taken);
                }
                self.core.restart();
            }
            Step::Reset(layout, size) => {
                self.ring = self.core.ring_as(layout, "agent", size);
                self.queue.clear();
                self.drained_last = false;
            }
            Step::Foreign(count) => {
                let count = count.min(self.queue.len() as u64);
                let pos = (self.ring.read_pos() + count) & (self.ring.capacity() - 1);
                self.core.set_read_pos(pos);
                self.queue.drain(..usize::try_from(count).expect("small"));
                self.foreign += count;
                self.drained_last &= count == 0;
            }
            Step::Replace => {
                // The old ring is still drained if it was attached.
                self.drain();
                fs::remove_file(self.core.path("agent")).expect("there");
                self.ring = self.core.ring_of("agent", 8);
                self.drained_last = false;
            }
            Step::Touch => {
                let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
                fs::set_permissions(self.core.path("agent"), mode).expect("ours");
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
            if world.queue.is_empty() {
                world.assert_counted(&format!("step {at}: {step:?}"))?;
            }
        }
        world.assert_counted("all steps")?;
    }
}
