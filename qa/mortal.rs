// SPDX-License-Identifier: GPL-2.0-or-later

//! `mortal RING LAYOUT CAPACITY TYPE PAUSE [COUNT]`: an agent for tests that kill it.
//!
//! It starts with the file RING, which restarts a previous agent in place. Then it writes events of one type number
//! until it is killed, with a pause of PAUSE microseconds after every few events. The value of an event is its number,
//! from 1 on, so that the ring shows how many events were written before the kill (`qa/support/life.rs`). With COUNT it
//! writes that many events, reports so on standard output, and waits to be killed.

use std::path::Path;
use std::process::exit;
use std::time::Duration;

#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "support/writer.rs"]
mod writer;

use writer::{Layout, RingWriter};

/// Events between two pauses.
const BURST: u64 = 8;
/// Interval of the checks for room in a full ring.
const RETRY: Duration = Duration::from_micros(200);

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| usage());
    let layout = args.next().and_then(|name| name.parse().ok());
    let layout: Layout = layout.unwrap_or_else(|| usage());
    let numbers = args.map(|number| number.parse::<u64>().unwrap_or_else(|_| usage()));
    let (capacity, raw_type, pause, count) = match numbers.collect::<Vec<_>>()[..] {
        [capacity, raw_type, pause] => (capacity, raw_type, pause, u64::MAX),
        [capacity, raw_type, pause, count] => (capacity, raw_type, pause, count),
        _ => usage(),
    };
    let raw_type = u32::try_from(raw_type).unwrap_or_else(|_| usage());
    let mut ring =
        RingWriter::create(Path::new(&path), layout, capacity).expect("a ring can be made");
    for number in 1..=count {
        // No event may be lost, since the numbers have no gaps: this waits if the ring is full. NIXL drops.
        while !ring.push_raw(raw_type, number) {
            std::thread::sleep(RETRY);
        }
        if pause > 0 && number % BURST == 0 {
            std::thread::sleep(Duration::from_micros(pause));
        }
    }
    println!("{count}");
    loop {
        std::thread::park();
    }
}

fn usage() -> ! {
    eprintln!("mortal RING LAYOUT CAPACITY TYPE PAUSE [COUNT]");
    #[allow(clippy::exit)] // nothing to clean up
    exit(2)
}
