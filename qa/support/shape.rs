// SPDX-License-Identifier: GPL-2.0-or-later

//! A PMDA in C as a reference for the cost of fetches: qa/bench/shape.c.

use super::{Home, project, run};
use std::path::PathBuf;
use std::process::Command;

/// Domain of the PMDA in C, which PCP has not assigned.
pub const DOMAIN: u32 = 253;
/// Number of clusters, and of items in each cluster.
const CLUSTERS: u32 = 4;
const ITEMS: u32 = 5;

/// Compiles the PMDA, once for each home.
pub fn program(home: &Home) -> PathBuf {
    let program = home.path("shape");
    if !program.exists() {
        run(Command::new("cc")
            .args(["-O2", "-o"])
            .arg(&program)
            .arg(project("qa/bench/shape.c"))
            .args(["-lpcp_pmda", "-lpcp"]));
    }
    program
}

/// PMIDs of all metrics.
pub fn pmids() -> Vec<u32> {
    let numbers = (0..CLUSTERS).flat_map(|cluster| (0..ITEMS).map(move |item| (cluster, item)));
    numbers
        .map(|(cluster, item)| DOMAIN << 22 | cluster << 10 | item)
        .collect()
}

/// Names of all metrics: `shape.m0` and so on.
pub fn names() -> Vec<String> {
    let count = pmids().len();
    (0..count)
        .map(|number| format!("shape.m{number}"))
        .collect()
}
