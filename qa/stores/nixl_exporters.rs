// SPDX-License-Identifier: GPL-2.0-or-later

//! Real NIXL agents that switch between rings and stores at each start, while pmdanixl is killed and restarted. Each
//! exporter has its own instance with all of its totals.

use crate::support::endpoint::Stores;
use crate::support::kill::{kill_process, wait_for_orphans};
use crate::support::life::event_metrics;
use crate::support::serve::Server;
use crate::support::{Home, Nixl, Pmcd, TX_BYTES, Values, run, wait_for};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Runs one test at a time: each uses both CPUs of a small machine.
static TURN: Mutex<()> = Mutex::new(());

/// Adds what an agent reports of itself to the expected values of its instance. `end` is the suffix of the instance
/// name.
fn expect(expected: &mut Values, did: &Value, end: &str) {
    let agent = did["agent"].as_str().expect("a name");
    for metric in event_metrics() {
        let name = metric.rsplit('.').next().expect("a name");
        // The agent does not report drops, which only a ring has.
        let known = did[name].as_u64().or(did["errors"][name].as_u64());
        if let Some(known) = known {
            let instances = expected.entry(metric).or_default();
            *instances.entry(format!("{agent}{end}")).or_default() += known;
        }
    }
}

/// Kills pmdanixl and pmcd, and starts both.
fn kill_pmdanixl(pmcd: &mut Pmcd) {
    kill_process(pmcd.pmda_pid());
    // pmcd would wait a minute before it starts another pmdanixl.
    pmcd.kill();
    wait_for_orphans(&pmcd.path("log"));
    pmcd.start_anew();
    pmcd.wait_until_it_answers();
}

/// Agents that write rings at one start and stores at the next. `rings` gives the directory of the rings.
fn change(rings: impl Fn(&Home) -> std::path::PathBuf) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let home = Home::new();
    let stores = Stores::new(&home, "");
    let (rings, directory) = (rings(&home), home.path("stores"));
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {rings:?}\nmultiproc_dir = {directory:?}\n"
    ));
    let start = |turn: usize, directory: &Path| -> Server {
        match turn % 2 {
            0 => Nixl::new("1.5.1", directory).serve(),
            _ => stores.process(&[("LOCAL_RANK", "2")]),
        }
    };
    let mut pmcd = Pmcd::start(&home);
    let (mut expected, mut ids) = (Values::new(), BTreeMap::new());
    for turn in 0..6 {
        let mut process = start(turn, &rings);
        // The kills are before the start of the agents, while they live, and after their end.
        if turn % 3 == 0 {
            kill_pmdanixl(&mut pmcd);
        }
        process.start("--prefix kv --transfers 40 --errors 2 --read-every 3 --keep");
        let did = process.done().expect("a running process");
        let (kind, end) = [("ring", ""), ("store", "@2")][turn % 2];
        did.iter().for_each(|did| expect(&mut expected, did, end));
        if turn % 3 == 1 {
            kill_pmdanixl(&mut pmcd);
        }
        let step = format!("turn {turn}");
        let agree = |pmcd: &Pmcd| {
            wait_for(&format!("all is counted in {step}"), || {
                let shown = pmcd.all_values();
                let mut metrics = expected.iter();
                metrics
                    .all(|(metric, values)| shown.get(metric) == Some(values))
                    .then_some(())
            });
        };
        agree(&pmcd);
        for (instance, labels) in pmcd.labels(TX_BYTES) {
            assert_eq!(
                labels["telemetry"] == kind,
                instance.ends_with("@2") == (kind == "store")
            );
        }
        let now = run(pmcd.tool("pmprobe").args(["-I", TX_BYTES]));
        // Two instances at first, and then four.
        let before = ids.entry(turn.min(1)).or_insert_with(|| now.clone());
        assert_eq!((&now, &*step), (&*before, &*step));
        drop(process);
        if turn % 3 == 2 {
            kill_pmdanixl(&mut pmcd);
        }
        agree(&pmcd);
    }
}

#[test]
fn rings_and_stores_of_one_name_are_separate_in_one_dir() {
    change(|home| home.path("stores"));
}

#[test]
fn rings_and_stores_of_one_name_are_separate_in_two_dirs() {
    change(Home::rings);
}
