// SPDX-License-Identifier: GPL-2.0-or-later

//! The counts of the sample producer equal the values of pmcd, for each layout, with restarts and full rings.

use crate::support::{Home, Pmcd, example, run};
use pmdanixl::metrics::ValueSource;
use std::process::Command;

/// Runs the producer, and compares every number of every agent. Returns how many events the producer lost.
fn agree(layout: &str, args: &[&str]) -> u64 {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let said = run(Command::new(example("producer"))
        .arg("--dir")
        .arg(home.rings())
        .args(["--layout", layout])
        .args(args)
        .args(["--full-timeout", "120"]));
    let agents: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|err| panic!("{err}: {line}")))
        .collect();
    assert!(!agents.is_empty());
    for metric in pmdanixl::metrics::METRICS
        .iter()
        .filter(|metric| matches!(metric.source, ValueSource::Event(_)))
    {
        let shown = pmcd.values(&format!("nixl.{}", metric.name));
        for agent in &agents {
            let name = agent["agent"].as_str().expect("a name");
            let expected = match metric.name.split_once('.') {
                Some(("errors", status)) => &agent["errors"][status],
                Some((_, counter)) => &agent[counter],
                None => panic!("{} has no group", metric.name),
            };
            assert_eq!(
                Some(shown[name]),
                expected.as_u64(),
                "{} of {agent}",
                metric.name
            );
        }
    }
    agents
        .iter()
        .map(|agent| agent["lost"].as_u64().expect("a count"))
        .sum()
}

#[test]
fn each_layout_with_restarts_in_place_is_exact() {
    for layout in ["v1", "v2named", "v2", "v3", "v4"] {
        let args = [
            "--agents",
            "2",
            "--transfers",
            "3000",
            "--rate",
            "0",
            "--capacity",
            "256",
            "--register",
            "4096",
            "--errors",
            "24",
            "--restart-every",
            "1000",
            "--vary",
        ];
        assert_eq!(
            agree(layout, &args),
            0,
            "{layout}: the producer waits if a ring is full"
        );
    }
}

#[test]
fn full_ring_that_drops_events_counts_all_others() {
    // Far more events at once than the ring has slots.
    let args = [
        "--transfers",
        "4000",
        "--rate",
        "4000",
        "--burst",
        "1000",
        "--capacity",
        "64",
        "--on-full",
        "drop",
    ];
    assert!(agree("v4", &args) > 10_000);
}
