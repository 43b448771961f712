// SPDX-License-Identifier: GPL-2.0-or-later

//! Lower limits: a start and a reload leave the same agents and directories out.

use crate::support::kit::store_writer::Who;
use crate::support::kit::values::Values;
use crate::support::kit::writer::RingWriter;
use crate::support::kit::{Core, log, push, push_to};
use crate::support::needs_root;
use std::fs;
use std::os::unix::fs::chown;

/// How a daemon gets its next configuration.
#[derive(Clone, Copy, Debug)]
enum Change {
    Start,
    Reload,
}

const CHANGES: [Change; 2] = [Change::Start, Change::Reload];

impl Change {
    /// Drains as the daemon does before its end and before a reload, then gives it the configuration.
    fn apply(self, core: &mut Core, settings: &str) {
        core.drain();
        match self {
            Self::Start => {
                core.set(settings);
                core.restart();
            }
            Self::Reload => core.configure(settings),
        }
        core.run(10);
    }
}

/// Starts agents one after the other, each with an event of one byte.
fn rings(core: &mut Core, names: &[&str]) -> Vec<RingWriter> {
    let start = |name: &&str| {
        let ring = push_to(core.ring(name), 1);
        core.run(2);
        ring
    };
    names.iter().map(start).collect()
}

fn names(values: Values) -> Vec<String> {
    values.into_keys().collect()
}

#[test]
fn lower_max_agents_leaves_the_oldest_agents() {
    for change in CHANGES {
        log::collect();
        let settings = "remember = \"1s\"\nretain = \"1s\"";
        let mut core = Core::new(settings);
        let mut all = rings(&mut core, &["f", "e", "d", "c", "b", "a"]);
        core.take_log();
        change.apply(&mut core, &format!("{settings}\nmax_agents = 2"));
        assert_eq!(names(core.sent()), ["e", "f"], "{change:?}");
        assert_eq!(core.host("control.places.taken"), 2, "{change:?}");
        assert_eq!(core.attached(), 2, "{change:?}");
        let lines = core.take_log();
        let evicted = lines.iter().filter(|line| line.contains(" evicted: "));
        let expected = "WARN agents: 4 evicted: max_agents (2) is reached; those of users with the most agents first; raise max_agents in nixl.conf";
        assert_eq!(evicted.collect::<Vec<_>>(), [expected], "{change:?}");
        // What they send meanwhile waits in their rings.
        all.iter_mut().for_each(|ring| push(ring, 1));
        core.run(5);
        assert_eq!(core.host_sent(), 8, "{change:?}");
        change.apply(&mut core, settings);
        assert!(core.sent().values().all(|&sent| sent == 2), "{change:?}");
        assert_eq!((core.sent().len(), core.host_sent()), (6, 12), "{change:?}");
    }
}

#[test]
fn agent_with_an_unlinked_ring_keeps_its_place() {
    let settings = "retain = \"1s\"";
    let mut core = Core::new(settings);
    let mut all = rings(&mut core, &["a", "b", "c"]);
    fs::remove_file(core.path("c")).expect("there");
    core.run(2);
    core.configure(&format!("{settings}\nmax_agents = 1"));
    // An event that comes after the last drain.
    push(&mut all[2], 1);
    core.run(10);
    assert_eq!(names(core.sent()), ["c"]);
    assert_eq!(core.sent()["c"], 2);
}

#[test]
fn lower_max_agents_leaves_each_user_its_share() {
    needs_root();
    for change in CHANGES {
        let mut core = Core::new("");
        let all: Vec<_> = ["a1", "a2", "a3", "a4", "b1", "b2"]
            .iter()
            .map(|name| {
                let ring = push_to(core.ring(name), 1);
                let uid = if name.starts_with('a') { 1001 } else { 1000 };
                chown(core.path(name), Some(uid), None).expect("root may");
                core.run(2);
                ring
            })
            .collect();
        change.apply(&mut core, "max_agents = 4");
        assert_eq!(names(core.sent()), ["a1", "a2", "b1", "b2"], "{change:?}");
        drop(all);
    }
}

#[test]
fn lower_max_agents_evicts_exited_agents_first() {
    for change in CHANGES {
        let mut core = Core::new("retain = \"1h\"");
        let mut all = rings(&mut core, &["a", "b", "c"]);
        drop(all.remove(0));
        core.run(5);
        assert_eq!(core.status("a"), "exited");
        change.apply(&mut core, "retain = \"1h\"\nmax_agents = 2");
        assert_eq!(names(core.sent()), ["b", "c"], "{change:?}");
        core.assert_host_sent(3);
    }
}

#[test]
fn lower_max_agents_loses_no_count_of_a_store() {
    for change in CHANGES {
        let mut core = Core::new("");
        let names_of_stores = ["a", "b", "c", "d"];
        let all: Vec<_> = names_of_stores
            .iter()
            .map(|name| {
                let store = core.sender(&Who::named(name), 1);
                core.run(2);
                store
            })
            .collect();
        // The files of the agents that are to leave come first in the scan.
        for store in all.iter().rev() {
            core.send(store, 1);
        }
        core.run(2);
        change.apply(&mut core, "max_agents = 2");
        assert_eq!(names(core.sent()), ["a", "b"], "{change:?}");
        for store in &all {
            core.send(store, 1);
        }
        core.run(5);
        assert_eq!(core.host_sent(), 8 + 2, "{change:?}");
        change.apply(&mut core, "");
        assert_eq!((core.sent().len(), core.host_sent()), (4, 12), "{change:?}");
    }
}

#[test]
fn lower_max_directories_detaches_files_of_the_others() {
    for change in CHANGES {
        let mut core = Core::new("");
        for directory in ["pods/one", "pods/two"] {
            fs::create_dir_all(core.path(directory)).expect("made");
        }
        let pattern = format!("telemetry_dir = \"{}/*\"", core.path("pods").display());
        core.configure(&pattern);
        let mut all = rings(&mut core, &["pods/one/a", "pods/two/b"]);
        assert_eq!(core.sent().len(), 2);
        change.apply(&mut core, &format!("{pattern}\nmax_directories = 1"));
        assert_eq!(core.host("control.directories.skipped"), 1);
        assert_eq!(core.attached(), 1, "{change:?}");
        let modes = ["a", "b"].map(|name| core.text("agent.mode", name));
        assert_eq!(modes.iter().flatten().count(), 1, "{change:?}: {modes:?}");
        all.iter_mut().for_each(|ring| push(ring, 1));
        core.run(5);
        assert_eq!(core.host_sent(), 3, "{change:?}");
        change.apply(&mut core, &pattern);
        assert_eq!((core.attached(), core.host_sent()), (2, 4), "{change:?}");
    }
}
