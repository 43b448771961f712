// SPDX-License-Identifier: GPL-2.0-or-later

//! A host whose agents start, transfer and end at random, and its daemon.

use crate::support::kit::Core;
use crate::support::kit::store_writer::{StoreWriter, TX_BYTES, Who, monotonic};
use crate::support::wait_for;
use crate::support::writer::{Layout, RingWriter};
use pmdanixl::procfs::process::sees_host;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Directories of rings and of stores in the home of a daemon.
pub const RINGS: [&str; 3] = ["pods/one", "pods/two", "three"];
pub const STORES: [&str; 2] = ["stores", "pods/one"];
const NAMES: [&str; 3] = ["a", "b", "c d"];

/// Step of a history: what the agents do, and what the daemon does.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The agent of this name in this directory starts, in place if it has a ring, with this layout and size.
    Ring(usize, usize, Layout, u64),
    /// The agent of this name in this directory starts with a store.
    Store(usize, usize),
    /// All agents transfer this number of times, as far as their rings have room.
    Transfer(u64),
    /// All agents of this name exit.
    Exit(usize),
    /// All files of this name are removed.
    Remove(usize),
    /// The daemon runs for these seconds: more than an agent waits for its labels.
    Run(u32),
    /// The daemon is killed and starts again.
    Kill,
}

pub fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    let layout = prop::sample::select(vec![Layout::V4, Layout::V4, Layout::V2]);
    let size = prop::sample::select(vec![8, 16, 32]);
    let ring = (0..RINGS.len(), name(), layout, size);
    prop_oneof![
        6 => ring.prop_map(|(directory, name, layout, size)| Step::Ring(directory, name, layout, size)),
        2 => (0..STORES.len(), name()).prop_map(|(directory, name)| Step::Store(directory, name)),
        5 => (1..6_u64).prop_map(Step::Transfer),
        1 => name().prop_map(Step::Exit),
        1 => name().prop_map(Step::Remove),
        4 => (2..4_u32).prop_map(Step::Run),
        1 => Just(Step::Kill),
    ]
}

/// The agents of a host, by directory and name.
#[derive(Default)]
pub struct Host {
    rings: BTreeMap<(usize, usize), RingWriter>,
    stores: BTreeMap<(usize, usize), StoreWriter>,
    pub scans_processes: bool,
    /// True if a process scan has left processes out, for instance those that another test stalls. Then what has ended
    /// is not known.
    pub is_hidden: bool,
}

impl Host {
    pub fn apply(&mut self, step: Step, home: &Path, core: &mut Core) {
        match step {
            Step::Ring(directory, name, layout, size) => {
                let path = home.join(RINGS[directory]).join(NAMES[name]);
                // A process starts in place after the one before has ended.
                self.rings.remove(&(directory, name));
                let ring = RingWriter::create(&path, layout, size).expect("a ring");
                self.rings.insert((directory, name), ring);
            }
            Step::Store(directory, name) => {
                let identity = Who::named(NAMES[name]);
                let store = StoreWriter::create(&home.join(STORES[directory]), &identity);
                self.stores
                    .insert((directory, name), store.expect("a store"));
            }
            Step::Transfer(count) => self.transfer(count),
            Step::Exit(name) => {
                self.rings.retain(|&(_, other), _| other != name);
                self.stores.retain(|&(_, other), _| other != name);
            }
            Step::Remove(name) => {
                for directory in RINGS {
                    let _ = fs::remove_file(home.join(directory).join(NAMES[name]));
                }
                // A restart cannot find a ring without a name, which a reload keeps.
                self.rings.retain(|&(_, other), _| other != name);
            }
            Step::Run(seconds) => self.run(core, seconds),
            Step::Kill => core.restart(),
        }
    }

    pub fn transfer(&mut self, count: u64) {
        for number in 0..count {
            for ring in self.rings.values_mut() {
                ring.push_transfer(number % 2 == 0, 100 + number, 10 * (1 + number), 3);
            }
            for store in self.stores.values() {
                store.add(TX_BYTES, 100 + number);
                store.flush_at(monotonic());
            }
        }
    }

    /// Lets the daemon run. With process scans, agents have the labels of this process in the end, else those of their
    /// files.
    pub fn run(&mut self, core: &mut Core, seconds: u32) {
        core.run(seconds);
        // The first one that ends may have begun before.
        for _ in 0..2 * u32::from(self.scans_processes) {
            // All processes are scanned every minute at least.
            let scans = core.process_scans();
            core.advance(Duration::from_secs(300));
            core.run(1);
            let mut waits = 0;
            wait_for("the process scan has ended", || {
                // One that was running when the time went on counts as stalled, and the next comes after a pause.
                waits += 1;
                if waits % 100 == 0 {
                    core.run(1);
                }
                core.tidy();
                (core.process_scans() > scans).then_some(())
            });
            core.run(1);
            self.is_hidden |= sees_host() && core.silent().is_none();
        }
    }
}
