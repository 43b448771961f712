// SPDX-License-Identifier: GPL-2.0-or-later

//! A directory in which a hostile user makes, corrupts and swaps thousands of files while the daemon reads them. The
//! daemon must answer in time, and the values of other agents must stay exact.
//!
//! `HOSTILE_SECONDS` is the time for each seed; `HOSTILE_SEED` selects one seed.

mod backlog;

use crate::support::measure::{Took, Use, timed};
use crate::support::pdu::Link;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, PATIENCE, TX_BYTES, example, in_memory, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::fs::{self};
use std::io::Read;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const FILES: usize = 2000;
/// Limit of the time for an answer, in tests that measure it.
const IN_TIME: Duration = Duration::from_millis(50);
/// Limit of the time until a value is published, in tests that measure it.
const SOON: Duration = Duration::from_secs(3);

/// Limit of private memory in KiB: a base, a part for each instance, and a part for each record. The windows of an
/// instance are largest if its values are noise (src/stats/window.rs).
fn may_have(instances: usize, known: u64) -> u64 {
    6 * 1024 + 64 * instances as u64 + 6 * known
}

/// All changes that the hostile program can make.
const DONE: [&str; 33] = [
    "FIFO",
    "all ones",
    "all zeros",
    "change the mode",
    "change the owner",
    "device",
    "directory",
    "exchange with another",
    "flood",
    "hard link",
    "lengthen",
    "lock",
    "make a hard link",
    "mixed versions",
    "mode 000",
    "move positions",
    "noise",
    "odd header",
    "punch a hole",
    "remove",
    "remove a hard link",
    "rename over another",
    "restart in place",
    "ring",
    "shorten",
    "socket",
    "sparse ring",
    "spoil the header",
    "symbolic link",
    "take a lease",
    "truncate to nothing",
    "truncated ring",
    "up and down",
];

fn setting(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is a number")),
    )
}

/// The hostile program. Dropping it ends the program.
struct Hostile {
    child: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl Hostile {
    fn start(directory: &Path, seed: u64) -> Self {
        let mut child = Command::new(example("other_user"))
            .arg("torment")
            .arg(directory)
            .args([seed.to_string(), FILES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("qa/other_user is built");
        Self {
            input: child.stdin.take(),
            output: child.stdout.take().expect("piped"),
            child,
        }
    }

    /// Ends the program. Returns the number of changes of each kind.
    fn end(mut self) -> BTreeMap<String, u64> {
        self.input = None;
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("text");
        assert!(self.child.wait().expect("our child").success());
        let counts = said.lines().filter_map(|line| line.rsplit_once(' '));
        counts
            .map(|(what, times)| (what.to_owned(), times.parse().expect("a number")))
            .collect()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A well-behaved agent, and the sum of its events.
struct Healthy {
    name: String,
    ring: RingWriter,
    sent: u64,
    shown: u64,
    /// Time since which `shown` is less than `sent`, and the limit of that time.
    since: Option<Instant>,
    soon: Duration,
}

impl Healthy {
    fn new(directory: &Path, layout: Layout, soon: Duration) -> Self {
        let name = format!("healthy-{}", layout.name());
        let ring = RingWriter::create(&directory.join(&name), layout, 512).expect("a ring");
        Self {
            name,
            ring,
            sent: 0,
            shown: 0,
            since: None,
            soon,
        }
    }

    fn push(&mut self, value: u64) {
        if self.ring.push(Kind::TxBytes, value) {
            self.sent += value;
        }
    }

    /// Asserts that the published value reaches `sent` within `soon`, never exceeds it, and never decreases.
    fn check(&mut self, values: &BTreeMap<u32, u64>, id: u32) {
        let shown = values.get(&id).copied().unwrap_or(0);
        let name = &self.name;
        assert!(shown <= self.sent, "{name}: {shown} of {} shown", self.sent);
        assert!(shown >= self.shown, "{name}: {shown} after {}", self.shown);
        self.shown = shown;
        if shown == self.sent {
            self.since = None;
        } else {
            let since = *self.since.get_or_insert_with(Instant::now);
            assert!(
                since.elapsed() < self.soon,
                "{name}: {shown} of {}",
                self.sent
            );
        }
    }
}

/// The sample producer: two more agents, which restart now and then. Dropping it ends the producer.
struct Sample(Option<Child>);

impl Sample {
    fn start(directory: &Path) -> Self {
        let options = "--name sample --agents 2 --rate 1000 --capacity 1024 --restart-every 700 --vary --full-timeout 60";
        let producer = Command::new(example("producer"))
            .arg("--dir")
            .arg(directory)
            .args(options.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self(Some(producer.expect("qa/producer is built")))
    }

    /// Ends the producer. Returns the bytes that each of its agents sent.
    fn end(mut self) -> BTreeMap<String, u64> {
        let producer = self.0.take().expect("until here");
        let pid = Pid::from_raw(i32::try_from(producer.id()).expect("a pid"));
        kill(pid, Signal::SIGTERM).expect("it runs");
        let output = producer.wait_with_output().expect("our child");
        assert!(output.status.success());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let agents = said.lines().map(|line| {
            let agent: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let name = agent["agent"].as_str().expect("a name").to_owned();
            (name, agent["tx_bytes"].as_u64().expect("a sum"))
        });
        agents.collect()
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if let Some(producer) = &mut self.0 {
            let _ = producer.kill();
            let _ = producer.wait();
        }
    }
}

/// Instance ids of the healthy agents.
fn ids(link: &mut Link, healthy: &[Healthy]) -> Vec<u32> {
    wait_for("the healthy agents are instances", || {
        let names = link.instances().expect("an answer");
        let id = |name: &str| Some(*names.iter().find(|(_, found)| *found == name)?.0);
        let ids: Vec<u32> = healthy.iter().filter_map(|agent| id(&agent.name)).collect();
        (ids.len() == healthy.len()).then_some(ids)
    })
}

/// Pushes to the healthy agents and checks their values for some time. Returns the times of the answers, and the
/// largest number of instances in an answer.
fn watch(link: &mut Link, healthy: &mut [Healthy], time: Duration) -> (Vec<Took>, usize) {
    let ids = ids(link, healthy);
    let (mut all, mut value, mut most) = (Vec::new(), 0, 0);
    let end = Instant::now() + time;
    while Instant::now() < end {
        for agent in healthy.iter_mut() {
            value = value % 100_000 + 7;
            agent.push(value);
        }
        let (values, took) = timed(link, TX_BYTES);
        for (agent, id) in healthy.iter_mut().zip(&ids) {
            agent.check(&values, *id);
        }
        all.push(took);
        most = most.max(values.len());
        std::thread::sleep(Duration::from_millis(3));
    }
    (all, most)
}

/// Asserts that all answers with a certain time were in time, and 99 % of all answers.
fn judge(all: &[Took]) {
    let certain: Vec<&Took> = all.iter().filter(|took| took.is_certain()).collect();
    let late = all.iter().filter(|took| took.own() >= IN_TIME).count();
    let mut walls: Vec<Duration> = all.iter().map(|took| took.wall).collect();
    walls.sort();
    println!(
        "{} answers, half of them within {:?}, {} of them with a certain time; the longest of those: {:?}",
        all.len(),
        walls[all.len() / 2],
        certain.len(),
        certain.iter().max_by_key(|took| took.own())
    );
    if let Some(took) = certain.iter().find(|took| took.own() >= IN_TIME) {
        panic!("{took:?}, and {late} of {} like it", all.len());
    }
    assert!(late <= all.len() / 100, "{late} of {} were late", all.len());
}

/// Waits until these agents have these values. No value may ever be larger.
fn shows_changes(link: &mut Link, expected: &BTreeMap<String, u64>) {
    wait_for("all is counted, once", || {
        let values = link.sent();
        let mut shown = values
            .into_iter()
            .filter(|(name, _)| expected.contains_key(name));
        shown
            .all(|(name, value)| {
                assert!(
                    value <= expected[&name],
                    "{name}: {value} of {}",
                    expected[&name]
                );
                value == expected[&name]
            })
            .then_some(())
    });
}

/// Log lines in a minute: 60 and a summary, of notices and of warnings, about each of three users and without a user.
const LINES: u64 = 2 * 4 * 61;

/// Runs the hostile program beside healthy agents for some time. `soon` is the limit until a value is published; `None`
/// does not check times.
fn torment(seed: u64, time: Duration, soon: Option<Duration>) {
    println!("HOSTILE_SEED={seed}");
    let began = Instant::now();
    let home = Home::new();
    let directory = in_memory();
    let directory = directory.path();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {directory:?}\nretain = \"1s\"\n"
    ));
    let limit = soon.unwrap_or(PATIENCE);
    let mut healthy = Layout::ALL.map(|layout| Healthy::new(directory, layout, limit));
    let mut link = Link::open(&home);
    let before = wait_for("the healthy rings are attached", || {
        ids(&mut link, &healthy);
        Some(Use::of(&link, directory)).filter(|used| used.mappings == healthy.len())
    });
    let hostile = Hostile::start(directory, seed);
    let sample = Sample::start(directory);
    let (all, instances) = watch(&mut link, &mut healthy, time);
    let tormented = Use::of(&link, directory);
    let done = hostile.end();
    println!("{} changes, then {tormented:?}", done.values().sum::<u64>());
    for what in DONE {
        assert!(done.contains_key(what), "{what} is in {done:?}");
    }
    if soon.is_some() {
        judge(&all);
    }
    let mut expected = sample.end();
    expected.extend(healthy.iter().map(|agent| (agent.name.clone(), agent.sent)));
    shows_changes(&mut link, &expected);
    // The removed files release their mappings and descriptors.
    for entry in fs::read_dir(directory).expect("there") {
        let path = entry.expect("there").path();
        let name = path.file_name().expect("a name").to_string_lossy();
        if !expected.contains_key(name.as_ref()) {
            fs::remove_file(&path)
                .or_else(|_| fs::remove_dir(&path))
                .expect("removed");
        }
    }
    let rings = expected.len() - healthy.len();
    let after = wait_for("the hostile files are detached", || {
        let used = Use::of(&link, directory);
        // The id file, or a directory that is listed, is open for a moment, now and then.
        let is_detached = used.mappings == before.mappings + rings
            && used.descriptors <= before.descriptors + rings;
        is_detached.then_some(used)
    });
    let known = link.figures(&home).agents;
    println!("{instances} instances, {known} records: {tormented:?}, then {after:?}");
    assert!(
        tormented.memory.max(after.memory) < may_have(instances, known),
        "{instances} instances, {known} records: {tormented:?} {after:?}"
    );
    wait_for("the hostile files are withdrawn", || {
        let names = link.instances().expect("an answer");
        names
            .values()
            .all(|name| expected.contains_key(name))
            .then_some(())
    });
    shows_changes(&mut link, &expected);
    assert!(link.end().success());
    let (log, minutes) = (home.log(), began.elapsed().as_secs() / 60 + 2);
    let lines = u64::try_from(log.lines().count()).expect("few");
    assert!(
        lines < LINES * minutes && !log.contains(" Error: "),
        "{lines} lines\n{log}"
    );
    // A restarted daemon has these values, too.
    let mut link = Link::open(&home);
    shows_changes(&mut link, &expected);
    assert!(link.end().success());
}

/// Runs one test of this module at a time, since they measure times.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
#[ignore = "measures response times under random load"]
fn hostile_files_delay_no_answer_and_no_other_agent() {
    let _turn = turn();
    let time = Duration::from_secs(setting("HOSTILE_SECONDS").unwrap_or(7));
    let seeds = match setting("HOSTILE_SEED") {
        Some(seed) => vec![seed],
        None => vec![1, fastrand::u64(..)],
    };
    for seed in seeds {
        torment(seed, time, Some(SOON));
    }
}

/// Answer times are not checked here, and the changes are identical in each run.
#[test]
fn agents_beside_hostile_files_are_exact() {
    let _turn = turn();
    torment(1, Duration::from_secs(5), None);
}
