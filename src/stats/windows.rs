// SPDX-License-Identifier: GPL-2.0-or-later

//! Windows of an agent's transfers in the last minute.

use crate::stats::sized_times::SizedTimes;
use crate::stats::window::{PART, Window};
use std::time::{Duration, Instant};

/// Windows of times in microseconds, and of bandwidths in bytes per second.
#[derive(Debug)]
pub struct Windows {
    /// End of the current part of all windows.
    part_ends: Instant,
    /// Time from start to completion.
    pub xfer_time: Window,
    /// Time from start until the backend accepted the transfer.
    pub post_time: Window,
    /// Bytes of a transfer divided by its time from start to completion.
    pub bandwidth: Window,
    /// Times from start to completion, by size of the transfer.
    pub sized_times: SizedTimes,
}

impl Windows {
    /// Returns windows without transfers.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            part_ends: now + PART,
            xfer_time: Window::default(),
            post_time: Window::default(),
            bandwidth: Window::default(),
            sized_times: SizedTimes::default(),
        }
    }

    /// Removes values that are too old at `now`.
    pub fn advance(&mut self, now: Instant) {
        // Does not touch the windows, which are not in the CPU's cache while the agent is idle.
        if now < self.part_ends {
            return;
        }
        let ended = (now - self.part_ends).as_secs() / PART.as_secs() + 1;
        self.part_ends += Duration::from_secs(PART.as_secs() * ended);
        self.xfer_time.advance(ended);
        self.post_time.advance(ended);
        self.bandwidth.advance(ended);
        self.sized_times.advance(ended);
    }

    /// Returns when the windows are to be advanced. `None`: they have no values, so that time does not change them.
    #[must_use]
    pub fn next_change(&self) -> Option<Instant> {
        let all = [&self.xfer_time, &self.post_time, &self.bandwidth];
        let have_values = all.iter().any(|window| window.count() > 0);
        have_values.then_some(self.part_ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn windows_advance_only_at_the_end_of_a_part() {
        let start = Instant::now();
        let mut windows = Windows::new(start + 10 * PART);
        windows.xfer_time.record(7);
        windows.advance(start);
        assert_eq!(windows.part_ends, start + 11 * PART);
        windows.advance(start + 11 * PART - Duration::from_nanos(1));
        let window = &windows.xfer_time;
        assert_eq!((window.count(), window.max()), (1, Some(7)));
        windows.advance(start + 11 * PART);
        assert_eq!(windows.part_ends, start + 12 * PART);
    }

    #[test]
    fn all_windows_advance_together() {
        let start = Instant::now();
        let mut windows = Windows::new(start);
        for second in [0, 9, 10, 25, 1000] {
            let now = start + Duration::from_secs(second);
            windows.advance(now);
            assert!(windows.part_ends > now && windows.part_ends <= now + Duration::from_secs(10));
            for window in [
                &mut windows.xfer_time,
                &mut windows.post_time,
                &mut windows.bandwidth,
            ] {
                window.record(second);
            }
            windows.sized_times.record(0, 7.0);
        }
        windows.advance(start + Duration::from_secs(1050));
        for window in [&windows.xfer_time, &windows.post_time, &windows.bandwidth] {
            assert_eq!((window.count(), window.max()), (1, Some(1000)));
        }
        let sized = windows.sized_times.means()[0];
        assert_eq!(sized.map(|mean| mean.transfers), Some(1));
    }
}
