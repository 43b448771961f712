// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of a daemon that drains the recorded streams from a real ring, compared with qa/figures.py.

use super::{assert_near, figures, histograms, stream};
use crate::support::kill::kill_process;
use crate::support::pdu::Link;
use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, wait_for};
use serde_json::json;

/// Metrics with exactly equal values, and their keys in the output of qa/figures.py.
const EXACT: [(&str, &str); 17] = [
    ("transfer.tx_bytes", "/totals/tx_bytes"),
    ("transfer.rx_bytes", "/totals/rx_bytes"),
    ("transfer.tx_requests", "/totals/tx_requests"),
    ("transfer.rx_requests", "/totals/rx_requests"),
    ("memory.registered", "/totals/registered"),
    ("memory.deregistered", "/totals/deregistered"),
    ("performance.xfer_time_us", "/totals/xfer_time"),
    ("performance.xfer_post_time_us", "/totals/post_time"),
    ("errors.not_found", "/totals/not_found"),
    ("errors.total", "/errors/total"),
    ("ring.events", "/events"),
    ("ring.unknown", "/unknown"),
    ("ring.unpaired", "/unpaired"),
    ("host.transfer.tx_bytes", "/totals/tx_bytes"),
    ("host.transfer.rx_bytes", "/totals/rx_bytes"),
    ("host.errors.not_found", "/totals/not_found"),
    ("host.performance.xfer_time_us", "/totals/xfer_time"),
];

const NEAR: [(&str, &str); 8] = [
    ("latency.xfer_time.p50", "/latency/xfer_time/p50"),
    ("latency.xfer_time.p90", "/latency/xfer_time/p90"),
    ("latency.xfer_time.p99", "/latency/xfer_time/p99"),
    ("latency.post_time.p50", "/latency/post_time/p50"),
    ("latency.post_time.p90", "/latency/post_time/p90"),
    ("latency.post_time.p99", "/latency/post_time/p99"),
    ("operation.bandwidth.p10", "/bandwidth/p10"),
    ("operation.bandwidth.p50", "/bandwidth/p50"),
];

/// Metrics of the buckets, in the order of [`histograms`].
const BUCKETS: [&str; 4] = [
    "latency.xfer_time.histogram",
    "latency.post_time.histogram",
    "operation.size.histogram",
    "operation.bandwidth.histogram",
];

/// Compares the values of the daemon for one recorded stream.
fn through_the_daemon(version: &str, layout: Layout) {
    let events = stream(version);
    let expected = figures(&events);
    let home = Home::new();
    home.set("");
    // The ring is never full: a lost event would leave an unpaired half.
    let mut ring = RingWriter::create(&home.ring("agent"), layout, 8192).expect("a ring");
    let mut link = Link::open(&home);
    for &(kind, value) in &events {
        let kind = u32::try_from(kind).expect("small");
        assert!(ring.push_raw(kind, value), "the ring has room for all");
    }
    let count = expected["events"].as_u64().expect("a number");
    wait_for("all are counted", || {
        let values = link.fetch(&["ring.events"]).expect("an answer").remove(0);
        (values.into_values().sum::<u64>() == count).then_some(())
    });
    let mut value = |name: &str| {
        let values = link.fetch(&[name]).expect("an answer").remove(0);
        assert!(values.len() <= 1, "{name}: {values:?}");
        values.into_values().next()
    };
    for (name, place) in EXACT {
        let exact = expected.pointer(place).expect(place);
        assert_eq!(json!(value(name)), *exact, "{name}");
    }
    for (name, place) in NEAR {
        let actual = value(name).map(f64::from_bits);
        assert_near(name, actual, expected.pointer(place).expect(place));
    }
    for (name, of) in ["xfer_time", "post_time"].map(|name| (name, &expected["latency"][name])) {
        let actual = value(&format!("latency.{name}.max")).map(f64::from_bits);
        assert_eq!(actual, of["max"].as_f64(), "{name}");
    }
    let actual = actual(&mut link, &BUCKETS);
    for ((name, actual), (_, figures)) in BUCKETS.into_iter().zip(actual).zip(histograms(&expected))
    {
        assert_eq!(json!(actual), figures["buckets"], "{name}");
    }
    assert!(link.end().success());
}

/// Values of the daemon for its only agent, or for the host.
fn actual(link: &mut Link, names: &[&str]) -> Vec<Vec<u64>> {
    let actual = link.fetch(names).expect("an answer").into_iter();
    actual
        .map(|values| values.into_values().collect())
        .collect()
}

#[test]
fn repeatedly_killed_daemon_matches_all_but_percentiles() {
    let events = stream("1.5.1");
    let expected = figures(&events);
    let home = Home::new();
    home.set("");
    let mut ring = home.new_ring("agent", 8192);
    let mut link = Link::open(&home);
    // The restarts are also between the events of a transfer.
    let part = events.len() / 6 + 1;
    let mut count = 0;
    for part in events.chunks(part) {
        for &(kind, value) in part {
            assert!(ring.push_raw(u32::try_from(kind).expect("small"), value));
        }
        count += part.len() as u64;
        wait_for("all are counted", || {
            (actual(&mut link, &["ring.events"])[0].iter().sum::<u64>() == count).then_some(())
        });
        kill_process(link.pid());
        link = Link::open(&home);
    }
    for (name, place) in EXACT {
        let exact = expected.pointer(place).expect(place);
        wait_for("the restarted daemon answers", || {
            let actual = actual(&mut link, &[name]).remove(0);
            (!actual.is_empty()).then(|| assert_eq!(json!(actual), json!([exact]), "{name}"))
        });
    }
    let actual = actual(&mut link, &BUCKETS);
    for ((name, actual), (_, figures)) in BUCKETS.into_iter().zip(actual).zip(histograms(&expected))
    {
        assert_eq!(json!(actual), figures["buckets"], "{name}");
    }
    assert!(link.end().success());
}

#[test]
fn daemon_values_of_nixl_1_5_1_match_figures_py() {
    through_the_daemon("1.5.1", Layout::V4);
}

#[test]
fn daemon_values_of_nixl_1_2_0_match_figures_py() {
    through_the_daemon("1.2.0", Layout::V2);
}
