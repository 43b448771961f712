//! How many new names a user's agents may have: each takes an instance id, of which there are as many as 25 bits say, for as long
//! as archives are kept.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// New names of one user at once, or as many as are remembered of all if that is more; then fifty come in a second: by one user alone the ids last for a week.
const AT_ONCE: u32 = 4096;
const EACH: Duration = Duration::from_millis(20);
/// Users of whom it is known what they have had.
const MOST_USERS: usize = 1024;

/// What each user has had lately.
#[derive(Debug, Default)]
pub(super) struct Newcomers {
    /// When all that a user has had will be had back.
    paid: HashMap<u32, Instant>,
}

impl Newcomers {
    /// Whether a user may have another new name: then he has it.
    pub fn admit(&mut self, uid: u32, remembered: usize, now: Instant) -> bool {
        let at_once = u32::try_from(remembered).unwrap_or(u32::MAX).max(AT_ONCE);
        if self.paid.len() >= MOST_USERS && !self.paid.contains_key(&uid) {
            self.paid.retain(|_, paid| *paid > now);
        }
        let paid = self.paid.get(&uid).copied().unwrap_or(now).max(now);
        let is_over = paid - now > EACH * (at_once - 1);
        if is_over || (self.paid.len() >= MOST_USERS && !self.paid.contains_key(&uid)) {
            return false;
        }
        self.paid.insert(uid, paid + EACH);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_names_come_at_once_and_then_one_by_one() {
        let (mut newcomers, start) = (Newcomers::default(), Instant::now());
        let admitted = |newcomers: &mut Newcomers, uid, now| {
            (0..10_000).filter(|_| newcomers.admit(uid, 8, now)).count()
        };
        assert_eq!(admitted(&mut newcomers, 1, start), 4096);
        assert_eq!(admitted(&mut newcomers, 2, start), 4096, "another's");
        let later = start + 10 * EACH;
        assert_eq!(admitted(&mut newcomers, 1, later), 10);
        let all = start + EACH * 10_000;
        assert_eq!(admitted(&mut newcomers, 1, all), 4096);
        // A user more than are known finds no place until one of them has had nothing for long enough.
        for uid in 100..3000 {
            newcomers.admit(uid, 8, all);
        }
        assert_eq!(newcomers.paid.len(), MOST_USERS);
        assert!(newcomers.admit(7, 8, all + EACH * 10_000));
    }
}
