//! Which agent a store or a ring belongs to when one goes over to the other, and what a look must not miss or believe.

#[path = "support/store_world.rs"]
mod store_world;

use pmdanixl::config::DirectoryPattern;
use pmdanixl::event::EventType;
use pmdanixl::producer::life::Life;
use pmdanixl::totals::Buckets;
use std::time::{Duration, Instant};
use store_world::{Kind, Layout, RingWriter, StoreWriter, Who, World, XFER_TIME, store_writer};

/// Words of a store: NIXL writes them in this order.
const COUNTER: usize = 94;
const LAST: usize = 115;
const UPDATED: usize = 3;

#[test]
fn an_agent_that_began_with_a_ring_keeps_its_rank_for_its_next_stores() {
    let mut world = World::new();
    let mut ring = world.ring("a");
    assert!(ring.push(Kind::TxBytes, 1));
    world.pass(3);
    drop(ring);
    for bytes in [2, 4, 8] {
        let store = world.store(&Who::named("a").rank("3"));
        world.send(&store, bytes);
        world.pass(3);
    }
    world.becomes(&[("a", 15)]);
    // Another rank is another agent.
    let other = world.store(&Who::named("a").rank("4"));
    world.send(&other, 16);
    world.pass(3);
    world.becomes(&[("a", 15), ("a@4", 16)]);
}

#[test]
fn a_ring_that_was_taken_over_is_its_agents_after_a_restart() {
    let mut world = World::new();
    let store = world.store(&Who::named("a").rank("0"));
    world.send(&store, 1);
    world.pass(2);
    drop(store);
    let mut ring = world.ring("a");
    assert!(ring.push(Kind::TxBytes, 2));
    world.pass(3);
    // Another process of that name comes and ends, so that both could be meant.
    let other = world.store(&Who::named("a").rank("1"));
    world.send(&other, 4);
    world.pass(3);
    drop(other);
    world.pass(3);
    world.becomes(&[("a", 3), ("a@1", 4)]);
    world.restart();
    assert!(ring.push(Kind::TxBytes, 8));
    world.pass(3);
    world.becomes(&[("a", 11), ("a@1", 4)]);
}

#[test]
fn where_a_ring_and_a_store_of_one_agent_are_written_the_ranges_are_the_stores() {
    let mut world = World::new();
    drop(world.ring("a"));
    let ring = world.ring("a");
    world.pass(2);
    drop(ring);
    let store = world.store(&Who::named("a").bounds(&[1.0, 2.0]));
    world.send(&store, 1);
    world.pass(2);
    world.becomes(&[("a", 1)]);
    let mut ring = world.ring("a");
    let mut before = 0;
    for _ in 0..4 {
        assert!(ring.push(Kind::XferTime, 1));
        store.count(XFER_TIME, 1);
        world.send(&store, 1);
        world.pass(1);
        let agent = world.agent("a");
        assert_eq!(agent.entry.account.ranges().count(), 3);
        let now = agent.bucket(Buckets::XferTime, 0).expect("a store tells");
        assert_eq!(now, before + 1);
        before = now;
    }
}

#[test]
fn a_ring_that_takes_over_from_a_store_has_all_its_times_in_its_own_ranges() {
    let mut world = World::new();
    let mut ring = world.ring("a");
    assert!(ring.push(Kind::XferTime, 7));
    world.pass(2);
    drop(ring);
    let store = world.store(&Who::named("a").bounds(&[1.0, 2.0]));
    store.count(XFER_TIME, 1);
    world.send(&store, 1);
    world.pass(2);
    drop(store);
    let mut ring = world.ring("a");
    for _ in 0..3 {
        assert!(ring.push(Kind::XferTime, 7));
    }
    world.pass(2);
    let agent = world.agent("a");
    assert_eq!(agent.entry.account.ranges().count(), 19);
    assert_eq!(agent.bucket(Buckets::XferTime, 0), Some(3));
    assert_eq!(agent.total(EventType::XferTime), 7 + 1 + 21);
}

#[test]
fn what_a_look_in_the_midst_of_a_flush_missed_is_read_at_the_next() {
    let mut world = World::new();
    let store = world.store(&Who::named("a"));
    world.send(&store, 1);
    world.pass(300);
    assert_eq!(world.life("a"), Life::Idle);
    store.put(COUNTER, 2);
    world.pass(1);
    store.put(LAST, 77);
    store.put(UPDATED, store_writer::monotonic() + 300 * 1_000_000_000);
    world.pass(2);
    let account = &world.agent("a").entry.account;
    assert_eq!(account.last(EventType::TxBytes), Some(77));
    assert_eq!(world.life("a"), Life::Live);
}

#[test]
fn a_time_to_come_is_a_lie_by_which_no_later_store_is_judged() {
    let mut world = World::new();
    let liar = world.store(&Who::named("a"));
    liar.put(UPDATED, u64::MAX);
    world.pass(2);
    drop(liar);
    let store = world.store(&Who::named("a"));
    world.send(&store, 5);
    world.pass(2);
    drop(store);
    world.kill();
    let short = world.store(&Who::named("a"));
    world.send(&short, 7);
    drop(short);
    world.start();
    world.pass(5);
    assert_eq!(world.host(), 12);
}

#[test]
fn of_several_agents_that_a_store_could_belong_to_none_is_guessed() {
    let mut world = World::new();
    let other = world.rings().with_file_name("other");
    std::fs::create_dir(&other).expect("made");
    world.config.telemetry_dir.push(DirectoryPattern {
        path: other.to_str().expect("UTF-8").into(),
        label: Some("other".into()),
        literal: true,
    });
    world.restart();
    let mut one = world.ring("a");
    let mut two = RingWriter::create(&other.join("a"), Layout::V4, 64).expect("a ring");
    assert!(one.push(Kind::TxBytes, 1) && two.push(Kind::TxBytes, 2));
    world.pass(2);
    drop((one, two));
    let store = world.store(&Who::named("a").rank("7"));
    world.send(&store, 4);
    world.pass(2);
    world.becomes(&[("a", 1), ("a@other", 2), ("a@7", 4)]);
}

#[test]
fn a_new_ring_does_not_take_the_agent_of_a_store_that_is_still_to_be_found() {
    let mut world = World::new();
    let store = world.store(&Who::named("a"));
    world.send(&store, 100);
    world.pass(2);
    world.kill();
    let mut ring = world.ring("a");
    assert!(ring.push(Kind::TxBytes, 1));
    world.start();
    world.pass(3);
    world.send(&store, 10);
    world.pass(3);
    assert_eq!(world.host(), 111);
    assert_eq!(world.sent()["a"], 110);
}

#[test]
fn a_store_that_is_cut_short_counts_nothing_twice_when_it_grows_again() {
    pmdanixl::shm::guard_against_sigbus().expect("a handler");
    let mut world = World::new();
    let store = world.store(&Who::named("a"));
    world.send(&store, 100);
    world.pass(2);
    let path = world.agent("a").path().expect("attached");
    let file = std::fs::File::options().write(true).open(path);
    let file = file.expect("there");
    for len in [100, 6_800] {
        file.set_len(len).expect("resized");
        world.pass(5);
    }
    assert_eq!(world.host(), 100);
}

#[test]
fn many_agents_of_one_name_cost_no_more_than_many_of_many() {
    let time = |named: fn(u64) -> String| {
        let mut world = World::new();
        let mut all: Vec<StoreWriter> = Vec::new();
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            for _ in 0..200 {
                let number = all.len() as u64;
                let who = Who::named(named(number)).pid(1_000_000 + number);
                all.push(world.store(&who));
            }
            let started = Instant::now();
            world.pass(3);
            took = started.elapsed();
        }
        assert_eq!(world.sent().len(), all.len());
        took
    };
    let (many, one) = (time(|number| format!("a{number}")), time(|_| "a".into()));
    assert!(
        one < 8 * many + Duration::from_millis(200),
        "{one:?} {many:?}"
    );
}
