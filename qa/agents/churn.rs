// SPDX-License-Identifier: GPL-2.0-or-later

//! A thousand short-lived agents with a real pmcd, while the daemon is killed now and then. The totals of the host must
//! never decrease, and the records of exited agents must stay within their limit.

use crate::support::kill::{Dice, kill_process, wait_for_orphans};
use crate::support::writer::RingWriter;
use crate::support::{Home, Pmcd, TX_BYTES, output, wait_for};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Number of agents at a time.
const WAVE: usize = 100;
const WAVES: usize = 10;
const MAX_AGENTS: usize = 128;
/// Limit of records of exited agents.
const REMEMBERED: usize = 4 * MAX_AGENTS;
/// Metric of the bytes sent by the host.
const HOST: &str = "nixl.host.transfer.tx_bytes";

/// Name of an agent like those of vLLM.
fn uuid(dice: &mut Dice) -> String {
    let mut part = |digits: u32| {
        let number = dice.below(1 << 16);
        format!("{number:0width$x}", width = digits as usize)
    };
    let parts = [8, 4, 4, 4, 12].map(&mut part);
    parts.join("-")
}

/// Pushes a transfer. Returns its bytes.
fn push(ring: &mut RingWriter, dice: &mut Dice) -> u64 {
    let bytes = 1 + dice.below(100_000);
    let fitted = ring.push_transfer(false, bytes, 1 + dice.below(1000), 1);
    assert_eq!(fitted, 4, "the ring has room");
    bytes
}

fn wait_until_drained(rings: &[RingWriter]) {
    wait_for("the ring is drained", || {
        rings.iter().all(|ring| ring.pending() == 0).then_some(())
    });
}

/// Bytes sent by the host, or `None` if pmcd does not answer or the daemon is not ready.
fn host_sent(pminfo: &mut Command) -> Option<u64> {
    let said = output(pminfo);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    said.lines()
        .find_map(|line| line.trim().strip_prefix("value ")?.parse().ok())
}

/// Names in the file of pmdaCache.
fn cached(pmcd: &Pmcd) -> Vec<String> {
    let text = fs::read_to_string(pmcd.path("var/config/pmda/39.0")).unwrap_or_default();
    let lines = text.lines().skip(1);
    lines
        .map(|line| line.splitn(3, ' ').nth(2).expect("a name").to_owned())
        // One line is not an instance: it has the limit of the ids that may have been assigned.
        .filter(|name| name != "%")
        .collect()
}

/// Fetches the bytes sent by the host until `stop`, which must not decrease. Returns the number of values, and the last
/// one.
fn never_goes_back(mut pminfo: Command, stop: &AtomicBool) -> (u64, u64) {
    let (mut reads, mut last) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        if let Some(sent) = host_sent(&mut pminfo) {
            assert!(sent >= last, "{HOST} decreased from {last} to {sent}");
            (reads, last) = (reads + 1, sent);
        }
    }
    (reads, last)
}

#[test]
fn thousand_short_agents_leave_host_totals_and_cache_right() {
    let home = Home::new();
    home.set(&format!("retain = \"0s\"\nmax_agents = {MAX_AGENTS}"));
    let mut dice = Dice::new(4);
    let ring = |name: &str| home.new_ring(name, 64);
    let mut stay: Vec<_> = (0..3)
        .map(|number| ring(&format!("stays-{number}")))
        .collect();
    let mut pmcd = Pmcd::start(&home);
    let pminfo = || {
        let mut pminfo = pmcd.tool("pminfo");
        pminfo.args(["-f", HOST]);
        pminfo
    };
    let (reader, mut pminfo) = (pminfo(), pminfo());
    let stop = AtomicBool::new(false);
    let (mut sent, mut came) = (0, BTreeSet::new());
    let mut largest = 0;
    let (reads, last) = thread::scope(|scope| {
        let reader = scope.spawn(|| never_goes_back(reader, &stop));
        // Stops the reader also after a failed assertion.
        let _stopped = Stop(&stop);
        for wave in 0..WAVES {
            let names: Vec<_> = (0..WAVE).map(|_| uuid(&mut dice)).collect();
            let mut rings: Vec<_> = names.iter().map(|name| ring(name)).collect();
            for ring in rings.iter_mut().chain(&mut stay) {
                sent += push(ring, &mut dice);
            }
            if wave % 3 == 1 {
                // A kill of pmdanixl and of pmcd, which would wait a minute before it starts another pmdanixl.
                dice.wait(std::time::Duration::from_millis(100));
                kill_process(pmcd.pmda_pid());
                pmcd.kill();
                wait_for_orphans(&pmcd.path("log"));
                pmcd.start_anew();
                pmcd.wait_until_it_answers();
            }
            wait_until_drained(&rings);
            // Some agents restart in place before they exit.
            for (ring, name) in rings.iter_mut().zip(&names).step_by(5) {
                *ring = home.new_ring(name, 64);
                sent += push(ring, &mut dice);
            }
            wait_until_drained(&rings);
            drop(rings);
            // NIXL leaves the files; a user may remove them.
            for name in names.iter().step_by(2) {
                fs::remove_file(home.ring(name)).expect("there");
            }
            came.extend(names);
            largest = largest.max(cached(&pmcd).len());
        }
        wait_for("all transfers are counted", || {
            (host_sent(&mut pminfo) == Some(sent)).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        reader.join().expect("the value never decreased")
    });
    assert_eq!((came.len(), last <= sent), (WAVE * WAVES, true));
    assert!(reads > 20, "{reads}");
    // The instances of the buckets are withdrawn with those of the agents.
    for (metric, buckets) in [
        (TX_BYTES, 1),
        ("nixl.latency.xfer_time.histogram", 19),
        ("nixl.latency.xfer_time.bucket", 19),
        ("nixl.operation.size.histogram", 13),
        ("nixl.operation.bandwidth.histogram", 21),
    ] {
        wait_for("only live agents are instances", || {
            let names: BTreeSet<_> = pmcd.values(metric).into_keys().collect();
            let of_living = names.iter().all(|name| name.starts_with("stays-"));
            (of_living && names.len() == 3 * buckets).then_some(())
        });
    }
    assert_eq!(host_sent(&mut pminfo), Some(sent), "exactly");
    // The file has at most as many names as there are records, and the live agents.
    let lines = wait_for("the ids are saved", || {
        let cached = cached(&pmcd);
        let lives = |name: &String| name.starts_with("stays-");
        (cached.iter().filter(|name| lives(name)).count() == 3).then_some(cached.len())
    });
    let largest = largest.max(lines);
    assert!(largest <= REMEMBERED, "{largest}");
    assert!(
        largest > REMEMBERED / 2,
        "some names have expired: {largest}"
    );
    assert_eq!(pmcd.values("nixl.control.persistent")[""], 1);
}

/// Stops the reader when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
