// SPDX-License-Identifier: GPL-2.0-or-later

//! Stores of NIXL's `prometheus_mp` when pmdanixl or their agents end: each value counts once, and stays for its time.
//! Without pmcd; qa/stores/store_daemon.rs uses pmcd.

use crate::support::kit::Core;
use crate::support::kit::store_writer::{self, BACKEND, StoreWriter, TX_BYTES, Who, XFER_TIME};
use std::time::{Duration, Instant};

/// The new store comes first in the directory listing when pmdanixl starts again.
#[test]
fn store_begun_during_downtime_does_not_replace_a_live_one() {
    for order in 0..8 {
        let mut core = Core::new("");
        let first = core.store(&Who::named("kv"));
        let second = core.store(&Who::named("kv"));
        core.send(&first, 1);
        core.send(&second, 10);
        core.run(2);
        let before = core.sent();
        core.kill();
        core.send(&first, 1);
        drop(second);
        let new: Vec<_> = (0..=order)
            // Pid 1 puts the name before the names of the other stores.
            .map(|_| core.sender(&Who::named("kv").pid(1), 100))
            .collect();
        // chmod(2) makes the change time of this file the latest.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(first.path(), mode).expect("ours");
        core.start();
        core.run(3);
        let sent: u64 = core.sent().values().sum();
        assert_eq!(
            (sent, core.host_sent()),
            (12 + 100 * (order + 1), sent),
            "{:?}",
            core.sent()
        );
        let mut sent = core.sent();
        let of_first = before
            .iter()
            .find(|(_, sent)| **sent == 1)
            .expect("an instance of the first store")
            .0;
        assert_eq!(sent.remove(of_first), Some(2));
        drop(new);
    }
}

#[test]
fn stores_begun_and_ended_during_downtime_count_once() {
    let mut core = Core::new("");
    let mut sent = 0;
    for _ in 0..4 {
        // A crash loop of rank 0, while rank 1 lives.
        let other = core.sender(&Who::named("kv").rank("1"), 1 << 30);
        sent += 1 << 30;
        core.run(2);
        core.kill();
        for run in 0..20 {
            let identity = Who::named("kv").rank("0").pid(run * 7919 % 1000);
            let _store = core.sender(&identity, 1 << run);
            sent += 1 << run;
        }
        core.send(&other, 1 << 30);
        sent += 1 << 30;
        drop(other);
        core.start();
        core.run(3);
        core.assert_host_sent(sent);
        // Nothing removes the files, so each restart finds them again.
        for _ in 0..3 {
            core.restart();
            core.run(3);
            core.assert_host_sent(sent);
        }
    }
    assert_eq!(core.sent().len(), 2, "{:?}", core.sent());
}

/// Asserts that nothing counts again when the daemon reloads these keys of nixl.conf and when it is killed.
fn assert_stays_counted(core: &mut Core, settings: &str, sent: u64) {
    for _ in 0..2 {
        core.configure(settings);
        core.run(5);
        core.assert_host_sent(sent);
        core.restart();
        core.run(5);
        core.assert_host_sent(sent);
    }
}

/// The processes have no local rank. Each one writes between the first and the last value of the others.
#[test]
fn stores_of_processes_that_overlapped_count_once() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let mut core = Core::new("");
        core.kill();
        let stores: Vec<_> = (0..4).map(|_| core.store(&Who::named("kv"))).collect();
        stores.iter().for_each(|store| core.send(store, 1));
        order.iter().for_each(|&at| core.send(&stores[at], 1));
        drop(stores);
        core.start();
        core.run(3);
        assert_eq!(core.host_sent(), 8, "{order:?}: {:?}", core.sent());
        let _live = core.sender(&Who::named("kv"), 10);
        core.run(2);
        assert_stays_counted(&mut core, "retain = \"20m\"", 18);
    }
}

#[test]
fn store_that_waited_for_room_counts_after_its_process() {
    let mut core = Core::new("max_agents = 1");
    let stores: Vec<_> = (0..5).map(|_| core.store(&Who::named("kv"))).collect();
    stores.iter().for_each(|store| core.send(store, 1));
    core.run(2);
    stores.iter().rev().for_each(|store| core.send(store, 1));
    core.run(2);
    for store in stores {
        drop(store);
        core.run(3);
    }
    core.assert_host_sent(10);
}

#[test]
fn store_of_a_directory_that_a_restart_adds_counts() {
    let mut core = Core::new("multiproc_dir = []");
    core.run(60);
    let store = core.sender(&Who::named("kv"), 100);
    drop(store);
    core.run(30);
    core.kill();
    core.set("");
    core.start();
    core.run(5);
    core.assert_host_sent(100);
}

#[test]
fn stores_of_forgotten_agents_do_not_count_again() {
    let mut core = Core::new("max_agents = 4");
    for number in 0..40 {
        let store = core.sender(&Who::named(format!("n{number}")), 1);
        core.run(3);
        drop(store);
        core.run(2);
    }
    assert!(core.forgotten.len() > 20, "{:?}", core.forgotten);
    assert_stays_counted(&mut core, "max_agents = 4", 40);
}

#[test]
fn store_ended_before_retain_does_not_count() {
    let mut core = Core::new("retain = \"10s\"");
    core.kill();
    let store = core.store(&Who::named("old"));
    store.count(TX_BYTES, 1);
    store.flush_at(store_writer::monotonic().saturating_sub(11_000_000_000));
    drop(store);
    let store = core.sender(&Who::named("new"), 2);
    drop(store);
    core.start();
    core.run(3);
    core.assert_sent([("new", 2)]);
    assert_eq!(core.status("new"), "exited");
    core.run(12);
    core.assert_sent([]);
    core.restart();
    core.run(3);
    core.assert_sent([]);
    core.assert_host_sent(2);
}

/// The time of a tick is that of its begin, and its scan takes a while.
#[test]
fn store_whose_process_begins_and_ends_during_a_tick_counts() {
    let mut core = Core::new("");
    core.run(1);
    // The machine's clock passes that of the next tick.
    let next = core.now() + Duration::from_secs(1);
    std::thread::sleep(next.saturating_duration_since(Instant::now()));
    let store = core.store(&Who::named("kv"));
    store.count(TX_BYTES, 1);
    store.flush_at(store_writer::monotonic());
    drop(store);
    core.run(1);
    core.assert_host_sent(1);
}

#[test]
fn exited_store_stays_for_retain_without_its_file() {
    let mut core = Core::new("retain = \"40s\"");
    let store = core.sender(&Who::named("a"), 1);
    core.run(3);
    assert_eq!(core.status("a"), "live");
    core.run(61);
    assert_eq!(core.status("a"), "idle");
    assert_eq!(core.value("memory.current", "a"), 0);
    store.count(BACKEND, 7);
    store.count(XFER_TIME, 15);
    core.send(&store, 2);
    let path = store.path().to_owned();
    drop(store);
    core.run(2);
    let check = |core: &Core| {
        core.assert_sent([("a", 3)]);
        assert_eq!(core.status("a"), "exited");
        assert_eq!(core.get("memory.current", "a"), None);
        assert_eq!(core.value("errors.total", "a"), 7);
        assert_eq!(core.buckets("latency.xfer_time.histogram", "a")[1].1, 1);
        assert_eq!(core.value("performance.xfer_time_us", "a"), 15);
    };
    check(&core);
    std::fs::remove_file(path).expect("there");
    core.run(20);
    check(&core);
    core.restart();
    core.run(10);
    check(&core);
    core.run(20);
    core.assert_sent([]);
}

#[test]
fn state_file_restores_the_bounds_of_a_store_at_once() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("a").bounds(&[0.5, 7.25]));
    store.count(XFER_TIME, 7);
    core.send(&store, 1);
    core.run(2);
    core.restart();
    // Before the first scan, and after it.
    for seconds in [0, 3] {
        core.run(seconds);
        let buckets = core.buckets("latency.xfer_time.histogram", "a");
        let expected = [("0-0.5", 0), ("0.5-7.25", 1), ("7.25-inf", 0)];
        assert_eq!(
            buckets,
            expected.map(|(bounds, count)| (bounds.into(), count))
        );
    }
}

/// Without CAP_LEASE, the kernel does not show whether a process has a file of another user open.
#[test]
fn store_without_lease_answer_is_live_by_its_last_update() {
    let mut core = Core::new("retain = \"100s\"");
    let store = core.store(&Who::named("a"));
    // Without CAP_LEASE, only the owner of a file can use fcntl(F_SETLEASE) on it.
    std::os::unix::fs::chown(store.path(), Some(1001), Some(1001)).expect("root");
    caps::drop(None, caps::CapSet::Effective, caps::Capability::CAP_LEASE).expect("root has it");
    core.send(&store, 1);
    core.run(3);
    assert_eq!(core.status("a"), "live");
    core.run(70);
    assert_eq!(core.status("a"), "idle", "no update for 70 s");
    core.run(40);
    assert_eq!(core.status("a"), "unknown");
    core.run(100);
    // The agent may have ended: it stays withdrawn until its store has an update.
    for _ in 0..400 {
        core.run(1);
        core.assert_sent([]);
    }
    core.send(&store, 2);
    core.run(2);
    core.assert_sent([("a", 3)]);
    assert_eq!(core.status("a"), "live");
    // Without the file, no scan can find the store again.
    std::fs::remove_file(store.path()).expect("there");
    drop(store);
    core.run(300);
    core.assert_sent([]);
    assert_eq!((core.host_sent(), core.attached()), (3, 0));
}

/// A daemon that was killed after it had counted a byte of one store, with 3,000 other files in its directory.
fn killed_beside_3000_files(known_pid: u64) -> (Core, StoreWriter) {
    let mut core = Core::new("");
    let known = core.sender(&Who::named("kv").pid(known_pid), 1);
    core.run(2);
    core.kill();
    for number in 0..3000 {
        let path = core.stores().join(format!("nixl.{number}.x"));
        std::fs::write(path, "none").expect("room");
    }
    (core, known)
}

/// The first listing of a large directory takes many ticks, and its order is arbitrary.
#[test]
#[ignore = "depends on budgets of real time"]
fn new_store_does_not_replace_a_known_one_during_a_scan() {
    for known_pid in [1, 999_999] {
        let (mut core, _known) = killed_beside_3000_files(known_pid);
        let new: Vec<_> = (0..20)
            .map(|number| core.sender(&Who::named("kv").pid(100 + number), 100))
            .collect();
        core.start();
        let mut ticks = 0;
        while core.sent().len() < 21 {
            core.scan_within(std::time::Duration::from_micros(20));
            core.drain();
            ticks += 1;
            assert_eq!(core.sent().get("kv"), Some(&1), "{:?}", core.sent());
            assert!(ticks < 20_000, "{:?}", core.sent());
        }
        assert!(ticks > 5, "{ticks}: the scan took several ticks");
        core.assert_host_sent(2001);
        drop(new);
    }
}

/// The wait for the first scan is over before the directory is listed to its end.
#[test]
fn live_store_found_after_five_seconds_counts_once() {
    for known_pid in [1, 999_999] {
        let (mut core, _known) = killed_beside_3000_files(known_pid);
        let new = core.sender(&Who::named("kv").pid(100), 100);
        core.start();
        core.advance(std::time::Duration::from_secs(6));
        for _ in 0..20_000 {
            core.scan_within(std::time::Duration::from_micros(20));
            core.drain();
            if core.sent().len() == 2 {
                break;
            }
        }
        core.run(3);
        assert_eq!(core.sent().get("kv"), Some(&1), "{:?}", core.sent());
        core.assert_host_sent(101);
        drop(new);
    }
}

#[test]
fn store_from_the_future_does_not_stop_later_stores() {
    let mut core = Core::new("");
    let store = core.sender(&Who::named("kv"), 1);
    store.flush_at(u64::MAX);
    core.run(2);
    drop(store);
    // This store replaces the one before as the store of the agent. The older store is then recognised only by its
    // time.
    let store = core.sender(&Who::named("kv"), 10);
    core.run(2);
    core.kill();
    drop(store);
    let store = core.sender(&Who::named("kv"), 100);
    drop(store);
    core.start();
    core.run(3);
    core.assert_sent([("kv", 111)]);
}

/// A flush writes the counters before the update time. A drain may fall between the two.
#[test]
fn update_time_after_its_values_does_not_count_them_twice() {
    for killed in [false, true] {
        let mut core = Core::new("");
        let store = core.sender(&Who::named("kv"), 1);
        core.run(2);
        store.count(TX_BYTES, 10);
        core.run(2);
        if killed {
            core.kill();
        }
        core.send(&store, 0);
        drop(store);
        if killed {
            core.start();
        }
        core.run(2);
        let _store = core.store(&Who::named("kv"));
        core.run(2);
        for _ in 0..3 {
            core.assert_sent([("kv", 11)]);
            core.restart();
            core.run(3);
        }
    }
}

#[test]
fn last_values_count_without_retain() {
    let mut core = Core::new("retain = \"0s\"");
    let store = core.sender(&Who::named("a"), 1);
    core.run(2);
    core.kill();
    core.send(&store, 2);
    drop(store);
    for _ in 0..3 {
        core.start();
        core.run(3);
        assert_eq!((core.host_sent(), core.sent().len()), (3, 0));
        core.kill();
    }
}

#[test]
fn directory_removed_and_added_again_counts_nothing_twice() {
    let mut core = Core::new("");
    let (stays, ends) = (core.store(&Who::named("kv")), core.store(&Who::named("kv")));
    core.send(&stays, 1);
    core.send(&ends, 10);
    core.run(2);
    let names: Vec<String> = core.sent().into_keys().collect();
    core.configure("multiproc_dir = []");
    core.run(3);
    core.send(&stays, 100);
    core.send(&ends, 1000);
    drop(ends);
    // Pid 1 puts the name before the names of the other stores.
    let _new = core.sender(&Who::named("kv").pid(1), 10_000);
    core.run(3);
    core.assert_host_sent(11);
    core.configure("");
    core.run(5);
    core.assert_host_sent(11_111);
    assert!(core.sent().into_keys().eq(names), "{:?}", core.sent());
}

#[test]
fn agent_restarted_with_other_bounds_keeps_its_totals() {
    let mut core = Core::new("");
    let mut time = 0;
    for bounds in [&[1.0, 20.0][..], &[0.5, 3.0, 20.0], &[7.0], &[7.0]] {
        let store = core.store(&Who::named("a").bounds(bounds));
        store.count(XFER_TIME, 5);
        core.send(&store, 1);
        time += 5;
        core.run(2);
        let buckets = core.buckets("latency.xfer_time.histogram", "a");
        assert_eq!(buckets.len(), bounds.len() + 1);
        let transfers = core.transfers("latency.xfer_time.histogram", "a");
        assert_eq!(transfers, if bounds == [7.0] && time == 20 { 2 } else { 1 });
        assert_eq!(core.value("performance.xfer_time_us", "a"), time);
        core.restart();
    }
}
