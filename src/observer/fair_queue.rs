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
mod tests;
