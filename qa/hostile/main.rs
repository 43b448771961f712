//! `hostile DIRECTORY SEED FILES`: fills a directory with what a hostile user could put there, says `ready`, and goes on
//! changing it until its standard input ends. Then it says how often it did each thing. One seed, one sequence.
//!
//! It touches no file but those that it has made.

use nix::sys::signal::{SigSet, Signal};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

mod changes;
mod files;
#[path = "../support/kit/mod.rs"]
mod kit;

/// Changes between two pauses, so that there is something left of the machine for whoever is tormented.
const BURST: usize = 10;
const PAUSE: Duration = Duration::from_millis(1);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, seed, files] = &arguments[..] else {
        return Err("usage: hostile DIRECTORY SEED FILES".into());
    };
    let mut hostile =
        changes::Hostile::new(PathBuf::from(directory), seed.parse()?, files.parse()?);
    let mut done = BTreeMap::new();
    // Sent when somebody opens what there is a lease on.
    SigSet::from(Signal::SIGIO).thread_block()?;
    let ended = end_of_input();
    hostile.fill(&mut done);
    writeln!(io::stdout(), "ready")?;
    while ended.try_recv() == Err(TryRecvError::Empty) {
        for _ in 0..BURST {
            // What another change has made impossible is left out.
            if let Ok(what) = hostile.change() {
                *done.entry(what).or_insert(0) += 1;
            }
        }
        std::thread::sleep(PAUSE);
    }
    for (what, times) in done {
        writeln!(io::stdout(), "{what} {times}")?;
    }
    Ok(())
}

/// Closed once standard input has ended.
fn end_of_input() -> Receiver<()> {
    let (open, ended) = channel();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(open);
    });
    ended
}
