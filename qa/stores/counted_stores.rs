// SPDX-License-Identifier: GPL-2.0-or-later

//! Stores that were counted and are found again, and stores that were not: each value counts once, whatever became of
//! the agent, of its record or of the update time in the store.

use crate::support::kit::store_writer::{self, StoreWriter, TX_BYTES, Who};
use crate::support::kit::{Core, push};
use crate::support::needs_root;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

fn kv(core: &Core, bytes: u64) -> StoreWriter {
    core.sender(&Who::named("kv"), bytes)
}

/// Makes the change time of a file the latest.
fn touch(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("ours");
}

/// The update of the waiting store is older than that of the store before the present one.
#[test]
fn store_that_waited_for_room_counts_after_a_kill() {
    let mut core = Core::new("max_agents = 1");
    let first = kv(&core, 1);
    core.run(2);
    let waits = kv(&core, 10);
    core.run(2);
    core.send(&first, 1);
    core.run(2);
    // Pid 1 puts the name before that of the waiting store.
    let next = core.sender(&Who::named("kv").pid(1), 100);
    touch(waits.path());
    drop(first);
    core.run(3);
    assert_eq!(core.host_sent(), 102, "one waits for room");
    core.kill();
    drop((waits, next));
    core.start();
    core.run(5);
    core.assert_host_sent(112);
}

/// At any time more processes live than there is room for, so that each scan rejects a store.
#[test]
fn stores_of_expired_agents_beside_rejected_ones_count_once() {
    let mut core = Core::new("max_agents = 2");
    let mut live = Vec::new();
    for number in 0..40 {
        let store = core.sender(&Who::named(format!("n{number}")), 1);
        live.push(store);
        core.run(2);
        if live.len() > 3 {
            live.remove(0);
        }
        core.run(12);
    }
    live.clear();
    core.run(5);
    core.assert_host_sent(40);
    assert!(core.forgotten.len() > 20, "{:?}", core.forgotten);
    core.restart();
    core.run(5);
    core.assert_host_sent(40);
}

fn owned_by(uid: u32, path: &Path) {
    chown(path, Some(uid), None).expect("root may");
}

/// The user with the most agents loses its records first, also those of live agents that wait for room.
#[test]
fn live_store_whose_record_expired_goes_on_without_its_past() {
    needs_root();
    let mut core = Core::new("max_agents = 4\nretain = \"10s\"");
    let stores: Vec<_> = (0..4)
        .map(|number| {
            let store = core.store(&Who::named(format!("greedy-{number}")));
            owned_by(1001, store.path());
            core.send(&store, 100);
            store
        })
        .collect();
    core.run(3);
    core.assert_host_sent(400);
    let others: Vec<_> = (0..14).map(|number| format!("other-{number}")).collect();
    for (uid, name) in (2000..).zip(&others) {
        let mut ring = core.ring(name);
        owned_by(uid, &core.path(name));
        push(&mut ring, 1);
        core.run(2);
    }
    core.run(5);
    let is_greedy = |name: &String| name.starts_with("greedy");
    assert!(core.forgotten.iter().any(is_greedy), "{:?}", core.forgotten);
    for name in others {
        fs::remove_file(core.path(&name)).expect("there");
    }
    core.run(40);
    core.assert_host_sent(414);
    stores.iter().for_each(|store| core.send(store, 1));
    core.run(3);
    core.assert_host_sent(418);
}

/// The ring of another user with one event.
fn ring_of(core: &Core, uid: u32, name: &str) {
    let mut ring = core.ring(name);
    owned_by(uid, &core.path(name));
    push(&mut ring, 1);
}

/// After a start, rings of others take the records before the stores are found.
#[test]
fn ended_stores_whose_records_expire_in_the_first_scan_count_once() {
    needs_root();
    let mut core = Core::new("max_agents = 4\nretain = \"1h\"");
    for number in 0..4 {
        ended(&mut core, 1001, &format!("greedy-{number}"), 100);
    }
    // As many records as there is room for.
    for uid in 2000..2012 {
        ring_of(&core, uid, "gone");
        core.run(3);
        fs::remove_file(core.path("gone")).expect("there");
        core.run(3);
    }
    core.assert_host_sent(412);
    core.kill();
    for uid in 3000..3002 {
        ring_of(&core, uid, &format!("new-{uid}"));
    }
    core.start();
    core.run(1);
    core.assert_host_sent(414);
    let is_greedy = |name: &String| name.starts_with("greedy");
    assert!(core.forgotten.iter().any(is_greedy), "{:?}", core.forgotten);
    core.run(5);
    core.assert_host_sent(414);
}

#[test]
fn live_store_that_is_renamed_and_replaced_counts_once() {
    let mut core = Core::new("");
    let live = kv(&core, 100);
    core.run(2);
    core.kill();
    let hidden = core.stores().join("hidden");
    fs::rename(live.path(), &hidden).expect("there");
    core.start();
    let _next = kv(&core, 10);
    core.run(3);
    fs::rename(&hidden, live.path()).expect("there");
    core.run(5);
    core.assert_host_sent(110);
    core.send(&live, 1);
    core.run(3);
    core.assert_host_sent(111);
}

#[test]
fn store_from_the_near_future_counts_once() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("kv"));
    store.count(TX_BYTES, 1);
    store.flush_at(store_writer::monotonic() + 20_000_000_000);
    core.run(2);
    drop(store);
    let next = kv(&core, 10);
    core.run(2);
    core.kill();
    drop(next);
    core.advance(Duration::from_secs(30));
    core.start();
    core.run(3);
    core.assert_host_sent(11);
}

/// A store of a user that ends at once.
fn ended(core: &mut Core, uid: u32, name: &str, bytes: u64) {
    let store = core.store(&Who::named(name));
    owned_by(uid, store.path());
    core.send(&store, bytes);
    drop(store);
    core.run(2);
}

#[test]
fn stores_beside_those_of_20_users_count_once() {
    needs_root();
    let mut core = Core::new("");
    for uid in 100_000..100_020 {
        (0..2).for_each(|_| ended(&mut core, uid, "x", 1));
    }
    (0..3).for_each(|_| ended(&mut core, 1001, "kv", 1000));
    let _live = kv(&core, 1000);
    core.run(2);
    core.assert_host_sent(4040);
    core.restart();
    core.run(5);
    core.assert_host_sent(4040);
}

#[test]
fn store_that_goes_on_after_it_was_counted_counts_once() {
    let mut core = Core::new("retain = \"1h\"");
    let uid = nix::unistd::geteuid().as_raw();
    (0..3).for_each(|_| ended(&mut core, uid, "old", 0));
    let live = kv(&core, 1000);
    core.run(2);
    core.kill();
    let hidden = core.stores().join("hidden");
    fs::rename(live.path(), &hidden).expect("there");
    core.start();
    let next = kv(&core, 1);
    core.run(3);
    fs::rename(&hidden, live.path()).expect("there");
    core.run(5);
    (0..170).for_each(|_| ended(&mut core, uid, "x", 1));
    core.send(&live, 1);
    core.run(3);
    drop(live);
    core.run(2);
    let _more = [kv(&core, 1), kv(&core, 1)];
    core.run(3);
    drop(next);
    (0..14).for_each(|_| ended(&mut core, uid, "x", 1));
    let all = 1000 + 1 + 170 + 1 + 2 + 14;
    core.assert_host_sent(all);
    core.restart();
    core.run(5);
    core.assert_host_sent(all);
}
