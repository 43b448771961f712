// SPDX-License-Identifier: GPL-2.0-or-later

//! State that survives the daemon, under dbpmda(1): totals, ids, older formats, and unusable state files.

mod log;
mod second;
mod unusable;

use crate::support::kill::kill_process;
use crate::support::kit::layers;
use crate::support::pdu::Link;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{Home, PMDANIXL, Pmcd, TX_BYTES, agent_of, ends, needs_root, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::thread;

const FETCH: &str = "fetch nixl.transfer.tx_bytes";
/// Bytes of a record of the state file, and of the header of the file.
const RECORD: u64 = layers::RECORD as u64;
const PERSISTENT: &str = "fetch nixl.control.persistent";

/// A home without process scans, so that the first answer has all agents.
fn home() -> Home {
    let home = Home::new();
    home.set("proc_facts = false");
    home
}

fn ring(home: &Home, name: &str) -> RingWriter {
    home.new_ring(name, 64)
}

fn state(home: &Home) -> std::path::PathBuf {
    home.path("run/nixl/state")
}

#[test]
fn totals_ids_and_instances_survive_an_end_and_a_kill() {
    let home = home();
    let (mut a, mut b) = (ring(&home, "a"), ring(&home, "b"));
    b.push(Kind::TxBytes, 7);
    assert!(home.dbpmda(FETCH).contains("value 7"));
    // b keeps its id, though a comes before it and the file of pmdaCache was removed.
    a.push(Kind::TxBytes, 100);
    b.push(Kind::TxBytes, 7);
    let dbpmda = home.start_dbpmda(Path::new(PMDANIXL));
    wait_for("both rings are drained", || {
        (a.pending() + b.pending() == 0).then_some(())
    });
    let agent = agent_of(dbpmda.id());
    kill_process(agent);
    // Until its end, the daemon has the state file locked.
    ends(agent);
    drop(dbpmda);
    fs::remove_file(home.path("var/config/pmda/39.0")).expect("there");
    let shown = home.dbpmda(&format!("instance 39.0\n{FETCH}\n{PERSISTENT}"));
    for line in [
        "inst: 0 name: \"a\"",
        "inst: 1 name: \"b\"",
        "[0 or ???] value 100",
        "[1 or ???] value 14",
    ] {
        assert!(shown.contains(line), "{line} in\n{shown}");
    }
    assert!(
        shown.contains("control.persistent): numval: 1 valfmt: 0 vlist[]:\n   value 1"),
        "{shown}"
    );
    // An exited agent without a file is still an instance, with its last value.
    drop(a);
    fs::remove_file(home.ring("a")).expect("there");
    let shown = home.dbpmda(FETCH);
    assert!(shown.contains("[0 or ???] value 100"), "{shown}");
}

#[test]
fn state_that_cannot_be_used_is_written_over_and_said_once() {
    let home = home();
    let mut agent = ring(&home, "agent");
    agent.push(Kind::TxBytes, 5);
    assert!(home.dbpmda(FETCH).contains("value 5"));
    fs::write(state(&home), "rubbish").expect("written");
    agent.push(Kind::TxBytes, 2);
    let shown = home.dbpmda(&format!("{FETCH}\n{PERSISTENT}"));
    assert!(
        shown.contains("value 2") && shown.contains("value 1"),
        "{shown}"
    );
    assert_eq!(
        home.log()
            .matches("7 bytes are not a state file; its totals are not used")
            .count(),
        1,
        "{}",
        home.log()
    );
}

#[test]
fn instance_id_of_an_expired_agent_is_not_reused() {
    let home = Home::new();
    home.set("proc_facts = false\nmax_agents = 1");
    // There are records for four agents. The record of the least recently seen one expires for the fifth.
    for name in ["a", "b", "c", "d", "e", "f"] {
        let mut agent = ring(&home, name);
        agent.push(Kind::TxBytes, 5);
        // Each agent replaces the one before, as soon as the daemon knows that its file was removed.
        wait_for(&format!("{name} is an instance"), || {
            let shown = home.dbpmda(&format!("instance 39.0\n{FETCH}"));
            shown.contains(&format!("name: \"{name}\"")).then_some(())
        });
        drop(agent);
        fs::remove_file(home.ring(name)).expect("there");
    }
    // Only the limit of the assigned ids is left of the highest id.
    fs::remove_file(state(&home)).expect("there");
    let ids = home.path("var/config/pmda/39.0");
    let kept: String = fs::read_to_string(&ids)
        .expect("there")
        .lines()
        .filter(|line| !line.ends_with(" f"))
        .map(|line| format!("{line}\n"))
        .collect();
    fs::write(&ids, kept + "5 1 %\n").expect("written");
    let _agent = ring(&home, "new");
    let shown = home.dbpmda("instance 39.0");
    assert!(shown.contains("inst: 6 name: \"new\""), "{shown}");
}

#[test]
fn state_file_truncated_offline_loses_only_its_missing_part() {
    let home = Home::new();
    home.set("proc_facts = false");
    let mut agent = ring(&home, "a");
    agent.push(Kind::TxBytes, 5);
    let shown = home.dbpmda(FETCH);
    assert!(shown.contains("value 5"), "{shown}");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(state(&home))
        .expect("there");
    let len = file.metadata().expect("open").len();
    file.set_len(len - 1).expect("ours");
    agent.push(Kind::TxBytes, 2);
    let shown = home.dbpmda(FETCH);
    assert!(shown.contains("value 7"), "{shown}\n{}", home.log());
    let said = "it was truncated; agents with incomplete records begin at zero";
    assert!(home.log().contains(said), "{}", home.log());
}

#[test]
fn state_file_that_cannot_grow_does_not_end_the_daemon() {
    let home = Home::new();
    home.set("proc_facts = false");
    let mut agent = ring(&home, "a");
    agent.push(Kind::TxBytes, 5);
    let wrapper = home.path("limited");
    let text = format!(
        "#!/bin/sh\nulimit -f 64\nexec {:?} \"$@\"\n",
        env!("CARGO_BIN_EXE_pmdanixl")
    );
    fs::write(&wrapper, text).expect("written");
    fs::set_permissions(
        &wrapper,
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("ours");
    let shown = home.dbpmda_with(&wrapper, FETCH);
    assert!(shown.contains("value 5"), "{shown}\n{}", home.log());
}

#[test]
fn daemon_without_a_state_directory_serves_values() {
    needs_root();
    for (what, spoil) in [
        ("no directory", "rmdir run"),
        ("a file in its place", "rmdir run; touch run"),
        ("a full disk", "mount -t tmpfs -o size=16k tmpfs run"),
        ("a read-only disk", "mount -t tmpfs -o ro tmpfs run"),
    ] {
        let home = home();
        home.dbpmda(FETCH);
        fs::remove_dir_all(home.path("run/nixl")).expect("there");
        let mut agent = ring(&home, "agent");
        agent.push(Kind::TxBytes, 5);
        // The mounts are in a separate mount namespace.
        let wrapper = home.path("pmdanixl");
        let text = format!(
            "#!/bin/sh\nset -e\nexec unshare --mount sh -e -c 'cd {}; {spoil}; cd /; exec \"{PMDANIXL}\" \"$@\"' sh \"$@\"\n",
            home.path("").display()
        );
        fs::write(&wrapper, text).expect("written");
        run(std::process::Command::new("chmod").arg("755").arg(&wrapper));
        let shown = home.dbpmda_with(&wrapper, &format!("{FETCH}\n{PERSISTENT}"));
        assert!(
            shown.contains("value 5") && shown.contains("value 0"),
            "{what}\n{shown}\n{}",
            home.log()
        );
        assert!(home.log().contains("Warning: "), "{what}\n{}", home.log());
    }
}

#[test]
fn removed_or_truncated_state_file_is_recreated_in_full() {
    needs_root();
    let cases = [
        ("was removed or replaced", None),
        ("was truncated", Some(0)),
        // The header is left, which has the sums of expired agents, and the first records, with the one in use.
        ("was truncated", Some(RECORD)),
        ("was truncated", Some(33 * RECORD)),
    ];
    // Side by side, because each mostly waits.
    thread::scope(|scope| {
        for (what, len) in cases {
            scope.spawn(move || recreates_in_full(what, len));
        }
    });
}

/// Removes the state file, or truncates it to `len`. Checks that the daemon logs `what`, and writes all into another
/// file.
fn recreates_in_full(what: &str, len: Option<u64>) {
    let home = Home::new();
    home.set("max_agents = 1\nretain = \"0s\"");
    let mut pmcd = Pmcd::start(&home);
    // The record of the first agent expires, but its sums stay in the host totals.
    let before: &[&str] = match len {
        None | Some(RECORD) => &["a", "b", "c", "d", "e"],
        _ => &[],
    };
    for name in before {
        ring(&home, name).push(Kind::TxBytes, 100);
        pmcd.becomes(&[(name, 100)]);
        fs::remove_file(home.ring(name)).expect("there");
    }
    let mut agent = ring(&home, "agent");
    agent.push(Kind::TxBytes, 5);
    pmcd.becomes(&[("agent", 5)]);
    let id = |pmcd: &Pmcd| run(pmcd.tool("pminfo").args(["-f", TX_BYTES]));
    let shown = id(&pmcd);
    let state = pmcd.path("run/nixl/state");
    match len {
        None => fs::remove_file(state).expect("there"),
        Some(len) => {
            let file = fs::OpenOptions::new().write(true).open(state);
            file.and_then(|file| file.set_len(len)).expect("there");
        }
    }
    // The next write finds that the file is truncated.
    agent.push(Kind::TxBytes, 5);
    wait_for(what, || pmcd.log().contains(what).then_some(()));
    wait_for("another file is made", || {
        let is_made = pmcd
            .log()
            .contains("state file re-created; totals are persistent again");
        is_made.then_some(())
    });
    agent.push(Kind::TxBytes, 5);
    pmcd.becomes(&[("agent", 15)]);
    kill_process(pmcd.pmda_pid());
    pmcd.kill();
    pmcd.start_anew();
    pmcd.wait_until_it_answers();
    agent.push(Kind::TxBytes, 5);
    pmcd.becomes(&[("agent", 20)]);
    let after = id(&pmcd);
    assert_eq!(shown.replace("value 5", "value 20"), after, "{what}");
    let host = pmcd.values("nixl.host.transfer.tx_bytes");
    let sent = 20 + 100 * before.len() as u64;
    assert_eq!(host.values().sum::<u64>(), sent, "{what} {host:?}");
}

#[test]
fn transfer_split_by_an_overflow_stays_unpaired_after_restart() {
    for kill in [false, true] {
        let home = Home::new();
        let mut ring = home.new_ring("a", 16);
        for _ in 0..14 {
            assert!(ring.push(Kind::TxRequests, 1));
        }
        assert!(ring.push(Kind::XferTime, 7));
        // The ring has no room for the event with its bytes.
        assert!(!ring.push(Kind::TxBytes, 1));
        let unpaired = |events: u64| {
            let mut link = Link::open(&home);
            let found = wait_for("all is counted", || {
                let values = link.fetch(&["ring.events", "ring.unpaired"]).ok()?;
                let [counted, unpaired] = [0, 1].map(|at| values[at].values().next().copied());
                (counted == Some(events)).then_some(unpaired)
            });
            if kill {
                let pid = link.pid();
                self::kill(
                    Pid::from_raw(pid.try_into().expect("a pid")),
                    Signal::SIGKILL,
                )
                .expect("it runs");
            }
            link.end();
            found
        };
        assert_eq!(unpaired(15), Some(0));
        // The bytes of another transfer.
        assert!(ring.push(Kind::TxBytes, 9_000_000));
        assert_eq!(unpaired(16), Some(2), "killed: {kill}");
    }
}
