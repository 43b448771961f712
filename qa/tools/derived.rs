// SPDX-License-Identifier: GPL-2.0-or-later

//! Derived metrics of share/derived, computed by PCP's tools from archives of a private pmcd.

mod pairing;

use crate::support::share::archive;
use crate::support::show::Shown;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, Pmcd, golden, project, run, wait_for};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

const FILE: &str = "share/derived/nixl.conf";
/// Name of the agent.
const AGENT: &str = "worker";
/// Slots of the ring: more than a recorded stream has events.
const SLOTS: u64 = 8192;

/// A pmcd with tools that load the definitions.
fn pmcd(home: &Home) -> Pmcd {
    let pmcd = Pmcd::start(home);
    let place = pmcd.path("var/config/derived");
    std::fs::create_dir(&place).expect("made");
    std::os::unix::fs::symlink(project(FILE), place.join("nixl.conf")).expect("made");
    pmcd
}

fn ring(home: &Home, pmcd: &Pmcd) -> RingWriter {
    let ring = home.new_ring(AGENT, SLOTS);
    wait_for("the agent is found", || pmcd.sent().get(AGENT).copied());
    ring
}

/// Samples of all numeric metrics. Their times are a few seconds apart, whenever they were taken.
struct Archive<'a> {
    pmcd: &'a Pmcd,
    path: PathBuf,
    samples: Vec<Shown>,
}

/// Time between two samples.
const SECONDS: u32 = 3;

impl<'a> Archive<'a> {
    /// Takes the first sample.
    fn begin(home: &Home, pmcd: &'a Pmcd, ring: &RingWriter) -> Self {
        let mut archive = Self {
            pmcd,
            path: home.path("archive"),
            samples: Vec::new(),
        };
        archive.sample(ring);
        archive
    }

    /// Takes a sample when the ring is empty.
    fn sample(&mut self, ring: &RingWriter) {
        wait_for("all is counted", || (ring.pending() == 0).then_some(()));
        self.samples.push(self.pmcd.shown(&["nixl"]));
    }

    /// Table for qa/archive.py.
    fn table(&self) -> String {
        let mut rows = BTreeSet::new();
        for (metric, values) in self.samples.iter().flatten() {
            let is_number = |value: &String| value.parse::<f64>().is_ok();
            // Not the processes that other tests run.
            let is_ours = |instance: &String| !instance.contains(' ');
            let values = values.iter().filter(|(_, value)| is_number(value));
            let values = values.filter(|(instance, _)| is_ours(instance));
            rows.extend(values.map(|(instance, _)| (metric, instance)));
        }
        let mut table = String::new();
        for (metric, instance) in rows {
            let shown = if instance.is_empty() { "-" } else { instance };
            let values = self.samples.iter().map(|sample| {
                let value = sample.get(metric).and_then(|values| values.get(instance));
                value.map_or("-", String::as_str)
            });
            let values: Vec<_> = values.collect();
            table += &format!("{metric} {shown} {}\n", values.join(" "));
        }
        // An agent without peers and without a process lacks some metrics, and pmrep rejects all derived metrics if the
        // archive lacks an input of one.
        let ones = vec!["1"; self.samples.len()].join(" ");
        for row in [
            "latency.xfer_time.peer_ratio another",
            "agent.tcp_share another",
            "agent.peer.tcp.agent_share another::10.0.0.1",
            "agent.peer.tcp.tx_bytes another::10.0.0.1",
            "agent.peer.tcp.rx_bytes another::10.0.0.1",
            "process.agents 1",
            "process.tcp_share 1",
            "process.tcp.tx_bytes 1",
            "process.tcp.rx_bytes 1",
        ] {
            table += &format!("nixl.{row} {ones}\n");
        }
        table
    }

    /// Derived metrics of the agent for each interval, by the end of their names.
    fn intervals(self) -> Vec<BTreeMap<String, f64>> {
        archive(&self.path, SECONDS, &self.table());
        let mut pmrep = self.pmcd.tool("pmrep");
        // Only the records of the archive, without interpolation.
        pmrep.arg("-a").arg(&self.path).args([
            "-u",
            "-p",
            "-f",
            "%s.%f",
            "-o",
            "csv",
            "-P",
            "9",
            "nixl_derived",
        ]);
        let shown = run(&mut pmrep);
        let mut lines = shown.lines().map(|line| line.split(','));
        let header: Vec<&str> = lines.next().expect("a header").collect();
        let rows = lines.map(|line| {
            let cells = header.iter().zip(line).skip(1);
            let values = cells.filter_map(|(name, value)| {
                let name = name.trim_matches('"').strip_prefix("nixl_derived.")?;
                let name = name.strip_suffix(AGENT)?.strip_suffix('-')?;
                Some((name.to_owned(), value.parse().ok()?))
            });
            values.collect()
        });
        rows.skip(1).collect()
    }
}

fn within(share: f64, name: &str, found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= share * expected.abs(),
        "{name}: {found} for {expected}"
    );
}

#[test]
fn every_definition_is_accepted_and_has_help() {
    let home = Home::new();
    let pmcd = pmcd(&home);
    let shown = run(pmcd.tool("pminfo").args(["-dtT", "nixl_derived"]));
    golden("derived_dtT.out", &shown);
    let text = std::fs::read_to_string(project(FILE)).expect("there");
    let names = text.lines().filter_map(|line| line.split_once(" = "));
    let defined =
        names.filter(|(name, _)| name.starts_with("nixl_derived.") && !name.contains('('));
    let defined: Vec<&str> = defined.map(|(name, _)| name).collect();
    assert!(defined.len() >= 14, "{defined:?}");
    for name in defined {
        assert!(shown.contains(&format!("\n{name} [")), "{name}\n{shown}");
    }
}

#[test]
fn definitions_without_nixl_metrics_cause_no_message() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    // The definitions with metrics that this pmcd does not have.
    let text = std::fs::read_to_string(project(FILE)).expect("there");
    let other = home.path("other.conf");
    std::fs::write(&other, text.replace("nixl", "nixm")).expect("written");
    let mut pminfo = pmcd.tool("pminfo");
    pminfo.env("PCP_DERIVED_CONFIG", other);
    let shown = run(pminfo.args(["-f", "pmcd.numagents"]));
    assert_eq!(shown.trim().lines().count(), 2, "{shown}");
}

#[test]
fn derived_values_of_an_interval_match_its_events() {
    let home = Home::new();
    let pmcd = pmcd(&home);
    let mut ring = ring(&home, &pmcd);
    // Events before the first sample: only the 90th percentiles include them.
    ring.push_transfer(false, 1 << 30, 1000, 100);
    let mut archive = Archive::begin(&home, &pmcd, &ring);
    for _ in 0..3 {
        assert_eq!(ring.push_transfer(false, 1 << 20, 1000, 100), 4);
    }
    assert_eq!(ring.push_transfer(true, 5 << 20, 3000, 300), 4);
    assert!(ring.push(Kind::Backend, 1));
    archive.sample(&ring);
    archive.sample(&ring);
    assert_eq!(ring.push_transfer(true, 1 << 20, 0, 0), 4);
    archive.sample(&ring);
    let intervals = archive.intervals();
    let (seconds, figures) = (f64::from(SECONDS), &intervals[0]);
    for (name, expected) in [
        ("mean.xfer_time", 1500.0),
        ("mean.post_time", 150.0),
        ("mean.size", 2_097_152.0),
        ("errors.ratio", 0.2),
        ("wire.tx", 3_145_728.0 / seconds),
        ("wire.rx", 5_242_880.0 / seconds),
        ("transfer.throughput", 8_388_608.0 / 0.006),
        ("inflight", 0.006 / seconds),
        ("vllm.transfers", 4.0),
        ("vllm.avg_xfer_time", 1.5),
        ("vllm.avg_post_time", 0.15),
        ("vllm.avg_size", 2.0),
        ("vllm.throughput", 8.0 / 0.006),
    ] {
        // Tolerance for the printed digits of values and times.
        within(1e-5, name, figures[name], expected);
    }
    // numpy.percentile([1, 1, 1, 1, 3], 90)
    within(0.05, "P90", figures["vllm.p90_xfer_time"], 2.2);
    within(0.05, "P90", figures["vllm.p90_post_time"], 0.22);
    for (name, figure) in &intervals[1] {
        if name != "peers.silence" {
            assert_eq!(*figure > 0.0, name.contains("p90"), "{name}: {figure}");
        }
    }
    // A transfer of 0 us has a size and no throughput.
    let figures = &intervals[2];
    assert!((figures["vllm.avg_size"] - 1.0).abs() < 1e-6);
    assert_eq!(figures["transfer.throughput"].to_bits(), 0);
    assert_eq!(figures["vllm.throughput"].to_bits(), 0);
}

#[test]
fn example_in_metrics_md_sums_buckets() {
    let page = std::fs::read_to_string(project("docs/metrics.md")).expect("there");
    let mut lines = page.lines();
    let example = lines.find(|line| line.starts_with("my.within_25us = "));
    let example = example.expect("the example");
    let home = Home::new();
    let definition = home.path("my.conf");
    std::fs::write(&definition, format!("{example}\n")).expect("written");
    let pmcd = Pmcd::start(&home);
    let mut ring = ring(&home, &pmcd);
    for time in [0, 10, 11, 25, 26, 1000, u64::MAX] {
        assert_eq!(ring.push_transfer(true, 1, time, 0), 4);
    }
    let mut pminfo = pmcd.tool("pminfo");
    pminfo.env("PCP_DERIVED_CONFIG", definition);
    let shown = run(pminfo.args(["-f", "my.within_25us"]));
    assert!(shown.trim().ends_with("value 4"), "{shown}");
}

#[test]
fn seven_vllm_values_match_a_recorded_stream() {
    let stream = project("qa/streams/nixl-1.5.1.txt");
    let figures = run(Command::new("python3")
        .arg(project("qa/figures.py"))
        .arg(&stream));
    let expected: Value = serde_json::from_str(&figures).expect("JSON");
    let expected = expected["vllm"].as_object().expect("by name");
    let home = Home::new();
    let pmcd = pmcd(&home);
    let mut ring = ring(&home, &pmcd);
    let mut archive = Archive::begin(&home, &pmcd, &ring);
    let text = std::fs::read_to_string(&stream).expect("recorded");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (kind, value) = line.split_once(' ').expect(line);
        let (kind, value) = (kind.parse().expect(line), value.parse().expect(line));
        assert!(ring.push_raw(kind, value), "{line}");
    }
    archive.sample(&ring);
    let values = &archive.intervals()[0];
    let names = [
        ("transfers", "Num successful transfers", 0.0),
        ("avg_xfer_time", "Avg xfer time (ms)", 1e-6),
        ("p90_xfer_time", "P90 xfer time (ms)", 0.05),
        ("avg_post_time", "Avg post time (ms)", 1e-6),
        ("p90_post_time", "P90 post time (ms)", 0.05),
        ("avg_size", "Avg MB per transfer", 1e-6),
        ("throughput", "Throughput (MB/s)", 1e-6),
    ];
    assert_eq!(expected.len(), names.len());
    for (ours, theirs, share) in names {
        let expected = expected[theirs].as_f64().expect("a number");
        assert!(expected > 0.0, "{theirs}");
        within(share, theirs, values[&format!("vllm.{ours}")], expected);
    }
}
