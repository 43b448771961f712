// SPDX-License-Identifier: GPL-2.0-or-later

//! Renders files from the metric table. They are checked in, since Install needs them on hosts without a compiler.

use pmdanixl::metrics::{DOMAIN, INDOMS, METRICS, Metric, Semantics, Units, ValueType};
use std::fmt::Write;

const NOTE: &str = "Rendered from src/metrics.rs by `BLESS=1 cargo test`; not edited by hand.";

/// Domain number for Install and newhelp(1).
pub fn domain() -> String {
    format!("/* SPDX-License-Identifier: GPL-2.0-or-later */\n#define NIXL {DOMAIN}\n")
}

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

/// Help texts in the format of newhelp(1).
pub fn help() -> String {
    let indoms = INDOMS.map(|(serial, oneline, help)| (format!("NIXL.{serial}"), oneline, help));
    let name = |metric: &Metric| format!("nixl.{}", metric.name);
    let metrics = METRICS.iter().map(|row| (name(row), row.oneline, row.help));
    let mut text = format!("# {NOTE}\n");
    for (name, oneline, help) in indoms.into_iter().chain(metrics) {
        let entry = format!("{name}{oneline}{}\n", help.replace("\n ", "\n"));
        assert!(entry.len() <= 1000, "newhelp cuts off the help of {name}");
        let _ = write!(text, "\n@ {entry}");
    }
    text
}

/// Reference in docs/metrics.md: a table for each instance domain, then one for metrics with one value.
pub fn reference() -> String {
    let mut text = String::new();
    let indoms = INDOMS.map(|(serial, oneline, _)| (Some(serial), oneline));
    let host = (None, "one value for the host");
    for (serial, oneline) in indoms.into_iter().chain([host]) {
        let of = serial.map(|serial| format!("instance domain {DOMAIN}.{serial}:"));
        let title = of.unwrap_or_default() + oneline;
        let _ = write!(
            text,
            "\n### {title}\n\n| metric | PMID | type | semantics | units | |\n| --- | --- | --- | --- | --- | --- |\n"
        );
        for metric in METRICS.iter().filter(|metric| metric.indom() == serial) {
            let kind = match metric.value_type() {
                ValueType::U32 => "u32",
                ValueType::U64 => "u64",
                ValueType::F64 => "double",
                ValueType::Text => "string",
                ValueType::EventRecords => "event records",
            };
            let semantics = match metric.semantics {
                Semantics::Counter => "counter",
                Semantics::Instant => "instant",
                Semantics::Discrete => "discrete",
            };
            let units = match metric.units {
                Units::None => "",
                Units::Byte => "byte",
                Units::Count => "count",
                Units::Microsecond => "microsec",
                Units::Millisecond => "millisec",
                Units::Second => "sec",
                Units::BytePerSecond => "byte / sec",
            };
            let _ = writeln!(
                text,
                "| `nixl.{}` | {DOMAIN}.{}.{} | {kind} | {semantics} | {units} |{} |",
                metric.name, metric.cluster, metric.item, metric.oneline
            );
        }
    }
    text
}
