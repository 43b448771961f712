//! How an agent's transfers of the last minute are distributed.

use crate::totals::window::Window;
use std::time::Instant;

/// Of times in microseconds, and of bandwidths in bytes per second.
#[derive(Debug)]
pub struct Windows {
    /// When a part of them ends, of all at the same time.
    part_ends: Instant,
    /// From start to completion.
    pub xfer_time: Window,
    /// From start until the backend had accepted it.
    pub post_time: Window,
    /// Bytes of a transfer by the time from start to completion.
    pub bandwidth: Window,
}

impl Windows {
    /// Without transfers.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let xfer_time = Window::new(now);
        Self {
            part_ends: xfer_time.part_ends(),
            xfer_time,
            post_time: Window::new(now),
            bandwidth: Window::new(now),
        }
    }

    /// Time has passed: what is too old leaves.
    pub fn advance(&mut self, now: Instant) {
        // They are not in the processor's cache when nothing happens.
        if now < self.part_ends {
            return;
        }
        self.xfer_time.advance(now);
        self.post_time.advance(now);
        self.bandwidth.advance(now);
        self.part_ends = self.xfer_time.part_ends();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn all_three_advance_together_and_for_ever() {
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
        }
        windows.advance(start + Duration::from_secs(1050));
        for window in [&windows.xfer_time, &windows.post_time, &windows.bandwidth] {
            assert_eq!((window.count(), window.max()), (1, Some(1000)));
        }
    }
}
