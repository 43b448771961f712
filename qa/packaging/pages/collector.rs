// SPDX-License-Identifier: GPL-2.0-or-later

//! The configuration of a Collector in docs/opentelemetry.md, which no test can run: it has the sections that a
//! Collector knows, and its pipelines name entries of these.

use super::blocks;
use std::collections::BTreeMap;

#[test]
fn collector_pipelines_name_entries_of_known_sections() {
    let [configuration] = &blocks("docs/opentelemetry.md", "yaml")[..] else {
        panic!("one configuration");
    };
    let mut entries: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut section = "";
    for line in configuration.lines() {
        let name = line.trim_start().split(':').next().unwrap_or_default();
        match line.len() - line.trim_start().len() {
            0 => section = name,
            2 => entries.entry(section).or_default().push(name),
            _ => {}
        }
    }
    let sections: Vec<&str> = entries.keys().copied().collect();
    assert_eq!(
        sections,
        ["exporters", "processors", "receivers", "service"]
    );
    let (_, pipelines) = configuration.split_once("  pipelines:\n").expect("they");
    let mut count = 0;
    for line in pipelines.lines() {
        let Some((section, names)) = line.split_once(": [") else {
            continue;
        };
        for name in names.trim_end_matches(']').split(", ") {
            assert!(entries[section.trim()].contains(&name), "{line}");
            count += 1;
        }
    }
    assert_eq!(count, 4);
}
