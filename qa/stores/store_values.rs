// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of stores, without pmcd: values that a drain must not miss, and invalid values that must not affect others.

use crate::support::kit::Core;
use crate::support::kit::store_writer::{self, StoreWriter, Who};
use std::time::{Duration, Instant};

/// Indices of words in a store. NIXL writes these words in this order.
const COUNTER: usize = 94;
const UPDATED: usize = 3;

#[test]
fn values_missed_during_a_flush_are_read_at_the_next_drain() {
    let mut core = Core::new("");
    let store = core.sender(&Who::named("a"), 1);
    core.run(300);
    assert_eq!(core.status("a"), "idle");
    store.put(COUNTER, 2);
    core.run(1);
    store.put(COUNTER, 77);
    store.put(UPDATED, store_writer::monotonic() + 300 * 1_000_000_000);
    core.run(2);
    assert_eq!(core.value("transfer.tx_bytes", "a"), 77);
    assert_eq!(core.status("a"), "live");
}

#[test]
fn truncated_store_that_grows_again_counts_nothing_twice() {
    let mut core = Core::new("");
    let _store = core.sender(&Who::named("a"), 100);
    core.run(2);
    let path = core.text("agent.path", "a").expect("attached");
    let file = std::fs::File::options().write(true).open(path);
    let file = file.expect("there");
    for len in [100, 6_800] {
        file.set_len(len).expect("resized");
        core.run(5);
    }
    core.assert_host_sent(100);
}

#[test]
#[ignore = "compares times"]
fn many_agents_of_one_name_cost_as_much_as_of_many_names() {
    let time = |named: fn(u64) -> String| {
        let mut core = Core::new("");
        let mut all: Vec<StoreWriter> = Vec::new();
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            for _ in 0..200 {
                let number = all.len() as u64;
                let identity = Who::named(named(number)).pid(1_000_000 + number);
                all.push(core.store(&identity));
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
