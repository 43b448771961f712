// SPDX-License-Identifier: GPL-2.0-or-later

//! Results of `cargo bench --bench drain`, which `make bench` runs first.

use super::report::Table;
use super::support::project;
use serde_json::Value;
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

/// Table of drains, or `None` without results of the benchmark.
pub fn measure() -> Option<Table> {
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| project("target"), PathBuf::from);
    let top = target.join("criterion");
    let widest = Cell::new(0.0_f64);
    let median = |group: &str, what: &str| {
        let place = top.join(group).join(what).join("new/estimates.json");
        let text = fs::read_to_string(place).ok()?;
        let found: Value = serde_json::from_str(&text).ok()?;
        let found = &found["median"];
        let median = found["point_estimate"].as_f64()?;
        let interval = &found["confidence_interval"];
        for bound in ["lower_bound", "upper_bound"] {
            let distance = (interval[bound].as_f64()? / median - 1.0).abs();
            widest.set(widest.get().max(distance));
        }
        Some(median)
    };
    top.is_dir().then_some(())?;
    let mut table = Table::new(
        "Drains",
        "layout, slots, cache | counters only / pop | at most | sums alone, not the daemon's / pop | at most | \
         counters only / plain read | all figures / pop | at most | pop, ns per event",
        "By criterion. `pop` takes one event at a time as NIXL's own reader does, and only sums; `plain read` reads the words of the \
         ring. What each event being counted once takes is a copy of the events, their fingerprint, and a second load of the positions; a \
         loop that sums without all that is the benchmark's own (qa/bench/rings.rs): the daemon never does. All figures go through \
         files and into a state file: last values, and four distributions with their percentiles. Tried on 26 November 2026, v4: to \
         recognise the four events of a transfer at once takes 58 instructions per event, not 65 (`pop`: 39), and 13 % less time, for 25 \
         more lines of code. It was not kept. Reading takes 14 of these, in a loop of 12; the distributions take 33 at least.",
    );
    for layout in ["v1", "v2named", "v2", "v3", "v4"] {
        for slots in [4096_u32, 1 << 20] {
            for cache in ["warm", "cold"] {
                let group = format!("{layout}_{slots}_{cache}");
                let found = ["read", "pop", "sum", "counters"].map(|what| median(&group, what));
                let everything = median(&group, "everything");
                let [Some(read), Some(pop), Some(sum), Some(counters)] = found else {
                    continue;
                };
                // Several rings, all drained at a time, do not fit into the cache.
                let rings = match cache {
                    "warm" => 1.0,
                    _ => super::rings::cold_rings(layout.parse().expect("a layout"), slots.into())
                        as f64,
                };
                // Limits: 1.5 times as fast with counting each event once, 2.5 times without, and as fast with all stats.
                let most = match layout {
                    "v4" => ["0.67", "0.40", "1.00"],
                    _ => ["-"; 3],
                };
                let everything =
                    everything.map_or("-".into(), |all| format!("{:.2}", all / rings / pop));
                table.row([
                    format!("{layout}, {slots}, {cache}"),
                    format!("**{:.2}**", counters / pop),
                    most[0].into(),
                    format!("**{:.2}**", sum / pop),
                    most[1].into(),
                    format!("**{:.2}**", counters / read),
                    format!("**{everything}**"),
                    most[2].into(),
                    format!("{:.2}", pop / f64::from(slots - 1)),
                ]);
            }
        }
    }
    table.add(&format!(
        "The 95 % confidence interval of each median is within {:.1} % of it.",
        100.0 * widest.get()
    ));
    Some(table)
}
