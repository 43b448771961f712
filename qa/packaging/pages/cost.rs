// SPDX-License-Identifier: GPL-2.0-or-later

//! README's line and table of costs have the figures of docs/speed.md. `make bench` writes both; `BLESS=1` writes
//! README's. Tables of sizes in docs/fleet.md and docs/recipes.md are those that qa/sizing.py computes.

use crate::support::share::text_of;
use crate::support::{agrees, project, run};
use std::process::Command;

/// Begin of README's line.
const LINE: &str = "**Cost:** ";
/// Begin of README's table.
const HEADER: &str = "| what | figure |\n| --- | --- |\n";

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// A figure of docs/speed.md without its range: in the table of a section, in the row that begins with these cells.
fn figure(section: &str, row: &[&str], column: &str) -> f64 {
    let page = text_of("docs/speed.md");
    let (_, rest) = page
        .split_once(&format!("\n## {section}\n"))
        .unwrap_or_else(|| panic!("docs/speed.md has no section {section}"));
    let section_text = rest.split("\n## ").next().unwrap_or(rest);
    let mut lines = section_text.lines().filter(|line| line.starts_with('|'));
    let header = cells(lines.next().expect("a table"));
    let at = header.iter().position(|name| *name == column);
    let at = at.unwrap_or_else(|| panic!("{section} has no column {column}"));
    let found = lines.map(cells).find(|cells| cells.starts_with(row));
    let cell = found.unwrap_or_else(|| panic!("{section} has no row {row:?}"))[at];
    let first = cell.split(' ').next().unwrap_or(cell).trim_matches('*');
    first
        .parse()
        .unwrap_or_else(|_| panic!("{section}, {row:?}, {column}: {cell}"))
}

/// README with its costs as docs/speed.md has them.
fn with_costs(page: &str) -> String {
    let memory = |agents| figure("Memory", &[agents], "KiB") / 1024.0;
    let fetch = |agents| figure("Fetches through pmcd", &["20 metrics", agents], "p50 ms");
    let busy = ["64", "40000"];
    let load = figure("CPU, under load", &busy, "% of a CPU");
    let limit = figure("CPU, under load", &busy, "at most");
    let idle = figure("CPU, idle", &["1000"], "% of a CPU");
    let (few, many) = (memory("64"), memory("1000"));
    let line = format!(
        "{LINE}{load:.1} % of a CPU and {few:.1} MiB for 64 agents with 40,000 events a second each ([more](#cost))."
    );
    let table = format!(
        "{HEADER}\
         | CPU, 1,000 agents without events | {idle:.1} % of one |\n\
         | CPU, 64 agents with 40,000 events a second each | {load:.1} % of one; our own limit is {limit:.0} % |\n\
         | memory, 64 agents; 1,000 | {few:.1} MiB; {many:.0} MiB |\n\
         | a fetch of the 20 metrics through pmcd, 64 agents; 1,000 | {:.2} ms; {:.1} ms |",
        fetch("64"),
        fetch("1000"),
    );
    [(LINE, line), (HEADER, table)]
        .into_iter()
        .fold(page.to_owned(), |page, (begin, text)| {
            let (before, rest) = page.split_once(begin).expect("README has its costs");
            let (_, after) = rest.split_once("\n\n").expect("a paragraph follows");
            format!("{before}{text}\n\n{after}")
        })
}

#[test]
fn costs_in_readme_are_those_of_the_last_measurement() {
    agrees("README.md", &with_costs(&text_of("README.md")));
}

#[test]
fn computed_tables_follow_from_the_measured_ones() {
    run(Command::new("/usr/bin/python3")
        .arg(project("qa/sizing.py"))
        .arg("--check"));
}
