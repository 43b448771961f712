//! Fills a directory with what a hostile user could put there, and keeps changing it. One seed gives one sequence.
//!
//! It touches only files that it has made.

use crate::changes::Hostile;
use crate::{Input, PAUSE, Result, ready};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Changes between two pauses, so that the daemon gets processor time.
const BURST: usize = 10;

/// Says in the end how often it did each thing; how many changes it made.
pub fn torment(input: &Input, directory: &Path, seed: u64, files: usize) -> Result<u64> {
    let mut hostile = Hostile::new(directory.to_owned(), seed, files);
    let mut done = BTreeMap::new();
    hostile.fill(&mut done);
    ready()?;
    while input.is_open() {
        for _ in 0..BURST {
            // What another change has made impossible is left out.
            if let Ok(what) = hostile.change() {
                *done.entry(what).or_insert(0) += 1;
            }
        }
        std::thread::sleep(PAUSE);
    }
    for (what, times) in &done {
        writeln!(io::stdout(), "{what} {times}")?;
    }
    Ok(done.values().sum())
}
