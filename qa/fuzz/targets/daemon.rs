// SPDX-License-Identifier: GPL-2.0-or-later

//! Daemon of the targets, without pmcd. The test kit has more, but panics over a state file that is rejected, and takes
//! crates that the workspace of the fuzzer does not have.

use super::state::take;
use pmdanixl::collector::Collector;
use pmdanixl::config::{Config, DirectoryPattern};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const SECOND: Duration = Duration::from_secs(1);

/// Directories and state file of a daemon.
pub struct Home {
    dir: TempDir,
    config: Config,
}

impl Home {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let [rings, stores] = ["rings", "stores"].map(|name| {
            let path = dir.path().join(name);
            fs::create_dir(&path).expect("made");
            vec![DirectoryPattern::of(path)]
        });
        let config = Config {
            telemetry_dir: rings,
            multiproc_dir: stores,
            // A process scan takes long.
            proc_facts: false,
            ..Config::default()
        };
        Self { dir, config }
    }

    /// Path of a file: `rings/NAME`, `stores/NAME` or `nixl/state`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the daemon with the state file of the last one.
    pub fn start(&self) -> Collector {
        let (journal, found) = take(&self.path("nixl/state"));
        let mut agents = Collector::new(&self.config);
        agents.restore(journal, found.records);
        agents
    }

    /// Asserts that a restart changes no value.
    pub fn assert_kept_by_a_restart(&self, agents: Collector) {
        let all = |agents: &Collector| {
            let mut all: Vec<_> = agents
                .iter()
                .map(|agent| (agent.name.clone(), agent.entry.stats.clone()))
                .collect();
            all.sort_by(|one, other| one.0.instance.cmp(&other.0.instance));
            all
        };
        let before = all(&agents);
        drop(agents);
        assert_eq!(all(&self.start()), before);
    }
}

/// Scans and drains.
pub fn pass(agents: &mut Collector, now: Instant) {
    agents.scan(now, SECOND);
    agents.drain(None, now, SECOND);
}
