// SPDX-License-Identifier: GPL-2.0-or-later

//! `cargo bench --bench fetch_instructions`: instructions of a fetch, as valgrind counts them, compared with an agent
//! in C of the same shape (qa/bench/shape.c). It fails if a ratio is above its limit. Counts do not depend on the
//! machine, and compilers and versions of PCP change both sides.
//!
//! `PROFILE=DIR` writes the input of callgrind_annotate(1) to DIR, and compares nothing.

#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../support/mod.rs"]
mod support;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pmdanixl::metrics::METRICS;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use support::pdu::Link;
use support::writer::{Layout, RingWriter};
use support::{Home, PMDANIXL, run, shape, wait_for};

/// Limits of the ratio of a fetch to that of the PMDA in C, by number of agents: 20 % above the measured ratio. The
/// fetch has the 20 metrics that PCP's Python PMDA has, too.
const LIMITS: [(usize, f64); 2] = [(64, 0.28), (512, 0.27)];
/// Limit of the ratio of the cost of a value among many agents to that among few.
const GROWTH: f64 = 1.15;
/// Number of clusters with those metrics.
const CLUSTERS: u32 = 4;
/// Number of fetches. The median excludes the first ones, in which buffers grow.
const FETCHES: usize = 6;

/// Environment variable with the directory for profiles.
const PROFILE: &str = "PROFILE";

fn main() -> ExitCode {
    // Each ring needs a descriptor. valgrind gives the daemon the limit of this program.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("up to its own limit");
    if let Some(place) = std::env::var_os(PROFILE) {
        profile(Path::new(&place));
        return ExitCode::SUCCESS;
    }
    let (mut good, mut each) = (true, Vec::new());
    println!(
        "instructions of a fetch of the 20 metrics, and as a share of those of an agent in C of the same shape"
    );
    for (agents, limit) in LIMITS {
        let home = Home::new();
        let (values, ours) = ours(&home, agents);
        let theirs = theirs(&home, agents);
        let share = ours / theirs;
        println!(
            "{agents:5} agents, {values:6} values: {ours:10.0} ({:.0} per value), in C {theirs:10.0} ({:.0} per value): \
             {share:.2}, at most {limit:.2}",
            ours / values as f64,
            theirs / values as f64
        );
        good &= share <= limit;
        each.push(ours / values as f64);
    }
    let growth = each[1] / each[0];
    println!("a value among many agents: {growth:.2} of what it is among few, at most {GROWTH:.2}");
    if good && growth <= GROWTH {
        ExitCode::SUCCESS
    } else {
        eprintln!("fetch_instructions: above the limits in qa/bench/fetch_instructions.rs");
        ExitCode::FAILURE
    }
}

/// Writes both profiles.
fn profile(place: &Path) {
    let home = Home::new();
    ours(&home, LIMITS[0].0);
    theirs(&home, LIMITS[0].0);
    for side in ["ours", "theirs"] {
        fs::copy(home.path(side).join("out"), place.join(side)).expect("copied");
    }
}

/// Values and instructions of a fetch from pmdanixl.
fn ours(home: &Home, agents: usize) -> (usize, f64) {
    home.set("proc_facts = false");
    let rings = (0..agents).map(|number| {
        let path = home.ring(format!("agent-{number}"));
        let mut ring = RingWriter::create(&path, Layout::V4, 64).expect("a ring");
        ring.push_transfer(number % 2 == 0, 65_536, 100, 10);
        ring
    });
    let rings: Vec<RingWriter> = rings.collect();
    let counts = home.path("ours");
    // This includes the drain of all rings before each answer.
    let command = counted(&counts, PMDANIXL);
    let mut link = Link::start(home, command).expect("it starts");
    let names = METRICS.iter().filter(|metric| metric.cluster < CLUSTERS);
    let names: Vec<&str> = names.map(|metric| metric.name).collect();
    let wanted = agents * names.len();
    wait_for("all agents are shown", || {
        let one = link.fetch(&names[..1]).expect("an answer");
        (one[0].len() == agents).then_some(())
    });
    for _ in 0..FETCHES {
        let values = link.fetch(&names).expect("an answer");
        assert_eq!(values.iter().map(|of| of.len()).sum::<usize>(), wanted);
    }
    assert!(link.end().success());
    drop(rings);
    (wanted, instructions(&counts))
}

/// Instructions of a fetch from the PMDA in C.
fn theirs(home: &Home, agents: usize) -> f64 {
    let counts = home.path("theirs");
    let shape = shape::program(home);
    let mut command = counted(&counts, shape.to_str().expect("UTF-8"));
    command
        .args(["-d", &shape::DOMAIN.to_string(), "-l"])
        .arg(home.path("shape.log"))
        .arg(agents.to_string())
        .env("PCP_USER", run(Command::new("id").arg("-un")).trim())
        .env("PCP_TMP_DIR", home.path("."));
    let mut link = Link::greet(command).expect("it starts");
    for _ in 0..FETCHES {
        let found = link.fetch_pmids(&shape::pmids()).expect("an answer");
        assert!(found.iter().all(|values| values.len() == agents));
    }
    link.end();
    instructions(&counts)
}

/// Command that counts the instructions of a program for each request.
fn counted(counts: &Path, program: &str) -> Command {
    fs::create_dir(counts).expect("made");
    let mut command = Command::new("valgrind");
    if std::env::var_os(PROFILE).is_none() {
        command.arg("--dump-before=__pmdaMainPDU");
    }
    command
        .args(["-q", "--tool=callgrind"])
        .arg("--toggle-collect=__pmdaMainPDU")
        .arg(format!("--callgrind-out-file={}/out", counts.display()))
        // It warns of each openat2(2), which some releases do not know.
        .arg(format!("--log-file={}/log", counts.display()))
        .arg(program);
    command
}

/// Median of the instructions of the last requests.
fn instructions(counts: &Path) -> f64 {
    let files = fs::read_dir(counts).expect("there");
    let numbered = files.flatten().filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        Some((name.strip_prefix("out.")?.parse::<u32>().ok()?, file.path()))
    });
    let mut numbered: Vec<_> = numbered.collect();
    numbered.sort();
    let totals = numbered.iter().rev().map(|(_, path)| {
        let text = fs::read_to_string(path).expect("text");
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.unwrap_or_else(|| panic!("{text}"));
        total.trim().parse::<u64>().expect("a number")
    });
    // The wait for a request that does not come has no instructions.
    let mut last: Vec<u64> = totals
        .filter(|&total| total > 0)
        .take(FETCHES - 2)
        .collect();
    last.sort_unstable();
    let profiles = std::env::var_os(PROFILE).is_some();
    assert!(
        profiles || last.len() == FETCHES - 2,
        "{} counts",
        last.len()
    );
    last.get(last.len() / 2)
        .map_or(0.0, |&median| median as f64)
}
