// SPDX-License-Identifier: GPL-2.0-or-later

//! `make bench`: the cost of the daemon for its users. It measures fetches through a real pmcd beside PCP's own PMDA in
//! C, memory, CPU time, and the cost for an application.
//!
//! It writes docs/speed.md and its plot. `QUICK=1` runs everything briefly as a smoke test, and writes to target/bench.
//! `ONLY="load push"` prints these parts and writes nothing.

mod drain;
mod growth;
mod latency;
mod load;
mod pauses;
mod processor;
mod push;
mod report;
#[path = "../rings.rs"]
mod rings;
mod runs;
mod stores;
#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../../support/mod.rs"]
mod support;
mod throughput;
mod transports;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use report::Plot;
use std::process::ExitCode;
use support::writer;

/// Duration of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Long enough for stable results.
    Full,
    /// A smoke test.
    Quick,
}

impl Extent {
    /// The value for this extent.
    fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

/// Parts of the benchmark, in the order of the page.
const PARTS: &str = "latency pauses load throughput stores transports push growth drain";

fn main() -> ExitCode {
    // Each ring that this program drains itself needs a descriptor.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to its own limit");
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let extent = match set("QUICK") {
        None => Extent::Full,
        Some(_) => Extent::Quick,
    };
    let only = set("ONLY");
    let parts = only.as_deref().unwrap_or(PARTS);
    let mut plot = Plot::default();
    let mut tables = Vec::new();
    for part in parts.split_whitespace() {
        match part {
            "latency" => tables.extend(latency::measure(extent, &mut plot)),
            "pauses" => tables.push(pauses::measure(extent)),
            "load" => tables.extend(load::measure(extent)),
            "throughput" => tables.push(throughput::measure(extent)),
            "stores" => tables.push(stores::measure(extent)),
            "transports" => tables.push(transports::measure(extent)),
            "push" => tables.push(push::measure(extent)),
            "growth" => tables.extend(growth::measure(extent)),
            "drain" => tables.push(drain::measure(extent)),
            unknown => {
                eprintln!("ONLY={unknown}: the parts are {PARTS}");
                return ExitCode::FAILURE;
            }
        }
    }
    if only.is_none() {
        report::write(extent, &tables, &plot);
    }
    ExitCode::SUCCESS
}
