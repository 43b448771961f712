// SPDX-License-Identifier: GPL-2.0-or-later

//! Hundreds of short-lived agents with a real pmcd. Memory, descriptors and instances must return to their level before
//! the load.
//!
//! The test takes about 25 seconds; `MINUTES=10` sets the duration (`make soak`).

use crate::support::kill::Dice;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, example, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Number of agents that live during the whole test.
const RESIDENTS: usize = 10;
/// Setting `max_agents`. The daemon has records of up to four times as many agents.
const MAX_AGENTS: usize = 160;
/// Number of names of short-lived agents: more than the daemon has records for, so that records expire.
const NAMES: u64 = 700;
/// Number of files of exited agents that stay, as NIXL leaves them.
const LEFT_BEHIND: usize = 150;
/// Interval in which agents start, push and exit.
const ROUND: Duration = Duration::from_millis(20);
/// Number of starts in each round.
const STARTS: usize = 2;
/// Allowed growth of the memory between two rests.
const NOISE_KIB: u64 = 512;
/// Limit of the repetitions of a load after which memory has grown. A leak grows each time; free memory in malloc, from
/// a tick with more agents than usual on a busy machine, does not. Such memory can hide a leak once, so two repetitions
/// in a row must not grow.
const TRIES: usize = 5;
/// Minimum number of starts between two rests.
const LEAST_STARTS: u64 = 300;
/// Size of the smallest allocation of malloc, which is the smallest possible leak of a start. Half of it is allowed,
/// because of fragmentation: malloc_stats(3) shows an equal size in use.
const LEAST_BYTES: u64 = 32;
/// Memory for an agent's name while the daemon runs: its instance id stays assigned.
const NAME_BYTES: u64 = 1024;

/// Agent that lives for some rounds.
struct Agent {
    name: String,
    ring: RingWriter,
    rounds: u64,
}

/// Names of agents, and memory that the daemon may need for each new name, in bytes.
struct Names {
    name: fn(u64) -> String,
    bytes: u64,
}

/// Resource use of the daemon.
#[derive(Clone, Copy, Debug)]
struct Usage {
    rss_kib: u64,
    descriptors: usize,
    mappings: usize,
    instances: usize,
}

struct Soak<'a> {
    home: &'a Home,
    pmcd: Pmcd,
    pmda: u32,
    dice: Dice,
    residents: Vec<Agent>,
    agents: Vec<Agent>,
    /// Remaining files of exited agents, oldest first.
    left: Vec<String>,
    /// Bytes sent between two starts of an agent, by name.
    lives: BTreeMap<String, Vec<u64>>,
    /// Sample producer: agents in another process.
    producer: Option<Child>,
    began: Instant,
    /// Number of names that short-lived agents have had.
    named: u64,
    starts: u64,
    compared: u64,
}

impl<'a> Soak<'a> {
    fn new(home: &'a Home) -> Self {
        home.set(&format!("retain = \"300ms\"\nmax_agents = {MAX_AGENTS}"));
        let pmcd = Pmcd::start(home);
        let mut soak = Self {
            home,
            pmda: pmcd.pmda_pid(),
            pmcd,
            dice: Dice::new(7),
            residents: Vec::new(),
            agents: Vec::new(),
            left: Vec::new(),
            lives: BTreeMap::new(),
            producer: None,
            began: Instant::now(),
            named: 0,
            starts: 0,
            compared: 0,
        };
        for number in 0..RESIDENTS {
            let agent = soak.start(format!("resident-{number}"));
            soak.residents.push(agent);
        }
        soak
    }

    /// Starts an agent, in place if the file of an earlier one exists.
    fn start(&mut self, name: String) -> Agent {
        let layout = self
            .dice
            .one_of([Layout::V4, Layout::V4, Layout::V1, Layout::V2Named]);
        let capacity = self.dice.one_of([256, 256, 1024]);
        let ring = RingWriter::create(&self.home.ring(&name), layout, capacity);
        self.left.retain(|left| *left != name);
        self.lives.entry(name.clone()).or_default().push(0);
        self.starts += 1;
        Agent {
            name,
            ring: ring.expect("a ring"),
            rounds: 10 + self.dice.below(20),
        }
    }

    /// Runs one round of starts, pushes and exits.
    fn round(&mut self, names: &Names) {
        let until = Instant::now() + ROUND;
        for _ in 0..STARTS {
            let name = (names.name)(self.named);
            self.named += 1;
            if self.agents.iter().all(|agent| agent.name != name) {
                let agent = self.start(name);
                self.agents.push(agent);
            }
        }
        self.push();
        self.exit();
        self.produce();
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// Pushes up to 8 events for each agent.
    fn push(&mut self) {
        let busy = self.agents.iter_mut().filter(|agent| agent.rounds > 0);
        for agent in self.residents.iter_mut().chain(busy) {
            let lives = self.lives.get_mut(&agent.name).expect("it was started");
            let bytes = lives.last_mut().expect("it was started");
            for _ in 0..1 + self.dice.below(8) {
                let value = 1 + self.dice.below(1 << 20);
                if agent.ring.push(Kind::TxBytes, value) {
                    *bytes += value;
                }
            }
            agent.rounds = agent.rounds.saturating_sub(1);
        }
    }

    /// Ends agents without remaining rounds. Their rings must be empty, so that every event counts.
    fn exit(&mut self) {
        let mut at = 0;
        while at < self.agents.len() {
            if self.agents[at].rounds > 0 || self.agents[at].ring.pending() > 0 {
                at += 1;
                continue;
            }
            let Agent { name, ring, .. } = self.agents.swap_remove(at);
            match self.dice.below(4) {
                // A restart in place.
                0 => {
                    drop(ring);
                    let agent = self.start(name);
                    self.agents.push(agent);
                }
                // The file is removed, before the agent has ended or after.
                1 => self.remove(&name),
                2 => {
                    drop(ring);
                    self.remove(&name);
                }
                // The file stays for a while.
                _ => self.left.push(name),
            }
        }
        while self.left.len() > LEFT_BEHIND {
            let name = self.left.remove(0);
            self.remove(&name);
        }
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.home.ring(name)).expect("there");
    }

    /// Starts the sample producer if it does not run. It removes its files at its end, or leaves them.
    fn produce(&mut self) {
        if let Some(producer) = &mut self.producer {
            if producer.try_wait().expect("our child").is_none() {
                return;
            }
        }
        let end = self.dice.one_of(["--unlink", "--keep"]);
        let command = "--agents 10 --name worker --transfers 100 --rate 200 --restart-every 40";
        let producer = Command::new(example("producer"))
            .arg("--dir")
            .arg(self.home.rings())
            .args(command.split(' '))
            .arg(end)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        self.producer = Some(producer.expect("qa/producer is built"));
    }

    /// Compares the values of live agents in pmcd with their sums. Returns the number of instances.
    fn compare(&mut self) -> usize {
        // An answer has all events that were drained before the request.
        wait_for("the residents are drained", || {
            let mut residents = self.residents.iter();
            residents
                .all(|agent| agent.ring.pending() == 0)
                .then_some(())
        });
        let agents = self.residents.iter().chain(&self.agents);
        let drained: Vec<_> = agents
            .filter(|agent| agent.ring.pending() == 0 && self.lives[&agent.name].last() > Some(&0))
            .collect();
        let shown = wait_for("the residents are instances", || {
            let shown = self.pmcd.sent();
            let mut residents = self.residents.iter();
            let all = residents.all(|agent| shown.contains_key(&agent.name));
            all.then_some(shown)
        });
        for agent in drained {
            let resident = agent.name.starts_with("resident");
            // A new agent is published when its labels are known.
            let Some(&value) = shown.get(&agent.name) else {
                assert!(!resident, "{} is not an instance", agent.name);
                continue;
            };
            // The record of an agent may have expired between two starts.
            let lives = self.lives[&agent.name].iter().rev();
            let mut sums = lives.scan(0, |sum, bytes| {
                *sum += bytes;
                Some(*sum)
            });
            assert!(
                sums.any(|sum| sum == value) && (!resident || value == self.lives[&agent.name][0]),
                "{} is {value}, not one of the last sums of {:?}",
                agent.name,
                self.lives[&agent.name]
            );
            self.compared += 1;
        }
        shown.len()
    }

    /// Runs rounds for some time. Compares the values once a second.
    fn run(&mut self, time: Duration, names: &Names) {
        let (end, interval) = (
            Instant::now() + time,
            (time / 10).max(Duration::from_secs(1)),
        );
        let mut report = Instant::now() + interval;
        let mut next_check = Instant::now();
        while Instant::now() < end {
            self.round(names);
            if Instant::now() >= next_check {
                next_check += Duration::from_secs(1);
                let instances = self.compare();
                if Instant::now() >= report {
                    report += interval;
                    self.report("load", self.usage(instances));
                }
            }
        }
    }

    /// Ends all short-lived agents, and removes their files. Returns the resource use after that.
    fn rest(&mut self) -> Usage {
        self.agents.iter_mut().for_each(|agent| agent.rounds = 0);
        while !self.agents.is_empty() {
            self.exit();
            self.agents.iter_mut().for_each(|agent| agent.rounds = 0);
            std::thread::sleep(ROUND);
        }
        if let Some(mut producer) = self.producer.take() {
            assert!(producer.wait().expect("our child").success());
        }
        for entry in fs::read_dir(self.home.rings()).expect("there").flatten() {
            let name = entry.file_name();
            if !name.to_string_lossy().starts_with("resident") {
                fs::remove_file(entry.path()).expect("there");
            }
        }
        self.left.clear();
        let instances = wait_for("exited agents are withdrawn", || {
            let instances = self.compare();
            (instances == RESIDENTS && self.attached() == RESIDENTS).then_some(instances)
        });
        self.usage_at_rest(instances)
    }

    /// Runs rounds for some time, with at least [`LEAST_STARTS`] starts, and rests. Asserts that the resource use has
    /// returned to `before`, except for the memory of new names. Returns the resource use.
    fn rest_after(&mut self, time: Duration, names: &Names, mut before: Usage) -> Usage {
        let (mut calm, mut room) = (1, 0);
        for _ in 0..TRIES {
            let (starts, named) = (self.starts, self.named);
            self.run(time, names);
            // A slow machine needs more time.
            while self.starts < starts + LEAST_STARTS {
                self.run(Duration::from_secs(1), names);
            }
            let after = self.rest();
            let (starts, named) = (self.starts - starts, self.named - named);
            self.report(&format!("rest after {starts} starts"), after);
            assert_eq!(
                (after.instances, after.descriptors, after.mappings),
                (before.instances, before.descriptors, before.mappings)
            );
            room += (starts * LEAST_BYTES / 2 + named * names.bytes) / 1024;
            if after.rss_kib > before.rss_kib + NOISE_KIB + room {
                println!("{before:?} became {after:?}, {NOISE_KIB} and {room} KiB are allowed");
                (before, calm, room) = (after, 2, 0);
                continue;
            }
            calm -= 1;
            if calm == 0 {
                return after;
            }
        }
        panic!("memory has grown too often, see above: {before:?}");
    }

    /// Number of rings that the daemon has open.
    fn attached(&self) -> usize {
        let rings = self.home.rings();
        let open = fs::read_dir(format!("/proc/{}/fd", self.pmda)).expect("it runs");
        let places = open
            .flatten()
            .filter_map(|fd| fs::read_link(fd.path()).ok());
        places
            .filter(|place| place.starts_with(&rings) && *place != rings)
            .count()
    }

    /// Resource use of the daemon between ticks.
    fn usage_at_rest(&self, instances: usize) -> Usage {
        let usages = (0..20).map(|_| {
            std::thread::sleep(ROUND);
            self.usage(instances)
        });
        // Files that are being written and directories that are being listed are open for a moment.
        let fewest = usages.min_by_key(|usage| usage.descriptors);
        fewest.expect("there are twenty")
    }

    fn usage(&self, instances: usize) -> Usage {
        let proc = format!("/proc/{}", self.pmda);
        let proc = Path::new(&proc);
        let read = |name| fs::read_to_string(proc.join(name)).expect("it runs");
        let (status, maps, rings) = (read("status"), read("maps"), self.home.rings());
        let rings = rings.to_string_lossy();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|rss| rss.split_whitespace().next()?.parse().ok());
        Usage {
            rss_kib: rss.expect("VmRSS: a number"),
            descriptors: descriptors(&proc.join("fd")),
            mappings: maps.lines().filter(|line| line.contains(&*rings)).count(),
            instances,
        }
    }

    fn report(&self, when: &str, usage: Usage) {
        let Usage {
            rss_kib,
            descriptors,
            mappings,
            instances,
        } = usage;
        println!(
            "{:4} s, {when}: {} starts, {} live; {instances} instances, {descriptors} descriptors, {mappings} mappings, \
             {rss_kib} KiB; {} totals compared",
            self.began.elapsed().as_secs(),
            self.starts,
            self.agents.len() + self.residents.len(),
            self.compared
        );
    }
}

/// Number of open files of a process, without those of process scans in /proc.
fn descriptors(fds: &Path) -> usize {
    let fds = fs::read_dir(fds).expect("it runs");
    let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    // The worker that reads sockets has two pipes, and runs while any process of the host uses NIXL.
    let is_pipe = |link: &Path| link.to_string_lossy().starts_with("pipe:");
    links
        .filter(|link| !link.starts_with("/proc") && !is_pipe(link))
        .count()
}

/// [`NAMES`] names in a fixed order, again and again.
const KNOWN: Names = Names {
    name: |number| format!("agent-{}", number % NAMES),
    bytes: 0,
};

/// A new name for each agent, like those of most engines.
const NEW: Names = Names {
    name: |number| format!("{number:08x}-9c5b-4f0e-8d55-0242ac120002"),
    bytes: NAME_BYTES,
};

#[test]
#[ignore = "a load of any length"]
fn short_lived_agents_leave_no_memory_descriptors_or_instances() {
    let minutes = std::env::var("MINUTES").ok();
    let seconds = minutes.map_or(18.0, |minutes| {
        60.0 * minutes.parse::<f64>().expect("MINUTES is a number")
    });
    let part = |share: f64| Duration::from_secs_f64(seconds * share);
    let home = Home::new();
    let mut soak = Soak::new(&home);
    soak.run(part(0.1), &KNOWN);
    // Each name has been used, and there are more names than records.
    while soak.named < NAMES + 100 {
        soak.run(Duration::from_secs(1), &KNOWN);
    }
    let first = soak.rest();
    soak.report("rest", first);
    let load = part(0.9).saturating_sub(soak.began.elapsed());
    let after = soak.rest_after(load, &KNOWN, first);
    soak.rest_after(part(0.1), &NEW, after);
    assert_eq!(
        soak.pmcd.pmda_pid(),
        soak.pmda,
        "the daemon was not restarted"
    );
}
