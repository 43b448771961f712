//! An agent that is made to be killed: `mortal RING CAPACITY TYPE PAUSE [COUNT]`
//!
//! It starts on the file RING, which restarts an agent that was there in place, and writes events of one type number until
//! it is killed, with a pause of so many microseconds after every few. Each event's value is its number, from 1 on: so
//! the ring itself always says how many were written, whenever the end came (`qa/support/life.rs`). With a COUNT it writes
//! so many, says so on standard output, and waits for its end.

use std::path::Path;
use std::process::exit;
use std::time::Duration;

#[path = "support/writer.rs"]
mod writer;

use writer::{Layout, RingWriter};

/// Events between two pauses.
const BURST: u64 = 8;
/// How often to look whether a full ring has room again.
const RETRY: Duration = Duration::from_micros(200);

fn main() {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| usage());
    let numbers = args.map(|number| number.parse::<u64>().unwrap_or_else(|_| usage()));
    let (capacity, raw_type, pause, count) = match numbers.collect::<Vec<_>>()[..] {
        [capacity, raw_type, pause] => (capacity, raw_type, pause, u64::MAX),
        [capacity, raw_type, pause, count] => (capacity, raw_type, pause, count),
        _ => usage(),
    };
    let raw_type = u32::try_from(raw_type).unwrap_or_else(|_| usage());
    let mut ring =
        RingWriter::create(Path::new(&path), Layout::V4, capacity).expect("a ring can be made");
    for number in 1..=count {
        // Nothing may be lost, since the numbers have no gaps: it waits where NIXL drops.
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
    eprintln!("mortal RING CAPACITY TYPE PAUSE [COUNT]");
    #[allow(clippy::exit)] // nothing to clean up
    exit(2)
}
