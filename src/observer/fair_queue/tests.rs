// SPDX-License-Identifier: GPL-2.0-or-later

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
