// SPDX-License-Identifier: GPL-2.0-or-later

//! `cargo bench --bench instructions`: instructions of an event, as valgrind counts them, compared with a loop that
//! pops one event at a time; and instructions of an idle ring. It fails if a ratio is above its limit. Counts do not
//! depend on the machine.

mod rings;
#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../support/writer.rs"]
mod writer;

use pmdanixl::event::Events;
use rings::{Host, Layout, Memory, check};
use std::hint::black_box;
use std::process::{Command, ExitCode};

/// Slots of the rings.
const CAPACITY: u64 = 1 << 12;
/// Number of counted drains. The instructions of a run without drains are subtracted.
const DRAINS: u32 = 20;
/// Number of idle rings.
const SILENT: usize = 256;
/// Limit of the cost of a poll of an idle ring, in popped events.
const POLL: f64 = 3.1;

/// Limits of the cost of an event, in popped events: summed, and with all stats. 20 % above the measured cost.
fn limits(layout: Layout) -> (f64, f64) {
    match layout {
        // Layouts with named events: comparing names is most of the work.
        Layout::V1 | Layout::V2Named => (0.86, 1.15),
        Layout::V2 | Layout::V3 => (0.55, 2.19),
        Layout::V4 => (0.43, 2.07),
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, layout, what, drains] = &args[..] {
        let layout = layout.parse().expect("a layout");
        run(layout, what, drains.parse().expect("a number"));
        return ExitCode::SUCCESS;
    }
    let mut good = true;
    println!("instructions per event, and as a share of the loop that pops");
    for layout in Layout::ALL {
        let per_event = |what| per_event(layout, what);
        let [pop, counters, everything] = ["pop", "counters", "everything"].map(per_event);
        let [counters_share, everything_share] = [counters / pop, everything / pop];
        let (most_counters, most) = limits(layout);
        println!(
            "{:8} pop {pop:6.1}   counters {counters:6.1} ({counters_share:.2}, at most {most_counters:.2})   \
             everything {everything:6.1} ({everything_share:.2}, at most {most:.2})",
            layout.name()
        );
        good &= counters_share <= most_counters && everything_share <= most;
    }
    let pop = per_event(Layout::V4, "pop");
    let poll = counted(Layout::V4, "silent") / SILENT as f64;
    println!(
        "a ring in which nothing waits: {poll:.0}, {:.1} pops, at most {POLL:.1}",
        poll / pop
    );
    if good && poll <= POLL * pop {
        ExitCode::SUCCESS
    } else {
        eprintln!("instructions: above the limits in qa/bench/instructions.rs");
        ExitCode::FAILURE
    }
}

fn run(layout: Layout, what: &str, drains: u32) {
    match what {
        "everything" => {
            let mut host = Host::new(layout, CAPACITY, 1);
            for _ in 0..drains {
                host.refill();
                black_box(host.drain());
            }
        }
        "silent" => {
            let mut host = Host::new(layout, 64, SILENT);
            // The first drain finds that the rings are empty.
            black_box(host.drain());
            for _ in 0..drains {
                black_box(host.drain());
            }
        }
        what => {
            let ring = Memory::new(layout, CAPACITY);
            let mut events = Events::default();
            for _ in 0..drains {
                ring.refill();
                black_box(match what {
                    "pop" => ring.pop(),
                    _ => check(&ring.counters(&mut events)),
                });
            }
        }
    }
}

/// Instructions per event.
fn per_event(layout: Layout, what: &str) -> f64 {
    counted(layout, what) / (CAPACITY - 1) as f64
}

/// Instructions per drain.
fn counted(layout: Layout, what: &str) -> f64 {
    let [none, all] = [0, DRAINS].map(|drains| instructions(layout, what, drains));
    (all - none) / f64::from(DRAINS)
}

/// Instructions of a whole run of this program.
fn instructions(layout: Layout, what: &str, drains: u32) -> f64 {
    let program = std::env::current_exe().expect("this program");
    let counts = tempfile::NamedTempFile::new().expect("a file");
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", counts.path().display()))
        .arg(program)
        .args([layout.name(), what, &drains.to_string()])
        .output()
        .expect("valgrind is there");
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text
        .lines()
        .find_map(|line| line.split_once("Collected : "));
    let (_, count) = count.unwrap_or_else(|| panic!("{text}"));
    count.trim().parse().expect("a number")
}
