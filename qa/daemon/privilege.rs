// SPDX-License-Identifier: GPL-2.0-or-later

//! Rights of the daemon with a configured `user`, read from /proc with a real pmcd: exactly those that its work needs.

use crate::support::writer::{Kind, RingWriter};
use crate::support::{self, Home, Pmcd, example, needs_root, output, run, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn ring(home: &Home, name: &str) -> RingWriter {
    home.new_ring(name, 64)
}

/// Effective and permitted capabilities of a process, and its no_new_privs bit.
fn rights(pid: u32) -> (String, String, String) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect(name).trim().to_owned()
    };
    (field("CapEff:"), field("CapPrm:"), field("NoNewPrivs:"))
}

/// A home that another user can read, with one ring of that user (1 byte) and one of root (2 bytes).
fn shared_home(settings: &str) -> (Home, RingWriter, RingWriter) {
    let home = Home::new();
    fs::set_permissions(home.path("."), PermissionsExt::from_mode(0o755)).expect("ours");
    home.set(settings);
    let (mut theirs, mut roots) = (ring(&home, "theirs"), ring(&home, "roots"));
    std::os::unix::fs::chown(home.ring("theirs"), Some(65_534), Some(65_534)).expect("root");
    theirs.push(Kind::TxBytes, 1);
    roots.push(Kind::TxBytes, 2);
    (home, theirs, roots)
}

const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const LEASE: u64 = 1 << 28;
const FOWNER: u64 = 1 << 3;

/// Result of [`rights`] for a process with these capabilities that can get no others.
fn kept(capabilities: u64) -> (String, String, String) {
    let mask = format!("{capabilities:016x}");
    (mask.clone(), mask, "1".into())
}

#[test]
fn daemon_as_another_user_keeps_two_capabilities_in_use() {
    needs_root();
    let (home, theirs, roots) = shared_home("user = \"nobody\"\nretain = \"1s\"");
    let pmcd = Pmcd::start(&home);
    // DAC_OVERRIDE: the ring of root is drained, too.
    pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
    assert_eq!((theirs.pending(), roots.pending()), (0, 0));
    let log = pmcd.log();
    let expected = "runs as user nobody with CAP_DAC_OVERRIDE, CAP_LEASE, locked in by Landlock";
    assert!(log.contains(expected), "{log}");
    let pid = pmcd.pmda_pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert!(
        status.contains("Uid:\t65534\t65534\t65534\t65534"),
        "{status}"
    );
    assert_eq!(rights(pid), kept(DAC_OVERRIDE | LEASE));
    let cache = pmcd.path("var/config/pmda/39.0");
    wait_for("the ids are saved", || {
        fs::read_to_string(&cache)
            .ok()
            .filter(|text| text.contains("theirs"))
    });
    assert_eq!(pmcd.values("nixl.control.persistent")[""], 1);
    // LEASE: the daemon sees that agents of other users have exited.
    drop((theirs, roots));
    pmcd.becomes(&[]);
    // The observer: the daemon sees that a process has the file open for reading only.
    let mut agent = Command::new(example("producer"))
        .arg("--dir")
        .arg(home.rings())
        .args("--name roots --transfers 1 --read-every 0 --size 40 --linger 600".split(' '))
        .spawn()
        .expect("it starts");
    let tail = wait_for("the transfer is counted", || {
        let values = pmcd.sent();
        (values == BTreeMap::from([("roots".into(), 42)]))
            .then(|| fs::File::open(home.ring("roots")).expect("there"))
    });
    agent.kill().expect("it runs");
    agent.wait().expect("our child");
    // In its own PID namespace, the daemon does not see the processes outside.
    let tail = Some(tail).filter(|_| support::sees_all_processes());
    pmcd.becomes(&[]);
    drop(tail);
}

#[test]
fn daemon_without_proc_facts_is_confined_to_its_directories() {
    needs_root();
    let (home, theirs, roots) = shared_home("user = \"nobody\"\nproc_facts = false");
    let (code, said) = home.check();
    assert_eq!(code, 0, "{said}");
    let expected = "as user: nobody with CAP_DAC_OVERRIDE, CAP_LEASE, locked in by Landlock\n";
    assert!(said.contains(expected), "{said}");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
    assert_eq!((theirs.pending(), roots.pending()), (0, 0));
    assert_eq!(rights(pmcd.pmda_pid()), kept(DAC_OVERRIDE | LEASE));
    assert!(pmcd.log().contains(", locked in by Landlock"));
    assert_eq!(pmcd.values("nixl.control.persistent")[""], 1);
    // Another directory needs another lock.
    let outside = tempfile::tempdir().expect("a directory");
    let directories = format!(
        "user = \"nobody\"\nproc_facts = false\ntelemetry_dir = [{:?}, {:?}]",
        home.rings(),
        outside.path()
    );
    let why = rejected_reload(&pmcd, &directories);
    assert!(
        why.contains("telemetry_dir, multiproc_dir, observe or remove_exited_after: the PMDA has "),
        "{why}"
    );
    pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
}

/// Changes the settings of a running daemon, which must reject them. Returns the reason.
fn rejected_reload(pmcd: &Pmcd, settings: &str) -> String {
    let text = format!("[nixl]\n{settings}\n");
    fs::write(pmcd.path("etc/nixl/nixl.conf"), text).expect("written");
    let rejected = output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));
    assert!(!rejected.status.success(), "{settings}");
    run(pmcd
        .tool("pminfo")
        .args(["-f", "nixl.control.config_error"]))
}

#[test]
fn rings_of_other_users_are_removed_with_one_capability() {
    needs_root();
    for right in [true, false] {
        let settings = |home: &Home, more: &str| {
            format!(
                "telemetry_dir = {:?}\nuser = \"nobody\"\n{more}",
                home.rings()
            )
        };
        let remove = "remove_exited_after = \"0s\"";
        let (home, theirs, roots) = shared_home("");
        // The sticky bit of /tmp: only the owner of a file may remove it.
        fs::set_permissions(home.rings(), PermissionsExt::from_mode(0o1777)).expect("ours");
        home.set(&format!(
            "user = \"nobody\"\n{}",
            if right { remove } else { "" }
        ));
        let pmcd = Pmcd::start(&home);
        pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
        let fowner = if right { FOWNER } else { 0 };
        assert_eq!(rights(pmcd.pmda_pid()), kept(DAC_OVERRIDE | LEASE | fowner));
        drop((theirs, roots));
        if right {
            wait_for("the rings are removed", || {
                let mut left = fs::read_dir(home.rings()).expect("there");
                left.next().is_none().then_some(())
            });
        } else {
            let why = rejected_reload(&pmcd, &settings(&home, remove));
            assert!(
                why.contains("and needs CAP_DAC_OVERRIDE, CAP_FOWNER"),
                "{why}"
            );
        }
        pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
    }
}

#[test]
fn daemon_that_reads_its_own_user_only_has_no_capability() {
    needs_root();
    let (home, theirs, roots) = shared_home("user = \"nobody\"\nowners = [\"nobody\"]");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("theirs", 1)]);
    assert_eq!((theirs.pending(), roots.pending()), (0, 1));
    assert_eq!(rights(pmcd.pmda_pid()), kept(0));
    assert!(
        pmcd.log()
            .contains("runs as user nobody with no capabilities")
    );
}

#[test]
fn observing_daemon_may_read_everything_and_write_nothing() {
    needs_root();
    let (home, mut theirs, mut roots) = shared_home("user = \"nobody\"\nobserve = true");
    fs::set_permissions(home.ring("roots"), PermissionsExt::from_mode(0o600)).expect("ours");
    let pmcd = Pmcd::start(&home);
    let waits = |expected: [u64; 2]| {
        wait_for("the rings are read", || {
            let pending = pmcd.values("nixl.ring.pending");
            let pending = ["theirs", "roots"].map(|agent| pending.get(agent).copied());
            (pending == expected.map(Some)).then_some(())
        });
    };
    waits([1, 1]);
    assert_eq!(rights(pmcd.pmda_pid()), kept(DAC_READ_SEARCH | LEASE));
    theirs.push(Kind::TxBytes, 10);
    roots.push(Kind::TxBytes, 20);
    waits([2, 2]);
    assert_eq!(
        (theirs.pending(), roots.pending()),
        (2, 2),
        "nothing is drained"
    );
    // The ring stays full and rejects further events.
    while theirs.push(Kind::TxBytes, 1) {}
    waits([63, 2]);
    assert_eq!(pmcd.values("nixl.transfer.tx_bytes"), [].into());
    // To drain needs a right that was given up.
    let drains = format!("telemetry_dir = {:?}\nuser = \"nobody\"", home.rings());
    let why = rejected_reload(&pmcd, &drains);
    assert!(why.contains("the PMDA has CAP_DAC_READ_SEARCH"), "{why}");
    waits([63, 2]);
    assert_eq!((theirs.pending(), roots.pending()), (63, 2));
}

#[test]
fn root_keeps_only_the_capabilities_that_it_uses() {
    needs_root();
    for (settings, more) in [
        ("retain = \"0s\"", 0),
        ("retain = \"0s\"\nremove_exited_after = \"0s\"", FOWNER),
        ("retain = \"0s\"\nproc_facts = false", 0),
    ] {
        let (home, theirs, roots) = shared_home(settings);
        let pmcd = Pmcd::start(&home);
        pmcd.becomes(&[("roots", 2), ("theirs", 1)]);
        assert_eq!(rights(pmcd.pmda_pid()), kept(DAC_OVERRIDE | LEASE | more));
        assert!(
            pmcd.log()
                .contains("runs as user root with CAP_DAC_OVERRIDE")
        );
        // The capabilities are enough: for leases, for files of PCP, and for removals.
        drop((theirs, roots));
        wait_for("the agents are withdrawn", || {
            pmcd.sent().is_empty().then_some(())
        });
        let removes = settings.contains("remove_exited_after");
        wait_for("exited rings are removed if configured", || {
            (home.ring("theirs").exists() != removes).then_some(())
        });
        let ids = pmcd.path("var/config/pmda/39.0");
        wait_for("the ids are saved", || {
            let text = fs::read_to_string(&ids).ok()?;
            text.contains(" theirs\n").then_some(())
        });
    }
}
