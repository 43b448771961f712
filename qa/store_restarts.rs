//! What stores of NIXL's `prometheus_mp` come to where pmdanixl or their agents end: each value counts once, and stays for as
//! long as it is to. Without pmcd; qa/store_daemon.rs has one.

// By path, as in support/mod.rs, whose other parts need pmcd.
#[path = "support/store_world.rs"]
mod store_world;

use pmdanixl::event::EventType;
use pmdanixl::producer::life::Life;
use store_world::store_writer::{BACKEND, XFER_TIME};
use store_world::{Who, World};

/// pmdanixl comes back to one that it knows, and to another that began meanwhile and that its directory shows first.
#[test]
fn a_store_that_began_meanwhile_takes_no_living_agents_place() {
    for order in 0..8 {
        let mut world = World::new();
        let first = world.store(&Who::named("kv"));
        let second = world.store(&Who::named("kv"));
        world.send(&first, 1);
        world.send(&second, 10);
        world.pass(2);
        let before = world.sent();
        world.kill();
        world.send(&first, 1);
        drop(second);
        let new: Vec<_> = (0..=order)
            .map(|_| {
                // Its name comes before the others'.
                let store = world.store(&Who::named("kv").pid(1));
                world.send(&store, 100);
                store
            })
            .collect();
        // Its file has changed last.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(first.path(), mode).expect("ours");
        world.start();
        world.pass(3);
        let sent: u64 = world.sent().values().sum();
        assert_eq!(
            (sent, world.host()),
            (12 + 100 * (order + 1), sent),
            "{:?}",
            world.sent()
        );
        let mut sent = world.sent();
        let of_first = before
            .iter()
            .find(|(_, sent)| **sent == 1)
            .expect("it is there")
            .0;
        assert_eq!(sent.remove(of_first), Some(2));
        drop(new);
    }
}

#[test]
fn what_begins_and_ends_while_pmdanixl_is_down_counts_once_in_any_number() {
    let mut world = World::new();
    let mut sent = 0;
    for round in 0..4 {
        // As in a crash loop, beside another rank that lives.
        let other = world.store(&Who::named("kv").rank("1"));
        world.send(&other, 1 << 30);
        sent += 1 << 30;
        world.pass(2);
        world.kill();
        for life in 0..20 {
            // Names tell nothing of the order; times of files do, as coarse as they are.
            std::thread::sleep(std::time::Duration::from_millis(10));
            let who = Who::named("kv").rank("0").pid(life * 7919 % 1000);
            let store = world.store(&who);
            world.send(&store, 1 << life);
            sent += 1 << life;
        }
        world.send(&other, 1 << 30);
        sent += 1 << 30;
        drop(other);
        world.start();
        world.pass(3);
        assert_eq!(world.host(), sent, "round {round}: {:?}", world.sent());
        // The files stay.
        for _ in 0..3 {
            world.restart();
            world.pass(3);
            assert_eq!(world.host(), sent, "round {round}: {:?}", world.sent());
        }
    }
    assert_eq!(world.sent().len(), 2, "{:?}", world.sent());
}

#[test]
fn what_ended_longer_ago_than_retain_does_not_count() {
    let mut world = World::with(|config| config.retain = 10 * store_world::SECOND);
    world.kill();
    let store = world.store(&Who::named("old"));
    store.count(store_world::TX_BYTES, 1);
    store.flush_at(store_world::store_writer::monotonic().saturating_sub(11_000_000_000));
    drop(store);
    let store = world.store(&Who::named("new"));
    world.send(&store, 2);
    drop(store);
    world.start();
    world.pass(3);
    world.becomes(&[("new", 2)]);
    assert_eq!(world.life("new"), Life::Exited);
    world.pass(12);
    world.becomes(&[]);
    world.restart();
    world.pass(3);
    world.becomes(&[]);
    assert_eq!(world.host(), 2);
}

#[test]
fn an_agents_end_is_seen_and_its_last_values_stay_for_retain_though_its_file_goes() {
    let mut world = World::with(|config| config.retain = 40 * store_world::SECOND);
    let store = world.store(&Who::named("a"));
    world.send(&store, 1);
    world.pass(3);
    assert_eq!(world.life("a"), Life::Live);
    world.pass(61);
    assert_eq!(world.life("a"), Life::Idle);
    store.count(BACKEND, 7);
    store.count(XFER_TIME, 15);
    world.send(&store, 2);
    let path = store.path().to_owned();
    drop(store);
    world.pass(2);
    let check = |world: &World| {
        world.becomes(&[("a", 3)]);
        let agent = world.agent("a");
        assert_eq!(agent.state, Life::Exited);
        assert_eq!(agent.entry.account.errors(), 7);
        assert_eq!(agent.entry.account.xfer_time.get(1), 1);
        assert_eq!(agent.total(EventType::XferTime), 15);
    };
    check(&world);
    std::fs::remove_file(path).expect("there");
    world.pass(20);
    check(&world);
    world.restart();
    world.pass(10);
    check(&world);
    world.pass(20);
    world.becomes(&[]);
}

#[test]
fn a_state_brings_the_bounds_of_a_store_back_at_once() {
    let mut world = World::new();
    let store = world.store(&Who::named("a").bounds(&[0.5, 7.25]));
    store.count(XFER_TIME, 7);
    world.send(&store, 1);
    world.pass(2);
    world.restart();
    let suffixes = |world: &World| {
        let ranges = *world.agent("a").entry.account.ranges();
        let all = (0..ranges.count()).map(|range| ranges.suffix(range));
        all.collect::<Vec<_>>()
    };
    // Before the first look, and after it.
    for seconds in [0, 3] {
        world.pass(seconds);
        assert_eq!(suffixes(&world), ["0-0.5", "0.5-7.25", "7.25-inf"]);
        assert_eq!(world.agent("a").entry.account.xfer_time.get(1), 1);
    }
}

/// As where the agent's user has no CAP_LEASE: the kernel does not say who has another user's file.
#[test]
fn where_the_kernel_does_not_tell_an_agent_is_live_by_its_last_update_and_never_exited() {
    let mut world = World::with(|config| config.retain = 100 * store_world::SECOND);
    let store = world.store(&Who::named("a"));
    // Only an owner may ask without the right to it.
    std::os::unix::fs::chown(store.path(), Some(1001), Some(1001)).expect("root");
    caps::drop(None, caps::CapSet::Effective, caps::Capability::CAP_LEASE).expect("root has it");
    world.send(&store, 1);
    world.pass(3);
    assert_eq!(world.life("a"), Life::Live);
    world.pass(70);
    assert_eq!(world.life("a"), Life::Idle, "nothing came for a while");
    world.pass(40);
    assert_eq!(world.life("a"), Life::Unknown);
    world.pass(100);
    // It may be dead, and it does not come back for nothing.
    for _ in 0..400 {
        world.pass(1);
        world.becomes(&[]);
    }
    world.send(&store, 2);
    world.pass(2);
    world.becomes(&[("a", 3)]);
    assert_eq!(world.life("a"), Life::Live);
    // Without its file nobody can find it again.
    std::fs::remove_file(store.path()).expect("there");
    drop(store);
    world.pass(300);
    world.becomes(&[]);
    assert_eq!((world.host(), world.agents().effort().rings), (3, 0));
}

/// The first look at a large directory takes many ticks, and what it shows first is as it happens.
#[test]
fn while_not_everything_was_looked_at_no_new_store_takes_a_known_agents_place() {
    for known_pid in [1, 999_999] {
        let mut world = World::new();
        let known = world.store(&Who::named("kv").pid(known_pid));
        world.send(&known, 1);
        world.pass(2);
        world.kill();
        for number in 0..3000 {
            let path = world.stores().join(format!("nixl.{number}.x"));
            std::fs::write(path, "none").expect("room");
        }
        let new: Vec<_> = (0..20)
            .map(|number| {
                let store = world.store(&Who::named("kv").pid(100 + number));
                world.send(&store, 100);
                store
            })
            .collect();
        world.start();
        let mut ticks = 0;
        while world.sent().len() < 21 {
            world.tick(std::time::Duration::from_micros(20));
            ticks += 1;
            assert_eq!(world.sent().get("kv"), Some(&1), "{:?}", world.sent());
            assert!(ticks < 20_000, "{:?}", world.sent());
        }
        assert!(ticks > 5, "{ticks}: it was looked at in pieces");
        assert_eq!(world.host(), 2001);
        drop(new);
    }
}

#[test]
fn a_store_that_says_it_is_of_the_future_keeps_no_other_from_being_counted() {
    let mut world = World::new();
    let store = world.store(&Who::named("kv"));
    world.send(&store, 1);
    store.flush_at(u64::MAX);
    world.pass(2);
    drop(store);
    // It takes the agent's place, so that the one before is known by its time alone.
    let store = world.store(&Who::named("kv"));
    world.send(&store, 10);
    world.pass(2);
    world.kill();
    drop(store);
    let store = world.store(&Who::named("kv"));
    world.send(&store, 100);
    drop(store);
    world.start();
    world.pass(3);
    world.becomes(&[("kv", 111)]);
}

/// The counters of a flush come before its time: a look may fall between the two.
#[test]
fn a_time_that_comes_after_the_values_makes_them_count_no_second_time() {
    for killed in [false, true] {
        let mut world = World::new();
        let store = world.store(&Who::named("kv"));
        world.send(&store, 1);
        world.pass(2);
        store.count(store_world::TX_BYTES, 10);
        world.pass(2);
        if killed {
            world.kill();
        }
        world.send(&store, 0);
        drop(store);
        if killed {
            world.start();
        }
        world.pass(2);
        let _store = world.store(&Who::named("kv"));
        world.pass(2);
        for _ in 0..3 {
            world.becomes(&[("kv", 11)]);
            world.restart();
            world.pass(3);
        }
    }
}

#[test]
fn without_retain_what_came_last_still_counts() {
    let mut world = World::with(|config| config.retain = std::time::Duration::ZERO);
    let store = world.store(&Who::named("a"));
    world.send(&store, 1);
    world.pass(2);
    world.kill();
    world.send(&store, 2);
    drop(store);
    for _ in 0..3 {
        world.start();
        world.pass(3);
        assert_eq!((world.host(), world.sent().len()), (3, 0));
        world.kill();
    }
}

#[test]
fn a_directory_that_is_left_out_for_a_while_counts_nothing_twice() {
    let mut world = World::new();
    let (stays, ends) = (
        world.store(&Who::named("kv")),
        world.store(&Who::named("kv")),
    );
    world.send(&stays, 1);
    world.send(&ends, 10);
    world.pass(2);
    let names: Vec<String> = world.sent().into_keys().collect();
    let dirs = world.reconfigure(Vec::new());
    world.pass(3);
    world.send(&stays, 100);
    world.send(&ends, 1000);
    drop(ends);
    // Before the others, by its name.
    let new = world.store(&Who::named("kv").pid(1));
    world.send(&new, 10_000);
    world.pass(3);
    assert_eq!(world.host(), 11);
    world.reconfigure(dirs);
    world.pass(5);
    assert_eq!(world.host(), 11_111, "{:?}", world.sent());
    assert!(world.sent().into_keys().eq(names), "{:?}", world.sent());
}

#[test]
fn an_agent_that_starts_with_other_bounds_has_those_and_its_totals() {
    let mut world = World::new();
    let mut time = 0;
    for bounds in [&[1.0, 20.0][..], &[0.5, 3.0, 20.0], &[7.0], &[7.0]] {
        let store = world.store(&Who::named("a").bounds(bounds));
        store.count(XFER_TIME, 5);
        world.send(&store, 1);
        time += 5;
        world.pass(2);
        let account = &world.agent("a").entry.account;
        assert_eq!(account.ranges().count(), bounds.len() + 1);
        let transfers = account.xfer_time.words().iter().sum::<u64>();
        assert_eq!(transfers, if bounds == [7.0] && time == 20 { 2 } else { 1 });
        assert_eq!(world.agent("a").total(EventType::XferTime), time);
        world.restart();
    }
}
