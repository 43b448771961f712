// SPDX-License-Identifier: GPL-2.0-or-later

//! Ends of real NIXL agents with stores, before the end of their process or with it: state and last values in PCP.

use super::{STATUS, agree, turn, wait_until_known};
use crate::support::endpoint::Stores;
use crate::support::numbers::{Numbers, Who, same};
use crate::support::serve::Server;
use crate::support::{Home, Pmcd, TX_BYTES, wait_for};
use std::time::{Duration, Instant};

/// Removes the pids of numbers: PCP has no pid after the end of a process.
fn without_pids(numbers: Numbers) -> Numbers {
    let numbers = numbers.into_iter().map(|(mut identity, series)| {
        identity.pid.clear();
        (identity, series)
    });
    numbers.collect()
}

/// Number of agents with the state exited in PCP.
fn exits(pmcd: &Pmcd) -> usize {
    let shown = pmcd.shown(&[STATUS]);
    let statuses = shown[STATUS].values();
    statuses.filter(|status| *status == "exited").count()
}

fn wait_for_two_exits(pmcd: &Pmcd) {
    wait_for("two agents are exited in PCP", || {
        (exits(pmcd) == 2).then_some(())
    });
}

/// The process continues and the stores stay, so neither shows that the agents ended.
#[test]
fn agents_destroyed_in_a_live_process_are_exited() {
    let _turn = turn();
    let home = Home::new();
    let stores = Stores::new(&home, "");
    let pmcd = Pmcd::start(&home);
    let mut process = stores.process(&[]);
    for work in ["--prefix stays --keep", "--prefix ends --keep"] {
        process.start(work);
        process.done().expect("a running process");
    }
    wait_until_known(&stores, &pmcd);
    assert_eq!(exits(&pmcd), 0);
    process.start("--prefix ends --transfers 30");
    process.done().expect("a running process");
    // NIXL publishes exited agents for 30 s only: read them before the wait for PCP.
    let published = without_pids(stores.numbers());
    assert_eq!(published.len(), 4, "{published:#?}");
    wait_for_two_exits(&pmcd);
    same(&published, &without_pids(pmcd.numbers()));
    let status = pmcd.shown(&[STATUS]).remove(STATUS).expect("a metric");
    for (instance, labels) in pmcd.labels(TX_BYTES) {
        let name = labels["nixl_agent"].as_str().expect("text");
        let expected = if name.starts_with("ends") {
            "exited"
        } else {
            "live"
        };
        assert_eq!(status[&instance], expected, "{name}");
    }
}

/// Time for which NIXL's collector publishes the last values of an exited agent.
const REAPED_AFTER: Duration = Duration::from_secs(30);

/// Asserts that PCP has the last numbers of the two agents of a killed process, selected by its rank.
fn exited(pmcd: &Pmcd, last: &Numbers, rank: &str) {
    let of_rank = |numbers: Numbers| {
        let of_rank = numbers
            .into_iter()
            .filter(|(identity, _)| identity.rank == rank);
        without_pids(of_rank.collect())
    };
    let last = of_rank(last.clone());
    assert_eq!(last.len(), 2, "{last:#?}");
    same(&last, &of_rank(pmcd.numbers()));
    assert_eq!(exits(pmcd), 2);
}

/// Number of instances in PCP for the agents of a rank.
fn instances(pmcd: &Pmcd, rank: &str) -> usize {
    let labels = pmcd.labels(TX_BYTES);
    labels
        .values()
        .filter(|labels| labels["local_rank"] == rank)
        .count()
}

#[test]
#[ignore = "waits 30 s for NIXL"]
fn last_values_of_a_reaped_store_stay_for_retain() {
    let home = Home::new();
    let stores = Stores::new(&home, "retain = \"40s\"");
    let pmcd = Pmcd::start(&home);
    // The first one serves the endpoint.
    let start = |rank: &str| -> Server {
        let mut process = stores.process(&[("LOCAL_RANK", rank)]);
        process.start("--prefix kv --transfers 50 --keep");
        process.done().expect("a running process");
        process
    };
    let (owner, mut killed) = (start("0"), start("1"));
    wait_until_known(&stores, &pmcd);
    let pid = killed.pid();
    // The target writes nothing after this: NIXL may remove its store before the initiator's.
    let works = Instant::now();
    killed.start("--prefix kv --transfers 50 --errors 1 --memory-rounds 1 --keep");
    killed.done().expect("a running process");
    let last = agree(&stores, &pmcd, 4);
    killed.kill();
    let dead = Instant::now();
    wait_for_two_exits(&pmcd);
    exited(&pmcd, &last, "1");
    same(&stores.numbers(), &last);
    let initiator = |numbers: &Numbers| {
        let is_initiator =
            |identity: &Who| identity.name == "kv-A" && identity.pid == pid.to_string();
        numbers.keys().any(is_initiator)
    };
    // pmdanixl continues its reads and liveness checks during this time.
    while initiator(&stores.numbers()) {
        let waited = dead.elapsed();
        assert!(waited < REAPED_AFTER + Duration::from_secs(5), "{waited:?}");
        assert_eq!(instances(&pmcd, "1"), 2, "after {waited:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(works.elapsed() >= REAPED_AFTER, "{:?}", works.elapsed());
    let of_it = format!("nixl.{pid}.");
    let left = stores
        .files()
        .into_iter()
        .filter(|name| name.starts_with(&of_it));
    assert_eq!(left.count(), 0, "its stores are gone");
    exited(&pmcd, &last, "1");
    assert_eq!(
        stores.numbers().len(),
        2,
        "the stores of the other process are there"
    );
    wait_for("the agents are withdrawn after retain", || {
        (instances(&pmcd, "1") == 0).then_some(())
    });
    let waited = dead.elapsed();
    assert!(waited >= Duration::from_secs(39), "{waited:?}");
    assert_eq!(instances(&pmcd, "0"), 2);
    // The endpoint ends with the process that serves it; PCP still has the values.
    let last = agree(&stores, &pmcd, 2);
    owner.kill();
    wait_for_two_exits(&pmcd);
    assert!(stores.get().is_none());
    exited(&pmcd, &last, "0");
}
