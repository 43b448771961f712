// SPDX-License-Identifier: GPL-2.0-or-later

//! Rights for reading stores of several owners, and states of their agents if capabilities or /proc are missing.

use super::store_daemon::{home, store, stores, wait_for_status};
use crate::support::kit::store_writer::{StoreWriter, TX_BYTES as TX, Who};
use crate::support::pdu::Link;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, PMDANIXL, Pmcd, TX_BYTES, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

fn ring(home: &Home, name: &str) -> RingWriter {
    home.new_ring(name, 64)
}

/// A home with one store, and with `rings` one ring, of each of three users. Each file has one event.
fn three_users(settings: &str, rings: bool) -> (Home, Vec<StoreWriter>, Vec<RingWriter>) {
    let home = home("");
    for path in [home.path("."), stores(&home)] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("ours");
    }
    if rings {
        home.set(&format!("multiproc_dir = {:?}\n{settings}", stores(&home)));
    } else {
        home.configure(&format!(
            "[nixl]\ntelemetry_dir = []\nmultiproc_dir = {:?}\n{settings}\n",
            stores(&home)
        ));
    }
    let (mut all, mut all_rings) = (Vec::new(), Vec::new());
    for uid in [1001, 1002, 0] {
        let made = store(&home, &Who::named(format!("store-{uid}")));
        chown(made.path(), Some(uid), Some(uid)).expect("root");
        made.add(TX, u64::from(uid) + 1);
        all.push(made);
        if rings {
            let name = format!("ring-{uid}");
            let mut made = ring(&home, &name);
            fs::set_permissions(home.ring(&name), PermissionsExt::from_mode(0o600)).expect("ours");
            chown(home.ring(&name), Some(uid), Some(uid)).expect("root");
            assert!(made.push(Kind::TxBytes, u64::from(uid) + 1));
            all_rings.push(made);
        }
    }
    (home, all, all_rings)
}

const STORES: [(&str, u64); 3] = [("store-0", 1), ("store-1001", 1002), ("store-1002", 1003)];

/// Effective capabilities of the daemon.
fn capabilities(pmcd: &Pmcd) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pmcd.pmda_pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    u64::from_str_radix(line.expect("a line").trim(), 16).expect("a mask")
}

const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const LEASE: u64 = 1 << 28;

#[test]
fn daemon_as_another_user_reads_files_of_three_users() {
    let (home, stores, rings) = three_users("user = \"nobody\"", true);
    let pmcd = Pmcd::start(&home);
    let ring = [("ring-0", 1), ("ring-1001", 1002), ("ring-1002", 1003)];
    pmcd.becomes(&[&ring[..], &STORES[..]].concat());
    assert_eq!(capabilities(&pmcd), DAC_OVERRIDE | LEASE);
    assert!(rings.iter().all(|ring| ring.pending() == 0), "drained");
    let shown = pmcd.shown(&["nixl.agent.user", "nixl.agent.mode"]);
    assert_eq!(shown["nixl.agent.mode"]["store-1001"], "store");
    assert_eq!(shown["nixl.agent.mode"]["ring-1001"], "drain");
    assert_eq!(shown["nixl.agent.user"]["store-1002"], "1002");
    // On a slow host the agent is shown before the name is known.
    wait_for("the name of root is known", || {
        let shown = pmcd.shown(&["nixl.agent.user"]);
        (shown["nixl.agent.user"]["store-0"] == "root").then_some(())
    });
    drop(stores);
    for (name, _) in STORES {
        wait_for_status(&pmcd, name, "exited");
    }
}

#[test]
fn daemon_with_stores_only_may_write_nothing() {
    let (home, stores, _) = three_users("user = \"nobody\"", false);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&STORES);
    assert_eq!(capabilities(&pmcd), DAC_READ_SEARCH | LEASE);
    wait_for("the pid of the agent is known", || {
        (pmcd.values("nixl.agent.pid").get("store-1001")? == &u64::from(std::process::id()))
            .then_some(())
    });
    drop(stores);
    for (name, _) in STORES {
        wait_for_status(&pmcd, name, "exited");
    }
}

#[test]
fn confined_daemon_reads_stores() {
    let (home, stores, _) = three_users("user = \"nobody\"\nproc_facts = false", false);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&STORES);
    assert!(
        pmcd.log().contains(", locked in by Landlock"),
        "{}",
        pmcd.log()
    );
    assert_eq!(capabilities(&pmcd), DAC_READ_SEARCH | LEASE);
    // Landlock allows stores that are made later, too.
    let later = store(&home, &Who::named("later").rank("9"));
    chown(later.path(), Some(1001), Some(1001)).expect("root");
    later.add(TX, 5);
    pmcd.becomes(&[&[("later", 5)][..], &STORES[..]].concat());
    assert_eq!(pmcd.labels(TX_BYTES)["later"]["local_rank"], "9");
    drop((stores, later));
    wait_for_status(&pmcd, "later", "exited");
}

#[test]
fn owners_setting_selects_stores_and_rings() {
    let (home, _stores, rings) = three_users("owners = [1001]", true);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("ring-1001", 1002), ("store-1001", 1002)]);
    let waiting: Vec<u64> = rings.iter().map(RingWriter::pending).collect();
    assert_eq!(waiting, [0, 1, 1]);
}

/// `nixl.agent.state`.
const LIVE: u64 = 1;
const EXITED: u64 = 3;

/// Starts the daemon under a program that removes some right from it, with a store of another user.
fn under(program: &str, arguments: &str, settings: &str) -> (Home, Link, StoreWriter) {
    let home = home(settings);
    let made = store(&home, &Who::named("a").pid(4242));
    chown(made.path(), Some(1001), Some(1001)).expect("root");
    made.add(TX, 1);
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).arg(PMDANIXL);
    let mut link = Link::start(&home, command).expect("it starts");
    wait_for("the value of the store is there", || {
        let values = link.sent();
        (values == BTreeMap::from([("a".into(), 1)])).then_some(())
    });
    (home, link, made)
}

fn state(link: &mut Link) -> Option<u64> {
    let values = link.values("agent.state").expect("an answer");
    values.get("a").copied()
}

/// Sequence of the states of the agent until `end`, without repetitions.
fn states(link: &mut Link, end: Instant) -> Vec<Option<u64>> {
    let mut states = Vec::new();
    while Instant::now() < end {
        let now = state(link);
        if states.last() != Some(&now) {
            states.push(now);
        }
        thread::sleep(Duration::from_millis(20));
    }
    states
}

#[test]
#[ignore = "waits for states that depend on time"]
fn store_without_lease_right_is_live_by_its_last_update() {
    let settings = "proc_facts = false\nretain = \"3s\"";
    let (_home, mut link, store) = under("setpriv", "--bounding-set=-lease", settings);
    assert_eq!(state(&mut link), Some(LIVE));
    store.add(TX, 1);
    drop(store);
    let states = states(&mut link, Instant::now() + Duration::from_secs(6));
    assert_eq!(states, [Some(LIVE), Some(0)], "unknown in the end");
    assert!(link.end().success());
}

/// A pod without hostPID: the daemon can read its whole /proc, which does not have the processes of the agents.
#[test]
#[ignore = "waits for states that depend on time"]
fn agent_of_an_invisible_process_is_live_until_it_exits() {
    let (_home, mut link, store) = under("unshare", "--pid --fork --mount-proc --kill-child", "");
    let states = states(&mut link, Instant::now() + Duration::from_secs(6));
    assert_eq!(states, [Some(LIVE)], "the kernel reports a writer");
    let pid = link.values("agent.pid").expect("an answer");
    assert_eq!(pid["a"], 4242, "the pid in the store");
    store.add(TX, 1);
    drop(store);
    wait_for("the agent is exited", || {
        (state(&mut link) == Some(EXITED)).then_some(())
    });
    let values = link.sent();
    assert_eq!(values["a"], 2);
    assert!(link.end().success());
}
