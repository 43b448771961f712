// SPDX-License-Identifier: GPL-2.0-or-later

//! Pairs that left different states once.

use super::host::Step;
use super::{Keys, compare};
use crate::support::writer::Layout;

/// With all places taken by others, an empty ring of an exited process was found first at a start, and its agent kept a
/// record when it was evicted. At a reload there was no place for it.
#[test]
fn empty_ring_of_an_exited_process_takes_only_a_place_that_is_left() {
    let keys = ["max_capacity = 16", "max_agents = 4"].map(|line| {
        let lines = [
            r#"multiproc_dir = "HOME/stores""#,
            r#"retain = "0s""#,
            r#"idle_after = "1s""#,
            "proc_facts = true",
            r#"telemetry_dir = ["HOME/three", { path = "HOME/pods/*", label = "pods" }]"#,
            line,
        ];
        Keys::from(lines.map(str::to_owned))
    });
    let history = [
        Step::Ring(2, 2, Layout::V4, 32),
        Step::Exit(2),
        Step::Ring(1, 2, Layout::V4, 8),
        Step::Ring(0, 0, Layout::V4, 8),
        Step::Ring(0, 1, Layout::V4, 8),
        Step::Store(0, 0),
        Step::Transfer(1),
    ];
    assert!(matches!(compare(&keys, &history, false), Ok(Some(()))));
}
