// SPDX-License-Identifier: GPL-2.0-or-later

//! Time limits of the work that the event loop does, so that an answer to pmcd waits for at most 10 ms.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Time limits of one scan and one drain.
#[derive(Clone, Copy, Debug)]
pub struct TimeBudget {
    /// Limit of the scan.
    pub scan: Duration,
    /// Limit of the drain.
    pub drain: Duration,
}

/// Limits before an answer. A client of pmcd waits for it, and may have waited for a piece of a tick before.
pub const FETCH: TimeBudget = TimeBudget {
    scan: Duration::from_micros(700),
    drain: Duration::from_millis(1),
};
/// Limit of one piece of a tick. Requests of pmcd are answered between two pieces.
pub const PIECE: Duration = Duration::from_millis(1);
/// Limits of all pieces of a tick together. They leave CPU time for other processes.
pub const TICK: TimeBudget = TimeBudget {
    scan: Duration::from_millis(5),
    drain: Duration::from_millis(20),
};
/// Limits of the last drain. pmcd allows about 150 ms for the shutdown.
pub const SHUTDOWN: TimeBudget = TICK;

/// Time that an answer may take beyond its budget. The first answer needs it, because then all rings are new. It is
/// measured mainly in CPU time of this thread, so that a busy machine does not use it up.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// End in CPU time of this thread.
    cpu_end: Duration,
    /// End in any case, in wall-clock time.
    wall_end: Instant,
}

impl Allowance {
    /// Returns the allowance of the first scan and drain. pmcd waits for an answer for five seconds.
    pub fn first_drain() -> Self {
        Self::of(Duration::from_millis(400), Duration::from_secs(4))
    }

    /// Returns the allowance of the drain before an answer: as much CPU time as its budget, and at most 20 ms in
    /// all. It matters if other processes used the CPU during the budget.
    pub fn answer() -> Self {
        Self::of(FETCH.drain, Duration::from_millis(20))
    }

    fn of(cpu: Duration, wall: Duration) -> Self {
        Self {
            cpu_end: thread_cpu_time() + cpu,
            wall_end: Instant::now() + wall,
        }
    }

    /// True if time is left.
    pub fn has_time(&self) -> bool {
        thread_cpu_time() < self.cpu_end && Instant::now() < self.wall_end
    }
}

/// Returns the CPU time of this thread (CLOCK_THREAD_CPUTIME_ID).
fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(Duration::MAX / 2, Duration::from)
}

/// Next piece of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The tick is done.
    Nothing,
    /// The directories are scanned until `end`.
    Scan {
        /// Time after which the rest of the scan is left for the next tick.
        end: Instant,
    },
    /// The rings are drained.
    Drain {
        /// Start of the drain. When TICK.drain is over, the rest is left for the next tick.
        start: Instant,
    },
    /// Liveness is checked, agents and files that have expired are removed, and the instance ids are written to their
    /// file.
    Maintain,
    /// Agents are compared with their peers for the timeline.
    Compare,
}
