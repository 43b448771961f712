// SPDX-License-Identifier: GPL-2.0-or-later

//! A directory of stores in which a hostile user makes, corrupts and swaps hundreds of files while the daemon reads
//! them. The daemon must answer in time, and the values of other agents must stay exact.
//! qa/security/hostile_directory.rs tests rings.
//!
//! `HOSTILE_SECONDS` is the time for each seed; `HOSTILE_SEED` selects one seed.

use crate::support::hostile_stores::Hostile;
use crate::support::kit::store_writer::{StoreWriter, TX_BYTES as TX, Who};
use crate::support::measure::{Took, Use, timed};
use crate::support::pdu::Link;
use crate::support::{Home, PATIENCE, TX_BYTES, in_memory, wait_for};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Limit of the time for an answer.
const IN_TIME: Duration = Duration::from_millis(10);
const MEMORY: u64 = 32 << 10;

fn setting(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("a number"))
}

/// A well-behaved agent. The first three restart now and then.
struct Healthy {
    identity: Who,
    store: Option<StoreWriter>,
    sent: u64,
}

fn values(link: &mut Link, healthy: &[Healthy]) -> Option<Vec<u64>> {
    let values = link.sent();
    let all = healthy.iter().map(|agent| {
        let name = String::from_utf8_lossy(&agent.identity.agent).into_owned();
        values.get(&name).copied()
    });
    all.collect()
}

fn shows_changes(link: &mut Link, healthy: &[Healthy]) {
    let expected: Vec<u64> = healthy.iter().map(|agent| agent.sent).collect();
    let mut last = None;
    let end = Instant::now() + PATIENCE;
    while last.as_ref() != Some(&expected) {
        assert!(Instant::now() < end, "{last:?} never became {expected:?}");
        last = values(link, healthy);
    }
}

fn check_times(all: &[Took]) {
    let late = all.iter().filter(|took| took.own() >= IN_TIME).count();
    let certain: Vec<&Took> = all.iter().filter(|took| took.is_certain()).collect();
    let longest = certain.iter().max_by_key(|took| took.own());
    println!(
        "{} answers, the longest with a certain time: {longest:?}",
        all.len()
    );
    assert!(
        longest.is_none_or(|took| took.own() < IN_TIME),
        "{longest:?}"
    );
    assert!(late <= all.len() / 100, "{late} of {} were late", all.len());
}

fn torment(seed: u64, time: Duration) {
    println!("HOSTILE_SEED={seed}");
    let (home, directory) = (Home::new(), in_memory());
    let directory = directory.path();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = []\nmultiproc_dir = {directory:?}\nretain = \"1s\"\n"
    ));
    let mut healthy: Vec<Healthy> = (0..4)
        .map(|number| {
            let identity = Who::named(format!("healthy-{number}"));
            let store = StoreWriter::create(directory, &identity).expect("a store");
            Healthy {
                identity,
                store: Some(store),
                sent: 0,
            }
        })
        .collect();
    let mut link = Link::open(&home);
    wait_for("the healthy agents are instances", || {
        values(&mut link, &healthy)
    });
    let before = Use::of(&link, directory);
    let stop = AtomicBool::new(false);
    let (mut all, mut most) = (Vec::new(), Use::default());
    let done = thread::scope(|scope| {
        let hostile = Hostile::new(directory, seed);
        let stop = Stop(&stop);
        let hostile = scope.spawn(|| hostile.run(stop.0));
        let (end, mut turn) = (Instant::now() + time, 0);
        while Instant::now() < end {
            turn += 1;
            for (number, agent) in healthy.iter_mut().enumerate() {
                agent.store.as_ref().expect("it lives").add(TX, turn % 1000);
                agent.sent += turn % 1000;
                if number < 3 && turn % 97 == 32 * number as u64 {
                    agent.store = None;
                    agent.store = StoreWriter::create(directory, &agent.identity).ok();
                }
            }
            all.push(timed(&mut link, TX_BYTES).1);
            most = Use::of(&link, directory);
            thread::sleep(Duration::from_millis(3));
        }
        drop(stop);
        hostile.join().expect("it ends")
    });
    println!("{done:?}, then {most:?}");
    let kinds = [
        "store",
        "truncated",
        "sparse",
        "all ones",
        "later schema",
        "special",
        "jump",
        "change of the header",
    ];
    assert!(kinds.iter().all(|kind| done.contains_key(kind)), "{done:?}");
    check_times(&all);
    shows_changes(&mut link, &healthy);
    let live: Vec<_> = healthy
        .iter()
        .flat_map(|agent| agent.store.as_ref())
        .map(StoreWriter::path)
        .collect();
    for entry in fs::read_dir(directory).expect("there") {
        let path = entry.expect("there").path();
        if !live.contains(&path.as_path()) {
            fs::remove_file(&path)
                .or_else(|_| fs::remove_dir(&path))
                .expect("removed");
        }
    }
    let after = wait_for("the hostile files are detached", || {
        let used = Use::of(&link, directory);
        let names = link.instances().expect("an answer");
        // A process scan has two or three more descriptors open for a moment.
        let is_all = used.mappings == before.mappings && used.descriptors <= before.descriptors + 1;
        (is_all && names.len() == healthy.len()).then_some(used)
    });
    assert!(most.memory.max(after.memory) < MEMORY, "{most:?} {after:?}");
    shows_changes(&mut link, &healthy);
    assert!(link.end().success());
    let (log, minutes) = (home.log(), time.as_secs() / 60 + 2);
    let lines = u64::try_from(log.lines().count()).expect("few");
    assert!(
        lines < 150 * minutes && !log.contains(" Error: "),
        "{lines} lines\n{log}"
    );
    let mut link = Link::open(&home);
    shows_changes(&mut link, &healthy);
    assert!(link.end().success());
}

/// Stops the hostile thread when it is dropped, also after a failed assertion.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "measures response times while stores change at random"]
fn hostile_stores_delay_no_answer_and_no_other_agent() {
    let time = Duration::from_secs(setting("HOSTILE_SECONDS").unwrap_or(7));
    match setting("HOSTILE_SEED") {
        Some(seed) => torment(seed, time),
        None => [1, fastrand::u64(..)]
            .into_iter()
            .for_each(|seed| torment(seed, time)),
    }
}
