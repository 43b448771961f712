// SPDX-License-Identifier: GPL-2.0-or-later

//! Order in which processes are read, so that no user waits long for the processes of others.

use crate::observer::protocol::Order;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Limit of what readings may have taken, where there is one: beyond it, only processes of new users, and of those that
/// have taken little of it, are read.
const MAX_TIME: Duration = Duration::from_secs(1);
/// A reading that takes this long is slow.
const SLOW: Duration = Duration::from_millis(100);
/// Limit of slow readings in a request. After one that blocks until it is set aside, all others wait for the next
/// request: what the request has read is of use at its end only.
const MAX_SLOW_TIME: Duration = Duration::from_millis(600);
/// Limit of readings of [`UserClass::Sought`] in a request.
const MAX_SOUGHT_TIME: Duration = Duration::from_millis(4);
/// Limit of the excess over the limit that is paid back, in 2.5 seconds. So after a reading that blocked for seconds
/// there is soon time again.
const MAX_EXCESS: Duration = Duration::from_millis(100);

/// Part of the time that limited readings may take.
const SHARE: u32 = 25;

/// A process that is to be read.
#[derive(Clone, Debug)]
pub struct QueuedOrder {
    /// User.
    pub uid: u32,
    /// Of two processes of a user, the one with the lower rank is read first.
    pub rank: u64,
    /// What is read.
    pub order: Order,
    /// True if the user has a file whose writer is looked for; once taken, if that is why it was.
    pub is_sought: bool,
}

impl QueuedOrder {
    /// Process id; 0 if no process is read.
    pub fn pid(&self) -> u32 {
        self.order.pid().unwrap_or_default()
    }
}

/// All that a request is to read.
#[derive(Clone, Debug)]
pub struct Orders {
    /// Processes, in any order.
    pub queued: Vec<QueuedOrder>,
    /// True if a part of the time is for them. If not, all are read.
    pub is_limited: bool,
    /// Time that it has taken to list them.
    pub listing: Duration,
}

/// Processes of a request that were not read yet, and the time that earlier ones have taken.
#[derive(Debug, Default)]
pub struct FairQueue {
    /// True if readings of the current request have a limit.
    is_limited: bool,
    /// True if processes that no request has named before are the first ones of their user.
    are_new_first: bool,
    /// Processes of each user: first the one that has waited for longest, of equal ones the one with the lowest rank.
    queues: BTreeMap<u32, VecDeque<QueuedOrder>>,
    /// Time that readings of each user's processes have taken, and that is not paid back.
    used: HashMap<u32, Duration>,
    /// When time was paid back last.
    paid: Option<Instant>,
    /// Sum of what was used and is not paid back, at most [`MAX_TIME`] and [`MAX_EXCESS`].
    used_by_all: Duration,
    /// Time that slow readings of the current request have taken.
    slow_time: Duration,
    /// Time that readings of [`UserClass::Sought`] have taken in the current request.
    sought_time: Duration,
    /// Number of the request that a process was read for last, or of the one before the request that named it first, by
    /// process id.
    last_read: HashMap<u32, u64>,
    /// Number of the current request.
    request: u64,
}

/// Class of a user, in the order in which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserClass {
    /// Its processes have taken at most an equal part of the time, or half as much as those of another user.
    Light,
    /// Nothing was read of it yet.
    New,
    /// Its processes have taken more, and may be the writer of a file that is looked for.
    Sought,
    /// Its processes have taken more.
    Heavy,
}

impl FairQueue {
    /// Returns no processes. With `are_new_first`, processes that no request has named before are the first ones of
    /// their user.
    pub fn new(are_new_first: bool) -> Self {
        Self {
            are_new_first,
            ..Self::default()
        }
    }

    /// Begins a request.
    pub fn begin(&mut self, orders: Orders, now: Instant) {
        self.request += 1;
        self.is_limited = orders.is_limited;
        (self.slow_time, self.sought_time) = (Duration::ZERO, Duration::ZERO);
        let before = match self.are_new_first {
            true => 0,
            false => self.request - 1,
        };
        let named: HashMap<u32, u64> = { orders.queued.iter() }
            .map(|queued| (queued.pid(), before))
            .collect();
        self.last_read.retain(|pid, _| named.contains_key(pid));
        for (pid, before) in named {
            self.last_read.entry(pid).or_insert(before);
        }
        self.queues.clear();
        for queued in orders.queued {
            self.queues.entry(queued.uid).or_default().push_back(queued);
        }
        for queue in self.queues.values_mut() {
            let queue = queue.make_contiguous();
            queue.sort_by_key(|queued| (self.last_read[&queued.pid()], queued.rank));
        }
        self.pay_back(now);
        self.add(orders.listing);
        // Each user has caused a part of the listing. A new one stays new until something was read of it.
        let all: usize = self.queues.values().map(VecDeque::len).sum();
        for (&uid, queue) in &self.queues {
            if let Some(used) = self.used.get_mut(&uid) {
                *used += orders.listing.mul_f64(queue.len() as f64 / all as f64);
            }
        }
    }

    /// Pays back a part of the time since the last request: to each user an equal part of that. What a user has used is
    /// remembered when it has no process any more.
    fn pay_back(&mut self, now: Instant) {
        let since = self.paid.replace(now).map(|paid| now - paid);
        let paid = since.unwrap_or_default() / SHARE;
        let users = u32::try_from(self.used.len()).unwrap_or(u32::MAX).max(1);
        self.used.retain(|uid, used| {
            *used = used.saturating_sub(paid / users);
            !used.is_zero() || self.queues.contains_key(uid)
        });
        self.used_by_all = self.used_by_all.saturating_sub(paid);
    }

    /// Adds to what was used by all.
    fn add(&mut self, time: Duration) {
        self.used_by_all = (self.used_by_all + time).min(MAX_TIME + MAX_EXCESS);
    }

    /// Takes the next process. `None`: all were read, or others are left out because the time is used.
    ///
    /// First come users whose processes have taken little time, the user with the least before others. Then come new
    /// users: each of them may block a reading, once. Last come users that have taken much, such as one that has
    /// blocked a reading; of those that have a file whose writer is looked for, some processes come before. So no user
    /// waits long for others, however many these are.
    ///
    /// With `only_light`, only the first ones are read, unless the request is not limited.
    pub fn next(&mut self, only_light: bool) -> Option<QueuedOrder> {
        let last_class = match self.is_limited {
            true if self.slow_time >= MAX_SLOW_TIME => return None,
            true if only_light => UserClass::Light,
            true if self.used_by_all >= MAX_TIME => UserClass::Sought,
            _ => UserClass::Heavy,
        };
        let users = u32::try_from(self.queues.len()).unwrap_or(u32::MAX).max(1);
        let most = self.used.values().max().copied().unwrap_or_default();
        let most = most.min(MAX_TIME);
        let most_of_light = (MAX_TIME / users).max(most / 2);
        let next = self.queues.iter().filter_map(|(uid, queue)| {
            let (used, first) = (self.used.get(uid), queue.front()?);
            let class = match used {
                Some(used) if *used > most_of_light => {
                    match first.is_sought && self.sought_time < MAX_SOUGHT_TIME {
                        true => UserClass::Sought,
                        false => UserClass::Heavy,
                    }
                }
                Some(_) => UserClass::Light,
                None => UserClass::New,
            };
            let last_read = self.last_read.get(&first.pid()).copied();
            (class <= last_class).then_some((class, used, last_read, first.rank, *uid))
        });
        let (class, .., uid) = next.min()?;
        let mut queued = self.queues.get_mut(&uid)?.pop_front()?;
        queued.is_sought = class == UserClass::Sought;
        Some(queued)
    }

    /// True if processes of the current request were not taken.
    pub fn has_some(&self) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
    }

    /// Charges the time of a reading to the user of the process. One that was set aside may be of an earlier request.
    pub fn charge(&mut self, queued: &QueuedOrder, time: Duration, was_aside: bool) {
        if let Some(last_read) = self.last_read.get_mut(&queued.pid()) {
            *last_read = self.request;
        }
        if queued.is_sought {
            self.sought_time += time;
        }
        if time >= SLOW && !was_aside {
            self.slow_time += time;
        }
        *self.used.entry(queued.uid).or_default() += time;
        self.add(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    fn queued(pid: u32, uid: u32) -> QueuedOrder {
        QueuedOrder {
            uid,
            rank: pid.into(),
            order: Order::Scan(pid),
            is_sought: false,
        }
    }

    fn orders(processes: &[QueuedOrder], is_limited: bool) -> Orders {
        Orders {
            queued: processes.to_vec(),
            is_limited,
            listing: Duration::ZERO,
        }
    }

    /// Begins a request of these processes so many seconds after the start. Returns the order in which they are read,
    /// if they take no time.
    fn order(queue: &mut FairQueue, processes: &[QueuedOrder], seconds: u64) -> Vec<u32> {
        order_with(queue, processes, true, seconds)
    }

    fn order_with(
        queue: &mut FairQueue,
        processes: &[QueuedOrder],
        is_limited: bool,
        seconds: u64,
    ) -> Vec<u32> {
        let now = *START + Duration::from_secs(seconds);
        queue.begin(orders(processes, is_limited), now);
        std::iter::from_fn(|| queue.next(false))
            .map(|queued| queued.pid())
            .collect()
    }

    /// Returns a queue of which processes were read, each of which has taken this time.
    fn read(processes: &[(&QueuedOrder, Duration)]) -> FairQueue {
        let mut queue = FairQueue::new(false);
        let all = processes.iter().map(|(queued, _)| (*queued).clone());
        queue.begin(orders(&Vec::from_iter(all), true), *START);
        for (queued, time) in processes {
            queue.charge(queued, *time, false);
        }
        queue.used_by_all = Duration::ZERO;
        queue
    }

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(9);

    #[test]
    fn user_that_has_used_the_least_is_read_first() {
        let all = [queued(1, 7), queued(2, 8), queued(3, 7)];
        let mut queue = read(&[(&all[0], LONG), (&all[1], SHORT), (&all[2], SHORT)]);
        assert_eq!(order(&mut queue, &all, 0), [2, 1, 3]);
        // The first process was read, and the others were not for a while.
        queue.charge(&all[0], Duration::ZERO, false);
        assert_eq!(order(&mut queue, &all, 0), [2, 3, 1]);
        // It has no process for a while.
        order(&mut queue, &all[1..2], 60);
        assert!(queue.used[&7] > LONG - Duration::from_secs(2));
        assert_eq!(queue.used[&8], Duration::ZERO);
        order(&mut queue, &all[1..2], 660);
        assert_eq!(queue.used.get(&7), None, "it has paid all back");
    }

    #[test]
    fn users_pay_back_equal_parts() {
        let second = Duration::from_secs(1);
        let all = [queued(1, 7), queued(2, 8)];
        let mut queue = read(&[(&all[0], 2 * second), (&all[1], second)]);
        let mut used = |seconds, processes: &[_]| {
            order(&mut queue, processes, u64::from(SHARE) * seconds);
            [7, 8].map(|uid| queue.used.get(&uid).copied())
        };
        let half = second / 2;
        assert_eq!(used(1, &[]), [Some(3 * half), Some(half)]);
        assert_eq!(used(2, &[]), [Some(second), None]);
        assert_eq!(
            used(5, &all[..1]),
            [Some(Duration::ZERO), None],
            "it is kept"
        );
    }

    #[test]
    fn new_user_is_read_after_light_and_before_heavy_ones() {
        let all = [1, 2, 3, 4].map(|pid| queued(pid, pid));
        let mut queue = read(&[(&all[1], LONG), (&all[3], SHORT)]);
        assert_eq!(order(&mut queue, &all, 0), [4, 1, 3, 2]);
    }

    #[test]
    fn limited_readings_take_a_part_of_the_time() {
        let all = [queued(1, 1), queued(2, 2)];
        // The first user is heavy, and the other one is new.
        for (is_limited, expected) in [(true, &[2][..]), (false, &[2, 1])] {
            let mut queue = FairQueue::new(false);
            let order = |queue: &mut _, at| order_with(queue, &all, is_limited, at);
            assert_eq!(order(&mut queue, 0), [1, 2]);
            queue.charge(&all[0], LONG, false);
            assert_eq!(order(&mut queue, 0), expected);
            assert_eq!(queue.has_some(), is_limited);
            assert_eq!(order(&mut queue, 3), [2, 1]);
            assert!(!queue.has_some());
        }
    }

    #[test]
    fn new_users_take_some_time_beyond_the_limit_and_light_ones_go_on() {
        let all = [1, 2, 3, 4].map(|uid| queued(uid, uid));
        let mut queue = read(&[(&all[0], LONG), (&all[1], SHORT)]);
        queue.begin(orders(&all, true), *START);
        queue.used_by_all = LONG;
        let next = |queue: &mut FairQueue| queue.next(false).map(|queued| queued.pid());
        assert_eq!([2, 3].map(|_| next(&mut queue)), [Some(2), Some(3)]);
        queue.charge(&all[2], SHORT, false);
        assert_eq!(next(&mut queue), Some(4));
        assert_eq!(next(&mut queue), None);
    }

    #[test]
    fn slow_reading_ends_the_request() {
        let all = [1, 2].map(|uid| queued(uid, uid));
        for (is_limited, expected) in [(true, None), (false, Some(2))] {
            let mut queue = FairQueue::new(false);
            queue.begin(orders(&all, is_limited), *START);
            let first = queue.next(false).expect("two");
            // This one was set aside in an earlier request.
            queue.charge(&first, LONG, true);
            assert_eq!(queue.slow_time, Duration::ZERO);
            queue.charge(&first, MAX_SLOW_TIME, false);
            assert_eq!(queue.next(false).map(|queued| queued.uid), expected);
            assert_eq!(order(&mut queue, &all, 1)[0], 2);
        }
    }

    #[test]
    fn user_is_light_that_has_used_less_than_half_as_much_as_another() {
        let all: Vec<_> = (1..100).map(|uid| queued(uid, uid)).collect();
        let (some, few) = (Duration::from_millis(60), Duration::from_millis(20));
        for (most, expected) in [(some, false), (2 * some, true)] {
            let mut queue = read(&[(&all[0], most), (&all[1], some), (&all[2], few)]);
            queue.begin(orders(&all, true), *START);
            queue.used_by_all = MAX_TIME;
            let read: Vec<_> = std::iter::from_fn(|| queue.next(true)).collect();
            let uids: Vec<_> = read.iter().map(|queued| queued.uid).collect();
            assert_eq!(uids.contains(&2), expected, "{uids:?}");
        }
    }

    #[test]
    fn new_processes_come_first_where_that_is_wanted() {
        let all = [1, 2, 3].map(|pid| queued(pid, 7));
        for (are_new_first, expected) in [(false, [1, 2, 3]), (true, [3, 1, 2])] {
            let mut queue = FairQueue::new(are_new_first);
            order(&mut queue, &all[..2], 0);
            queue.charge(&all[0], SHORT, false);
            queue.charge(&all[1], SHORT, false);
            order(&mut queue, &all[..2], 0);
            queue.charge(&all[0], SHORT, false);
            queue.charge(&all[1], SHORT, false);
            assert_eq!(order(&mut queue, &all, 0), expected);
        }
    }

    /// Also while the time is used.
    #[test]
    fn some_processes_of_a_heavy_user_are_read_whose_file_has_no_known_writer() {
        let all: Vec<_> = (1..=10).map(|pid| queued(pid, pid % 2)).collect();
        let mut queue = read(&[(&all[0], LONG), (&all[1], LONG)]);
        let sought = all.iter().map(|queued| QueuedOrder {
            is_sought: queued.uid == 1,
            ..queued.clone()
        });
        let sought: Vec<_> = sought.collect();
        for _ in 0..2 {
            queue.begin(orders(&sought, true), *START);
            queue.used_by_all = MAX_TIME;
            let mut count = 0;
            while let Some(queued) = queue.next(false) {
                assert_eq!(queued.uid, 1);
                queue.charge(&queued, MAX_SOUGHT_TIME / 2, false);
                count += 1;
            }
            assert_eq!(count, 2);
        }
        queue.begin(orders(&sought, true), *START);
        assert!(queue.next(true).is_none(), "four workers wait");
    }

    #[test]
    fn light_users_only_are_read_while_many_workers_wait() {
        let all = [1, 2, 3].map(|uid| queued(uid, uid));
        let mut queue = read(&[(&all[0], LONG), (&all[1], SHORT)]);
        queue.begin(orders(&all, true), *START);
        let mut next = || queue.next(true).map(|queued| queued.pid());
        assert_eq!([next(), next()], [Some(2), None]);
        // A request that is made once reads all.
        queue.begin(orders(&all, false), *START);
        assert_eq!([(); 3].map(|()| queue.next(true).is_some()), [true; 3]);
    }

    #[test]
    fn each_of_many_processes_is_read_in_turn() {
        let all: Vec<_> = (0..60).map(|pid| queued(pid, 7)).collect();
        let (mut queue, mut times) = (FairQueue::new(false), [0; 60]);
        for _ in 0..12 {
            for pid in &order(&mut queue, &all, 0)[..20] {
                queue.charge(&all[*pid as usize], Duration::ZERO, false);
                times[*pid as usize] += 1;
            }
        }
        assert_eq!(times, [4; 60]);
    }
}
