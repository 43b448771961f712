// SPDX-License-Identifier: GPL-2.0-or-later

//! A daemon without a valid configuration: it reads and writes nothing, has no right in effect, and begins with the
//! first valid one.

use crate::support::pdu::{Link, Sent};
use crate::support::writer::Kind;
use crate::support::{Home, needs_root, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;

/// Settings whose loss destroys something: the histograms of the agents would begin at zero.
const SETTINGS: &str = "histogram_buckets_us = [10, 1000]\nproc_facts = false";
/// What cannot be a configuration: a misspelt key, an empty file, a file that is half written, a user that is missing.
const MISTAKES: [&str; 4] = [
    "[nixl]\nhistogram_buckets_us = [10, 1000]\nretian = \"1min\"\n",
    "",
    "[nixl]\nhistogram_buckets_us = [10, 10",
    "[nixl]\nuser = \"no-such-user\"\n",
];

/// Starts a daemon, which has read its configuration then.
fn started(home: &Home) -> Link {
    let mut link = Link::open(home);
    link.be_user(0).expect("sent");
    link.fetch(&["control.reload"]).expect("served");
    link
}

fn reload(link: &mut Link) -> io::Result<()> {
    link.describe("control.reload")?;
    link.store(&[("control.reload", Sent::Numbers(vec![1]))])
}

/// Fields of the status of a process.
fn status<const COUNT: usize>(link: &Link, fields: [&str; COUNT]) -> [String; COUNT] {
    let status = fs::read_to_string(format!("/proc/{}/status", link.pid())).expect("it runs");
    fields.map(|field| {
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        line.expect(field).trim().to_owned()
    })
}

/// Counts of the buckets of a histogram by instance id, and the bytes of the agents by name.
fn counted(link: &mut Link) -> (BTreeMap<u32, u64>, BTreeMap<String, u64>) {
    let buckets = link
        .fetch(&["latency.xfer_time.histogram"])
        .expect("values")
        .remove(0);
    (buckets, link.values("transfer.tx_bytes").expect("values"))
}

#[test]
fn state_outlives_a_start_with_any_mistake() {
    needs_root();
    let home = Home::new();
    home.set(SETTINGS);
    let mut ring = home.new_ring("agent", 64);
    ring.push_transfer(false, 5, 100, 1);
    let mut link = started(&home);
    let before = wait_for("the transfer is counted", || {
        let counted = counted(&mut link);
        (counted.1 == BTreeMap::from([("agent".to_owned(), 5)])).then_some(counted)
    });
    assert_eq!(before.0.values().sum::<u64>(), 1);
    assert!(link.end().success());
    let state = || fs::read(home.path("run/nixl/state")).expect("there");
    let written = state();
    for mistake in MISTAKES {
        home.configure(mistake);
        ring.push_transfer(false, 7, 100, 1);
        let pending = ring.pending();
        let mut link = started(&home);
        let again = link
            .fetch(&["transfer.tx_bytes"])
            .map_err(|err| err.to_string());
        assert!(again.is_err(), "{mistake:?}: {again:?}");
        let loads = link.fetch(&["control.reloads"]).expect("served").remove(0);
        assert_eq!(loads.into_values().collect::<Vec<_>>(), [0], "{mistake:?}");
        let [effective, uid, threads] = status(&link, ["CapEff:", "Uid:", "Threads:"]);
        assert_eq!(effective, "0000000000000000", "{mistake:?}");
        // A thread that a system call blocks would block setuid(2).
        assert_eq!((&uid[..], &threads[..]), ("0\t0\t0\t0", "1"), "{mistake:?}");
        // Another mistake is answered, and changes nothing.
        let why = reload(&mut link).expect_err("rejection");
        assert_eq!(why.to_string(), "status -12400", "{mistake:?}");
        let [effective] = status(&link, ["CapEff:"]);
        assert_eq!(effective, "0000000000000000", "{mistake:?}");
        assert_eq!(
            (ring.pending(), state()),
            (pending, written.clone()),
            "{mistake:?}"
        );
        assert!(link.end().success());
        assert_eq!(state(), written, "{mistake:?}");
        let log = home.log();
        assert!(log.contains("only nixl.control has values"), "{log}");
    }
    home.configure(MISTAKES[0]);
    let mut link = started(&home);
    home.set(SETTINGS);
    reload(&mut link).expect("accepted");
    let sent = 5 + 7 * MISTAKES.len() as u64;
    let after = wait_for("all transfers are counted", || {
        let counted = counted(&mut link);
        (counted.1 == BTreeMap::from([("agent".to_owned(), sent)])).then_some(counted)
    });
    let count = 1 + MISTAKES.len() as u64;
    let expected = before
        .0
        .into_iter()
        .map(|(id, number)| (id, number * count));
    assert_eq!(
        after.0,
        expected.collect(),
        "the ids and counts of before go on"
    );
}

#[test]
fn first_valid_configuration_gives_user_and_rights() {
    needs_root();
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    let mut ring = home.new_ring("agent", 64);
    ring.push(Kind::TxBytes, 9);
    home.configure("");
    let mut link = started(&home);
    home.set("user = \"nobody\"\nproc_facts = false");
    // Readable for its owner only, which is not root.
    std::os::unix::fs::chown(home.conf(), Some(65_534), None).expect("root");
    fs::set_permissions(home.conf(), PermissionsExt::from_mode(0o400)).expect("ours");
    reload(&mut link).expect("accepted");
    let [uid, effective, permitted] = status(&link, ["Uid:", "CapEff:", "CapPrm:"]);
    // DAC_OVERRIDE and LEASE.
    let kept = format!("{:016x}", 1 << 1 | 1 << 28);
    assert_eq!(uid, "65534\t65534\t65534\t65534");
    assert_eq!((effective, permitted), (kept.clone(), kept));
    wait_for("the ring is drained", || {
        (ring.pending() == 0).then_some(())
    });
    let persistent = link
        .fetch(&["control.persistent"])
        .expect("values")
        .remove(0);
    assert_eq!(persistent.into_values().collect::<Vec<_>>(), [1]);
    // The next start has the totals of this one.
    assert!(link.end().success());
    let mut link = started(&home);
    wait_for("the totals are restored", || {
        let sent = link.values("transfer.tx_bytes").ok()?;
        (sent == BTreeMap::from([("agent".to_owned(), 9)])).then_some(())
    });
}

#[test]
fn reload_that_needs_other_rights_is_rejected() {
    needs_root();
    let home = Home::new();
    let mut link = started(&home);
    for (settings, why) in [
        (
            "user = \"nobody\"",
            "user: the PMDA has uid 0, and needs uid 65534",
        ),
        (
            "proc_facts = false",
            "proc_facts: the PMDA has an observer, and needs no observer",
        ),
        (
            "remove_exited_after = \"1h\"",
            "the PMDA has CAP_DAC_OVERRIDE, CAP_LEASE, and needs CAP_DAC_OVERRIDE, CAP_FOWNER",
        ),
    ] {
        home.set(settings);
        let rejected = reload(&mut link).expect_err(settings);
        assert_eq!(rejected.to_string(), "status -12400", "{settings}");
        let log = home.log();
        let line = log.lines().rfind(|line| line.contains("stays in force"));
        let line = line.expect("the reason is logged");
        assert!(
            line.contains(why) && line.contains("run ./Install"),
            "{line}"
        );
    }
    home.set("retain = \"1s\"");
    reload(&mut link).expect("accepted");
}
