// SPDX-License-Identifier: GPL-2.0-or-later

//! `make bench`: the cost of the daemon for its users. It measures fetches through a real pmcd beside PCP's own PMDA in C,
//! memory, processor time, and the cost for an application.
//!
//! It writes docs/speed.md and its plot, and includes the results of `cargo bench --bench drain`, which runs before. `QUICK=1`
//! runs everything once and briefly as a smoke test, and writes to target/bench.

mod drain;
mod growth;
mod latency;
mod load;
mod processor;
mod push;
mod report;
#[path = "../rings.rs"]
mod rings;
mod stores;
#[path = "../../support/mod.rs"]
mod support;
mod transports;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use report::Plot;
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
    /// Duration that the environment selects.
    fn of<T>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }
}

fn main() {
    // Each ring that this program drains itself needs a descriptor.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to its own limit");
    let extent = match std::env::var_os("QUICK") {
        None => Extent::Full,
        Some(_) => Extent::Quick,
    };
    let mut plot = Plot::default();
    let mut tables = latency::measure(extent, &mut plot);
    tables.extend(load::measure(extent));
    tables.push(stores::measure(extent));
    tables.push(transports::measure(extent));
    tables.push(push::measure(extent));
    tables.extend(growth::measure(extent));
    tables.extend(drain::measure());
    report::write(extent, &tables, &plot);
}
