// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents with stores of NIXL's `prometheus_mp`: the instance of each store, for any order of starts and ends. Each
//! value must count once. Without pmcd; qa/stores/store_daemon.rs uses pmcd.

use crate::support::kit::layers::is_instance_name;
use crate::support::kit::store_writer::{StoreWriter, Who};
use crate::support::kit::values::Values;
use crate::support::kit::writer::Kind;
use crate::support::kit::{self, Core};
use crate::support::needs_root;

/// An application changes its exporter at each step. Each bit of `kills` is a point at which pmdanixl is killed: before
/// the end of the application, after it, and after its next start.
fn change_exporters(mut core: Core, kills: u32) {
    let (mut ring, mut store) = (None, None);
    let (mut sent, mut step) = (Values::default(), 0);
    let mut may_kill = |core: &mut Core| {
        if kills & (1 << (step % 6)) != 0 {
            core.restart();
        }
        step += 1;
    };
    for turn in 0..6 {
        may_kill(&mut core);
        (ring, store) = (None, None);
        core.run(if turn % 3 == 0 { 3 } else { 0 });
        may_kill(&mut core);
        let bytes = 1 << turn;
        let (name, kind, mode) = if turn % 2 == 0 {
            assert!(ring.insert(core.ring("a")).push(Kind::TxBytes, bytes));
            ("a", "ring", "drain")
        } else {
            core.send(store.insert(core.store(&Who::named("a").rank("3"))), bytes);
            ("a@3", "store", "store")
        };
        *sent.entry(name.into()).or_default() += bytes;
        may_kill(&mut core);
        core.run(5);
        let context = format!("turn {turn}, kills {kills:06b}");
        assert_eq!(core.sent(), sent, "{context}");
        let shown = core.text("agent.mode", name);
        assert_eq!(shown.as_deref(), Some(mode), "{context}");
        assert_eq!(core.labels(name)["telemetry"], kind, "{context}");
        assert_eq!(core.status(name), "live", "{context}");
        assert_eq!(core.host_sent(), sent.values().sum::<u64>(), "{context}");
    }
    drop((ring, store));
}

#[test]
fn ring_and_store_of_one_name_are_two_agents_in_one_dir() {
    for kills in 0..64 {
        change_exporters(Core::new("").in_one_directory(), kills);
    }
}

#[test]
fn ring_and_store_of_one_name_are_two_agents_in_two_dirs() {
    for kills in 0..64 {
        change_exporters(Core::new(""), kills);
    }
}

#[test]
fn agents_of_one_name_are_separate_in_any_start_order() {
    let mut core = Core::new("");
    let ranks = ["0", "1", "2"];
    let mut expected = Values::default();
    for (turn, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]]
        .iter()
        .enumerate()
    {
        let stores = order.map(|at| {
            let store = core.sender(&Who::named("kv").rank(ranks[at]), 1 << (8 * at));
            if turn != 2 {
                core.run(1);
            }
            store
        });
        core.run(2);
        if turn % 2 == 1 {
            core.restart();
            core.run(2);
        }
        for (at, name) in ["kv", "kv@1", "kv@2"].into_iter().enumerate() {
            *expected.entry(name.to_owned()).or_insert(0) += 1 << (8 * at);
        }
        assert_eq!(core.sent(), expected, "turn {turn}");
        for (rank, name) in ["kv", "kv@1", "kv@2"].into_iter().enumerate() {
            assert_eq!(core.labels(name)["local_rank"], ranks[rank]);
        }
        drop(stores);
        if turn == 1 {
            core.run(2);
        }
    }
}

#[test]
fn agents_of_one_name_without_a_rank_are_separate_instances() {
    let mut core = Core::new("");
    let mut stores: Vec<StoreWriter> = (0..3).map(|_| core.store(&Who::named("kv"))).collect();
    for (store, bytes) in stores.iter().zip([1, 10, 100]) {
        core.send(store, bytes);
    }
    core.run(2);
    let names: Vec<String> = core.sent().into_keys().collect();
    assert_eq!((names.len(), &*names[0]), (3, "kv"));
    assert!(
        names[1..].iter().all(|name| name.starts_with("kv@")),
        "{names:?}"
    );
    let before = core.sent();
    // The second agent is restarted, and then pmdanixl, too.
    for kill in [false, true] {
        drop(stores.remove(1));
        stores.insert(1, core.store(&Who::named("kv")));
        if kill {
            core.restart();
        }
        core.send(&stores[1], 1000);
        core.run(2);
    }
    let mut after = core.sent();
    let ten = before.iter().find(|(_, sent)| **sent == 10);
    *after.get_mut(ten.expect("before").0).expect("after") -= 2000;
    assert_eq!(after, before);
}

/// An agent exits, and a child process makes a ring with the same name.
#[test]
fn ring_that_returns_beside_a_store_counts_nothing_twice() {
    for remove in [false, true] {
        let mut core = Core::new("");
        let mut ring = core.ring("a");
        assert!(ring.push(Kind::TxBytes, 1));
        core.run(2);
        drop(ring);
        let store = core.sender(&Who::named("a"), 10);
        core.run(2);
        core.assert_host_sent(11);
        if remove {
            std::fs::remove_file(core.rings().join("a")).expect("there");
            core.run(3);
        }
        let mut ring = core.ring("a");
        assert!(ring.push(Kind::TxBytes, 100));
        core.run(3);
        core.send(&store, 1000);
        core.run(3);
        for _ in 0..3 {
            core.assert_host_sent(1111);
            core.restart();
            core.run(3);
        }
    }
}

#[test]
fn rank_with_special_characters_gives_a_valid_instance_name() {
    use std::os::unix::ffi::OsStrExt;
    let mut core = Core::new("");
    let ranks: [&[u8]; 8] = [
        b"0 1",
        b"\n",
        b"a\"b",
        b"../..",
        &[0xff; 63],
        &[b' '; 63],
        b"::",
        "\u{85}".as_bytes(),
    ];
    let mut stores = Vec::new();
    for rank in std::iter::once(&b""[..]).chain(ranks) {
        let identity = Who::named("kv").rank(std::ffi::OsStr::from_bytes(rank));
        let store = core.sender(&identity, 1);
        stores.push(store);
    }
    core.run(2);
    for restart in [false, true] {
        if restart {
            core.restart();
            core.run(2);
        }
        let sent = core.sent();
        assert_eq!(sent.len(), stores.len(), "{sent:?}");
        for name in sent.keys() {
            assert!(is_instance_name(name), "{name:?}");
        }
        assert!(sent.contains_key("kv@0%201"), "{sent:?}");
        assert!(core.is_persistent(), "the state file has all of them");
    }
}

#[test]
fn waiting_store_is_attached_when_there_is_room() {
    let mut core = Core::new("max_agents = 2\nretain = \"5s\"");
    let start = |core: &Core, name: &str| core.sender(&Who::named(name), 1);
    let (one, _two) = (start(&core, "one"), start(&core, "two"));
    core.run(3);
    let _three = start(&core, "three");
    core.run(3);
    core.assert_sent([("one", 1), ("two", 1)]);
    drop(one);
    core.run(20);
    core.assert_sent([("three", 1), ("two", 1)]);
    core.restart();
    core.run(20);
    core.assert_sent([("three", 1), ("two", 1)]);
    core.assert_host_sent(3);
}

/// A store of the user `uid`. Only root can make one.
fn of_user(core: &Core, uid: u32) -> StoreWriter {
    let store = core.store(&Who::named("kv").rank("0"));
    std::os::unix::fs::chown(store.path(), Some(uid), Some(uid)).expect("root may");
    store
}

/// A daemon that has counted ten bytes of a store of the user 1001, and its end.
fn after_a_store_of_1001() -> Core {
    let mut core = Core::new("");
    let store = of_user(&core, 1001);
    core.send(&store, 10);
    core.run(3);
    drop(store);
    core.run(3);
    core
}

#[test]
fn store_of_another_user_adds_nothing_to_an_agent() {
    needs_root();
    for restart in [false, true] {
        let mut core = after_a_store_of_1001();
        let theirs = of_user(&core, 1002);
        core.send(&theirs, 100);
        core.run(3);
        if restart {
            core.restart();
            core.run(3);
        }
        core.assert_sent([("kv", 10), ("kv@uid1002", 100)]);
        // Each agent keeps its own totals, in any order of starts.
        drop(theirs);
        core.run(3);
        let theirs = of_user(&core, 1002);
        core.send(&theirs, 1);
        core.run(3);
        let store = of_user(&core, 1001);
        core.send(&store, 2);
        core.run(3);
        core.assert_sent([("kv", 12), ("kv@uid1002", 101)]);
        core.assert_host_sent(113);
    }
}

#[test]
fn foreign_store_end_does_not_affect_other_users() {
    needs_root();
    let mut core = after_a_store_of_1001();
    // This store ends before pmdanixl finds it.
    let theirs = of_user(&core, 1002);
    theirs.count(kit::store_writer::TX_BYTES, 100);
    drop(theirs);
    core.run(3);
    core.assert_sent([("kv", 10), ("kv@uid1002", 100)]);
}
