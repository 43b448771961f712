// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance ids of processes and of peers.
//!
//! Their counters begin at zero in each daemon, so that no daemon may use an id of an earlier one again. The ids need
//! no file, because they follow the clock.

use std::time::{Duration, SystemTime};

/// Least growth of the ids in a second. A daemon that draws more is ahead of the clock for a while. The ids come round
/// after 97 days.
const IDS_PER_SECOND: u128 = 256;
/// Instance ids of PCP have 31 bits.
const COUNT: u64 = 1 << 31;

/// Source of instance ids that grow from one daemon to the next.
#[derive(Debug, Default)]
pub struct ClockIds {
    /// Last id, before it is cut to 31 bits.
    last: u64,
}

impl ClockIds {
    /// Returns an id that neither this daemon nor an earlier one has used.
    pub fn draw(&mut self) -> u32 {
        self.draw_at(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
    }

    fn draw_at(&mut self, since_epoch: Duration) -> u32 {
        let clock = u64::try_from(since_epoch.as_millis() * IDS_PER_SECOND / 1000);
        // CLOCK_REALTIME may have been stepped back.
        self.last = clock.unwrap_or(0).max(self.last + 1);
        u32::try_from(self.last % COUNT).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_grow_within_a_daemon_and_to_the_next() {
        let start = Duration::from_secs(1_800_000_000);
        let second = Duration::from_secs(1);
        let mut ids = ClockIds::default();
        let mut drawn: Vec<u32> = (0..256).map(|_| ids.draw_at(start)).collect();
        drawn.push(ids.draw_at(start - second));
        let mut later = ClockIds::default();
        drawn.push(later.draw_at(start + 2 * second));
        assert!(drawn.is_sorted_by(|one, next| one < next), "{drawn:?}");
        assert!(drawn.iter().all(|&id| i32::try_from(id).is_ok()));
    }
}
