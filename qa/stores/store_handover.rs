//! Which agent a store or a ring belongs to when one goes over to the other, and what a look must not miss or believe.

use crate::support::kit::Core;
use crate::support::kit::store_writer::{self, StoreWriter, Who, XFER_TIME};
use crate::support::kit::writer::{Kind, Layout, RingWriter};
use std::time::{Duration, Instant};

/// Words of a store: NIXL writes them in this order.
const COUNTER: usize = 94;
const LAST: usize = 115;
const UPDATED: usize = 3;

#[test]
fn an_agent_that_began_with_a_ring_keeps_its_rank_for_its_next_stores() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    assert!(ring.push(Kind::TxBytes, 1));
    core.run(3);
    drop(ring);
    for bytes in [2, 4, 8] {
        let store = core.store(&Who::named("a").rank("3"));
        core.send(&store, bytes);
        core.run(3);
    }
    core.assert_sent([("a", 15)]);
    // Another rank is another agent.
    let other = core.store(&Who::named("a").rank("4"));
    core.send(&other, 16);
    core.run(3);
    core.assert_sent([("a", 15), ("a@4", 16)]);
}

#[test]
fn a_ring_that_was_taken_over_is_its_agents_after_a_restart() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("a").rank("0"));
    core.send(&store, 1);
    core.run(2);
    drop(store);
    let mut ring = core.ring("a");
    assert!(ring.push(Kind::TxBytes, 2));
    core.run(3);
    // Another process of that name comes and ends, so that both could be meant.
    let other = core.store(&Who::named("a").rank("1"));
    core.send(&other, 4);
    core.run(3);
    drop(other);
    core.run(3);
    core.assert_sent([("a", 3), ("a@1", 4)]);
    core.restart();
    assert!(ring.push(Kind::TxBytes, 8));
    core.run(3);
    core.assert_sent([("a", 11), ("a@1", 4)]);
}

#[test]
fn where_a_ring_and_a_store_of_one_agent_are_written_the_ranges_are_the_stores() {
    let mut core = Core::new("");
    drop(core.ring("a"));
    let ring = core.ring("a");
    core.run(2);
    drop(ring);
    let store = core.store(&Who::named("a").bounds(&[1.0, 2.0]));
    core.send(&store, 1);
    core.run(2);
    core.assert_sent([("a", 1)]);
    let mut ring = core.ring("a");
    let mut before = 0;
    for _ in 0..4 {
        assert!(ring.push(Kind::XferTime, 1));
        store.count(XFER_TIME, 1);
        core.send(&store, 1);
        core.run(1);
        let buckets = core.buckets("latency.xfer_time.buckets", "a");
        assert_eq!(buckets.len(), 3);
        let (_, now) = buckets[0];
        assert_eq!(now, before + 1);
        before = now;
    }
}

#[test]
fn a_ring_that_takes_over_from_a_store_has_all_its_times_in_its_own_ranges() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    assert!(ring.push(Kind::XferTime, 7));
    core.run(2);
    drop(ring);
    let store = core.store(&Who::named("a").bounds(&[1.0, 2.0]));
    store.count(XFER_TIME, 1);
    core.send(&store, 1);
    core.run(2);
    drop(store);
    let mut ring = core.ring("a");
    for _ in 0..3 {
        assert!(ring.push(Kind::XferTime, 7));
    }
    core.run(2);
    let buckets = core.buckets("latency.xfer_time.buckets", "a");
    assert_eq!((buckets.len(), buckets[0].1), (19, 3));
    assert_eq!(core.value("performance.xfer_time_us", "a"), 7 + 1 + 21);
}

#[test]
fn what_a_look_in_the_midst_of_a_flush_missed_is_read_at_the_next() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("a"));
    core.send(&store, 1);
    core.run(300);
    assert_eq!(core.status("a"), "idle");
    store.put(COUNTER, 2);
    core.run(1);
    store.put(LAST, 77);
    store.put(UPDATED, store_writer::monotonic() + 300 * 1_000_000_000);
    core.run(2);
    assert_eq!(core.value("last.tx_bytes", "a"), 77);
    assert_eq!(core.status("a"), "live");
}

#[test]
fn a_time_to_come_is_a_lie_by_which_no_later_store_is_judged() {
    let mut core = Core::new("");
    let liar = core.store(&Who::named("a"));
    liar.put(UPDATED, u64::MAX);
    core.run(2);
    drop(liar);
    let store = core.store(&Who::named("a"));
    core.send(&store, 5);
    core.run(2);
    drop(store);
    core.kill();
    let short = core.store(&Who::named("a"));
    core.send(&short, 7);
    drop(short);
    core.start();
    core.run(5);
    assert_eq!(core.host_sent(), 12);
}

#[test]
fn of_several_agents_that_a_store_could_belong_to_none_is_guessed() {
    let mut core = Core::new("");
    let other = core.rings().with_file_name("other");
    std::fs::create_dir(&other).expect("made");
    let rings = core.rings();
    core.set(&format!(
        "telemetry_dir = [{rings:?}, {{ path = {other:?}, label = \"other\" }}]"
    ));
    core.restart();
    let mut one = core.ring("a");
    let mut two = RingWriter::create(&other.join("a"), Layout::V4, 64).expect("a ring");
    assert!(one.push(Kind::TxBytes, 1) && two.push(Kind::TxBytes, 2));
    core.run(2);
    drop((one, two));
    let store = core.store(&Who::named("a").rank("7"));
    core.send(&store, 4);
    core.run(2);
    core.assert_sent([("a", 1), ("a@other", 2), ("a@7", 4)]);
}

#[test]
fn a_new_ring_does_not_take_the_agent_of_a_store_that_is_still_to_be_found() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("a"));
    core.send(&store, 100);
    core.run(2);
    core.kill();
    let mut ring = core.ring("a");
    assert!(ring.push(Kind::TxBytes, 1));
    core.start();
    core.run(3);
    core.send(&store, 10);
    core.run(3);
    assert_eq!(core.host_sent(), 111);
    assert_eq!(core.sent()["a"], 110);
}

#[test]
fn a_store_that_is_cut_short_counts_nothing_twice_when_it_grows_again() {
    let mut core = Core::new("");
    let store = core.store(&Who::named("a"));
    core.send(&store, 100);
    core.run(2);
    let path = core.text("agent.path", "a").expect("attached");
    let file = std::fs::File::options().write(true).open(path);
    let file = file.expect("there");
    for len in [100, 6_800] {
        file.set_len(len).expect("resized");
        core.run(5);
    }
    assert_eq!(core.host_sent(), 100);
}

#[test]
fn many_agents_of_one_name_cost_no_more_than_many_of_many() {
    let time = |named: fn(u64) -> String| {
        let mut core = Core::new("");
        let mut all: Vec<StoreWriter> = Vec::new();
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            for _ in 0..200 {
                let number = all.len() as u64;
                let who = Who::named(named(number)).pid(1_000_000 + number);
                all.push(core.store(&who));
            }
            let started = Instant::now();
            core.run(3);
            took = started.elapsed();
        }
        assert_eq!(core.sent().len(), all.len());
        took
    };
    let (many, one) = (time(|number| format!("a{number}")), time(|_| "a".into()));
    assert!(
        one < 8 * many + Duration::from_millis(200),
        "{one:?} {many:?}"
    );
}
