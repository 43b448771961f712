// SPDX-License-Identifier: GPL-2.0-or-later

//! Log files: that of a daemon, and that of the previous daemon.

use super::{FETCH, home, ring};
use crate::support::kill::kill_process;
use crate::support::{PMDANIXL, agent_of, ends, quit, wait_for};
use std::fs;
use std::path::Path;

/// Lines of a log with the pid of a process.
fn lines_of(log: &str, pid: u32) -> usize {
    log.matches(&format!("pmdanixl({pid})")).count()
}

#[test]
fn log_of_a_killed_daemon_is_kept_as_prev() {
    let home = home();
    let dbpmda = home.start_dbpmda(Path::new(PMDANIXL));
    let killed = agent_of(dbpmda.id());
    wait_for("the first line is logged", || {
        (lines_of(&home.log(), killed) > 0).then_some(())
    });
    kill_process(killed);
    ends(killed);
    drop(dbpmda);
    let before = home.log();
    home.dbpmda(FETCH);
    let kept = fs::read_to_string(home.path("nixl.log.prev")).expect("kept");
    assert_eq!(kept, before);
    assert_eq!(lines_of(&home.log(), killed), 0, "{}", home.log());
}

#[test]
fn log_of_a_living_daemon_goes_on_as_prev() {
    let home = home();
    let _agent = ring(&home, "agent");
    let first = home.start_dbpmda(Path::new(PMDANIXL));
    let pid = agent_of(first.id());
    let drains = |pid: u32| format!("pmdanixl({pid}) Info: agent agent: ring v4");
    wait_for("the daemon drains", || {
        home.log().contains(&drains(pid)).then_some(())
    });
    // The daemon of another pmcd, which waits for the end of the first one.
    let second = home.start_dbpmda(Path::new(PMDANIXL));
    let waiting = agent_of(second.id());
    wait_for("the second daemon has logged", || {
        (lines_of(&home.log(), waiting) > 0).then_some(())
    });
    let previous = || fs::read_to_string(home.path("nixl.log.prev")).expect("kept");
    assert!(previous().contains(&drains(pid)), "{}", previous());
    quit(first);
    wait_for("the first has ended and the second drains", || {
        home.log().contains(&drains(waiting)).then_some(())
    });
    assert!(previous().contains("Log finished"), "{}", previous());
    assert_eq!(lines_of(&home.log(), pid), 0, "{}", home.log());
    assert_eq!(lines_of(&previous(), waiting), 0, "{}", previous());
    quit(second);
}

#[test]
fn directory_in_place_of_the_previous_log_is_reported() {
    let home = home();
    fs::write(home.path("nixl.log"), "of a run before\n").expect("written");
    fs::create_dir(home.path("nixl.log.prev")).expect("made");
    home.dbpmda(FETCH);
    let log = home.log();
    let is_logged = log.lines().any(|line| {
        line.contains("Warning: log before: cannot be kept as ") && line.contains("nixl.log.prev")
    });
    assert!(is_logged && log.contains("Info: version "), "{log}");
    assert!(home.path("nixl.log.prev").is_dir());
}
