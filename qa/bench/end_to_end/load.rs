// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon under load: NIXL's highest rate, unrelated files beside the rings, and rare clients.

use super::report::Table;
use super::runs::Runs;
use super::support::pdu::Link;
use super::support::sample::Sample;
use super::support::{Home, PMDANIXL, wait_for};
use super::{Extent, processor};
use serde_json::Value;
use std::fs::File;
use std::process::Command;
use std::time::Duration;

/// Transfers per second of an agent with 40,000 events per second: as many as a ring of NIXL's default size has room
/// for in each flush interval.
const HIGHEST: u32 = 10_000;
const EVENTS_PER_TRANSFER: u32 = 4;
/// Default slots of NIXL's rings.
const CAPACITY: u32 = 4096;

/// Tables of load, unrelated files and rare fetches.
pub fn measure(extent: Extent) -> Vec<Table> {
    vec![busy(extent), unrelated(extent), captured(extent)]
}

fn daemon(home: &Home) -> Link {
    Link::start(home, Command::new(PMDANIXL)).expect("it starts")
}

/// Sum over all instances, or the value of a metric without instances.
fn sum(link: &mut Link, metric: &str) -> u64 {
    let values = link.fetch(&[metric]).expect("an answer").remove(0);
    values.values().sum()
}

fn busy(extent: Extent) -> Table {
    let mut table = Table::new(
        "CPU, under load",
        "agents | events/s each, wanted | events/s in all, drained | % of a CPU | at most | ns per event",
        "Transfers of 4 KiB to 64 MiB, written every 100 ms as NIXL does, by the sample producer; what that takes is not in it.",
    );
    let time = extent.of(Duration::from_secs(20), Duration::from_secs(2));
    for (agents, rate) in [(1, HIGHEST), (64, 100), (64, HIGHEST)] {
        let home = Home::new();
        let options =
            format!("--agents {agents} --rate {rate} --vary --capacity 16384 --on-full drop");
        let sample = Sample::start(&home, "agent", &options);
        let mut link = daemon(&home);
        wait_for("all agents are shown", || {
            let shown = link.fetch(&["ring.events"]).expect("an answer");
            (shown[0].len() == agents).then_some(())
        });
        let before = sum(&mut link, "ring.events");
        let share = processor::share(link.pid(), Runs::count(extent), time);
        let events = sum(&mut link, "ring.events") - before;
        let rate_seen = events as f64 / time.as_secs_f64();
        table.row([
            agents.to_string(),
            (rate * EVENTS_PER_TRANSFER).to_string(),
            format!("{rate_seen:.0}"),
            share.bold(2),
            match (agents, rate) {
                (64, HIGHEST) => "3.00".into(),
                _ => "-".into(),
            },
            format!("{:.0}", share.median() / 100.0 / rate_seen * 1e9),
        ]);
        sample.kill();
        assert!(link.end().success());
    }
    table
}

fn unrelated(extent: Extent) -> Table {
    let files = extent.of(100_000, 10_000);
    let time = extent.of(Duration::from_secs(20), Duration::from_secs(2));
    let mut table = Table::new(
        "Unrelated files beside the rings",
        "files | ms to look at all, once | us per file | % of a CPU afterwards",
        "The time is CPU time (nixl.control.cpu_time) until all were looked at. Afterwards their names are read every 10 seconds, in case the directory's times do not tell.",
    );
    for files in [0, files] {
        let home = Home::new();
        for file in 0..files {
            File::create(home.ring(format!("junk-{file}"))).expect("room");
        }
        let mut link = daemon(&home);
        wait_for("all were looked at", || {
            (sum(&mut link, "control.files.rejections") >= files).then_some(())
        });
        let spent = sum(&mut link, "control.cpu_time");
        let share = processor::share(link.pid(), Runs::count(extent), time);
        table.row([
            files.to_string(),
            format!("{:.1}", spent as f64 / 1e3),
            match files {
                0 => "-".into(),
                _ => format!("{:.1}", spent as f64 / files as f64),
            },
            share.shown(2),
        ]);
        assert!(link.end().success());
    }
    table
}

fn captured(extent: Extent) -> Table {
    let interval = extent.of(Duration::from_secs(60), Duration::from_secs(3));
    let fetches = 2;
    let mut table = Table::new(
        "Events that are captured by rare fetches",
        "seconds between fetches | events that a reader could get | beyond those | captured by pmdanixl, % | at most by a reader that \
         only reads at fetches, %",
        format!(
            "One agent, {} events/s, a ring of NIXL's own size ({CAPACITY}). If the machine delays the producer, it \
             then writes more events at once than an empty ring holds. No reader can get all of these. What a reader without a timer gets is \
             computed: {} events for each fetch.",
            HIGHEST * EVENTS_PER_TRANSFER,
            CAPACITY - 1
        ),
    );
    let home = Home::new();
    let mut link = daemon(&home);
    let options = format!("--rate {HIGHEST} --capacity {CAPACITY} --on-full drop");
    let sample = Sample::start(&home, "agent", &options);
    for _ in 1..fetches {
        std::thread::sleep(interval);
        sum(&mut link, "ring.events");
    }
    std::thread::sleep(interval);
    let truth = sample.end();
    let of = |field: &str| truth.get(field).and_then(Value::as_u64).expect("a number");
    let (pushed, lost, excess) = (of("events"), of("lost"), of("excess"));
    // Pending events are drained before the answer.
    let counted = sum(&mut link, "ring.events");
    assert!(counted <= pushed, "{counted} of {truth}");
    let all = (pushed + lost - excess) as f64;
    table.row([
        interval.as_secs().to_string(),
        (pushed + lost - excess).to_string(),
        excess.to_string(),
        format!("**{:.2}**", 100.0 * counted as f64 / all),
        format!("{:.2}", 100.0 * f64::from(fetches * (CAPACITY - 1)) / all),
    ]);
    assert!(link.end().success());
    table
}
