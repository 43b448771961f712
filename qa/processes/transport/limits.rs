// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes with many sockets and descriptors, and users with many processes.

use super::connections::server;
use super::{Process, row_when, rows, start};
use crate::support::Home;
use crate::support::fleet::is_possible;
use crate::support::note_left_out;
use crate::support::other_user::{STRANGER, VICTIM};

/// Limit of rows, and of descriptors of a process that is read.
const MOST_ROWS: usize = 256;
const MOST_DESCRIPTORS: u32 = 32_768;
/// Descriptors that a process needs beside those of the test.
const SPARE: u32 = 100;

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn process_with_20000_connections_is_read_and_delays_no_other() {
    const CONNECTIONS: u32 = 20_000;
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let (mut server, to) = server();
    server.run("allow_files(40_000)");
    let mut many = Process::start(&home);
    let limit = many.number("allow_files(40_000)");
    let connections = CONNECTIONS.min(limit - SPARE);
    many.run(&format!(
        "all = connect({to}, {connections}); send(all, 100)"
    ));
    let mut one = Process::start(&home);
    one.run(&format!("one = connect({to}); send(one, 1000)"));
    let mut link = start(&home);
    let exact = [many.counts("all"), one.counts("one")];
    row_when(&mut link, many.pid(), "exact", |row| row == exact[0]);
    row_when(&mut link, one.pid(), "exact", |row| row == exact[1]);
    if limit < MOST_DESCRIPTORS + SPARE {
        note_left_out(&format!("the limit of open files is {limit}"));
        return;
    }
    // What was read before stays.
    let more = MOST_DESCRIPTORS - connections;
    many.run(&format!("more = [os.dup(0) for _ in range({more})]"));
    one.run("send(one, 500)");
    let sent = exact[1].sent + 500;
    row_when(&mut link, one.pid(), "exact", |row| row.sent == sent);
    crate::support::wait_for("the log says why", || {
        let message = format!(
            "process {} (python3): its sockets cannot be read",
            many.pid()
        );
        home.log().contains(&message).then_some(())
    });
    assert_eq!(rows(&mut link)[&many.pid()], exact[0]);
}

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn user_with_300_processes_leaves_rows_to_another_user() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let (_server, to) = server();
    let mut many = Process::start(&home);
    many.run(&format!("become({STRANGER})"));
    many.run("fork(count=300)");
    let mut victim = Process::start(&home);
    victim.run(&format!(
        "become({VICTIM}); one = connect({to}); send(one, 1000)"
    ));
    let mut link = start(&home);
    let exact = victim.counts("one");
    row_when(&mut link, victim.pid(), "exact", |row| row == exact);
    assert_eq!(rows(&mut link).len(), MOST_ROWS);
    assert!(rows(&mut link).contains_key(&many.pid()), "the oldest one");
}

#[test]
#[ignore = "tens of thousands of sockets and descriptors"]
fn descriptors_of_one_user_do_not_delay_another_user() {
    const PROCESSES: usize = 100;
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let (_server, to) = server();
    let mut many = Process::start(&home);
    // A descriptor costs the worker some microseconds, also one that is no socket.
    let limit = many.number("allow_files(40_000)").min(MOST_DESCRIPTORS) - SPARE;
    many.run(&format!("all = [os.dup(0) for _ in range({limit})]"));
    many.run(&format!("become({STRANGER})"));
    many.run(&format!("fork(count={PROCESSES})"));
    let mut victim = Process::start(&home);
    victim.run(&format!(
        "become({VICTIM}); one = connect({to}); send(one, 1000)"
    ));
    let mut link = start(&home);
    // It is the youngest one, and one scan has no time for all.
    let exact = victim.counts("one");
    row_when(&mut link, victim.pid(), "exact", |row| row == exact);
    assert!(!home.log().contains("sockets"), "{}", home.log());
}
