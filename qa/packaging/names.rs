// SPDX-License-Identifier: GPL-2.0-or-later

//! CHANGELOG.md is short. Names of metrics that version 0.3.0 replaced are there, and in no other file.

use crate::support::project;
use crate::support::share::text_of;
use pmdanixl::metrics::METRICS;
use std::process::Command;

/// Rows of qa/against/renamed: the old name, and the new one or `-`.
fn renamed() -> Vec<(String, String)> {
    let text = text_of("qa/against/renamed");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| line.split_once(' ').expect("two names"));
    rows.map(|(old, new)| (old.into(), new.into())).collect()
}

#[test]
fn renamed_metrics_exist_under_their_new_names_only() {
    let exists = |name: &str| {
        let name = name.trim_start_matches("nixl.");
        METRICS.iter().any(|metric| metric.name == name)
    };
    for (old, new) in renamed() {
        assert!(!exists(&old), "{old}");
        assert!(new == "-" || exists(&new), "{new}");
    }
}

#[test]
fn old_names_are_in_no_file() {
    // A word of a name, in the form of PCP or of Prometheus, that is not a part of a longer one.
    let names = renamed()
        .into_iter()
        .map(|(old, _)| old.replace('.', "[._]"));
    let pattern = format!(r"(?<![\w.])({})(?!\w)", names.collect::<Vec<_>>().join("|"));
    let mut grep = Command::new("grep");
    grep.args(["-rnIP", &pattern, "--exclude=CHANGELOG.md"]);
    let excluded = ["target", ".git", "node_modules", "against"];
    grep.args(excluded.map(|name| format!("--exclude-dir={name}")));
    let out = grep.arg(project("")).output().expect("grep");
    let found = String::from_utf8_lossy(&out.stdout);
    assert_eq!(
        out.status.code(),
        Some(1),
        "{found}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn changelog_has_the_table_of_renamed_metrics() {
    let changelog = text_of("CHANGELOG.md");
    for (old, new) in renamed() {
        let row = match &*new {
            "-" => format!("| `{old}` | |"),
            new => format!("| `{old}` | `{new}` |"),
        };
        assert!(changelog.lines().any(|line| line == row), "{row}");
    }
}

#[test]
fn changelog_has_fifteen_lines_for_a_release_with_what_breaks_first() {
    let changelog = text_of("CHANGELOG.md");
    let releases: Vec<&str> = changelog.split("\n## 0.").skip(1).collect();
    for release in &releases {
        let release = release.split("\n## ").next().unwrap_or(release);
        let (title, text) = release.split_once('\n').expect("lines");
        let lines = text.lines().filter(|line| !line.is_empty());
        assert!(lines.clone().count() <= 2 + 15, "0.{title}");
        let first = lines.clone().next().unwrap_or_default();
        // The first release has nothing to break.
        assert!(
            title.starts_with("1.0") || first == "Breaking:",
            "0.{title}"
        );
    }
    assert!(releases.len() >= 3);
}
