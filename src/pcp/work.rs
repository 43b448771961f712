//! How long the server may be at one thing, so that an answer to pmcd never waits for more than 10 ms.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// How long looking for rings and draining them may take, each.
#[derive(Clone, Copy, Debug)]
pub struct TimeBudget {
    /// Looking for rings.
    pub scan: Duration,
    /// Draining them.
    pub drain: Duration,
}

/// Before an answer: pmcd's clients wait for it, and before that for the piece of a tick that is being done.
pub const FETCH: TimeBudget = TimeBudget {
    scan: Duration::from_micros(700),
    drain: Duration::from_millis(1),
};
/// How long an answer waits for what /proc shows of agents that are new.
pub const NEW_AGENT_WAIT: Duration = Duration::from_micros(1500);
/// A piece of a tick; between two of them pmcd is answered.
pub const PIECE: Duration = Duration::from_millis(1);
/// All pieces of a tick, so that something is left of the processor for others.
pub const TICK: TimeBudget = TimeBudget {
    scan: Duration::from_millis(5),
    drain: Duration::from_millis(20),
};
/// At the end, for which pmcd allows about 150 ms.
pub const SHUTDOWN: TimeBudget = TICK;

/// What an answer may take beyond its budget, as the first does, when all that is there is new. It is counted in time that this
/// thread has worked: on a machine that stands still for a while an answer has what it has on any other.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// When it is used up, in time worked.
    cpu_end: Duration,
    /// When it ends in any case.
    wall_end: Instant,
}

impl Allowance {
    /// That of the first look. pmcd waits for an answer for five seconds.
    pub fn first_drain() -> Self {
        Self::of(Duration::from_millis(400), Duration::from_secs(4))
    }

    /// That of the drain before an answer: no more than its budget, if that has not gone by while others had the processor.
    pub fn answer() -> Self {
        Self::of(FETCH.drain, Duration::from_millis(20))
    }

    fn of(cpu: Duration, wall: Duration) -> Self {
        Self {
            cpu_end: thread_cpu_time() + cpu,
            wall_end: Instant::now() + wall,
        }
    }

    /// Whether something is left of it.
    pub fn has_time(&self) -> bool {
        thread_cpu_time() < self.cpu_end && Instant::now() < self.wall_end
    }
}

/// The processor time that this thread has used.
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::MAX / 2, Duration::from)
}

/// What is to be done next of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// All is done.
    Nothing,
    /// Rings are looked for, until `end`.
    Scan {
        /// When the rest is left for the next tick.
        end: Instant,
    },
    /// Events are counted.
    Drain {
        /// Since when: what is left when the budget is used up is for the next tick.
        start: Instant,
    },
    /// It is found out who writes, and what agents have left is removed.
    Tidy,
    /// The instance ids are saved.
    Save,
}
