// SPDX-License-Identifier: GPL-2.0-or-later

//! Order in which processes are read, so that no user waits long for the processes of others.

use crate::base::user_time::UserTime;
use crate::observer::protocol::Order;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Limit of readings after a pause, where there is one: no further process is read after it.
const MAX_TIME: Duration = Duration::from_secs(1);
/// Limit of the excess over [`MAX_TIME`] that is paid back. What [`SCAN_PERIOD`](crate::observer::SCAN_PERIOD) pays back is more, so
/// that the regular scan after a reading that blocked for seconds has time.
const MAX_EXCESS: Duration = Duration::from_millis(400);

/// A process that is to be read.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Process id.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Of two processes of a user, the one with the lower rank is read first.
    pub rank: u64,
    /// What is read.
    pub order: Order,
}

/// Processes of a request that were not read yet, and the time that earlier ones have taken.
#[derive(Debug)]
pub struct Turns {
    /// True if readings have a limit.
    is_limited: bool,
    /// Processes of each user: first the one that has waited for longest, of equal ones the one with the lowest rank.
    waiting: BTreeMap<u32, VecDeque<Turn>>,
    /// Time that readings of each user's processes have taken, and that is not paid back.
    used: UserTime,
    /// Sum of what was used and is not paid back.
    used_by_all: Duration,
    /// Number of the request that a process was read for last, or of the one before the request that named it first, by process id.
    last_read: HashMap<u32, u64>,
    /// Number of the current request.
    request: u64,
}

/// Class of a user, in the order in which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserClass {
    /// Its processes have taken at most an equal part of the time.
    Light,
    /// Nothing was read of it yet.
    New,
    /// Its processes have taken more.
    Heavy,
}

impl Turns {
    /// Returns no processes. Those of requests are all read, or with a limit as many as there is time for.
    pub fn new(is_limited: bool) -> Self {
        Self {
            is_limited,
            waiting: BTreeMap::new(),
            used: UserTime::default(),
            used_by_all: Duration::ZERO,
            last_read: HashMap::new(),
            request: 0,
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, turns: Vec<Turn>, now: Instant) {
        self.request += 1;
        let named: HashMap<u32, u64> = { turns.iter() }
            .map(|turn| (turn.pid, self.request - 1))
            .collect();
        self.last_read.retain(|pid, _| named.contains_key(pid));
        for (pid, before) in named {
            self.last_read.entry(pid).or_insert(before);
        }
        self.waiting.clear();
        for turn in turns {
            self.waiting.entry(turn.uid).or_default().push_back(turn);
        }
        for turns in self.waiting.values_mut() {
            let turns = turns.make_contiguous();
            turns.sort_by_key(|turn| (self.last_read[&turn.pid], turn.rank));
        }
        // What a user has used is remembered when it has no process any more.
        let paid = self
            .used
            .pay_back(now, |uid| self.waiting.contains_key(&uid));
        self.used_by_all = self.used_by_all.saturating_sub(paid);
    }

    /// Takes the next process. `None`: all were read, or the time is used.
    ///
    /// First come users whose processes have taken little time, the user with the least before others. Then come new users: each of
    /// them may block a reading, once. Last come users that have taken more than an equal part of the time, such as one that has blocked
    /// a reading. So no user waits long for others.
    pub fn next(&mut self) -> Option<Turn> {
        if self.is_limited && self.used_by_all >= MAX_TIME {
            self.waiting.clear();
        }
        let users = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX).max(1);
        let next = self.waiting.iter().filter_map(|(uid, turns)| {
            let (used, first) = (self.used.of(*uid), turns.front()?);
            let class = match used {
                Some(used) if used > MAX_TIME / users => UserClass::Heavy,
                Some(_) => UserClass::Light,
                None => UserClass::New,
            };
            let last_read = self.last_read.get(&first.pid).copied();
            Some((class, used, last_read, first.rank, *uid))
        });
        let (.., uid) = next.min()?;
        self.waiting.get_mut(&uid)?.pop_front()
    }

    /// Takes a process back that could not be read.
    pub fn put_back(&mut self, turn: Turn) {
        self.waiting.entry(turn.uid).or_default().push_front(turn);
    }

    /// Notes that the reading of a process has ended after this time.
    pub fn note(&mut self, turn: &Turn, time: Duration) {
        if let Some(last_read) = self.last_read.get_mut(&turn.pid) {
            *last_read = self.request;
        }
        self.used.add(turn.uid, time);
        self.used_by_all = (self.used_by_all + time).min(MAX_TIME + MAX_EXCESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    fn turn(pid: u32, uid: u32) -> Turn {
        Turn {
            pid,
            uid,
            rank: pid.into(),
            order: Order::Scan(pid),
        }
    }

    /// Begins a request of these processes so many seconds after the start. Returns the order in which they are read, if they take no
    /// time.
    fn order(turns: &mut Turns, processes: &[Turn], seconds: u64) -> Vec<u32> {
        turns.begin(processes.to_vec(), *START + Duration::from_secs(seconds));
        std::iter::from_fn(|| turns.next())
            .map(|turn| turn.pid)
            .collect()
    }

    /// Returns turns in which processes were read, each of which has taken this time.
    fn read(processes: &[(&Turn, Duration)]) -> Turns {
        let mut turns = Turns::new(true);
        turns.begin(
            processes.iter().map(|(turn, _)| (*turn).clone()).collect(),
            *START,
        );
        for (turn, time) in processes {
            turns.note(turn, *time);
        }
        turns.used_by_all = Duration::ZERO;
        turns
    }

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(9);

    #[test]
    fn user_that_has_used_the_least_is_read_first() {
        let all = [turn(1, 7), turn(2, 8), turn(3, 7)];
        let mut turns = read(&[(&all[0], LONG), (&all[1], SHORT), (&all[2], SHORT)]);
        assert_eq!(order(&mut turns, &all, 0), [2, 1, 3]);
        // The first process was read, and the others were not for a while.
        turns.note(&all[0], Duration::ZERO);
        assert_eq!(order(&mut turns, &all, 0), [2, 3, 1]);
        // It has no process for a while.
        order(&mut turns, &all[1..2], 60);
        assert!(turns.used.of(7) > Some(LONG - Duration::from_secs(2)));
        assert_eq!(turns.used.of(8), Some(Duration::ZERO));
        order(&mut turns, &all[1..2], 660);
        assert_eq!(turns.used.of(7), None, "it has paid all back");
    }

    #[test]
    fn new_user_is_read_after_light_and_before_heavy_ones() {
        let all = [1, 2, 3, 4].map(|pid| turn(pid, pid));
        let mut turns = read(&[(&all[1], LONG), (&all[3], SHORT)]);
        assert_eq!(order(&mut turns, &all, 0), [4, 1, 3, 2]);
    }

    #[test]
    fn limited_readings_take_a_part_of_the_time() {
        let all = [turn(1, 1), turn(2, 2)];
        for (is_limited, expected) in [(true, 0), (false, 2)] {
            let mut turns = Turns::new(is_limited);
            assert_eq!(order(&mut turns, &all, 0).len(), 2);
            turns.note(&all[0], LONG);
            assert_eq!(order(&mut turns, &all, 0).len(), expected);
            let period = crate::observer::SCAN_PERIOD.as_secs();
            assert_eq!(order(&mut turns, &all, period).len(), 2);
            assert!(turns.used_by_all < MAX_TIME);
        }
    }

    #[test]
    fn each_of_many_processes_is_read_in_turn() {
        let all: Vec<_> = (0..60).map(|pid| turn(pid, 7)).collect();
        let (mut turns, mut times) = (Turns::new(true), [0; 60]);
        for _ in 0..12 {
            for pid in &order(&mut turns, &all, 0)[..20] {
                turns.note(&all[*pid as usize], Duration::ZERO);
                times[*pid as usize] += 1;
            }
        }
        assert_eq!(times, [4; 60]);
    }
}
