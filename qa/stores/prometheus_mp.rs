// SPDX-License-Identifier: GPL-2.0-or-later

//! Real NIXL with `prometheus_mp` stores: PCP shows the values of NIXL's own endpoint, and neither disturbs the other.
//!
//! The endpoint is the reference, and is itself compared with the workload. Tests that load the machine run one at a
//! time.

mod ends;

use crate::support::endpoint::Stores;
use crate::support::numbers::{Numbers, Who, is_what_it_did, lies_between, numbers, same, series};
use crate::support::share::text_of;
use crate::support::show::Shown;
use crate::support::{Home, PATIENCE, Pmcd, TX_BYTES};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const STATUS: &str = "nixl.agent.status";

static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the agents in PCP are exactly those that NIXL publishes.
fn wait_until_known(stores: &Stores, pmcd: &Pmcd) {
    let expected: Vec<Who> = stores.numbers().into_keys().collect();
    let mut found = Vec::new();
    let end = Instant::now() + PATIENCE;
    while found != expected {
        assert!(
            Instant::now() < end,
            "PCP has {found:#?}, expected {expected:#?}\n{}",
            pmcd.log()
        );
        found = pmcd.numbers().into_keys().collect();
    }
}

/// Asserts that the numbers of all agents are equal in NIXL's endpoint and in PCP. The agents must be idle. Returns the
/// numbers.
fn agree(stores: &Stores, pmcd: &Pmcd, agents: usize) -> Numbers {
    let published = stores.numbers();
    assert_eq!(published.len(), agents, "{published:#?}");
    same(&published, &pmcd.numbers());
    published
}

/// Values of one agent by the last component of the metric name.
fn facts(shown: &Shown, instance: &str) -> BTreeMap<String, String> {
    let values = shown.iter().filter_map(|(metric, values)| {
        let last = metric.rsplit('.').next()?.to_owned();
        Some((last, values.get(instance)?.clone()))
    });
    values.collect()
}

#[test]
fn text_of_the_nixl_endpoint_is_parsed() {
    let text = r#"# HELP exposer_scrapes_total Number of times metrics were scraped
exposer_scrapes_total 7
exposer_request_latencies{quantile="0.5"} Nan
# TYPE agent_tx_bytes_total counter
agent_tx_bytes_total{hostname="h",agent_name="a\"b\\c d,e=f}",pid="7",agent_instance="1",local_rank="r\nx"} 2162688
agent_xfer_time_us_count{hostname="h",agent_name="two",pid="8",agent_instance="0"} 9
agent_xfer_time_us_bucket{hostname="h",agent_name="two",pid="8",agent_instance="0",le="0.5"} 2
agent_xfer_time_us_bucket{hostname="h",agent_name="two",pid="8",agent_instance="0",le="1000000"} 8
agent_xfer_time_us_bucket{hostname="h",agent_name="two",pid="8",agent_instance="0",le="+Inf"} 9
agent_errors_total{hostname="h",agent_name="two",pid="8",agent_instance="0",status="not_found"} 3
"#;
    let identity = |name: &str, instance: &str, rank: &str, pid: &str| Who {
        name: name.to_owned(),
        instance: instance.to_owned(),
        rank: rank.to_owned(),
        host: "h".to_owned(),
        pid: pid.to_owned(),
    };
    let series = |series: &[(&str, u64)]| {
        let series = series
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value));
        series.collect::<BTreeMap<_, _>>()
    };
    let expected = Numbers::from([
        (
            identity(r#"a"b\c d,e=f}"#, "1", "r\nx", "7"),
            series(&[("agent_tx_bytes_total", 2_162_688)]),
        ),
        (
            identity("two", "0", "", "8"),
            series(&[
                ("agent_xfer_time_us_count", 9),
                ("agent_xfer_time_us 0.5", 2),
                ("agent_xfer_time_us 1000000", 6),
                ("agent_xfer_time_us inf", 1),
                ("agent_errors_total not_found", 3),
            ]),
        ),
    ]);
    assert_eq!(numbers(text), expected);
}

#[test]
fn docs_have_the_metric_of_each_endpoint_series() {
    let page = text_of("docs/metrics.md");
    for (series, metric) in series() {
        let mut rows = page.lines().filter(|line| line.starts_with("| `agent_"));
        let row = rows.find(|line| line.contains(&format!("`{series}`")));
        let row = row.unwrap_or_else(|| panic!("docs/metrics.md has no {series}"));
        let metric = metric.map_or("| none |".to_owned(), |name| format!("`nixl.{name}`"));
        assert!(row.contains(&metric), "{series} is {metric}: {row}");
    }
}

#[test]
fn every_endpoint_value_equals_the_pcp_value() {
    let _turn = turn();
    let home = Home::new();
    let stores = Stores::new(&home, "idle_after = \"1h\"");
    let pmcd = Pmcd::start(&home);
    // Agents of equal names in three processes: two processes have a rank, and one has none.
    let ranks = ["0", "1", ""];
    let mut processes = ranks.map(|rank| match rank {
        "" => stores.process(&[]),
        rank => stores.process(&[("LOCAL_RANK", rank)]),
    });
    let rounds = [
        "--transfers 300 --size 8192 --memory-rounds 3 --errors 2 --keep",
        "--transfers 200 --memory-rounds 1 --errors 1 --read-every 2 --keep",
    ];
    for (round, work) in rounds.into_iter().enumerate() {
        for (process, rank) in processes.iter_mut().zip(ranks) {
            for prefix in ["kv", "weights"] {
                process.start(&format!("--prefix {prefix} {work}"));
                let did = process.done().expect("a running process");
                let published = stores.numbers();
                did.iter()
                    .for_each(|did| is_what_it_did(&published, did, rank));
            }
        }
        if round == 0 {
            wait_until_known(&stores, &pmcd);
        }
        let published = agree(&stores, &pmcd, 12);
        for (identity, series) in &published {
            // 9 counters, 12 errors, and two histograms of 19 buckets with their sums and counts.
            assert_eq!(series.len(), 9 + 12 + 2 * (19 + 2), "{identity:?}");
        }
    }
    let labels = pmcd.labels(TX_BYTES);
    let shown = pmcd.shown(&["nixl.agent"]);
    for (instance, labels) in &labels {
        assert_eq!(labels["telemetry"], "store", "{instance}");
        let facts = facts(&shown, instance);
        for (fact, value) in [("mode", "store"), ("status", "live")] {
            assert_eq!(
                facts.get(fact).map(String::as_str),
                Some(value),
                "{instance}: {fact}"
            );
        }
        let path = &facts["path"];
        let of_pid = format!("/nixl.{}.", facts["pid"]);
        assert!(
            path.contains(&of_pid) && path.ends_with(".mmap"),
            "{instance}: {path}"
        );
    }
    assert_eq!(labels.len(), 12, "{labels:?}");
}

/// Number of drains that ran out of time before they had polled all stores.
fn truncated_drains(pmcd: &Pmcd) -> String {
    const METRIC: &str = "nixl.control.drain.truncated";
    let mut shown = pmcd.shown(&[METRIC]);
    let mut values = shown.remove(METRIC).expect("a metric").into_values();
    values.next().expect("a value")
}

#[test]
fn value_under_load_is_between_two_scrapes() {
    let _turn = turn();
    let home = Home::new();
    let stores = Stores::new(&home, "");
    let pmcd = Pmcd::start(&home);
    let mut processes = ["0", "1"].map(|rank| stores.process(&[("LOCAL_RANK", rank)]));
    for process in &mut processes {
        for prefix in ["kv", "weights"] {
            process.start(&format!("--prefix {prefix} --transfers 10 --keep"));
            process.done().expect("a running process");
        }
    }
    wait_until_known(&stores, &pmcd);
    agree(&stores, &pmcd, 8);
    // A machine that stalls during a whole load sees no value change. Then the load runs again.
    let (end, mut moved, mut skipped) = (Instant::now() + PATIENCE, 0, 0);
    while moved < 30 {
        assert!(
            Instant::now() < end,
            "{moved} values changed; {skipped} drains had no time for all stores"
        );
        for process in &mut processes {
            process.start(
                "--prefix kv --transfers 1500 --rate 1500 --size 4096 --memory-rounds 20 --keep",
            );
        }
        for _ in 0..3 {
            let truncated = truncated_drains(&pmcd);
            let before = stores.numbers();
            let shown = pmcd.numbers();
            let after = stores.numbers();
            // A drain that ran out of time leaves older values of some stores, and is counted as truncated.
            if truncated_drains(&pmcd) == truncated {
                moved += lies_between(&before, &shown, &after);
            } else {
                skipped += 1;
            }
        }
        for process in &mut processes {
            for did in process.done().expect("a running process") {
                assert_eq!(did["flushed"], true, "{did}");
            }
        }
    }
    agree(&stores, &pmcd, 8);
}

/// Four processes write into one directory. Their bounds: as many as NIXL allows, one, fractional ones, and NIXL's
/// defaults.
#[test]
fn agents_with_other_bounds_have_these_bounds_in_pcp() {
    let _turn = turn();
    let home = Home::new();
    let stores = Stores::new(&home, "");
    let most: Vec<String> = (1..=32).map(|bound| (bound * 7).to_string()).collect();
    let bounds = [
        most.join(","),
        "20".into(),
        "0.5,7.25,1000".into(),
        String::new(),
    ];
    let mut processes = Vec::new();
    for (bounds, prefix) in bounds.iter().zip(["most", "one", "parts", "default"]) {
        let mut process = stores.process(&[("NIXL_TELEMETRY_HISTOGRAM_BUCKETS_US", bounds)]);
        process.start(&format!("--prefix {prefix} --transfers 300 --keep"));
        let did = process.done().expect("a running process");
        let published = stores.numbers();
        did.iter()
            .for_each(|did| is_what_it_did(&published, did, ""));
        processes.push(process);
    }
    let pmcd = Pmcd::start(&home);
    wait_until_known(&stores, &pmcd);
    let published = agree(&stores, &pmcd, 8);
    for (prefix, ranges) in [("most", 33), ("one", 2), ("parts", 4), ("default", 19)] {
        let initiator = published
            .iter()
            .find(|(identity, _)| identity.name == format!("{prefix}-A"));
        let (_, series) = initiator.expect("published");
        let found = series
            .keys()
            .filter(|name| name.starts_with("agent_xfer_time_us "));
        assert_eq!(found.count(), ranges, "{prefix}");
    }
}

#[test]
fn endpoint_of_nixl_is_unchanged_by_pcp() {
    let _turn = turn();
    let home = Home::new();
    let stores = Stores::new(&home, "");
    let mut process = stores.process(&[("LOCAL_RANK", "0")]);
    let mut other = stores.process(&[("LOCAL_RANK", "1")]);
    for process in [&mut process, &mut other] {
        process.start("--prefix kv --transfers 100 --errors 1 --keep");
        process.done().expect("a running process");
    }
    let (text, files) = (stores.text(), stores.files());
    let unchanged = |when: &str| {
        assert_eq!(stores.text(), text, "{when}");
        assert_eq!(stores.files(), files, "{when}");
    };
    unchanged("without PCP");
    let pmcd = Pmcd::start(&home);
    wait_until_known(&stores, &pmcd);
    // 4 s have several liveness checks of the agents.
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        pmcd.numbers();
        unchanged("while PCP reads");
    }
    pmcd.stop();
    unchanged("after PCP");
}
