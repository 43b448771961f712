// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers in flight of real NIXL, by remote agent, over TCP and over shared memory.

use super::{Network, Peer, numbers};
use crate::support::fleet::is_possible;
use crate::support::{Home, Nixl, Pmcd, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Write;

/// Rows of a metric of an agent, or of the process with a pid, by remote agent.
fn rows(pmcd: &Pmcd, metric: &str, local: &str) -> BTreeMap<String, u64> {
    let rows = super::texts(pmcd, &format!("trace.{metric}")).into_iter();
    let of = rows.filter_map(|(name, value)| {
        let (own, remote) = name.split_once("::")?;
        let is_its = own.split(' ').next() == Some(local);
        Some((remote.to_owned(), value.parse().ok()?)).filter(|_| is_its)
    });
    of.collect()
}

/// Waits until a metric has these rows.
fn wait_for_rows(pmcd: &Pmcd, metric: &str, local: &str, expected: &[(&str, u64)]) {
    let expected = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value));
    let expected: BTreeMap<String, u64> = expected.collect();
    let mut last = BTreeMap::new();
    let found = crate::support::soon(|| {
        last = rows(pmcd, metric, local);
        (last == expected).then_some(())
    });
    assert!(
        found.is_some(),
        "trace.{metric} of {local}: {last:?}, not {expected:?}"
    );
}

fn signal(process: &Peer, signal: Signal) {
    let pid = i32::try_from(process.pid()).expect("a pid");
    kill(Pid::from_raw(pid), signal).expect("it runs");
}

/// Begins a transfer that may not end.
fn begin(initiator: &mut Peer, command: &str) {
    writeln!(initiator.input, "{command}").expect("it reads");
}

/// An initiator with three targets, of which one is stopped: what is in flight, with which one, and since when.
fn one_of_three_targets_is_stopped(transports: &str) {
    const TARGETS: [&str; 3] = ["first", "second", "third"];
    if !is_possible() {
        return;
    }
    let home = Home::new();
    home.set("trace = true");
    let network = Network::start(&home, 1);
    let nixl = Nixl::new("1.5.1", &home.rings());
    let host = &network.hosts[0];
    let mut targets = TARGETS.map(|name| Peer::start(&nixl, host, transports, "target", name));
    let mut initiator = Peer::initiator(&nixl, host, transports, "initiator", &mut targets);
    // Beside it, one without telemetry.
    let off = [("UCX_TLS", transports), ("NIXL_TELEMETRY_ENABLE", "n")];
    let mut other_target = [Peer::start_with(
        &nixl,
        host,
        &off,
        "target",
        "other-target",
    )];
    let mut silent = Peer::start_with(&nixl, host, &off, "initiator", "silent");
    silent.meet(&mut other_target);
    let name_of_silent = silent.pid().to_string();
    let pmcd = network.pmcd(&home);
    // All share a library.
    wait_for("the library has probes", || {
        let text = run(pmcd
            .tool("pminfo")
            .args(["-f", "nixl.control.trace.libraries"]));
        text.contains("value 1").then_some(())
    });
    for target in 0..3 {
        initiator.transfer_of("write", 100, 4096, target);
    }
    silent.transfer_of("write", 50, 4096, 0);
    wait_for_rows(
        &pmcd,
        "released",
        "initiator",
        &TARGETS.map(|name| (name, 100)),
    );
    wait_for_rows(&pmcd, "released", &name_of_silent, &[("other-target", 50)]);
    signal(&targets[1], Signal::SIGSTOP);
    begin(&mut initiator, "write 1 16777216 1");
    let stuck = TARGETS.map(|name| (name, u64::from(name == "second")));
    wait_for_rows(&pmcd, "in_flight", "initiator", &stuck);
    let age = |name: &str| rows(&pmcd, "oldest_age", "initiator").get(name).copied();
    wait_for("it is in flight for five seconds", || {
        (age("second")? > 5000 && age("first").is_none()).then_some(())
    });
    signal(&targets[1], Signal::SIGCONT);
    assert_eq!(initiator.line(), "done\n");
    wait_for_rows(
        &pmcd,
        "in_flight",
        "initiator",
        &TARGETS.map(|name| (name, 0)),
    );
    assert_eq!(rows(&pmcd, "released", "initiator")["second"], 101);
    // 10,000 open handles, and what they become.
    initiator.transfer_of("hold", 10_000, 64, 2);
    let held = TARGETS.map(|name| (name, if name == "third" { 10_000 } else { 0 }));
    wait_for_rows(&pmcd, "in_flight", "initiator", &held);
    begin(&mut initiator, "drop");
    assert_eq!(initiator.line(), "done\n");
    wait_for_rows(
        &pmcd,
        "in_flight",
        "initiator",
        &TARGETS.map(|name| (name, 0)),
    );
    // 100,000 transfers: what the initiator did, and what NIXL's telemetry tells.
    initiator.transfer_of("write", 100_000, 64, 0);
    let posted = [("first", 100_100), ("second", 101), ("third", 10_100)];
    for metric in ["posted", "released"] {
        wait_for_rows(&pmcd, metric, "initiator", &posted);
    }
    wait_for("NIXL tells of as many", || {
        let requests = numbers(&pmcd, "transfer.tx_requests");
        // It never tells of transfers whose end the application has not seen.
        (requests["initiator"] >= 100_301.0).then_some(())
    });
    // Each side is killed.
    signal(&other_target[0], Signal::SIGKILL);
    signal(&silent, Signal::SIGSTOP);
    wait_for_rows(&pmcd, "released", &name_of_silent, &[("other-target", 50)]);
    signal(&silent, Signal::SIGKILL);
    wait_for_rows(&pmcd, "released", &name_of_silent, &[]);
    signal(&initiator, Signal::SIGKILL);
    wait_for_rows(&pmcd, "posted", "initiator", &[]);
    let lost = run(pmcd.tool("pminfo").args(["-f", "nixl.control.trace.lost"]));
    assert!(lost.contains("value 0"), "{lost}");
}

#[test]
#[ignore = "real NIXL for minutes"]
fn stopped_target_is_named_over_tcp() {
    one_of_three_targets_is_stopped("tcp,self");
}

#[test]
#[ignore = "real NIXL for minutes"]
fn stopped_target_is_named_over_shared_memory() {
    // Without CMA, which writes to the memory of a stopped process. TCP makes the connection only.
    one_of_three_targets_is_stopped("tcp,self,posix");
}
