// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes with many sockets and descriptors, and users with many processes.

use super::connections::server;
use super::{Process, exact_row, home, rows, sender};
use crate::support::note_left_out;
use crate::support::other_user::{STRANGER, VICTIM};
use crate::support::pdu::Link;

/// Limit of rows, and of descriptors of a process that is read.
const MOST_ROWS: usize = 256;
const MOST_DESCRIPTORS: u32 = 32_768;
/// Descriptors that a process needs beside those of the test.
const SPARE: u32 = 100;

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn process_with_20000_connections_is_read_and_delays_no_other() {
    const CONNECTIONS: u32 = 20_000;
    let Some(home) = home() else { return };
    let (mut server, to) = server();
    server.run("allow_files(40_000)");
    let mut many = Process::start(&home);
    let limit = many.number("allow_files(40_000)");
    let connections = CONNECTIONS.min(limit - SPARE);
    many.run(&format!(
        "all = connect({to}, {connections}); send(all, 100)"
    ));
    let mut one = sender(&home, &to, 0);
    let mut link = Link::open(&home);
    let before = exact_row(&mut link, &mut many, "all");
    exact_row(&mut link, &mut one, "one");
    if limit < MOST_DESCRIPTORS + SPARE {
        note_left_out(&format!("the limit of open files is {limit}"));
        return;
    }
    // What was read before stays.
    let more = MOST_DESCRIPTORS - connections;
    many.run(&format!("more = [os.dup(0) for _ in range({more})]"));
    one.run("send(one, 500)");
    exact_row(&mut link, &mut one, "one");
    crate::support::wait_for("the log says why", || {
        let message = format!(
            "process {} (python3): its sockets cannot be read",
            many.pid()
        );
        home.log().contains(&message).then_some(())
    });
    assert_eq!(rows(&mut link)[&many.pid()], before);
}

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn user_with_300_processes_leaves_rows_to_another_user() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut many = Process::start(&home);
    many.run(&format!("become({STRANGER})"));
    many.run("fork(count=300)");
    let mut victim = sender(&home, &to, VICTIM);
    let mut link = Link::open(&home);
    exact_row(&mut link, &mut victim, "one");
    assert_eq!(rows(&mut link).len(), MOST_ROWS);
    assert!(rows(&mut link).contains_key(&many.pid()), "the oldest one");
}

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn descriptors_of_one_user_do_not_delay_another_user() {
    const PROCESSES: usize = 100;
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut many = Process::start(&home);
    // A descriptor costs the worker some microseconds, also one that is no socket.
    let limit = many.number("allow_files(40_000)").min(MOST_DESCRIPTORS) - SPARE;
    many.run(&format!("all = [os.dup(0) for _ in range({limit})]"));
    many.run(&format!("become({STRANGER})"));
    many.run(&format!("fork(count={PROCESSES})"));
    let mut victim = sender(&home, &to, VICTIM);
    let mut link = Link::open(&home);
    // It is the youngest one, and one scan has no time for all.
    exact_row(&mut link, &mut victim, "one");
    assert!(!home.log().contains("sockets"), "{}", home.log());
}
