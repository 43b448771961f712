// SPDX-License-Identifier: GPL-2.0-or-later

//! A moment on three clocks: [`Instant`], CLOCK_MONOTONIC and CLOCK_REALTIME.

use nix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// A moment on the clocks that this process, the state file and users need.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Moment for comparisons within this process.
    pub instant: Instant,
    /// CLOCK_MONOTONIC in nanoseconds. The state file has such stamps.
    pub stamp: u64,
    /// CLOCK_REALTIME in seconds since 1970.
    pub seconds: u64,
}

impl Default for Now {
    fn default() -> Self {
        Self::read()
    }
}

impl Now {
    /// Reads the clocks and returns the present moment.
    #[must_use]
    pub fn read() -> Self {
        let read = |clock| clock_gettime(clock).map(Duration::from).unwrap_or_default();
        Self {
            instant: Instant::now(),
            stamp: nanoseconds(read(ClockId::CLOCK_MONOTONIC)),
            seconds: read(ClockId::CLOCK_REALTIME).as_secs(),
        }
    }

    /// Returns the moment at `instant`. Differences of stamps are as exact as differences of instants.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Self {
        let (since, before) = (
            instant.saturating_duration_since(self.instant),
            self.instant.saturating_duration_since(instant),
        );
        // CLOCK_REALTIME may have been stepped since `self` was read.
        let now = Self::read();
        let ahead = instant.saturating_duration_since(now.instant);
        Self {
            instant,
            stamp: (self.stamp + nanoseconds(since)).saturating_sub(nanoseconds(before)),
            seconds: now.seconds + ahead.as_secs(),
        }
    }

    /// Returns the time since a stamp in nanoseconds; zero if the stamp is later.
    #[must_use]
    pub fn since(&self, stamp: u64) -> Duration {
        Duration::from_nanos(self.stamp.saturating_sub(stamp))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_at_a_later_instant_is_as_far_away_on_each_clock() {
        let (now, hour) = (Now::read(), Duration::from_secs(3600));
        let later = now.at(now.instant + hour);
        let minute = Duration::from_secs(60);
        assert!(later.since(now.stamp).abs_diff(hour) < minute);
        assert!((later.seconds - now.seconds).abs_diff(3600) < 60);
        assert_eq!(now.since(later.stamp), Duration::ZERO);
    }
}
