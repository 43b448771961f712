//! Agents with stores of NIXL's `prometheus_mp`: whose instance each store is, over any order of starts and ends, and that each
//! value counts once. Without pmcd; qa/store_daemon.rs does it with.

// By path, as in support/mod.rs, whose other parts need pmcd.
#[path = "support/store_world.rs"]
mod store_world;

use pmdanixl::producer::life::Life;
use store_world::writer::Kind;
use store_world::{StoreWriter, Who, World};

/// Has an agent change its exporter at each step, with pmdanixl killed at the points that the bits of `kills` name: before the
/// agent's end, after it, and after its next start.
fn change_exporters(mut world: World, kills: u32) {
    let (mut ring, mut store) = (None, None);
    let (mut sent, mut step) = (0, 0);
    let mut may_kill = |world: &mut World| {
        if kills & (1 << (step % 6)) != 0 {
            world.restart();
        }
        step += 1;
    };
    for turn in 0..6 {
        may_kill(&mut world);
        (ring, store) = (None, None);
        world.pass(if turn % 3 == 0 { 3 } else { 0 });
        may_kill(&mut world);
        let bytes = 1 << turn;
        sent += bytes;
        let kind = if turn % 2 == 0 {
            assert!(ring.insert(world.ring("a")).push(Kind::TxBytes, bytes));
            "ring"
        } else {
            world.send(store.insert(world.store(&Who::named("a").rank("3"))), bytes);
            "store"
        };
        may_kill(&mut world);
        world.pass(5);
        let said = format!("turn {turn}, kills {kills:06b}");
        assert_eq!(world.sent(), [("a".to_owned(), sent)].into(), "{said}");
        let agent = world.agent("a");
        assert_eq!(agent.source_kind(), Some(kind), "{said}");
        assert_eq!(agent.labels()["source"], kind, "{said}");
        assert_eq!(agent.state, Life::Live, "{said}");
        assert_eq!(world.host(), sent, "{said}");
    }
    drop((ring, store));
}

#[test]
fn an_agent_that_changes_its_exporter_goes_on_in_one_directory() {
    for kills in 0..64 {
        change_exporters(World::new().in_one_directory(), kills);
    }
}

#[test]
fn an_agent_that_changes_its_exporter_goes_on_in_two_directories() {
    for kills in 0..64 {
        change_exporters(World::new(), kills);
    }
}

#[test]
fn an_agent_that_began_with_a_store_goes_on_with_a_ring_and_a_store_again() {
    for kill in [false, true] {
        let mut world = World::new();
        let store = world.store(&Who::named("a"));
        world.send(&store, 1);
        world.pass(3);
        drop(store);
        let mut ring = world.ring("a");
        assert!(ring.push(Kind::TxBytes, 2));
        if kill {
            world.restart();
        }
        world.pass(3);
        world.becomes(&[("a", 3)]);
        assert_eq!(world.agent("a").source_kind(), Some("ring"));
        drop(ring);
        let store = world.store(&Who::named("a"));
        world.send(&store, 4);
        if kill {
            world.restart();
        }
        world.pass(3);
        world.becomes(&[("a", 7)]);
        assert_eq!(world.agent("a").source_kind(), Some("store"));
    }
}

#[test]
fn agents_of_one_name_are_instances_of_their_own_whatever_order_they_start_in() {
    let mut world = World::new();
    let ranks = ["0", "1", "2"];
    let mut expected = std::collections::BTreeMap::new();
    for (turn, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]]
        .iter()
        .enumerate()
    {
        let stores = order.map(|at| {
            let store = world.store(&Who::named("kv").rank(ranks[at]));
            world.send(&store, 1 << (8 * at));
            if turn != 2 {
                world.pass(1);
            }
            store
        });
        world.pass(2);
        if turn % 2 == 1 {
            world.restart();
            world.pass(2);
        }
        for (at, name) in ["kv", "kv@1", "kv@2"].into_iter().enumerate() {
            *expected.entry(name.to_owned()).or_insert(0) += 1 << (8 * at);
        }
        assert_eq!(world.sent(), expected, "turn {turn}");
        for (rank, name) in ["kv", "kv@1", "kv@2"].into_iter().enumerate() {
            assert_eq!(world.agent(name).labels()["local_rank"], ranks[rank]);
        }
        drop(stores);
        if turn == 1 {
            world.pass(2);
        }
    }
}

#[test]
fn agents_of_one_name_without_a_rank_are_instances_of_their_own() {
    let mut world = World::new();
    let mut stores: Vec<StoreWriter> = (0..3).map(|_| world.store(&Who::named("kv"))).collect();
    for (store, bytes) in stores.iter().zip([1, 10, 100]) {
        world.send(store, bytes);
    }
    world.pass(2);
    let names: Vec<String> = world.sent().into_keys().collect();
    assert_eq!((names.len(), &*names[0]), (3, "kv"));
    assert!(
        names[1..].iter().all(|name| name.starts_with("kv@")),
        "{names:?}"
    );
    let before = world.sent();
    // The one in the middle is started again, and pmdanixl with it.
    for kill in [false, true] {
        drop(stores.remove(1));
        stores.insert(1, world.store(&Who::named("kv")));
        if kill {
            world.restart();
        }
        world.send(&stores[1], 1000);
        world.pass(2);
    }
    let mut after = world.sent();
    let ten = before.iter().find(|(_, sent)| **sent == 10);
    *after
        .get_mut(ten.expect("it is there").0)
        .expect("the same") -= 2000;
    assert_eq!(after, before);
}

/// As an agent's child that has a ring where its parent, which has exited, had one.
#[test]
fn a_ring_that_comes_back_while_another_process_has_a_store_of_that_name_counts_nothing_twice() {
    for remove in [false, true] {
        let mut world = World::new();
        let mut ring = world.ring("a");
        assert!(ring.push(Kind::TxBytes, 1));
        world.pass(2);
        drop(ring);
        let store = world.store(&Who::named("a"));
        world.send(&store, 10);
        world.pass(2);
        world.becomes(&[("a", 11)]);
        if remove {
            std::fs::remove_file(world.rings().join("a")).expect("there");
            world.pass(3);
        }
        let mut ring = world.ring("a");
        assert!(ring.push(Kind::TxBytes, 100));
        world.pass(3);
        world.send(&store, 1000);
        world.pass(3);
        for _ in 0..3 {
            assert_eq!(world.host(), 1111, "{:?}", world.sent());
            world.restart();
            world.pass(3);
        }
    }
}

#[test]
fn what_a_rank_holds_makes_no_instance_name_that_pcp_mistakes() {
    use std::os::unix::ffi::OsStrExt;
    let mut world = World::new();
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
        let who = Who::named("kv").rank(std::ffi::OsStr::from_bytes(rank));
        let store = world.store(&who);
        world.send(&store, 1);
        stores.push(store);
    }
    world.pass(2);
    for restart in [false, true] {
        if restart {
            world.restart();
            world.pass(2);
        }
        let sent = world.sent();
        assert_eq!(sent.len(), stores.len(), "{sent:?}");
        for name in sent.keys() {
            assert!(pmdanixl::find::name::is_instance_name(name), "{name:?}");
        }
        assert!(sent.contains_key("kv@0%201"), "{sent:?}");
        assert!(world.agents().is_persistent(), "all of them are kept");
    }
}

#[test]
fn of_ranks_that_had_a_ring_before_each_goes_on_as_itself() {
    let mut world = World::new();
    assert!(world.ring("kv").push(Kind::TxBytes, 1));
    world.pass(2);
    let start = |world: &World, rank: &str| {
        let store = world.store(&Who::named("kv").rank(rank));
        world.send(&store, 10);
        store
    };
    for restart in [false, true, false, true] {
        let zero = start(&world, "0");
        world.pass(2);
        let one = start(&world, "1");
        world.pass(2);
        drop((zero, one));
        if restart {
            world.restart();
        }
        // In the other order.
        let one = start(&world, "1");
        world.pass(2);
        let zero = start(&world, "0");
        world.pass(2);
        drop((zero, one));
    }
    world.becomes(&[("kv", 81), ("kv@1", 80)]);
}

#[test]
fn a_store_that_there_is_no_room_for_has_its_turn_when_there_is() {
    let mut world = World::with(|config| {
        config.max_agents = 2;
        config.retain = 5 * store_world::SECOND;
    });
    let start = |world: &World, name: &str| {
        let store = world.store(&Who::named(name));
        world.send(&store, 1);
        store
    };
    let (one, _two) = (start(&world, "one"), start(&world, "two"));
    world.pass(3);
    let _three = start(&world, "three");
    world.pass(3);
    world.becomes(&[("one", 1), ("two", 1)]);
    drop(one);
    world.pass(20);
    world.becomes(&[("three", 1), ("two", 1)]);
    world.restart();
    world.pass(20);
    world.becomes(&[("three", 1), ("two", 1)]);
    assert_eq!(world.host(), 3);
}

/// A store of another user's: only root can make one.
fn of_user(world: &World, uid: u32, rank: &str) -> StoreWriter {
    let store = world.store(&Who::named("kv").rank(rank));
    std::os::unix::fs::chown(store.path(), Some(uid), Some(uid)).expect("root may");
    store
}

fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can make another user's files");
    }
    is_root
}

#[test]
fn a_strangers_store_of_the_same_name_and_rank_adds_nothing_to_another_users_agent() {
    if !is_root() {
        return;
    }
    for restart in [false, true] {
        let mut world = World::new();
        let store = of_user(&world, 1001, "0");
        world.send(&store, 10);
        world.pass(3);
        drop(store);
        world.pass(3);
        let theirs = of_user(&world, 1002, "0");
        world.send(&theirs, 100);
        world.pass(3);
        if restart {
            world.restart();
            world.pass(3);
        }
        world.becomes(&[("kv", 10), ("kv@uid1002", 100)]);
        // Their own go on, in whatever order they start.
        drop(theirs);
        world.pass(3);
        let theirs = of_user(&world, 1002, "0");
        world.send(&theirs, 1);
        world.pass(3);
        let store = of_user(&world, 1001, "0");
        world.send(&store, 2);
        world.pass(3);
        world.becomes(&[("kv", 12), ("kv@uid1002", 101)]);
        assert_eq!(world.host(), 113);
    }
}

#[test]
fn when_a_stranger_s_store_ended_says_nothing_of_another_user_s() {
    if !is_root() {
        return;
    }
    let mut world = World::new();
    let store = of_user(&world, 1001, "0");
    world.send(&store, 10);
    world.pass(3);
    drop(store);
    world.pass(3);
    // It ended before the other's did, and is found after that.
    let theirs = of_user(&world, 1002, "0");
    theirs.count(store_world::TX_BYTES, 100);
    drop(theirs);
    world.pass(3);
    world.becomes(&[("kv", 10), ("kv@uid1002", 100)]);
}
