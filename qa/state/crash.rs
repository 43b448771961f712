// SPDX-License-Identifier: GPL-2.0-or-later

//! Kills of the daemon, pmcd and agents during their work: every event must be counted once.
//!
//! `KILLS=N` sets the number of kills in each test.

use crate::support::kill::{Dice, kill_process, wait_for_orphans};
use crate::support::life::{Mortal, event_metrics};
use crate::support::writer::Layout;
use crate::support::{
    Home, PMDANIXL, Pmcd, TX_BYTES, Values, agent_of, example, quit, text, wait_for,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn kills() -> u64 {
    let kills = std::env::var("KILLS").ok();
    kills.map_or(50, |kills| kills.parse().expect("KILLS is a number"))
}

/// Something that drains, and can be killed.
trait Drainer {
    /// Limit of the time from a start to the kill: before the first drain, or at any point of a later one.
    const LONGEST: Duration;
    /// Starts it if it does not run.
    fn start(&mut self);
    /// Sends SIGKILL.
    fn kill(&mut self);
    /// Starts it if it does not run, and waits until all rings are drained. Returns the counted values.
    fn read(&mut self) -> Values;
}

/// A daemon that dbpmda starts. The kill ends the daemon.
struct Daemon<'a> {
    home: &'a Home,
    dbpmda: Option<Child>,
}

impl<'a> Daemon<'a> {
    fn new(home: &'a Home) -> Self {
        Self { home, dbpmda: None }
    }
}

impl Drainer for Daemon<'_> {
    const LONGEST: Duration = Duration::from_millis(200);

    fn start(&mut self) {
        let start = || self.home.start_dbpmda(Path::new(PMDANIXL));
        self.dbpmda.get_or_insert_with(start);
    }

    fn kill(&mut self) {
        let mut dbpmda = self.dbpmda.take().expect("it runs");
        kill_process(agent_of(dbpmda.id()));
        drop(dbpmda.stdin.take());
        dbpmda.wait().expect("dbpmda ends");
    }

    fn read(&mut self) -> Values {
        if let Some(dbpmda) = self.dbpmda.take() {
            quit(dbpmda);
        }
        let metrics = [
            &event_metrics()[..],
            &["nixl.ring.resets", "nixl.ring.foreign_reads", PENDING].map(String::from),
        ]
        .concat();
        let request = format!("instance 39.0\nfetch {}", metrics.join(" "));
        // Until the daemon that dbpmda has left behind ends, the next one has no values, or cannot drain all rings.
        wait_for("one of the daemons drains all rings", || {
            let shown = self.home.dbpmda(&request);
            let values = (!shown.contains("Try again")).then(|| values_in(&shown))?;
            let missing = metrics.iter().find(|name| !values.contains_key(*name));
            assert_eq!(missing, None, "{shown}{}", self.home.log());
            are_drained(&values).then_some(values)
        })
    }
}

/// Metric of the events that are not counted yet.
const PENDING: &str = "nixl.ring.pending";

/// True if no ring has an event that is not counted yet.
fn are_drained(values: &Values) -> bool {
    let rings = values.get(PENDING).into_iter().flatten();
    rings.into_iter().all(|(_, &pending)| pending == 0)
}

/// Returns the values that dbpmda has printed.
fn values_in(shown: &str) -> Values {
    let (mut names, mut values, mut metric) = (BTreeMap::new(), Values::new(), String::new());
    for line in shown.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            // `[  0] inst: 7 name: "agent"`, `39.0.0 (nixl.transfer.tx_bytes): numval: 1 ...`, `inst [7 or ???]
            // value 42`.
            ["[", _, "inst:", id, "name:", name] => {
                names.insert(id.to_owned(), name.trim_matches('"').to_owned());
            }
            [_, name, "numval:", ..] => {
                metric = name.trim_matches(['(', ')', ':']).to_owned();
                values.insert(metric.clone(), BTreeMap::new());
            }
            ["inst", id, "or", "???]", "value", value] => {
                let name = names[id.trim_start_matches('[')].clone();
                let values = values.get_mut(&metric).expect("a value after its metric");
                values.insert(name, value.parse().expect("a number"));
            }
            _ => {}
        }
    }
    values
}

/// A pmcd and its daemon. The kill ends pmcd.
struct Whole<'a> {
    home: &'a Home,
    pmcd: Pmcd,
    runs: bool,
}

impl<'a> Whole<'a> {
    fn new(home: &'a Home) -> Self {
        Self {
            home,
            pmcd: Pmcd::start(home),
            runs: true,
        }
    }
}

impl Drainer for Whole<'_> {
    const LONGEST: Duration = Duration::from_millis(250);

    fn start(&mut self) {
        if !self.runs {
            self.pmcd.start_anew();
            self.runs = true;
        }
    }

    fn kill(&mut self) {
        self.pmcd.kill();
        self.runs = false;
    }

    fn read(&mut self) -> Values {
        self.start();
        self.pmcd.wait_until_it_answers();
        // An orphaned daemon may still have the state file or a ring locked for its last drain. An agent that becomes
        // an instance meanwhile has the values of some metrics only.
        wait_for("one of the daemons drains all rings", || {
            let values = self.pmcd.all_values();
            let mut all = event_metrics().into_iter();
            let is_whole = all.all(|metric| values.contains_key(&metric));
            (is_whole && are_drained(&values)).then_some(())
        });
        // pminfo fetches each metric on its own: those before may be from before the last drain.
        self.pmcd.all_values()
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.start();
            self.pmcd.wait_until_it_answers();
            self.pmcd.terminate();
            wait_for_orphans(&self.home.path("pcp"));
        }
    }
}

/// Starts the sample producer in the rings of a home.
fn start_producer(home: &Home, layout: Layout) -> Child {
    let options = "--name fast --agents 3 --capacity 1024 --rate 0 --full-timeout 120";
    Command::new(example("producer"))
        .arg("--dir")
        .arg(home.rings())
        .args(options.split(' '))
        .args(["--layout", layout.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qa/producer is built")
}

/// Ends a producer. Returns the bytes that it sent, by agent.
fn truth(producer: Child) -> BTreeMap<String, u64> {
    let pid = Pid::from_raw(i32::try_from(producer.id()).expect("a pid"));
    kill(pid, Signal::SIGTERM).expect("it runs");
    let output = producer.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let agents = said.lines().map(|line| {
        serde_json::from_str::<serde_json::Value>(line)
            .unwrap_or_else(|err| panic!("{err}: {line}"))
    });
    agents
        .map(|agent| {
            let name = agent["agent"].as_str().expect("a name").to_owned();
            (name, agent["tx_bytes"].as_u64().expect("a sum"))
        })
        // An agent that got no CPU time may be no instance.
        .filter(|(_, bytes)| *bytes > 0)
        .collect()
}

/// Kills the drainer while a producer writes as fast as it can.
fn kill_the_drainer<D: Drainer>(home: &Home, layout: Layout, mut drainer: D) {
    let (producer, mut dice) = (start_producer(home, layout), Dice::new(1));
    for _ in 0..kills() {
        drainer.start();
        dice.wait(D::LONGEST);
        drainer.kill();
    }
    // A drainer that is not killed, so that the producer can write its last events.
    drainer.start();
    let truth = truth(producer);
    let mut counted = drainer.read()[TX_BYTES].clone();
    // As in the truth.
    counted.retain(|_, bytes| *bytes > 0);
    assert_eq!(counted, truth);
}

/// Kills the drainer and the agent, one after the other.
fn kill_both<D: Drainer>(home: &Home, layout: Layout, mut drainer: D) {
    let mut dice = Dice::new(2);
    let mut mortal = Mortal::new(home.ring("mortal"), layout);
    for turn in 1..=kills() {
        // In any order.
        if dice.coin() {
            drainer.start();
        }
        mortal.start(&mut dice);
        drainer.start();
        dice.wait(D::LONGEST);
        if dice.coin() {
            drainer.kill();
            dice.wait(Duration::from_millis(2));
            mortal.kill();
        } else {
            mortal.kill();
            if dice.coin() {
                mortal.wait_until_drained();
            }
            dice.wait(Duration::from_millis(2));
            drainer.kill();
        }
        mortal.bury();
        if mortal.is_to_be_checked() || turn == kills() {
            drainer.start();
            mortal.wait_until_drained();
            mortal.check(&drainer.read());
        }
    }
    mortal.conclude(kills());
}

#[test]
fn daemon_killed_at_any_moment_counts_every_event_once() {
    let home = Home::new();
    kill_the_drainer(&home, Layout::V4, Daemon::new(&home));
}

#[test]
fn pmcd_killed_at_any_moment_counts_every_event_once() {
    let home = Home::new();
    kill_the_drainer(&home, Layout::V4, Whole::new(&home));
}

#[test]
fn agent_killed_and_restarted_loses_only_wiped_events() {
    let home = Home::new();
    // So that many drains find a restart.
    home.set("drain_interval = \"1ms\"");
    let (mut whole, mut dice) = (Whole::new(&home), Dice::new(3));
    let mut mortal = Mortal::new(home.ring("mortal"), Layout::V4);
    for turn in 1..=kills() {
        mortal.start(&mut dice);
        dice.wait(Duration::from_millis(60));
        mortal.kill();
        if dice.coin() {
            mortal.wait_until_drained();
        }
        mortal.bury();
        if mortal.is_to_be_checked() || turn == kills() {
            mortal.wait_until_drained();
            mortal.check(&whole.read());
        }
    }
    mortal.conclude(kills());
}

#[test]
fn daemon_and_agent_killed_lose_only_wiped_events() {
    let home = Home::new();
    home.set("drain_interval = \"2ms\"");
    kill_both(&home, Layout::V4, Daemon::new(&home));
}

#[test]
fn pmcd_and_agent_killed_lose_only_wiped_events() {
    let home = Home::new();
    home.set("drain_interval = \"2ms\"");
    kill_both(&home, Layout::V4, Whole::new(&home));
}

/// Each start writes identical bytes. Only positions and times distinguish one start from the next.
#[test]
fn agent_in_a_crash_loop_has_every_event_counted() {
    let home = Home::new();
    let (mut whole, mut dice) = (Whole::new(&home), Dice::new(4));
    let mut truth = 0;
    for _ in 0..kills() {
        let count = dice.below(200);
        Mortal::write_and_die(&home.ring("loop"), count);
        // Nothing tells a restart between the release of a batch from 0 and the check of it from no restart. That check
        // has ended when the daemon answers.
        whole.pmcd.values("nixl.agent.state");
        truth += count * (count + 1) / 2;
    }
    let counted = whole.read()[TX_BYTES]["loop"];
    assert_eq!(counted, truth);
}
