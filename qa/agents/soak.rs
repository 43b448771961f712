//! Hundreds of short-lived agents. Memory, descriptors and instances must return to their level before the load.
//!
//! It takes about 25 seconds; `MINUTES=10` sets the duration (`make soak`).

use crate::support::kill::Dice;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, example, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const TX_BYTES: &str = "nixl.transfer.tx_bytes";
/// Agents that are there all the time.
const RESIDENTS: usize = 10;
/// What `max_agents` is set to; the daemon keeps the totals of four times as many.
const MAX_AGENTS: usize = 160;
/// Names of those that come and go: more than the daemon keeps, so that it has to forget some.
const NAMES: u64 = 700;
/// Files of agents that have exited which are left where they are, as NIXL leaves them: more than are attached at a time.
const LEFT_BEHIND: usize = 150;
/// How often agents start, push and exit.
const ROUND: Duration = Duration::from_millis(20);
/// Starts in each round.
const STARTS: usize = 2;
/// What the same load may add to the memory between two moments of rest.
const NOISE_KIB: u64 = 512;
/// How often the same load is tried, where memory has grown: what leaks does each time, and what malloc kept, since more agents came
/// and went in one tick when the machine was busy with something else, does not. A leak may have room in that for once, so that
/// it takes two tries in a row that add nothing.
const TRIES: usize = 5;
/// How many starts of agents tell something.
const LEAST_STARTS: u64 = 300;
/// What malloc takes for the smallest thing, which is the least that a start could leave behind. Half of that is allowed: the heap
/// gets holes as time passes, though as much of it is in use as before (malloc_stats(3)).
const LEAST_BYTES: u64 = 32;
/// What an agent's name costs for as long as the daemon runs: its instance id is kept for its return.
const NAME_BYTES: u64 = 1024;

/// An agent that lives for some rounds.
struct Agent {
    name: String,
    ring: RingWriter,
    rounds: u64,
}

/// What agents are called, and what each new name may cost the daemon, in bytes.
struct Names {
    name: fn(u64) -> String,
    bytes: u64,
}

/// What the daemon uses.
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
    /// Files of agents that have exited, oldest first.
    left: Vec<String>,
    /// Bytes sent in each life of an agent, by name.
    lives: BTreeMap<String, Vec<u64>>,
    /// The sample producer: agents that are processes of their own.
    producer: Option<Child>,
    began: Instant,
    /// Names that were given to agents that come and go.
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

    /// Starts an agent, in place where the file of one of that name is still there.
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

    /// One round.
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

    /// Each agent pushes something.
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

    /// Ends agents that are due, after all of their events were read, so that every event counts.
    fn exit(&mut self) {
        let mut at = 0;
        while at < self.agents.len() {
            if self.agents[at].rounds > 0 || self.agents[at].ring.pending() > 0 {
                at += 1;
                continue;
            }
            let Agent { name, ring, .. } = self.agents.swap_remove(at);
            match self.dice.below(4) {
                // Restarted on its file at once.
                0 => {
                    drop(ring);
                    let agent = self.start(name);
                    self.agents.push(agent);
                }
                // Its file is removed, before it has ended or after.
                1 => self.remove(&name),
                2 => {
                    drop(ring);
                    self.remove(&name);
                }
                // Its file stays, for a while.
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

    /// Agents in a process of their own, which ends with their files in place or without.
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
        self.producer = Some(producer.expect("it was built"));
    }

    /// Compares what pmcd shows of the agents that live with what they wrote; how many instances there are.
    fn compare(&mut self) -> usize {
        // What is drained before the question is in the answer.
        wait_for("those that are always there are drained", || {
            let mut residents = self.residents.iter();
            residents
                .all(|agent| agent.ring.pending() == 0)
                .then_some(())
        });
        let agents = self.residents.iter().chain(&self.agents);
        let drained: Vec<_> = agents
            .filter(|agent| agent.ring.pending() == 0 && self.lives[&agent.name].last() > Some(&0))
            .collect();
        let shown = wait_for("those that are always there are shown", || {
            let shown = self.pmcd.values(TX_BYTES);
            let mut residents = self.residents.iter();
            let all = residents.all(|agent| shown.contains_key(&agent.name));
            all.then_some(shown)
        });
        for agent in drained {
            let resident = agent.name.starts_with("resident");
            // A new agent is published when its labels are known.
            let Some(&value) = shown.get(&agent.name) else {
                assert!(!resident, "{} is not shown", agent.name);
                continue;
            };
            // One that was away for long may have been forgotten meanwhile.
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

    /// Lets agents come and go for so long.
    fn run(&mut self, time: Duration, names: &Names) {
        let (end, interval) = (
            Instant::now() + time,
            (time / 10).max(Duration::from_secs(1)),
        );
        let mut report = Instant::now() + interval;
        let mut look = Instant::now();
        while Instant::now() < end {
            self.round(names);
            if Instant::now() >= look {
                look += Duration::from_secs(1);
                let instances = self.compare();
                if Instant::now() >= report {
                    report += interval;
                    self.report("load", self.usage(instances));
                }
            }
        }
    }

    /// All that come and go are gone; what is left then.
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
        let instances = wait_for("those that have exited leave", || {
            let instances = self.compare();
            (instances == RESIDENTS && self.attached() == RESIDENTS).then_some(instances)
        });
        self.usage_at_rest(instances)
    }

    /// Lets agents come and go for so long, and at least some; what is left then. That is what there was before, but for what
    /// their names may cost.
    fn rest_after(&mut self, time: Duration, names: &Names, mut before: Usage) -> Usage {
        let (mut calm, mut room) = (1, 0);
        for _ in 0..TRIES {
            let (starts, named) = (self.starts, self.named);
            self.run(time, names);
            // However slow the machine is.
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
                println!("{before:?} became {after:?}, with room for {NOISE_KIB} and {room} KiB");
                (before, calm, room) = (after, 2, 0);
                continue;
            }
            calm -= 1;
            if calm == 0 {
                return after;
            }
        }
        panic!("it has grown too often, see above: {before:?}");
    }

    /// The rings that the daemon has open.
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

    /// What the daemon uses when it does nothing but ticks.
    fn usage_at_rest(&self, instances: usize) -> Usage {
        let usages = (0..20).map(|_| {
            std::thread::sleep(ROUND);
            self.usage(instances)
        });
        // A file that is being written, or a directory that is being listed, is open for a moment.
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

/// How many files a process has open. A look through /proc has one of its own for a moment.
fn descriptors(fds: &Path) -> usize {
    let fds = fs::read_dir(fds).expect("it runs");
    let links = fds.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| !link.starts_with("/proc")).count()
}

/// The same names again and again, in the same order.
const KNOWN: Names = Names {
    name: |number| format!("agent-{}", number % NAMES),
    bytes: 0,
};

/// Names as most engines make them: no agent ever had this one.
const NEW: Names = Names {
    name: |number| format!("{number:08x}-9c5b-4f0e-8d55-0242ac120002"),
    bytes: NAME_BYTES,
};

#[test]
fn short_lived_agents_leave_no_memory_descriptors_or_instances() {
    let minutes = std::env::var("MINUTES").ok();
    let seconds = minutes.map_or(18.0, |minutes| {
        60.0 * minutes.parse::<f64>().expect("MINUTES is a number")
    });
    let part = |share: f64| Duration::from_secs_f64(seconds * share);
    let home = Home::new();
    let mut soak = Soak::new(&home);
    soak.run(part(0.1), &KNOWN);
    // Each name has been seen, and more than are remembered.
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
        "the same process all the time"
    );
}
