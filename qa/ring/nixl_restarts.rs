// SPDX-License-Identifier: GPL-2.0-or-later

//! Real NIXL agents that restart in place, have a truncated file, or share a name, while other agents continue.
//!
//! `RESTARTS=50` sets the number of restarts, and tests all versions.

use crate::support::life::event_metrics;
use crate::support::serve::Server;
use crate::support::{Home, Nixl, Pmcd, Values, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const NEWEST: &str = "1.5.1";
const RESETS: &str = "nixl.ring.resets";
const REQUESTS: &str = "nixl.transfer.tx_requests";

/// Runs one test at a time: each uses both CPUs of a small machine.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restarts() -> usize {
    let restarts = std::env::var("RESTARTS").ok();
    restarts.map_or(6, |restarts| {
        restarts.parse().expect("RESTARTS is a number")
    })
}

/// Expected totals of an agent by metric.
fn sums(truth: &Value) -> BTreeMap<String, u64> {
    let sums = event_metrics().into_iter().map(|metric| {
        let name = metric.rsplit('.').next().expect("a name").to_owned();
        let known = truth[&name].as_u64().or(truth["errors"][&name].as_u64());
        let sum = known.unwrap_or_else(|| panic!("no {name} in {truth}"));
        (metric, sum)
    });
    sums.collect()
}

/// A daemon, and two agents. The daemon must count all their events.
struct Bench {
    steady: Server,
    pmcd: Pmcd,
    pmda: u32,
    home: Home,
}

impl Bench {
    fn new() -> Self {
        let home = Home::new();
        let pmcd = Pmcd::start(&home);
        let mut steady = Nixl::new(NEWEST, &home.rings()).serve();
        steady.start("--prefix steady --until-signal --rate 200 --drain-timeout 30");
        Self {
            pmda: pmcd.pmda_pid(),
            home,
            pmcd,
            steady,
        }
    }

    fn serve(&self, version: &'static str) -> Server {
        Nixl::new(version, &self.home.rings()).serve()
    }

    /// Sums of the events of an agent.
    fn counted(&self, agent: &str) -> BTreeMap<String, u64> {
        of(&self.pmcd.all_values(), agent)
    }

    /// Sums of an agent without a writer, after all its events were counted.
    fn shows_changes(&self, agent: &str) -> BTreeMap<String, u64> {
        let mut last = self.counted(agent);
        wait_for("the sums stay equal", || {
            std::thread::sleep(Duration::from_millis(200));
            let now = self.counted(agent);
            let same = now == last;
            last = now.clone();
            same.then_some(now)
        })
    }

    /// Restarts an agent, and asserts that the counters grow by its report.
    fn goes_on(&self, agent: &str, server: &mut Server, options: &str) {
        let before = self.shows_changes(agent);
        let [truth, _] = server.run(options);
        let after = self.counted(agent);
        for (metric, sum) in sums(&truth) {
            assert_eq!(after[&metric] - before[&metric], sum, "{metric}: {truth}");
        }
    }

    /// Asserts that every event of the two agents was counted, without a restart of the daemon.
    fn finish(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.steady.pid()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        let agents = self.steady.done().expect("its report");
        let values = self.pmcd.all_values();
        for truth in agents {
            assert_eq!(truth["flushed"], true, "{truth}");
            assert_eq!(truth["drained"], true, "{truth}");
            let agent = truth["agent"].as_str().expect("a name");
            assert_eq!(of(&values, agent), sums(&truth), "{truth}");
        }
        assert!(values[REQUESTS]["steady-A"] > 100, "under load");
        assert_eq!(
            self.pmcd.pmda_pid(),
            self.pmda,
            "the daemon was not restarted"
        );
    }
}

fn of(values: &Values, agent: &str) -> BTreeMap<String, u64> {
    let sums = event_metrics().into_iter().map(|metric| {
        let sum = values.get(&metric).and_then(|values| values.get(agent));
        (metric, sum.copied().unwrap_or_default())
    });
    sums.collect()
}

#[test]
#[ignore = "many starts of NIXL"]
fn restarts_with_other_sizes_and_versions_lose_no_event() {
    let _turn = turn();
    let bench = Bench::new();
    let (some, all) = (
        ["1.5.1", "1.3.2", "0.10.1"],
        ["1.5.1", "1.3.2", "0.10.1", "1.4.1", "1.2.0", "1.1.0"],
    );
    let versions = if restarts() > 6 { &all[..] } else { &some[..] };
    // Smaller, larger, and equal.
    let sizes = [4096, 2048, 65_536, 65_536, 4096];
    let mut servers: BTreeMap<&str, Server> = BTreeMap::new();
    let mut expected: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
    for start in 0..=restarts() {
        // Each version at least twice in a row. The process of a version stays for its next run.
        let version = versions[start / 2 % versions.len()];
        let server = servers
            .entry(version)
            .or_insert_with(|| bench.serve(version));
        let size = sizes[start % sizes.len()];
        let (rounds, errors) = (start % 3, start % 4);
        let options = format!(
            "--prefix again --transfers 200 --rate 500 --memory-rounds {rounds} --errors {errors} --buffer-size {size}"
        );
        // In every third run, the process is killed with its agents.
        let agents = if start % 3 == 2 {
            let agents = server.run(&format!("{options} --linger 60"));
            servers.remove(version).expect("there").kill();
            agents
        } else {
            server.run(&options)
        };
        let values = bench.pmcd.all_values();
        for truth in &agents {
            let agent = truth["agent"].as_str().expect("a name");
            let sums = sums(truth);
            let expected = expected.entry(agent.to_owned()).or_default();
            for (metric, sum) in sums {
                *expected.entry(metric).or_default() += sum;
            }
            assert_eq!(
                &of(&values, agent),
                expected,
                "start {start}: NIXL {version}, {size} events: {truth}"
            );
            assert_eq!(
                values[RESETS][agent], start as u64,
                "NIXL {version}, {size} events"
            );
            assert_eq!(values["nixl.ring.foreign_reads"][agent], 0);
        }
    }
    drop(servers);
    bench.finish();
}

/// Number of times that the daemon has detached the ring of an agent.
fn let_go(bench: &Bench, agent: &str) -> usize {
    let line = format!("agent {agent}: its ring ");
    bench.pmcd.log().matches(&line).count()
}

#[test]
#[ignore = "many starts of NIXL"]
fn truncated_ring_of_a_live_agent_does_not_affect_others() {
    let _turn = turn();
    let bench = Bench::new();
    let mut next = bench.serve(NEWEST);
    let lengths = [0, 30_000, 4096, 40, 8, 65_536];
    for &length in lengths.iter().cycle().take(restarts() / 3) {
        let mut victim = bench.serve(NEWEST);
        let before = bench.counted("victim-A")[REQUESTS];
        let before_that = let_go(&bench, "victim-A");
        victim.start("--prefix victim --until-signal --rate 2000 --buffer-size 4096");
        wait_for("the transfers are counted", || {
            (bench.counted("victim-A")[REQUESTS] > before + 50).then_some(())
        });
        let ring = OpenOptions::new()
            .write(true)
            .open(bench.home.ring("victim-A"));
        ring.and_then(|ring| ring.set_len(length)).expect("there");
        // A process that accesses the file beyond its end gets SIGBUS: the agent is killed, the daemon detaches one
        // ring. The agent accesses it only if its ring is drained.
        let noticed = || let_go(&bench, "victim-A") > before_that;
        let ended = wait_for("the agent is killed at the end of the file", || {
            let ended = victim.ended();
            (ended.is_some() || noticed()).then_some(ended)
        });
        if let Some(ended) = ended {
            let signal = ended.signal();
            assert_eq!(signal, Some(Signal::SIGBUS as i32), "{length}: {ended}");
        }
        drop(victim);
        bench.goes_on(
            "victim-A",
            &mut next,
            "--prefix victim --transfers 200 --rate 500 --buffer-size 4096",
        );
    }
    bench.finish();
}

#[test]
#[ignore = "many starts of NIXL"]
fn two_agents_of_one_name_corrupt_their_own_ring_only() {
    let _turn = turn();
    let bench = Bench::new();
    let twins = [
        [(NEWEST, 4096), (NEWEST, 4096)],
        [(NEWEST, 4096), ("0.10.1", 2048)],
        [("1.3.2", 65_536), (NEWEST, 2048)],
    ];
    for &twins in twins.iter().cycle().take(1 + restarts() / 12) {
        let mut both = twins.map(|(version, size)| {
            let mut server = bench.serve(version);
            server.start(&format!(
                "--prefix twin --until-signal --rate 500 --buffer-size {size}"
            ));
            server
        });
        // The two agents can kill each other.
        both.iter_mut().for_each(|server| {
            wait_for("the agent has mapped the ring", || {
                (server.ended().is_some() || server.has_mapped("twin-A")).then_some(())
            });
        });
        let mut before = bench.counted("twin-A");
        for _ in 0..40 {
            let now = bench.counted("twin-A");
            for (metric, sum) in &now {
                // Slots of one layout read as another give any sum, so a sum may wrap.
                let same_slots = twins.iter().all(|(version, _)| *version != "0.10.1");
                let last = before[metric];
                assert!(
                    *sum >= last || !same_slots,
                    "{metric} decreased from {last} to {sum}: {twins:?}"
                );
            }
            before = now;
        }
        drop(both);
        let mut next = bench.serve(NEWEST);
        bench.goes_on(
            "twin-A",
            &mut next,
            "--prefix twin --transfers 200 --rate 500 --buffer-size 4096",
        );
    }
    bench.finish();
}
