// SPDX-License-Identifier: GPL-2.0-or-later

//! A scan and a drain of stores that are killed at any instruction: the next start must count every value once. The
//! scan is single-stepped, and the next start runs on each state file on the way, like qa/ring/single_step.rs with a
//! ring.

use crate::support::drain::Traced;
use crate::support::kit::layers::RECORD;
use crate::support::kit::store_writer::{StoreWriter, TX_BYTES, Who};
use crate::support::release_example;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The part of the state file that changes: its header and the first records.
const CHANGED: usize = 8 * RECORD;

/// A directory of stores, a state file, and the sum of what the stores have sent.
struct Bench {
    program: PathBuf,
    dir: TempDir,
    sent: u64,
    max_agents: u32,
}

impl Bench {
    fn new(max_agents: u32) -> Self {
        let dir = crate::support::memory::in_memory();
        fs::create_dir(dir.path().join("stores")).expect("made");
        Self {
            program: release_example("one_drain"),
            dir,
            sent: 0,
            max_agents,
        }
    }

    fn store(&mut self, agent: &str, bytes: u64) -> StoreWriter {
        let store = StoreWriter::create(&self.dir.path().join("stores"), &Who::named(agent));
        let store = store.expect("a store");
        self.send(&store, bytes);
        store
    }

    fn send(&mut self, store: &StoreWriter, bytes: u64) {
        store.add(TX_BYTES, bytes);
        self.sent += bytes;
    }

    fn state(&self) -> File {
        let path = self.dir.path().join("nixl/state");
        let file = File::options().read(true).write(true).open(path);
        file.expect("there")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(self.dir.path().join("stores"));
        command
            .arg(self.dir.path().join("nixl/state"))
            .arg(self.max_agents.to_string());
        command
    }

    /// Bytes of all agents after a start that is not killed.
    fn finish(&self) -> u64 {
        let output = self.command().output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        let said = said.trim().parse();
        said.unwrap_or_else(|err| panic!("{err} {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Steps through a scan and a drain. Returns the state file before them, and after each instruction that changes
    /// it.
    fn moments(&self) -> Vec<(usize, Vec<u8>)> {
        let (scan, state) = (Traced::start(self.command().arg("step")), self.state());
        let read = || {
            let mut bytes = vec![0; CHANGED];
            state
                .read_exact_at(&mut bytes, 0)
                .expect("a chunk of records");
            bytes
        };
        let mut moments = vec![(0, read())];
        for steps in 1.. {
            if !scan.step() {
                break;
            }
            let now = read();
            if moments.last().is_some_and(|(_, last)| *last != now) {
                moments.push((steps, now));
            }
        }
        moments
    }

    /// Asserts that the next two starts count every value once, whatever instruction the scan was killed at.
    fn assert_exact_after_any_kill(&self, least: usize) {
        let moments = self.moments();
        assert!(moments.len() > least, "{} changes", moments.len());
        for (steps, bytes) in moments {
            self.state().write_all_at(&bytes, 0).expect("ours");
            let found = [self.finish(), self.finish()];
            assert_eq!(found, [self.sent; 2], "killed after {steps} instructions");
        }
    }
}

#[test]
fn kill_while_a_store_replaces_another_counts_each_once() {
    let mut bench = Bench::new(2);
    let first = bench.store("kv", 1);
    bench.finish();
    bench.send(&first, 10);
    drop(first);
    let _next = bench.store("kv", 100);
    bench.assert_exact_after_any_kill(20);
}

#[test]
fn kill_while_an_agent_with_a_store_expires_counts_it_once() {
    // There is room for one agent, and there are four records.
    let mut bench = Bench::new(1);
    for number in 0..4 {
        drop(bench.store(&format!("n{number}"), 10_u64.pow(number)));
        bench.finish();
    }
    let _next = bench.store("next", 10_000);
    bench.assert_exact_after_any_kill(50);
}
