// SPDX-License-Identifier: GPL-2.0-or-later

//! Events per second that the daemon drains from producers that push as fast as they can, and events that find a full
//! ring. The lines have the form of the kernel's `bench_ringbufs` (tools/testing/selftests/bpf).

use super::Extent;
use super::report::Table;
use super::runs::Runs;
use super::support::pdu::Link;
use super::support::sample::Sample;
use super::support::{Home, PMDANIXL, wait_for};
use serde_json::Value;
use std::process::Command;
use std::time::Duration;

/// Slots of each ring.
const CAPACITY: u64 = 1 << 16;

/// Millions of events per second.
struct Rates {
    /// Pushed, and drained then or, for the events in the rings at the end, just after.
    drained: f64,
    dropped: f64,
}

/// Table by number of producers.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "Producers that never pause",
        "producers | drained, M events/s | drops, M events/s | % of all events drained",
        format!(
            "Each producer is a process with a ring of {CAPACITY} slots, which pushes as fast as it can; an event that finds the ring full is a \
             drop. Means of several runs and their standard deviation. The daemon drains every 50 ms, so it gets at most \
             20 rings full in a second from each, and those of the last moment after it. Producers and daemon share the CPUs. Each event that was pushed was counted once: \
             the benchmark checks that."
        ),
    );
    for producers in extent.of(&[1, 2, 4, 8, 16, 32, 64][..], &[1, 4][..]) {
        let runs = (0..Runs::count(extent)).map(|_| run(extent, *producers));
        let (drained, dropped): (Vec<f64>, Vec<f64>) =
            runs.map(|rates| (rates.drained, rates.dropped)).unzip();
        let [drained, dropped] = [drained, dropped].map(|rates| Runs::from_iter(rates).deviation());
        println!(
            "  nr_prod {producers:<3} {:8.3} ± {:.3}M/s (drops {:.3} ± {:.3}M/s)",
            drained.0, drained.1, dropped.0, dropped.1
        );
        table.row([
            producers.to_string(),
            format!("**{:.3}** ± {:.3}", drained.0, drained.1),
            format!("{:.3} ± {:.3}", dropped.0, dropped.1),
            format!("{:.2}", 100.0 * drained.0 / (drained.0 + dropped.0)),
        ]);
    }
    table
}

fn run(extent: Extent, producers: usize) -> Rates {
    let home = Home::new();
    let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
    let options = format!("--rate 0 --on-full drop --capacity {CAPACITY}");
    let samples: Vec<Sample> = (0..producers)
        .map(|number| Sample::start(&home, &format!("agent-{number}"), &options))
        .collect();
    wait_for("all agents are shown", || {
        let shown = link.fetch(&["ring.events"]).expect("an answer");
        (shown[0].len() == producers).then_some(())
    });
    std::thread::sleep(Duration::from_millis(extent.of(2000, 200)));
    let truths: Vec<Value> = samples.into_iter().map(Sample::end).collect();
    let sum = |field: &str| -> f64 {
        truths
            .iter()
            .filter_map(|truth| truth[field].as_f64())
            .sum()
    };
    let (pushed, lost) = (sum("events"), sum("lost"));
    let seconds = sum("seconds") / producers as f64;
    wait_for("each pushed event is counted once", || {
        let counted = link.fetch(&["ring.events"]).expect("an answer");
        let counted = counted[0].values().sum::<u64>() as f64;
        assert!(counted <= pushed, "{counted} of {pushed} events");
        (counted == pushed).then_some(())
    });
    assert!(link.end().success());
    Rates {
        drained: pushed / seconds / 1e6,
        dropped: lost / seconds / 1e6,
    }
}
