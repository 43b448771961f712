// SPDX-License-Identifier: GPL-2.0-or-later

//! A start with a configuration and a reload of it leave the same: random pairs of configurations, after random
//! histories.

use crate::support::kit::{Core, is_reload_allowed};
use host::{Host, RINGS, STORES, Step, step};
use pmdanixl::entry::{Entry, Lifecycle, Name};
use pmdanixl::journal::record::SavedAgent;
use pmdanixl::procfs::agent_state::AgentState;
use proptest::prelude::*;
use proptest::test_runner::{TestError, TestRunner};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

mod found_pairs;
mod host;

/// Keys of nixl.conf, with the home as HOME.
type Keys = Vec<String>;

/// Chooses one of these lines, or none.
fn line(lines: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    let lines: Vec<_> = lines.iter().map(|line| Some((*line).to_owned())).collect();
    prop_oneof![2 => Just(None), 3 => prop::sample::select(lines)]
}

fn keys() -> impl Strategy<Value = Keys> {
    let directories = prop::sample::select(vec![
        r#"telemetry_dir = ["HOME/pods/one", "HOME/pods/two", "HOME/three"]"#,
        r#"telemetry_dir = ["HOME/three", { path = "HOME/pods/*", label = "pods" }]"#,
        r#"telemetry_dir = "HOME/pods/*""#,
        r#"telemetry_dir = ["HOME/pods/two", "HOME/absent"]"#,
        r#"telemetry_dir = "HOME/pods/one""#,
    ]);
    let others = (
        line(&[
            r#"multiproc_dir = "HOME/stores""#,
            r#"multiproc_dir = ["HOME/pods/one", "HOME/stores"]"#,
        ]),
        line(&[
            "histogram_buckets_us = [10]",
            "histogram_buckets_us = [10, 100, 1000]",
            "histogram_buckets_us = [50]",
        ]),
        line(&[r#"retain = "0s""#, r#"retain = "30s""#, r#"retain = "1h""#]),
        line(&[
            r#"idle_after = "1s""#,
            r#"drain_interval = "1s""#,
            r#"remember = "1s""#,
        ]),
        line(&["max_agents = 6", "max_agents = 4", "max_directories = 1"]),
        line(&["max_capacity = 16", "max_capacity = 8"]),
        line(&["owners = [0]", "owners = [12345]", "observe = true"]),
        // A change of these needs other rights.
        prop_oneof![
            12 => Just(Some("proc_facts = true".to_owned())),
            1 => Just(Some("proc_facts = false".to_owned())),
            1 => Just(Some("proc_facts = true\nremove_exited_after = \"1h\"".to_owned())),
        ],
    );
    (directories, others).prop_map(|(directories, others)| {
        let (a, b, c, d, e, f, g, h) = others;
        let others = [a, b, c, d, e, f, g, h];
        { others.into_iter().flatten() }
            .chain([directories.to_owned()])
            .collect()
    })
}

/// Two configurations. Most need the same rights.
fn pairs() -> impl Strategy<Value = [Keys; 2]> {
    (keys(), keys(), prop::bool::weighted(0.8)).prop_map(|(before, mut after, is_same)| {
        let rights = [
            "telemetry_dir",
            "multiproc_dir",
            "observe",
            "proc_facts",
            "owners",
        ];
        let is_right = |line: &String| is_same && rights.iter().any(|key| line.starts_with(key));
        after.retain(|line| !is_right(line));
        after.extend(before.iter().filter(|line| is_right(line)).cloned());
        [before, after]
    })
}

/// Directory, raw name and part of an agent.
type Identity = (PathBuf, OsString, String);

fn who(name: &Name) -> Identity {
    (name.directory.clone(), name.raw.clone(), name.part.clone())
}

/// Instance names of all agents, and their instance ids and bases of histogram ids.
#[derive(Default)]
struct Before(BTreeMap<Identity, (String, [Option<u32>; 2])>);

impl Before {
    fn of(core: &Core) -> Self {
        let agents = core.agents().iter().map(|agent| {
            let ids = [agent.id, agent.entry.stats.bucket_base];
            (who(&agent.name), (agent.name.instance.clone(), ids))
        });
        Self(agents.collect())
    }

    /// Tells which agent this is, and whether it has the name and the ids that it had. New agents get theirs in the
    /// order in which they are found, which is any.
    fn compare(&self, name: &Name, ids: [Option<u32>; 2]) -> String {
        let who = who(name);
        let Some((instance, known)) = self.0.get(&who) else {
            return format!("{who:?}, new, {:?}", ids.map(|id| id.is_some()));
        };
        let mut shown = format!("{who:?}");
        if *instance != name.instance {
            write!(shown, " is renamed {:?}", name.instance).expect("memory");
        }
        for (id, before) in ids.iter().zip(known) {
            let how = match (before, id) {
                (Some(before), Some(id)) if before == id => "same",
                (_, Some(_)) => "new",
                (_, None) => "none",
            };
            write!(shown, ", {how} id").expect("memory");
        }
        shown
    }
}

/// How a daemon gets its next configuration.
#[derive(Clone, Copy, Debug)]
enum Change {
    Start,
    Reload,
}

/// True if each agent has no file but one with a name. The kernel may deny a lease for a moment, and the end of a file
/// is found later.
fn has_last_files_only(core: &Core) -> bool {
    core.agents().iter().all(|agent| {
        let paths: Vec<&Path> = agent.attached().map(|(_, path)| path).collect();
        paths.len() <= 1 && paths.iter().all(|path| path.exists())
    })
}

/// The instances with their labels, and the attached files.
fn shown(core: &Core, known: &Before, scans: bool) -> String {
    let mut lines = Vec::new();
    for agent in core.agents().iter() {
        let ids = [agent.id, agent.entry.stats.bucket_base];
        let shown = known.compare(&agent.name, ids);
        let name = &agent.name.instance;
        if core.instances().contains_key(name) {
            // The kernel may deny a lease for a moment. Whether a scan looks for the process of an exited agent depends
            // on that.
            let labels = (!scans || core.status(name) != "exited").then(|| core.labels(name));
            lines.push(format!("instance {shown} {labels:?}"));
        }
        for (_, path) in agent.attached() {
            // The name of a store has its time.
            let path = path.display().to_string();
            let path = path.split("/nixl.").next().expect("a path");
            lines.push(format!("file of {shown} {path}"));
        }
    }
    lines.sort();
    format!(
        "{}\nbytes of the host {}\n",
        lines.join("\n"),
        core.host_sent()
    )
}

/// What a history with the keys `before` has left, and what is left after a change to `after`. `None` if `max_agents`
/// or `max_directories` has left something out: what that is depends on the order in which files and directories are
/// found. qa/agents/lowered.rs has tests of these limits.
fn left(
    base: &Path,
    [before, after]: [&str; 2],
    history: &[Step],
    change: Change,
    scans: bool,
) -> Option<[String; 2]> {
    let home = base.join("home");
    for directory in RINGS.iter().chain(&STORES) {
        fs::create_dir_all(home.join(directory)).expect("made");
    }
    let state = home.join("run/nixl/state");
    fs::create_dir_all(home.join("run")).expect("made");
    let mut core = Core::on(&home, &state, before);
    if scans {
        core.observe();
    }
    let mut host = Host::default();
    host.scans_processes = scans;
    for &step in history {
        host.apply(step, &home, &mut core);
    }
    // A start cannot find out about a file whose process and name went while no daemon was running, and does not know
    // the labels of the process before the last.
    host.run(&mut core, 2);
    while !has_last_files_only(&core) {
        core.run(1);
    }
    // As before an end, and before a reload.
    core.drain();
    let known = Before::of(&core);
    let states = core.agents().iter().map(|agent| {
        let entry = &agent.entry;
        (
            who(&agent.name),
            (entry.agent_state, entry.starts, entry.resets),
        )
    });
    let states: BTreeMap<_, _> = states.collect();
    let left_before = format!("{}{states:?}", shown(&core, &Before::default(), scans));
    let taken = core.host("control.places.taken");
    let refused_before = match change {
        Change::Reload => core.host("control.places.rejections"),
        Change::Start => 0,
    };
    match change {
        Change::Reload => core.configure(after),
        Change::Start => {
            core.set(after);
            core.restart();
        }
    }
    host.run(&mut core, 4);
    host.transfer(2);
    host.run(&mut core, 2);
    let is_full = core.host("control.places.rejections") > refused_before
        || taken > core.host("control.places.max")
        || core.host("control.directories.skipped") > 0;
    let mut left = shown(&core, &known, scans);
    let (mut agents, expired) = core.kill_and_read();
    agents.sort_by_key(|saved| who(&saved.name));
    for saved in &mut agents {
        without_times(saved);
        if scans && saved.entry.agent_state == AgentState::Exited {
            saved.facts = None;
        }
    }
    writeln!(left, "expired {expired:?}").expect("memory");
    for SavedAgent {
        name,
        id,
        mut entry,
        facts,
    } in agents
    {
        let name = known.compare(&name, [id, entry.stats.bucket_base.take()]);
        let Entry {
            stats,
            lifecycle,
            agent_state,
            starts,
            resets,
            foreign_reads,
            overflows,
            highwater,
            checkpoint,
            store,
            ..
        } = entry;
        writeln!(left, "{name} {lifecycle:?} {agent_state:?} {starts} {resets} {foreign_reads} {overflows} {highwater}\n{checkpoint:?}\n{store:?}\n{stats:?}\n{facts:?}")
            .expect("memory");
    }
    fs::remove_dir_all(&home).expect("ours");
    (!is_full && !host.is_hidden).then_some([left_before, left])
}

/// Removes what depends on the clock and on the numbers of files.
fn without_times(saved: &mut SavedAgent) {
    let entry = &mut saved.entry;
    (entry.last_seen, entry.last_event, entry.first_seen) = (0, 0, 0);
    match &mut entry.lifecycle {
        Lifecycle::AwaitingLabels { deadline: stamp } | Lifecycle::Exited { since: stamp } => {
            *stamp = 0
        }
        Lifecycle::Dormant | Lifecycle::Active => {}
    }
    if let Some(checkpoint) = &mut entry.checkpoint {
        let ring = &mut checkpoint.ring;
        (ring.id, ring.born, ring.changed, ring.shows_changes) = Default::default();
        (checkpoint.fingerprint, checkpoint.producer) = Default::default();
    }
    if let Some(store) = &mut entry.store {
        store.id = Default::default();
        store.values.updated = 0;
    }
}

/// True if a process of root with one configuration has other rights than with the other: an observer, or other
/// directories that it is locked into.
fn need_other_rights(before: &Keys, after: &Keys) -> bool {
    let has = |keys: &Keys, key: &str| keys.iter().any(|line| line.contains(key));
    let line = |keys: &Keys, key: &str| keys.iter().find(|line| line.starts_with(key)).cloned();
    let removes = |keys: &Keys| has(keys, "remove_exited_after") && !has(keys, "observe");
    let locks = |keys: &Keys| {
        let directories = ["telemetry_dir", "multiproc_dir"].map(|key| line(keys, key));
        (directories, has(keys, "observe"), removes(keys))
    };
    let has_observer = |keys: &Keys| !has(keys, "proc_facts = false");
    has_observer(before) != has_observer(after) || locks(before) != locks(after)
}

/// The lines that two texts do not share, from the first one on.
fn difference(started: &str, reloaded: &str) -> String {
    let pairs = started.lines().zip(reloaded.lines());
    let mut others = pairs.filter(|(one, other)| one != other);
    let (one, other) = others.next().unwrap_or((started, reloaded));
    format!("\nstarted:\n{one}\nreloaded:\n{other}\nstarted, whole:\n{started}")
}

/// Times that a history goes on if it went two ways: what a busy machine finds within the time of a scan, and labels
/// before an agent is published, may be different.
const TRIES: u32 = 20;

fn cases() -> u32 {
    let pairs = std::env::var("PAIRS").ok();
    pairs.map_or(256, |pairs| pairs.parse().expect("PAIRS: a number"))
}

/// Compares what a start and a reload leave. `None`: a limit was reached, or both configurations need other rights.
fn compare(
    keys: &[Keys; 2],
    history: &[Step],
    scans_processes: bool,
) -> Result<Option<()>, TestCaseError> {
    let base = tempfile::tempdir().expect("a directory");
    let home = base.path().join("home");
    let text = |keys: &Keys| {
        keys.join("\n")
            .replace("HOME", home.to_str().expect("UTF-8"))
    };
    let [before, after] = keys.each_ref().map(text);
    let needs_other_rights = need_other_rights(&keys[0], &keys[1]);
    let allowed = is_reload_allowed(&before, &after);
    prop_assert_eq!(allowed.is_err(), needs_other_rights, "{:?}", allowed);
    if let Err(why) = allowed {
        prop_assert!(why.contains("run ./Install"));
        return Ok(None);
    }
    // Without an observer there are no process scans.
    let mut all = keys.iter().flatten();
    let scans_processes = scans_processes && !all.any(|line| line == "proc_facts = false");
    let left = |change| {
        left(
            base.path(),
            [&before, &after],
            history,
            change,
            scans_processes,
        )
    };
    for _ in 0..TRIES {
        let (started, reloaded) = (left(Change::Start), left(Change::Reload));
        let Some(([before, started], [before_too, reloaded])) = started.zip(reloaded) else {
            return Ok(None);
        };
        if before == before_too {
            let why = difference(&started, &reloaded);
            prop_assert!(started == reloaded, "{}", why);
            return Ok(Some(()));
        }
    }
    Err(TestCaseError::fail("no history went the same way twice"))
}

#[test]
fn start_and_reload_leave_the_same_state() {
    let history = prop::collection::vec(step(), 1..16);
    let cases_of = (pairs(), history, prop::bool::weighted(0.1));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let compared = Cell::new(0);
    let result = runner.run(&cases_of, |(keys, history, scans_processes)| {
        let is_compared = compare(&keys, &history, scans_processes)?.is_some();
        compared.set(compared.get() + u32::from(is_compared));
        Ok(())
    });
    match result {
        Err(TestError::Fail(why, case)) => panic!("{case:?}: {why}"),
        other => other.expect("the cases are made"),
    }
    let compared = compared.get();
    println!("{compared} of {} pairs were compared", cases());
    // Most others need other rights.
    assert!(compared >= cases() / 4, "{compared}");
}
