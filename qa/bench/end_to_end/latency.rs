// SPDX-License-Identifier: GPL-2.0-or-later

//! Latency of fetches through a real pmcd by number of agents, and what the daemon uses meanwhile.

use super::report::{Line, Plot, Table};
use super::runs::Runs;
use super::support::measure::Use;
use super::support::pdu::Link;
use super::support::writer::{Layout, RingWriter};
use super::support::{Home, PMDANIXL, Pmcd, TX_BYTES, project, run, shape, wait_for};
use super::{Extent, processor};
use pmdanixl::metrics::METRICS;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Limit of the values of pmdasample.
const MOST_VALUES: usize = 999_999;
/// Instances of sample.long.bin and sample.longlong.bin.
const BINS: usize = 9;
/// Clusters of the metrics that PCP's Python PMDA has as well.
pub const LAST_OLD_CLUSTER: u32 = 3;
/// Metric with an instance for each agent and bucket.
const BUCKETS: &str = "nixl.latency.xfer_time.histogram";
/// Limits of the memory of a daemon, and of the memory for each agent, in KiB.
const TARGET: (f64, f64) = (6.0 * 1024.0, 32.0);

/// Limit of the ratio of a fetch of the 20 metrics to that of the PMDA in C, and the number of agents.
const FETCH_TARGET: &str = "0.90";
const TARGET_AGENTS: [usize; 2] = [64, 1000];

/// Live agents that have transferred, and are idle now.
struct Silent {
    home: Home,
    /// The rings stay open, since a ring without a writer is not an instance.
    rings: Vec<RingWriter>,
}

impl Silent {
    fn new(agents: usize) -> Self {
        let home = Home::new();
        home.set("max_agents = 16384");
        let rings = (0..agents).map(|number| {
            let path = home.ring(format!("agent-{number}"));
            RingWriter::create(&path, Layout::V4, 64).expect("a ring")
        });
        let rings = rings.collect();
        Self { home, rings }
    }

    /// Pushes a transfer for each agent: percentiles are those of the last minute.
    fn transfer(&mut self) {
        let mut random = fastrand::Rng::with_seed(1);
        for ring in &mut self.rings {
            for _ in 0..10 {
                let (bytes, time) = (1 << random.u64(12..=24), random.u64(50..5000));
                ring.push_transfer(random.bool(), bytes, time, random.u64(5..50));
            }
        }
    }
}

/// Times of fetches of several runs, in milliseconds.
struct Times {
    sorted: Vec<f64>,
    /// Medians of the runs.
    medians: Runs,
    values: usize,
}

impl Times {
    /// Percentile of the times.
    fn at(&self, percent: usize) -> f64 {
        let last = self.sorted.len() - 1;
        self.sorted[(last * percent).div_ceil(100)]
    }

    /// Joins the runs of one set: the times of each, and the number of values.
    fn of(runs: &[(Vec<f64>, usize)]) -> Self {
        let median = |times: &[f64]| times.iter().copied().collect::<Runs>().median();
        let mut sorted: Vec<f64> = runs.iter().flat_map(|(times, _)| times).copied().collect();
        sorted.sort_by(f64::total_cmp);
        Self {
            sorted,
            medians: runs.iter().map(|(times, _)| median(times)).collect(),
            values: runs[0].1,
        }
    }
}

/// Fetches sets of metrics so many times in each run, one set after the other.
fn fetch(client: &Path, pmcd: &Pmcd, runs: usize, rounds: usize, sets: &[&str]) -> Vec<Times> {
    let client = client.to_str().expect("UTF-8");
    let mut times = vec![vec![(Vec::new(), 0); runs]; sets.len()];
    for run_number in 0..runs {
        let said = run(pmcd.tool(client).arg(rounds.to_string()).args(sets));
        for line in said.lines() {
            let mut numbers = line.split(' ').map(|field| field.parse::<usize>());
            let mut next = || numbers.next().expect("three").expect("a number");
            let (times, values) = &mut times[next()][run_number];
            times.push(next() as f64 / 1e6);
            *values = next();
        }
    }
    times.iter().map(|runs| Times::of(runs)).collect()
}

/// Names of metrics, in the format of the client.
fn names(chosen: impl Fn(u32) -> bool) -> String {
    let chosen = METRICS.iter().filter(|metric| chosen(metric.cluster));
    let names: Vec<String> = chosen
        .map(|metric| format!("nixl.{}", metric.name))
        .collect();
    names.join(",")
}

fn lines() -> [Line; 4] {
    [
        ("pmdanixl, the 20 metrics", "lc '#1b6ca8'"),
        ("an agent in C, the same 20", "lc '#1b6ca8' dt 2"),
        ("pmdanixl, all metrics", "lc '#c8553d'"),
        ("pmdasample, as many values", "lc '#c8553d' dt 2"),
    ]
    .map(|(title, style)| Line {
        title,
        style,
        points: Vec::new(),
    })
}

/// Tables of fetches, memory, CPU time and starts.
pub fn measure(extent: Extent, plot: &mut Plot) -> Vec<Table> {
    let mut fetches = Table::new(
        "Fetches through pmcd",
        "fetch | agents | values | p50 / C's | at most | p50 / pmdasample's | p50 ms | p99 ms | max ms | C p50 ms | p99 ms | max ms | \
         pmdasample p50 ms | p99 ms | max ms | pmcd alone p50 ms",
        "A client in C (qa/bench/fetch.c) asks them in turn, over a unix socket. The agents have been busy and are silent now. C is an \
         agent in C (qa/bench/shape.c) with 20 counters of 64 bits for each agent, by pmdaCache(3); it has no other metrics. \
         pmdasample comes with PCP, and answers as many values, of 32 bits (below: what 64 bits cost). pmcd alone answers a metric of \
         its own.",
    );
    let mut memory = Table::new(
        "Memory",
        "agents | of 6 MB + 32 KiB per agent | KiB | KiB per agent beyond the first | KiB with what is mapped",
        "Memory of its own (RssAnon), after the fetches. What is mapped as well (VmRSS) are the rings, which are NIXL's, and the state \
         file.",
    );
    let mut labels = Table::new(
        "Labels",
        "agents | instances | ms of the PMDA's CPU time",
        "Of all buckets of transfer times, as `pminfo -l nixl.latency.xfer_time.histogram` asks for them, after the first time.",
    );
    let mut idle = Table::new(
        "CPU, idle",
        "agents | % of a CPU | at most",
        "Live agents without events, and no client that fetches. Where there is a limit, they have been silent for so long that \
         /proc is read to find the processes that have their rings.",
    );
    let mut starts = Table::new(
        "From start to first value",
        "agents | ms to the first value | ms to values of all",
        "From the start of the process until its answers have values. The rings wait.",
    );
    let runs = Runs::count(extent);
    let mut lines = lines();
    let (mut first, client) = (None, client());
    for &agents in extent.of(&[1, 8, 64, 1000, 10_000][..], &[1, 64, 1000][..]) {
        let mut silent = Silent::new(agents);
        silent.transfer();
        start(&silent.home, agents, runs, &mut starts);
        let shape = shape::program(&silent.home);
        let options = [
            "--sample",
            "--shape",
            shape.to_str().expect("UTF-8"),
            &agents.to_string(),
        ];
        let pmcd = Pmcd::start_within(&silent.home, "pcp", &[], &options, |_| ());
        wait_for("all agents are shown", || {
            (pmcd.values(TX_BYTES).len() == agents).then_some(())
        });
        let sets = [
            ("20 metrics", names(|cluster| cluster <= LAST_OLD_CLUSTER)),
            ("all metrics", names(|_| true)),
        ];
        for ((what, names), lines) in sets.iter().zip(lines.chunks_mut(2)) {
            silent.transfer();
            let values = fetch(client.program(), &pmcd, 1, 1, &[names])[0].values;
            let many = values.min(MOST_VALUES).to_string();
            run(pmcd.tool("pmstore").args(["sample.many.count", &many]));
            let (work, least, most) = extent.of((4_000_000, 20, 2000), (100_000, 5, 50));
            let rounds = (work / values).clamp(least, most).div_ceil(runs);
            let in_c = shape::names().join(",");
            let sets = [names, "sample.many.int", "pmcd.numagents", &in_c];
            // The PMDA in C has only the 20 metrics.
            let is_shape = values == agents * shape::pmids().len();
            let sets = &sets[..if is_shape { 4 } else { 3 }];
            fetch(client.program(), &pmcd, 1, least, sets);
            let times = fetch(client.program(), &pmcd, runs, rounds, sets);
            let (ours, sample, alone) = (&times[0], &times[1], &times[2]);
            let shape = times.get(3);
            let shown = |times: Option<&Times>| {
                let late = [99, 100].map(|percent| {
                    times.map_or("-".into(), |times| format!("{:.2}", times.at(percent)))
                });
                let median = times.map_or("-".into(), |times| times.medians.shown(2));
                [median].into_iter().chain(late)
            };
            let ratio = |times: &Times| ours.medians.ratios(&times.medians).bold(2);
            let is_target = is_shape && TARGET_AGENTS.contains(&agents);
            let head = [
                (*what).to_owned(),
                agents.to_string(),
                values.to_string(),
                shape.map_or("-".into(), ratio),
                if is_target {
                    FETCH_TARGET.into()
                } else {
                    "-".into()
                },
                ratio(sample),
            ];
            let all = [Some(ours), shape, Some(sample)]
                .into_iter()
                .flat_map(shown);
            let alone = alone.medians.shown(2);
            fetches.row(head.into_iter().chain(all).chain([alone]));
            let points = [Some(ours), shape.or(Some(sample))];
            for (times, line) in points.into_iter().flatten().zip(lines) {
                line.points.push((agents, times.at(50), times.at(99)));
            }
        }
        let own = rss(pmcd.pmda_pid());
        let (one, other) = *first.get_or_insert((own, agents));
        let per_agent = (agents > other).then(|| (own - one) / (agents - other) as f64);
        let target = TARGET.0 + TARGET.1 * agents as f64;
        memory.row([
            agents.to_string(),
            format!("**{:.2}**", own / target),
            format!("{own:.0}"),
            per_agent.map_or("-".into(), |kib| format!("{kib:.1}")),
            format!("{:.0}", resident(pmcd.pmda_pid())),
        ]);
        label_time(&pmcd);
        let times = Runs::of(runs, || label_time(&pmcd));
        let instances = pmcd.values(BUCKETS).len();
        labels.row([agents.to_string(), instances.to_string(), times.shown(1)]);
        let (rest, time, most) = match agents {
            1000 => (75, 120, "0.50"),
            _ => (0, 20, "-"),
        };
        std::thread::sleep(Duration::from_secs(extent.of(rest, 0)));
        let time = Duration::from_secs(extent.of(time, 1));
        let share = processor::share(pmcd.pmda_pid(), runs, time);
        idle.row([agents.to_string(), share.bold(2), most.into()]);
    }
    plot.lines.extend(lines);
    vec![
        fetches,
        wide(client.program(), extent),
        memory,
        labels,
        idle,
        starts,
    ]
}

/// Extra time of pmcd for 64-bit values, for any PMDA.
fn wide(client: &Path, extent: Extent) -> Table {
    let mut table = Table::new(
        "What values of 64 bits cost",
        "values | p50 / that of 32 bits | p50 ms | of 32 bits, p50 ms",
        "The client fetches sample.longlong.bin and sample.long.bin of pmdasample in turn, with so many values in a fetch. A value of 64 bits takes \
         a block of its own in each message, which pmcd takes apart and puts together.",
    );
    let home = Home::new();
    let pmcd = Pmcd::start_within(&home, "pcp", &[], &["--sample"], |_| ());
    for values in [1280, 20_000] {
        let sets = ["sample.longlong.bin", "sample.long.bin"]
            .map(|metric| vec![metric; values / BINS].join(","));
        let [long, short] = &sets;
        let rounds = extent.of(80, 10);
        let times = fetch(client, &pmcd, Runs::count(extent), rounds, &[long, short]);
        let [wide, narrow] = [0, 1].map(|set| &times[set].medians);
        assert_eq!(times[0].values, values / BINS * BINS);
        assert_eq!(times[1].values, times[0].values);
        table.row([
            times[0].values.to_string(),
            wide.ratios(narrow).bold(2),
            wide.shown(2),
            narrow.shown(2),
        ]);
    }
    table
}

/// Compiles the client, once.
struct Client {
    _home: Home,
    program: PathBuf,
}

impl Client {
    fn program(&self) -> &Path {
        &self.program
    }
}

fn client() -> Client {
    let home = Home::new();
    let program = home.path("fetch");
    run(Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(project("qa/bench/fetch.c"))
        .arg("-lpcp"));
    Client {
        _home: home,
        program,
    }
}

fn rss(pid: u32) -> f64 {
    Use::of_process(pid, Path::new("/nowhere")).memory as f64
}

/// Resident memory with mapped files, in KiB.
fn resident(pid: u32) -> f64 {
    Use::of_process(pid, Path::new("/nowhere")).resident as f64
}

/// CPU time of the daemon for the labels of all buckets, in milliseconds.
fn label_time(pmcd: &Pmcd) -> f64 {
    let time = || pmcd.values("nixl.control.cpu_time")[""];
    let before = time();
    run(pmcd.tool("pminfo").args(["-l", BUCKETS]));
    (time() - before) as f64 / 1e3
}

fn start(home: &Home, agents: usize, runs: usize, table: &mut Table) {
    let starts = (0..runs).map(|_| {
        let began = Instant::now();
        let mut link = Link::start(home, Command::new(PMDANIXL)).expect("it starts");
        let mut reach = |count| {
            loop {
                let values = link.fetch(&["transfer.tx_bytes"]).expect("an answer");
                if values[0].len() >= count {
                    return began.elapsed().as_secs_f64() * 1e3;
                }
            }
        };
        let times = (reach(1), reach(agents));
        assert!(link.end().success());
        times
    });
    let (one, all): (Vec<f64>, Vec<f64>) = starts.unzip();
    let shown = |times: Vec<f64>| times.into_iter().collect::<Runs>().shown(1);
    table.row([agents.to_string(), shown(one), shown(all)]);
}
