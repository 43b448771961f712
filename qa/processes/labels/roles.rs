// SPDX-License-Identifier: GPL-2.0-or-later

//! Histograms of the host by role, with a real pmcd, servers with roles, and a restart of the daemon.

use crate::support::kill::kill_process;
use crate::support::titled::Titled;
use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, Pmcd, TX_BYTES, output, text, wait_for};
use nix::unistd::Uid;
use std::collections::BTreeMap;

/// Parts of the names of the metrics after `nixl.` and `nixl.host.`.
const TIMES: [&str; 2] = ["latency.xfer_time.bucket", "latency.post_time.bucket"];

/// Starts a server of vLLM with this role. Its workers have rings of these names and have made so many transfers.
fn server(home: &Home, role: &str, rings: &[(&str, u64)]) -> Titled {
    let transfer = format!(r#"{{"kv_connector": "NixlConnector", "kv_role": "{role}"}}"#);
    let arguments = ["serve", "m", "--kv-transfer-config", &transfer];
    let paths = rings.iter().map(|&(name, transfers)| {
        let mut ring = RingWriter::create(&home.ring(name), Layout::V4, 256).expect("a ring");
        push(&mut ring, transfers);
        home.ring(name)
    });
    let (paths, uid) = (Vec::from_iter(paths), Uid::current().as_raw());
    Titled::start(&home.path("."), &arguments, &[], &paths, uid)
}

/// Makes transfers that take 7 us, 14 us, 28 us and so on.
fn push(ring: &mut RingWriter, transfers: u64) {
    for number in 0..transfers {
        assert_eq!(ring.push_transfer(false, 4096, 7 << number, 3), 4);
    }
}

/// Values of both histograms by role, and the sums of those of the agents, from one fetch.
fn by_role_and_sums(pmcd: &Pmcd) -> [BTreeMap<String, u64>; 2] {
    let agents = pmcd.labels(TX_BYTES);
    let names = TIMES.map(|name| [format!("nixl.host.{name}"), format!("nixl.{name}")]);
    let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    let shown = pmcd.shown(&names);
    let (mut by_role, mut sums) = (BTreeMap::new(), BTreeMap::new());
    for name in TIMES {
        for (instance, value) in &shown[&format!("nixl.host.{name}")] {
            by_role.insert(
                format!("{name} {instance}"),
                value.parse().expect("a number"),
            );
        }
        for (instance, value) in &shown[&format!("nixl.{name}")] {
            let (agent, bound) = instance.split_once("::").expect("agent::le-high");
            let role = agents[agent].get("role").and_then(|role| role.as_str());
            let sum = format!("{name} {}::{bound}", role.unwrap_or("unknown"));
            let value: u64 = value.parse().expect("a number");
            *sums.entry(sum).or_default() += value;
        }
    }
    [by_role, sums]
}

#[test]
fn histograms_by_role_are_sums_over_agents() {
    let home = Home::new();
    let mut plain = home.new_ring("plain", 256);
    push(&mut plain, 2);
    let servers = [
        server(&home, "kv_producer", &[("prefill-0", 5), ("prefill-1", 9)]),
        server(&home, "kv_consumer", &[("decode-0", 20)]),
    ];
    let pmcd = Pmcd::start(&home);
    let wait_for_roles = || {
        wait_for("the roles are known", || {
            let labels = pmcd.labels(TX_BYTES);
            let roles = labels.values().filter(|labels| labels.contains_key("role"));
            (labels.len() == 4 && roles.count() == 3).then_some(())
        });
    };
    wait_for_roles();
    let [by_role, sums] = by_role_and_sums(&pmcd);
    assert_eq!(by_role, sums);
    assert_eq!(by_role.len(), 2 * 3 * 19, "no server can do both");
    let up_to = |by_role: &BTreeMap<String, u64>, role: &str, bound: &str| {
        by_role[&format!("latency.xfer_time.bucket {role}::le-{bound}")]
    };
    let expected = [("prefill", 2, 14), ("decode", 1, 20), ("unknown", 1, 2)];
    for (role, least, all) in expected {
        assert_eq!(up_to(&by_role, role, "10"), least, "{role}");
        assert_eq!(up_to(&by_role, role, "inf"), all, "{role}");
    }
    for (instance, labels) in pmcd.labels("nixl.host.latency.xfer_time.bucket") {
        let (role, bound) = instance.split_once("::le-").expect("role::le-high");
        assert_eq!(labels["role"], role);
        let le = if bound == "inf" { "+Inf" } else { bound };
        assert_eq!(labels["le"], le, "{instance}");
    }
    // What came before a restart of the daemon is in the totals of the agents only.
    kill_process(pmcd.pmda_pid());
    wait_for("pmcd has started it again", || {
        let answer = output(pmcd.tool("pminfo").args(["-f", "nixl.control.version"]));
        text(&answer).contains("value ").then_some(())
    });
    wait_for_roles();
    let [by_role, sums] = by_role_and_sums(&pmcd);
    assert!(by_role.keys().eq(sums.keys()), "{by_role:?}");
    assert!(by_role.values().all(|&value| value == 0), "{by_role:?}");
    assert_eq!(up_to(&sums, "decode", "inf"), 20);
    push(&mut plain, 3);
    let [by_role, _] = by_role_and_sums(&pmcd);
    let expected = [("prefill", 0), ("decode", 0), ("unknown", 3)];
    for (role, all) in expected {
        assert_eq!(up_to(&by_role, role, "inf"), all, "{role}");
    }
    // Other bounds have other instances, which begin at zero.
    pmcd.configure(&home, "histogram_buckets_us = [10, 30]");
    push(&mut plain, 2);
    let [by_role, _] = by_role_and_sums(&pmcd);
    let bounds = ["le-10", "le-30", "le-inf"].map(|bound| format!("unknown::{bound}"));
    let of_unknown = by_role.iter().filter_map(|(name, &value)| {
        let (_, instance) = name.split_once("latency.xfer_time.bucket ")?;
        let is_unknown = instance.starts_with("unknown");
        is_unknown.then(|| (instance.to_owned(), value))
    });
    let expected = bounds.into_iter().zip([1, 2, 2]);
    assert_eq!(BTreeMap::from_iter(of_unknown), expected.collect());
    drop(servers);
}
