// SPDX-License-Identifier: GPL-2.0-or-later

//! Growth of the cost of a drain with agents and events, in this process, through files and into a state file.

use super::Extent;
use super::report::Table;
use super::rings::{Host, Layout};
use super::runs::Runs;
use std::time::Instant;

/// Slots of each ring.
const CAPACITY: u64 = 1 << 12;

/// Tables of agents and of events.
pub fn measure(extent: Extent) -> [Table; 2] {
    [agents(extent), events(extent)]
}

fn agents(extent: Extent) -> Table {
    let mut table = Table::new(
        "Growth with agents",
        "agents | ns per agent, nothing to drain | ns per agent, 63 events each",
        "One drain of all; medians of many. Its clock stands still, so that liveness of agents is not checked. The \
         exponents are those from 100 agents on.",
    );
    let sizes = extent.of(&[1, 10, 100, 1000, 10_000][..], &[1, 10, 100, 1000][..]);
    let mut points = [Vec::new(), Vec::new()];
    for &agents in sizes {
        let mut host = Host::new(Layout::V4, 64, agents);
        let runs = Runs::count(extent);
        let rounds = (extent.of(200_000, 20_000) / agents + 11).div_ceil(runs);
        let mut cost = |is_busy| {
            Runs::of(runs, || {
                Runs::of(rounds, || drain(&mut host, is_busy)).median() / agents as f64
            })
        };
        let (idle, busy) = (cost(false), cost(true));
        for (points, cost) in points.iter_mut().zip([&idle, &busy]) {
            if agents >= 100 {
                points.push((agents as f64, cost.median() * agents as f64));
            }
        }
        table.row([agents.to_string(), idle.shown(0), busy.shown(0)]);
    }
    let [idle, busy] = points.map(|points| exponent(&points));
    table.row(["**exponent**".into(), idle, busy]);
    table
}

fn events(extent: Extent) -> Table {
    let mut table = Table::new(
        "Growth with events",
        "events | ns per event",
        format!(
            "Of one agent, in drains of {} events each; all figures.",
            CAPACITY - 1
        ),
    );
    let mut host = Host::new(Layout::V4, CAPACITY, 1);
    let mut points = Vec::new();
    for power in 3..=extent.of(8, 6) {
        let events = 10_u64.pow(power);
        // Short drains are repeated.
        let repeats = usize::try_from(2_000_000 / events)
            .expect("small")
            .clamp(1, 200);
        let mut measure = || {
            let mut spent = 0.0;
            let mut left = events;
            while left > 0 {
                let some = left.min(CAPACITY - 1);
                host.push(some);
                let start = Instant::now();
                // A batch may not end at the end of the ring: its last event waits for the next drain.
                let mut drained = 0;
                while drained < some {
                    drained += host.drain();
                }
                spent += start.elapsed().as_nanos() as f64;
                left -= some;
            }
            spent / events as f64
        };
        let cost = Runs::of(Runs::count(extent), || {
            Runs::of(repeats, &mut measure).median()
        });
        points.push((events as f64, cost.median() * events as f64));
        table.row([format!("10^{power}"), cost.shown(1)]);
    }
    table.row(["**exponent**".into(), exponent(&points)]);
    table
}

/// Time of a drain in nanoseconds.
fn drain(host: &mut Host, is_busy: bool) -> f64 {
    if is_busy {
        host.refill();
    }
    let start = Instant::now();
    host.drain();
    start.elapsed().as_nanos() as f64
}

/// Exponent of the growth of the cost, by least squares over the logarithms: 1 is in proportion, less with a constant
/// part.
fn exponent(points: &[(f64, f64)]) -> String {
    let points: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = points.len() as f64;
    let [x, y] = [0, 1].map(|at| {
        let sum: f64 = points.iter().map(|&(x, y)| [x, y][at]).sum();
        sum / count
    });
    let over: f64 = points.iter().map(|(px, py)| (px - x) * (py - y)).sum();
    let under: f64 = points.iter().map(|(px, _)| (px - x) * (px - x)).sum();
    format!("**{:.2}**", over / under)
}
