// SPDX-License-Identifier: GPL-2.0-or-later

//! Sensitivity of [`super::single_step`]: with the steps of a drain in any wrong order, it must find lost or doubled
//! events. Each patch in qa/ring/wrong_orders makes one wrong order in a copy of the sources.

use super::single_step::wrong;
use crate::support::drain::{Bench, Meanwhile};
use crate::support::share::text_of;
use crate::support::{project, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies the files that git tracks, with their present contents.
fn copy_sources(to: &Path) {
    let mut list = Command::new("git");
    let names = run(list.arg("ls-files").current_dir(project(".")));
    for name in names.lines() {
        let copy = to.join(name);
        fs::create_dir_all(copy.parent().expect("a directory")).expect("made");
        // git also lists files that were removed since.
        let _ = fs::copy(project(".").join(name), copy);
    }
}

fn patches() -> Vec<PathBuf> {
    let all = fs::read_dir(project("qa/ring/wrong_orders")).expect("there");
    let mut all: Vec<_> = all.map(|entry| entry.expect("listed").path()).collect();
    all.sort();
    assert!(all.len() >= 3, "{all:?}");
    all
}

/// Applies a patch of one hunk. Returns the name of its file, and the text of that file with the wrong order.
fn patched(patch: &Path) -> (String, String) {
    let text = fs::read_to_string(patch).expect("readable");
    let (head, hunk) = text.split_once("\n@@ ").expect("a hunk");
    let (_, name) = head.split_once("\n+++ b/").expect("a file");
    let lines_with = |mark: char| -> String {
        let lines = hunk.split_inclusive('\n').skip(1);
        let lines = lines.filter_map(|line| line.strip_prefix([' ', mark]));
        lines.collect()
    };
    let (before, after) = (lines_with('-'), lines_with('+'));
    assert_ne!(before, after, "{patch:?} changes nothing");
    let source = text_of(name);
    let found = source.matches(&before).count();
    assert_eq!(found, 1, "{patch:?} does not apply: adapt it to {name}");
    (name.to_owned(), source.replace(&before, &after))
}

#[test]
fn patches_of_wrong_orders_apply_to_the_sources() {
    for patch in patches() {
        patched(&patch);
    }
}

#[test]
#[ignore = "builds the sources several times"]
fn wrong_order_of_drain_steps_is_found() {
    for patch in patches() {
        let dir = tempfile::tempdir().expect("a directory");
        copy_sources(dir.path());
        let (name, text) = patched(&patch);
        fs::write(dir.path().join(name), text).expect("written");
        // A separate target directory for the patched sources, which all patches share for the dependencies.
        let target = project("target/wrong_orders");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "--example", "one_drain"]);
        build.arg("--target-dir").arg(&target).current_dir(&dir);
        run(&mut build);
        let program = target.join("debug/examples/one_drain");
        let (wrong, steps) = wrong(&mut Bench::new(&program, 5), Meanwhile::Nothing);
        println!("{patch:?}: {steps} instructions, {wrong:#?}");
        assert!(!wrong.is_empty(), "{patch:?} is not found");
    }
}
