// SPDX-License-Identifier: GPL-2.0-or-later

//! Fills a directory with hostile files and keeps changing them. One seed gives one sequence. Only its own files are
//! changed.

use crate::changes::Hostile;
use crate::{Input, PAUSE, Result, ready};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

/// Changes between two pauses, so that the daemon gets CPU time.
const BURST: usize = 10;

/// Prints at the end how often it made each kind of change. Returns the number of changes.
pub fn torment(input: &Input, directory: &Path, seed: u64, files: usize) -> Result<u64> {
    let mut hostile = Hostile::new(directory.to_owned(), seed, files);
    let mut done = BTreeMap::new();
    hostile.fill(&mut done);
    ready()?;
    while input.is_open() {
        for _ in 0..BURST {
            // An earlier change can make this one impossible: such a change is not counted.
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
