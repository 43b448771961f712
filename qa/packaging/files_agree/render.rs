// SPDX-License-Identifier: GPL-2.0-or-later

//! Renders `pmns` from the metric table. It is checked in, since Install needs it on hosts without a compiler.

use pmdanixl::metrics::METRICS;
use std::fmt::Write;

const NOTE: &str = "Rendered from src/metrics.rs by `BLESS=1 cargo test`; not edited by hand.";

/// Name space in the format of pmns(5). A subtree is at the place of its first metric in the table.
pub fn pmns() -> String {
    let names = METRICS.iter().map(|metric| format!("nixl.{}", metric.name));
    let names = Vec::from_iter(names);
    let mut subtrees: Vec<&str> = Vec::new();
    for name in &names {
        for (at, _) in name.match_indices('.') {
            if !subtrees.contains(&&name[..at]) {
                subtrees.push(&name[..at]);
            }
        }
    }
    let mut text = format!("/* {NOTE} */\n");
    for subtree in subtrees {
        let mut entries: Vec<String> = Vec::new();
        for (name, metric) in names.iter().zip(METRICS.iter()) {
            let rest = name.strip_prefix(subtree);
            let Some(rest) = rest.and_then(|rest| rest.strip_prefix('.')) else {
                continue;
            };
            let entry = match rest.split_once('.') {
                Some((part, _)) => part.to_owned(),
                None => format!("{rest:<24}NIXL:{}:{}", metric.cluster, metric.item),
            };
            if !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        let _ = writeln!(text, "\n{subtree} {{\n    {}\n}}", entries.join("\n    "));
    }
    text
}

#[test]
fn subtree_is_named_in_its_parent_and_written_once() {
    let pmns = pmns();
    assert!(pmns.contains("\nnixl {\n    transfer\n    memory\n    performance\n    errors\n    agent\n    ring\n    last\n    latency\n    size\n    bandwidth\n    process\n    peer\n    host\n    agents\n    control\n}\n"));
    assert!(pmns.contains("\nnixl.control.cut {\n    drains                  NIXL:40:23\n}\n"));
    assert_eq!(pmns.matches("nixl.control {").count(), 1);
}
