// SPDX-License-Identifier: GPL-2.0-or-later

//! Two daemons with one state file: the second one waits for the end of the first.

use super::{FETCH, PERSISTENT, home, ring};
use crate::support::writer::Kind;
use crate::support::{PMDANIXL, agent_of, quit, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;

#[test]
fn second_daemon_answers_again_and_takes_over() {
    let home = home();
    let mut agent = ring(&home, "agent");
    agent.push(Kind::TxBytes, 1);
    let first = home.start_dbpmda(Path::new(PMDANIXL));
    wait_for("the first drains", || (agent.pending() == 0).then_some(()));
    let shown = home.dbpmda(&format!(
        "{FETCH}\ninstance 39.0\nfetch nixl.control.version nixl.transfer.rx_bytes\n{PERSISTENT}"
    ));
    // An error for the values of agents, but none for their instances: pmlogger would end.
    assert_eq!(shown.matches("Try again").count(), 2, "{shown}");
    assert!(!shown.contains("value 1"), "{shown}");
    assert!(
        shown.contains(concat!("value \"", env!("CARGO_PKG_VERSION"), "\"")),
        "{shown}"
    );
    fs::remove_file(home.path("nixl.log")).expect("there");
    let second = home.start_dbpmda(Path::new(PMDANIXL));
    wait_for("the second waits", || {
        home.log()
            .contains("locked by another pmdanixl; this one waits")
            .then_some(())
    });
    let pid = Pid::from_raw(i32::try_from(agent_of(first.id())).expect("a pid"));
    kill(pid, Signal::SIGKILL).expect("it runs");
    agent.push(Kind::TxBytes, 10);
    wait_for("the second drains", || (agent.pending() == 0).then_some(()));
    assert!(
        home.log().contains("the other pmdanixl has ended"),
        "{}",
        home.log()
    );
    drop(first);
    quit(second);
    assert!(home.dbpmda(FETCH).contains("value 11"));
}

#[test]
fn ring_of_another_pmdanixl_is_taken_over_after_its_end() {
    let (home, other) = (home(), home());
    other.configure(&format!("[nixl]\ntelemetry_dir = {:?}\n", home.rings()));
    let mut agent = ring(&home, "agent");
    agent.push(Kind::TxBytes, 1);
    let drains = home.start_dbpmda(Path::new(PMDANIXL));
    wait_for("the first drains", || (agent.pending() == 0).then_some(()));
    let waits = other.start_dbpmda(Path::new(PMDANIXL));
    wait_for("the second waits", || {
        let said = "another process has locked it, so it is not drained or counted";
        other.log().contains(said).then_some(())
    });
    let mut sent = 0;
    for value in 1..=200 {
        while !agent.push(Kind::TxBytes, value) {
            std::thread::yield_now();
        }
        sent += value;
    }
    wait_for("the first drains", || (agent.pending() == 0).then_some(()));
    quit(drains);
    agent.push(Kind::TxBytes, 1000);
    wait_for("the second drains", || (agent.pending() == 0).then_some(()));
    quit(waits);
    let shown = other.dbpmda(&format!(
        "{FETCH}\nfetch nixl.ring.resets\nfetch nixl.ring.foreign_reads"
    ));
    // Each event is counted by one of them.
    let values: Vec<u64> = shown
        .lines()
        .filter_map(|line| line.split_once("] value "))
        .map(|(_, value)| value.parse().expect("a number"))
        .collect();
    assert_eq!(values, [1000, 0, 0], "{shown}");
    assert_eq!(
        home.dbpmda(FETCH)
            .matches(&format!("value {}", sent + 1))
            .count(),
        1
    );
}
