// SPDX-License-Identifier: GPL-2.0-or-later

//! Files for PCP and for readers, compared with the metric table.

mod help;
mod render;

use pmdanixl::metrics::{DOMAIN, INDOMS, METRICS, Semantics, Units, ValueType};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// Compares a checked-in file with what it should be; `BLESS=1` writes it.
fn agrees(file: &str, expected: &str) {
    let path = project(file);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, expected).expect("the project's directory can be written to");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "{file} is stale: run `BLESS=1 cargo test --test qa files_agree::`"
    );
}

#[test]
fn pmns_matches_the_metric_table() {
    agrees("pmns", &render::pmns());
}

#[test]
fn domain_h_has_the_domain_of_the_table() {
    let text = std::fs::read_to_string(project("domain.h")).expect("domain.h");
    let domain = text
        .lines()
        .find_map(|line| line.strip_prefix("#define NIXL "));
    assert_eq!(domain.map(str::trim), Some(DOMAIN.to_string().as_str()));
}

#[test]
fn manual_page_has_every_option() {
    let page = std::fs::read_to_string(project("pmdanixl.1")).expect("pmdanixl.1");
    let usage = pmdanixl::config::options::USAGE.split_whitespace();
    for name in usage.filter(|word| word.starts_with('-')) {
        // `\f3\-c\f1 \f2file\f1, \f3\-\-config\f1=\f2file\f1`: bold names, and a value in italics.
        let name = name.trim_end_matches(',').replace('-', "\\-");
        let name = match name.split_once('=') {
            Some((name, _)) => format!("\\f3{name}\\f1=\\f2"),
            None => format!("\\f3{name}\\f1"),
        };
        assert!(page.contains(&name), "pmdanixl.1 does not have {name}");
    }
}

#[test]
fn machine_code_check_finds_its_source_lines() {
    let script = project("qa/matrix/machine_code.py");
    crate::support::run(Command::new(script).current_dir(project(".")));
}

/// Reference in docs/metrics.md: a table for each instance domain, then one for metrics with one value.
fn reference() -> String {
    let mut text = String::new();
    let onelines: Vec<String> = help::entries()
        .into_iter()
        .map(|entry| entry.oneline)
        .collect();
    let (of_indoms, of_metrics) = onelines.split_at(INDOMS.len());
    let domains = INDOMS
        .into_iter()
        .map(Some)
        .zip(of_indoms.iter().map(String::as_str));
    for (serial, oneline) in domains.chain([(None, "one value for the host")]) {
        let of = serial.map_or(String::new(), |serial| {
            format!("instance domain {DOMAIN}.{serial}: ")
        });
        let _ = write!(
            text,
            "\n### {of}{oneline}\n\n| metric | PMID | type | semantics | units | |\n| --- | --- | --- | --- | --- | --- |\n"
        );
        let rows = METRICS.iter().zip(of_metrics);
        for (metric, oneline) in rows.filter(|(metric, _)| metric.indom() == serial) {
            let kind = match metric.value_type() {
                ValueType::U32 => "u32",
                ValueType::U64 => "u64",
                ValueType::F64 => "double",
                ValueType::Text => "string",
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
                "| `nixl.{}` | {DOMAIN}.{}.{} | {kind} | {semantics} | {units} | {oneline} |",
                metric.name, metric.cluster, metric.item
            );
        }
    }
    text
}

#[test]
fn metrics_md_ends_with_the_metrics_of_the_table() {
    const MARK: &str = "not edited by hand from here on. -->\n";
    let page = std::fs::read_to_string(project("docs/metrics.md")).expect("docs/metrics.md");
    let (by_hand, _) = page.split_once(MARK).expect(MARK);
    agrees(
        "docs/metrics.md",
        &format!("{by_hand}{MARK}{}", reference()),
    );
}

#[test]
fn nixl_conf_5_describes_every_key() {
    let page = std::fs::read_to_string(project("nixl.conf.5")).expect("nixl.conf.5");
    let conf = std::fs::read_to_string(project("nixl.conf")).expect("nixl.conf");
    // `#: key = value` for each key. The tests of the configuration compare these lines with the parsed values.
    let keys = conf
        .lines()
        .filter_map(|line| line.strip_prefix("#: ")?.split_once(" = "));
    let mut count = 0;
    for (key, _) in keys {
        let entry = format!("\n.TP\n.B {key}\n");
        assert!(page.contains(&entry), "nixl.conf.5 does not describe {key}");
        count += 1;
    }
    assert!(count > 10, "nixl.conf names {count} keys");
}
