// SPDX-License-Identifier: GPL-2.0-or-later

//! Stats of an agent and values of the daemon for events of real NIXL, compared with qa/figures.py, which computes them
//! independently.
//!
//! The streams in qa/streams were recorded from real rings (qa/nixl/capture). The tests use them whole, and reduced as
//! by a full ring, an allow-list or an unknown NIXL.

mod daemon;

use crate::support::kit::stats::Stats;
use crate::support::kit::store_writer::{POST_TIME, RX_BYTES, TX_BYTES, XFER_TIME};
use crate::support::{Nixl, run};
use pmdanixl::event::EventType;
use pmdanixl::stats::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Type and value of an event, as in a ring.
type Wire = (usize, u64);

fn qa(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("qa").join(name)
}

/// Events of a recorded stream.
fn stream(version: &str) -> Vec<Wire> {
    let text = fs::read_to_string(qa(&format!("streams/nixl-{version}.txt"))).expect("recorded");
    let event = |line: &str| {
        let (kind, value) = line.split_once(' ')?;
        Some((kind.parse().ok()?, value.parse().ok()?))
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| event(line).expect(line))
        .collect()
}

/// Results of qa/figures.py for events.
fn figures(events: &[Wire]) -> Value {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let lines = events.iter().map(|(kind, value)| format!("{kind} {value}"));
    let lines = lines.collect::<Vec<_>>().join("\n");
    fs::write(&file, lines).expect("written");
    let output = Command::new("python3")
        .arg(qa("figures.py"))
        .arg(file.path())
        .output()
        .expect("python3 runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Asserts that a value is within 5 % of the exact one, or that both are missing.
fn assert_near(what: &str, actual: Option<f64>, exact: &Value) {
    match (actual, exact.as_f64()) {
        (Some(actual), Some(exact)) => {
            assert!(
                (actual - exact).abs() <= 0.05 * exact,
                "{what}: {actual} for {exact}"
            );
        }
        (actual, exact) => assert_eq!(actual, exact, "{what}"),
    }
}

/// Asserts that all stats are exactly equal.
fn agree(events: &[Wire]) -> Value {
    let expected = figures(events);
    let stats = Stats::of(events);
    let sums = expected["totals"].as_object().expect("by name");
    assert_eq!(sums.len(), EventType::COUNT);
    for (event, name) in EventType::ALL.into_iter().zip(NAMES) {
        assert_eq!(json!(stats.total(event)), sums[name], "{name}");
    }
    assert_eq!(json!(stats.events()), expected["events"]);
    assert_eq!(json!(stats.unknown()), expected["unknown"]);
    assert_eq!(json!(stats.errors()), expected["errors"]["total"]);
    assert_eq!(json!(stats.unpaired()), expected["unpaired"]);
    assert_eq!(json!(stats.paired()), expected["paired"]);
    for (of, figures) in histograms(&expected) {
        let expected = figures["buckets"].as_array().expect("a list");
        let actual = (0..expected.len()).map(|bucket| stats.bucket(of, bucket));
        assert_eq!(json!(actual.collect::<Vec<_>>()), json!(expected), "{of:?}");
    }
    for (name, of) in [
        ("xfer_time", Histogram::XferTime),
        ("post_time", Histogram::PostTime),
    ] {
        let figures = &expected["latency"][name];
        for percent in [50, 90, 99] {
            let exact = &figures[format!("p{percent}")];
            assert_near(name, stats.percentile(of, percent), exact);
        }
        assert_eq!(json!(stats.longest(of)), figures["max"]);
    }
    for percent in [10, 50, 90] {
        let exact = &expected["bandwidth"][format!("p{percent}")];
        let actual = stats.percentile(Histogram::Bandwidth, percent);
        assert_near("bandwidth", actual, exact);
    }
    expected
}

/// Histograms, and their values in the output of qa/figures.py.
fn histograms(figures: &Value) -> [(Histogram, &Value); 4] {
    [
        (Histogram::XferTime, &figures["latency"]["xfer_time"]),
        (Histogram::PostTime, &figures["latency"]["post_time"]),
        (Histogram::Size, &figures["size"]),
        (Histogram::Bandwidth, &figures["bandwidth"]),
    ]
}

/// Names of the event types in qa/figures.py, by type number.
const NAMES: [&str; EventType::COUNT] = [
    "tx_bytes",
    "rx_bytes",
    "tx_requests",
    "rx_requests",
    "registered",
    "deregistered",
    "xfer_time",
    "post_time",
    "not_posted",
    "invalid_param",
    "backend",
    "not_found",
    "mismatch",
    "not_allowed",
    "repost_active",
    "unknown",
    "not_supported",
    "remote_disconnect",
    "canceled",
    "no_telemetry",
    "dropped",
];

/// Checks the stream of one version.
fn whole(version: &str) {
    let expected = agree(&stream(version));
    assert_eq!(expected["unpaired"], 0, "{version}");
    assert_eq!(expected["paired"], 1040, "{version}");
    assert_eq!(expected["errors"]["total"], 17, "{version}");
}

/// Times in microseconds with a Pareto distribution: a few are far longer than the others.
fn heavy_tailed(count: usize, seed: u64) -> Vec<u64> {
    let mut state = seed;
    let mut next = || {
        // Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005);
        state = state.wrapping_add(1_442_695_040_888_963_407);
        let least = 900_u64 << state.leading_zeros().min(30);
        least + (state >> 16) % least
    };
    (0..count).map(|_| next()).collect()
}

/// Percentiles of lists of values, computed with numpy.
fn numpy(lists: &[Vec<u64>], percents: &[u64]) -> Vec<Vec<f64>> {
    const PROGRAM: &str = "import json, numpy, sys\n\
        lists, percents = json.load(open(sys.argv[1]))\n\
        print(json.dumps([list(numpy.percentile(values, percents)) for values in lists]))";
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(&file, json!([lists, percents]).to_string()).expect("written");
    let python = Nixl::new("1.5.1", file.path()).python();
    let said = run(Command::new(python).args(["-c", PROGRAM]).arg(file.path()));
    serde_json::from_str(&said).expect("JSON")
}

#[test]
fn percentiles_of_heavy_tailed_times_match_numpy() {
    const PERCENTS: [u64; 4] = [10, 50, 90, 99];
    let mut lists = vec![
        // Sixteen transfers. Two are slow, far apart from each other and from the others.
        [vec![1000; 14], vec![900_000, 7_500_000]].concat(),
    ];
    for count in [1, 2, 5, 16, 100, 10_000] {
        lists.extend((1..=20).map(|seed| heavy_tailed(count, seed)));
    }
    let exact = numpy(&lists, &PERCENTS);
    assert_eq!(exact.len(), lists.len());
    for (values, exact) in lists.iter().zip(exact) {
        let events: Vec<_> = values.iter().map(|&value| (XFER_TIME, value)).collect();
        let stats = Stats::of(&events);
        for (percent, exact) in PERCENTS.into_iter().zip(exact) {
            let actual = stats.percentile(Histogram::XferTime, percent);
            let what = format!("p{percent} of {} values", values.len());
            assert_near(&what, actual, &json!(exact));
        }
    }
}

/// qa/figures.py is the reference of the other tests.
#[test]
fn percentiles_of_figures_py_match_numpy() {
    let lists = [1, 2, 5, 16, 100].map(|count| heavy_tailed(count, 7));
    for (values, exact) in lists.iter().zip(numpy(&lists, &[50, 90, 99])) {
        let events: Vec<_> = values.iter().map(|&value| (XFER_TIME, value)).collect();
        let plain = &figures(&events)["latency"]["xfer_time"];
        for (name, exact) in ["p50", "p90", "p99"].into_iter().zip(exact) {
            let actual = plain[name].as_f64().expect("a number");
            assert!(
                (actual - exact).abs() <= 1e-9 * exact,
                "{name}: {actual} for {exact}"
            );
        }
    }
}

#[test]
fn stats_of_the_nixl_1_2_0_stream_match_figures_py() {
    whole("1.2.0");
}

#[test]
fn stats_of_the_nixl_1_5_1_stream_match_figures_py() {
    whole("1.5.1");
}

#[test]
fn stats_of_a_ring_that_lost_events_match_figures_py() {
    for every in [2, 3, 7, 50] {
        let mut events = stream("1.5.1");
        let mut number = 0;
        events.retain(|_| {
            number += 1;
            number % every != 0
        });
        assert_ne!(agree(&events)["unpaired"], 0);
    }
}

#[test]
fn stats_without_one_event_type_are_not_guessed() {
    for version in ["1.2.0", "1.5.1"] {
        let all = stream(version);
        let kinds: BTreeSet<_> = all.iter().map(|&(kind, _)| kind).collect();
        assert!(
            [TX_BYTES, RX_BYTES, XFER_TIME, POST_TIME]
                .iter()
                .all(|kind| kinds.contains(kind))
        );
        for hidden in kinds {
            let mut events = all.clone();
            events.retain(|&(kind, _)| kind != hidden);
            let expected = agree(&events);
            let halves = if [TX_BYTES, RX_BYTES, XFER_TIME].contains(&hidden) {
                all.len() - events.len()
            } else {
                0
            };
            // Each transfer has both halves, or one unpaired half.
            assert_eq!(expected["unpaired"], halves, "{version} {hidden}");
            assert_eq!(expected["paired"], 1040 - halves, "{version} {hidden}");
        }
    }
    agree(&[]);
}

#[test]
fn stats_with_unknown_events_match_figures_py() {
    let mut events = stream("1.5.1");
    for at in (0..events.len()).step_by(11) {
        events.insert(at, (21 + at % 90, 1 << 50));
    }
    let expected = agree(&events);
    assert_ne!(expected["unknown"], 0);
    assert_ne!(expected["unpaired"], 0);
}
