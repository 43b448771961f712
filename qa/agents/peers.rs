// SPDX-License-Identifier: GPL-2.0-or-later

//! Comparison of agents with their peers, from events in rings to values.

use crate::support::kit::{Core, SECOND};
use crate::support::writer::RingWriter;
use pmdanixl::metrics::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const RATIO: &str = "latency.xfer_time.peer_ratio";
const TICK: Duration = Duration::from_millis(50);
/// Bytes of transfers that an engine mixes, and their microseconds.
const MIXED: [(u64, u64); 2] = [(690 << 20, 70_000), (1536, 40)];

/// Pushes transfers of mixed sizes, which take `factor` times as long.
fn transfer(ring: &mut RingWriter, transfers: usize, factor: u64) {
    for number in 0..transfers {
        let (bytes, micros) = MIXED[number % 2];
        ring.push_transfer(number % 3 == 0, bytes, factor * micros, 20);
    }
}

/// Peer ratios of the agents that have one.
fn ratios(core: &Core) -> BTreeMap<String, f64> {
    let names = core.instances().into_keys();
    let ratios = names.filter_map(|name| match core.get(RATIO, &name)? {
        Value::F64(ratio) => Some((name, ratio)),
        other => panic!("{other:?}"),
    });
    ratios.collect()
}

#[test]
fn slow_half_of_ranks_with_mixed_sizes_is_found() {
    let mut core = Core::new("");
    let mut rings = Vec::new();
    for number in 0..8 {
        let mut ring = core.ring_of(&format!("rank-{number}"), 256);
        transfer(&mut ring, 20 + number, if number < 4 { 10 } else { 1 });
        rings.push(ring);
    }
    core.run(2);
    let ratios = ratios(&core);
    assert_eq!(ratios.len(), 8, "{ratios:?}");
    for (number, ratio) in ratios.values().enumerate() {
        let expected = if number < 4 { 9.0..11.0 } else { 0.9..1.1 };
        assert!(expected.contains(ratio), "{ratios:?}");
    }
}

#[test]
fn rank_that_has_exited_or_is_idle_is_no_peer() {
    let mut core = Core::new("");
    let mut rings = ["a", "b", "c"].map(|name| core.ring_of(name, 256));
    for (ring, factor) in rings.iter_mut().zip([1, 1, 10]) {
        transfer(ring, 8, factor);
    }
    core.run(2);
    assert_eq!(Vec::from_iter(ratios(&core).into_keys()), ["a", "b", "c"]);
    let [exits, mut idles, mut stays] = rings;
    drop(exits);
    core.tick(21, TICK, SECOND);
    assert_eq!(core.status("a"), "exited");
    assert_eq!(Vec::from_iter(ratios(&core).into_keys()), ["b", "c"]);
    // The transfers of "b" leave the last minute.
    for _ in 0..7 {
        transfer(&mut stays, 8, 10);
        core.run(10);
    }
    assert!(ratios(&core).is_empty(), "{:?}", ratios(&core));
    transfer(&mut idles, 8, 1);
    core.run(1);
    assert_eq!(Vec::from_iter(ratios(&core).into_keys()), ["b", "c"]);
}
