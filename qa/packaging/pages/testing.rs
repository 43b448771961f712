// SPDX-License-Identifier: GPL-2.0-or-later

//! docs/testing.md names existing suites, modules and folders, marks modules with long tests, and is the only page with
//! times.

use crate::support::project;
use crate::support::share::{files_in, text_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Suites, and the modules that their mod.rs declare.
fn suites() -> BTreeMap<String, BTreeSet<String>> {
    let modules_of = |file: &str| -> BTreeSet<String> {
        let text = text_of(file);
        let lines = text.lines();
        let names = lines.filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        names.map(str::to_owned).collect()
    };
    let names = modules_of("qa/main.rs").into_iter();
    let names = names.filter(|name| name != "support");
    let with_modules = |suite: String| {
        let modules = modules_of(&format!("qa/{suite}/mod.rs"));
        (suite, modules)
    };
    names.map(with_modules).collect()
}

/// Modules with a long test, which has #[ignore].
fn long_modules() -> BTreeSet<String> {
    let suites = suites();
    let has_long = |suite: &str, module: &str| {
        let patterns = [".rs", "/**/*.rs"];
        let patterns = patterns.map(|end| format!("qa/{suite}/{module}{end}"));
        let files = patterns.iter().flat_map(|pattern| {
            let pattern = project(pattern).to_str().expect("UTF-8").to_owned();
            glob::glob(&pattern).expect("a pattern").flatten()
        });
        let mut texts = files.map(|file| fs::read_to_string(file).expect("readable"));
        texts.any(|text| text.contains("\n#[ignore = "))
    };
    let mut all = BTreeSet::new();
    for (suite, modules) in suites {
        all.extend({ modules.into_iter() }.filter(|module| has_long(&suite, module)));
    }
    all
}

/// Module as on the page: with a star if it has long tests.
fn marked(module: &str) -> String {
    let star = if long_modules().contains(module) {
        "*"
    } else {
        ""
    };
    format!("{module}{star}")
}

/// Cells of all rows of the tables below a heading.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let page = text_of("docs/testing.md");
    let (_, below) = page
        .split_once(&format!("\n## {heading}\n"))
        .expect(heading);
    let section = below.split("\n## ").next().unwrap_or(below);
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.map(|row| row.trim_end_matches(" |").split(" | "));
    cells
        .map(|cells| cells.map(str::to_owned).collect())
        .collect()
}

/// Words of a cell in code style.
fn code_in(cell: &str) -> Vec<Vec<&str>> {
    let pieces = cell.split('`').skip(1).step_by(2);
    pieces
        .map(|piece| piece.split_whitespace().collect())
        .collect()
}

#[test]
fn suites_are_listed_with_their_modules() {
    let mut listed = BTreeMap::new();
    for row in rows("Commands") {
        if let [suite, _, modules, _] = &row[..] {
            let modules = code_in(modules).concat();
            let modules: BTreeSet<String> = modules.into_iter().map(str::to_owned).collect();
            listed.insert(suite.trim_matches('`').to_owned(), modules);
        }
    }
    listed.retain(|suite, _| suite != "suite" && suite != "---");
    let expected: BTreeMap<_, BTreeSet<String>> = suites()
        .into_iter()
        .map(|(suite, modules)| (suite, modules.iter().map(|name| marked(name)).collect()))
        .collect();
    assert_eq!(listed, expected);
}

#[test]
fn times_of_make_targets_stand_only_in_the_commands_table() {
    let pages = [
        "README.md",
        "CONTRIBUTING.md",
        "Makefile",
        "docs/testing.md",
    ]
    .map(text_of);
    let lines = pages.iter().flat_map(|page| page.lines());
    let timed = lines.filter(|line| {
        line.contains("make ") && [" minute", " hour"].iter().any(|unit| line.contains(unit))
    });
    let (rows, others): (Vec<&str>, Vec<&str>) =
        timed.partition(|line| line.starts_with("| `make "));
    assert!(rows.len() > 8, "{rows:#?}");
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn promises_mark_modules_with_long_tests() {
    let modules: BTreeSet<String> = suites().into_values().flatten().collect();
    let mut count = 0;
    for row in rows("Promises and their proofs") {
        for words in code_in(&row[1]) {
            let bare = words.iter().map(|word| word.trim_end_matches('*'));
            // Other words in code style are commands.
            if !bare.clone().all(|name| modules.contains(name)) {
                continue;
            }
            for (word, name) in words.iter().zip(bare) {
                assert_eq!(*word, marked(name), "{row:?}");
                count += 1;
            }
        }
    }
    assert!(count > 30, "{count} modules");
}

#[test]
fn source_folders_have_rows_that_begin_with_unit_tests() {
    let suites = suites();
    let mut folders = BTreeSet::new();
    for row in rows("What to run for which folder") {
        let names = code_in(&row[1]);
        let first = names.first().cloned().unwrap_or_default();
        for path in code_in(&row[0]).concat() {
            let Some(folder) = path.strip_prefix("src/") else {
                continue;
            };
            assert!(project(path).exists(), "{path}");
            if !folder.contains('.') {
                assert!(first.contains(&folder), "{row:?}");
                folders.insert(folder.to_owned());
            }
        }
        for name in first.iter().flat_map(|name| name.split("::")) {
            let is_module = suites.values().any(|modules| modules.contains(name));
            let is_source = name == "lib" || project(&format!("src/{name}")).is_dir();
            let is_known = is_module || is_source || suites.contains_key(name);
            assert!(
                is_known || row[0].starts_with("folder") || name == "---",
                "{name}"
            );
        }
    }
    let all = files_in("src").into_iter();
    let all: BTreeSet<String> = all.filter(|name| !name.contains('.')).collect();
    assert_eq!(folders, all);
}
