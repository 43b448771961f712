// SPDX-License-Identifier: GPL-2.0-or-later

//! Labels of histogram buckets, as pminfo shows them and as pmproxy exports them for Prometheus.

use super::{A_FEW, SECRET, own_labels, worker};
use crate::support::pmproxy::Pmproxy;
use crate::support::sample::Sample;
use crate::support::{Home, Pmcd, TX_BYTES, example, wait_for};
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;

#[test]
fn buckets_have_the_labels_of_their_agent_and_bounds() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let [one, _two] = ["one", "two"]
        .map(|name| Sample::start_as(worker(example("producer"), 1), &home.rings(), name, A_FEW));
    let all = [("one".to_owned(), 90_000), ("two".to_owned(), 90_000)];
    wait_for("both agents are counted", || {
        (pmcd.sent() == BTreeMap::from(all.clone())).then_some(())
    });
    // On a busy machine, an agent becomes an instance before they are read.
    wait_for("both agents have the labels of their process", || {
        let labels = pmcd.labels(TX_BYTES);
        let mut agents = labels.values();
        agents
            .all(|labels| labels.contains_key("slurm_job_id"))
            .then_some(())
    });
    for (metric, buckets, lowest, highest) in [
        ("nixl.latency.xfer_time.histogram", 19, "10", "10000000"),
        ("nixl.latency.post_time.histogram", 19, "10", "10000000"),
        ("nixl.operation.size.histogram", 13, "2048", "8589934592"),
        (
            "nixl.operation.bandwidth.histogram",
            21,
            "1000000",
            "524288000000",
        ),
    ] {
        assert_eq!(pmcd.count(metric), 2 * buckets, "{metric}");
        let labels = pmcd.labels(metric);
        assert_eq!(labels.len(), 2 * usize::try_from(buckets).expect("a few"));
        let of = pmcd.labels(TX_BYTES);
        for (instance, labels) in &labels {
            let (agent, range) = instance.split_once("::").expect("agent::low-high");
            let (lower, upper) = range.split_once('-').expect("low-high");
            let mut expected = own_labels(of[agent].clone());
            expected.insert("lower_bound".into(), lower.into());
            let upper = if upper == "inf" { "+Inf" } else { upper };
            expected.insert("upper_bound".into(), upper.into());
            assert_eq!(own_labels(labels.clone()), expected, "{metric} {instance}");
        }
        for edge in [format!("one::0-{lowest}"), format!("two::{highest}-inf")] {
            assert!(labels.contains_key(&edge), "{metric}: {edge}");
        }
        let counted: u64 = pmcd.values(metric).values().sum();
        assert_eq!(counted, 60, "{metric}: each transfer is in one bucket");
    }
    // The buckets of Prometheus are cumulative: the last one has all transfers.
    let labels = pmcd.labels("nixl.latency.xfer_time.bucket");
    for (instance, value) in pmcd.values("nixl.latency.xfer_time.bucket") {
        let (_, bound) = instance.split_once("::le-").expect("agent::le-high");
        let le = &labels[&instance]["le"];
        assert_eq!(le, if bound == "inf" { "+Inf" } else { bound });
        assert!(bound != "inf" || value == 30, "{instance}: {value}");
        assert!(!labels[&instance].contains_key("upper_bound"));
    }
    assert_eq!(labels.len(), 2 * 19);
    for metric in [
        TX_BYTES,
        "nixl.agent.state",
        "nixl.latency.xfer_time.p99",
        "nixl.operation.bandwidth.p10",
    ] {
        assert_eq!(pmcd.count(metric), 2, "{metric}");
    }
    drop(one);
}

#[test]
fn prometheus_scrape_has_labels_and_values_of_a_histogram() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut command = worker(example("producer"), 7);
    command.arg0("VLLM::Worker_TP7");
    let _agent = Sample::start_as(command, &home.rings(), "agent", A_FEW);
    wait_for("the transfers are counted", || {
        (pmcd.sent().get("agent") == Some(&90_000)).then_some(())
    });
    // pmproxy reads labels once. On a busy machine those of the process come after the agent.
    wait_for("the labels are known", || {
        let labels = pmcd.labels("nixl.operation.size.histogram");
        let is_known =
            |labels: &serde_json::Map<String, serde_json::Value>| labels.contains_key("engine");
        (!labels.is_empty() && labels.values().all(is_known)).then_some(())
    });
    let shown = pmcd.values("nixl.operation.size.histogram");
    let proxy = Pmproxy::start(&home, &pmcd);
    let scrape = wait_for("pmproxy answers", || {
        let body =
            proxy.get("/metrics?names=nixl.operation.size.histogram,nixl.transfer.tx_bytes")?;
        body.contains("nixl_operation_size_histogram{")
            .then_some(body)
    });
    let mut buckets = BTreeMap::new();
    for line in scrape
        .lines()
        .filter(|line| line.starts_with("nixl_operation_size_histogram{"))
    {
        for label in [
            "nixl_agent=\"agent\"",
            "engine=\"vllm\"",
            "local_rank=\"7\"",
            "slurm_job_id=\"4711\"",
            "telemetry=\"ring\"",
            "lower_bound=\"",
            "upper_bound=\"",
        ] {
            assert!(line.contains(label), "{label}: {line}");
        }
        let (_, name) = line.split_once("instname=\"").expect("its name");
        let (name, _) = name.split_once('"').expect("its end");
        let value = line
            .split("} ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let value: u64 = value.expect("a value").parse().expect("a number");
        buckets.insert(name.to_owned(), value);
    }
    assert_eq!(buckets, shown, "{scrape}");
    assert_eq!(buckets["agent::2048-8192"], 30);
    let bytes = scrape
        .lines()
        .find(|line| line.starts_with("nixl_transfer_tx_bytes{"));
    let bytes = bytes.expect("the counter");
    assert!(
        bytes.contains("engine=\"vllm\"") && bytes.contains("} 90000"),
        "{bytes}"
    );
    assert!(!scrape.contains(SECRET));
}
