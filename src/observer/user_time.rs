// SPDX-License-Identifier: GPL-2.0-or-later

//! Time that work for users has taken and that is not paid back: each user pays by waiting.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Part of the time that all users together may take.
const SHARE: u32 = 25;

/// Time that each user has used.
#[derive(Debug, Default)]
pub struct UserTime {
    used: HashMap<u32, Duration>,
    /// When it was paid back last.
    paid: Option<Instant>,
}

impl UserTime {
    /// Notes that a user has used time.
    pub fn add(&mut self, uid: u32, time: Duration) {
        *self.used.entry(uid).or_default() += time;
    }

    /// Returns what a user has used and not paid back. `None`: nothing was ever used, or it is forgotten.
    #[must_use]
    pub fn of(&self, uid: u32) -> Option<Duration> {
        self.used.get(&uid).copied()
    }

    /// Returns the most that any user has used and not paid back.
    #[must_use]
    pub fn most(&self) -> Duration {
        self.used.values().copied().max().unwrap_or_default()
    }

    /// Pays back a part of the time since the last call: to each user an equal part of that. Forgets users that have
    /// paid all, unless `is_kept`. Returns that part of the time.
    pub fn pay_back(&mut self, now: Instant, is_kept: impl Fn(u32) -> bool) -> Duration {
        let since = self.paid.replace(now).map(|paid| now - paid);
        let paid = since.unwrap_or_default() / SHARE;
        let users = u32::try_from(self.used.len()).unwrap_or(u32::MAX).max(1);
        for used in self.used.values_mut() {
            *used = used.saturating_sub(paid / users);
        }
        self.used
            .retain(|&uid, used| !used.is_zero() || is_kept(uid));
        paid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_pay_back_equal_parts() {
        let (mut time, start) = (UserTime::default(), Instant::now());
        let second = Duration::from_secs(1);
        assert_eq!(time.pay_back(start, |_| false), Duration::ZERO);
        time.add(7, second);
        time.add(7, second);
        time.add(8, second);
        let later = start + SHARE * second;
        assert_eq!(time.pay_back(later, |_| false), second);
        let half = second / 2;
        assert_eq!([7, 8].map(|uid| time.of(uid)), [Some(3 * half), Some(half)]);
        time.pay_back(later + SHARE * second, |_| false);
        assert_eq!([7, 8].map(|uid| time.of(uid)), [Some(second), None]);
        time.pay_back(later + 3 * SHARE * second, |uid| uid == 7);
        assert_eq!(time.of(7), Some(Duration::ZERO), "it is kept");
    }
}
