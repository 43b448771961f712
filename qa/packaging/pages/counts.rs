// SPDX-License-Identifier: GPL-2.0-or-later

//! Numbers of rules, views and the like on the pages, and the groups of metrics in pmdanixl(1): they are those of the
//! files.

use super::pages;
use crate::support::share::{files_in, text_of};
use pmdanixl::metrics::METRICS;
use std::collections::BTreeSet;

/// Numbers in words, from three on: two may be two of many.
const WORDS: [&str; 14] = [
    "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen",
];

/// Number of lines of a file that begin like this, after blanks.
fn lines_of(file: &str, begin: &str) -> usize {
    let text = text_of(file);
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| line.starts_with(begin)).count()
}

#[test]
fn numbers_of_things_on_the_pages_are_those_of_the_files() {
    let dashboards = files_in("share/grafana").into_iter();
    let dashboards = dashboards.filter(|name| name.ends_with(".json")).count();
    // PCP's Python PMDA has the clusters 0 to 3.
    let tested = text_of("qa/nixl/venv");
    let (_, tested) = tested.split_once("\nversions=\"").expect("versions");
    let tested = tested.split('"').next().unwrap_or_default();
    let of_python = METRICS.iter().filter(|metric| metric.cluster < 4).count();
    let known = [
        ("rules", files_in("share/pmieconf/nixl").len()),
        (
            "alerts",
            lines_of("share/prometheus/nixl.rules.yml", "- alert: "),
        ),
        ("views", lines_of("share/pmrep/nixl.conf", "[nixl")),
        ("dashboards", dashboards),
        ("releases", tested.split_whitespace().count()),
        ("metrics", METRICS.len()),
        ("metrics", of_python),
    ];
    let (mut wrong, mut count) = (Vec::new(), 0);
    let manuals = ["pmdanixl.1", "nixl.conf.5", "share/pcp/pcp-nixl.1"];
    for page in pages().into_iter().chain(manuals.map(str::to_owned)) {
        let text = text_of(&page);
        // An older release had other numbers.
        let text = text.split("\n## 0.2.0").next().unwrap_or(&text);
        let words = text.split_whitespace();
        let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
        let words = Vec::from_iter(words);
        for pair in words.windows(2) {
            let [number, noun] = [0, 1].map(|at| pair[at].to_lowercase());
            let noun = noun.split("](").next().unwrap_or(&noun);
            let in_words = WORDS.iter().position(|word| *word == number);
            let number = in_words.map(|at| at + 3).or(number.parse().ok());
            let Some(number) = number.filter(|&number| number > 2) else {
                continue;
            };
            let mut of_noun = known.iter().filter(|(known, _)| *known == noun).peekable();
            if of_noun.peek().is_some() {
                count += 1;
                if !of_noun.any(|&(_, known)| known == number) {
                    wrong.push(format!("{page}: {number} {noun}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(count > 4, "{count} numbers");
}

#[test]
fn manual_page_has_every_group_of_metrics() {
    let page = text_of("pmdanixl.1");
    let (_, section) = page.split_once("\n.SH METRICS\n").expect("METRICS");
    let section = section.split("\n.SH ").next().unwrap_or(section);
    let listed = section.split(|c: char| !c.is_ascii_lowercase() && c != '.');
    let listed: BTreeSet<&str> = listed.collect();
    for metric in METRICS.iter() {
        let group = metric.name.split('.').next().unwrap_or_default();
        assert!(
            listed.contains(&*format!("nixl.{group}")),
            "pmdanixl.1, METRICS, does not have nixl.{group}"
        );
    }
}
