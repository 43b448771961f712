// SPDX-License-Identifier: GPL-2.0-or-later

//! Cost of an agent with a store, compared with an agent with a ring.

use super::latency::LAST_OLD_CLUSTER;
use super::report::Table;
use super::runs::Runs;
use super::support::kit::store_writer::{StoreWriter, TX_BYTES, TX_REQUESTS, Who, XFER_TIME};
use super::support::measure::Use;
use super::support::pdu::Link;
use super::support::writer::{Layout, RingWriter};
use super::support::{Home, PMDANIXL, wait_for};
use super::{Extent, processor};
use pmdanixl::metrics::METRICS;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const AGENTS: usize = 1000;
/// Interval of the changes of a busy agent: that of NIXL's flushes.
const FLUSH: Duration = Duration::from_millis(100);

/// Agents of one kind, all in this process.
enum Kind {
    Rings(Vec<RingWriter>),
    Stores(Vec<StoreWriter>),
}

impl Kind {
    /// Writes a transfer for each agent.
    fn transfer(&mut self) {
        match self {
            Self::Rings(rings) => rings.iter_mut().for_each(|ring| {
                ring.push_transfer(false, 4096, 120, 20);
            }),
            Self::Stores(stores) => stores.iter().for_each(|store| {
                store.count(TX_BYTES, 4096);
                store.count(TX_REQUESTS, 1);
                store.add(XFER_TIME, 120);
            }),
        }
    }
}

/// Cost: percent of a CPU while idle and while busy, milliseconds of a fetch, and KiB.
fn costs(extent: Extent, stores: bool) -> [Runs; 4] {
    let runs = Runs::count(extent);
    let home = Home::new();
    let place = home.path("stores");
    fs::create_dir(&place).expect("made");
    home.set(&format!("multiproc_dir = {place:?}"));
    let name = |number| format!("agent-{number}");
    let mut kind = match stores {
        false => Kind::Rings(
            (0..AGENTS)
                .map(|number| {
                    RingWriter::create(&home.ring(name(number)), Layout::V4, 64).expect("a ring")
                })
                .collect(),
        ),
        true => Kind::Stores(
            (0..AGENTS)
                .map(|number| StoreWriter::create(&place, &Who::named(name(number))).expect("one"))
                .collect(),
        ),
    };
    kind.transfer();
    let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
    wait_for("all agents are shown", || {
        let shown = link.fetch(&["transfer.tx_bytes"]).expect("an answer");
        (shown[0].values().filter(|&&bytes| bytes > 0).count() == AGENTS).then_some(())
    });
    let pid = link.pid();
    let ended = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                kind.transfer();
                std::thread::sleep(FLUSH);
            }
        });
        let share = processor::share(pid, runs, Duration::from_secs(extent.of(20, 1)));
        ended.store(true, Ordering::Relaxed);
        share
    });
    // Until a process scan has searched the writers of silent files.
    std::thread::sleep(Duration::from_secs(extent.of(75, 2)));
    let idle = processor::share(pid, runs, Duration::from_secs(extent.of(120, 1)));
    let names = METRICS
        .iter()
        .filter(|metric| metric.cluster <= LAST_OLD_CLUSTER);
    let names: Vec<&str> = names.map(|metric| metric.name).collect();
    let fetch = Runs::of(runs, || {
        let fetches = Runs::of(extent.of(20, 3), || {
            let began = Instant::now();
            link.fetch(&names).expect("an answer");
            began.elapsed().as_secs_f64() * 1e3
        });
        fetches.median()
    });
    let memory = Runs::of(1, || {
        Use::of_process(pid, Path::new("/nowhere")).memory as f64
    });
    assert!(link.end().success());
    [idle, busy, fetch, memory]
}

/// Table of stores and rings.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "Stores beside rings",
        "1,000 agents | stores / rings | at most | stores | rings",
        "Agents with a store of prometheus_mp, and as many with a ring, one after the other. Busy ones have a transfer each every \
         100 ms. The fetch is of the 20 metrics, without pmcd.",
    );
    let (rings, stores) = (costs(extent, false), costs(extent, true));
    let what = [
        "idle, % of a CPU",
        "busy, % of a CPU",
        "a fetch, ms",
        "memory of its own, KiB",
    ];
    for ((what, store), ring) in what.into_iter().zip(stores).zip(rings) {
        table.row([
            what.to_owned(),
            format!("**{:.2}**", store.median() / ring.median()),
            "1.00".into(),
            store.shown(2),
            ring.shown(2),
        ]);
    }
    table
}
