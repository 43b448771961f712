// SPDX-License-Identifier: GPL-2.0-or-later

//! What processes that use NIXL transfer by TCP, with the real daemon and its worker process. A test runs in a PID
//! namespace of its own, so that the daemon sees the processes of this test only.

mod connections;
mod ends;
mod limits;
mod rights;
mod stalls;
pub mod worker;

use crate::support::fleet::is_possible;
use crate::support::pdu::Link;
use crate::support::scripted::{Process, Tcp, workers};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, wait_for};
use pmdanixl::metrics::PROCESSES;
use std::collections::BTreeMap;
use std::path::Path;

/// Home of a test that runs alone. `None` if the test has run in its own PID namespace.
fn home() -> Option<Home> {
    is_possible().then(Home::new)
}

/// Starts a process of a user that has sent 1,000 bytes by the connection `one` to a [`server`](connections::server).
fn sender(home: &Home, to: &str, uid: u32) -> Process {
    let mut process = Process::start(home);
    process.run(&format!(
        "become({uid}); one = connect({to}); send(one, 1000)"
    ));
    process
}

/// Makes a ring with an event of one byte. The daemon then scans processes at once, not within a minute, to find the
/// one that writes it.
fn ring(home: &Home, name: &str) -> RingWriter {
    ring_in(&home.rings(), name)
}

/// Makes a ring with an event of one byte in a directory.
fn ring_in(directory: &Path, name: &str) -> RingWriter {
    let ring = RingWriter::create(&directory.join(name), Layout::V4, 64);
    let mut ring = ring.expect("room");
    assert!(ring.push(Kind::TxBytes, 1));
    ring
}

/// Pids of all processes with a row, by instance id.
fn pids(link: &mut Link) -> BTreeMap<u32, u32> {
    let names = link.instances_of(PROCESSES).expect("an answer").into_iter();
    let pid = |name: &str| name.split(' ').next().and_then(|pid| pid.parse().ok());
    names
        .map(|(instance, name)| (instance, pid(&name).expect("a pid")))
        .collect()
}

/// Rows of all processes that were read, by pid.
fn rows(link: &mut Link) -> BTreeMap<u32, Tcp> {
    let metrics = [
        "tcp.tx_bytes",
        "tcp.rx_bytes",
        "tcp.retransmits",
        "rdma_devices",
    ];
    let names = metrics.map(|name| format!("process.{name}"));
    let columns = link.fetch(&names.each_ref().map(String::as_str));
    let columns = columns.expect("an answer");
    let pids = pids(link);
    let row = |(&instance, &sent): (&u32, &u64)| {
        // Without a reading of the last minute there are sums only.
        columns[3].get(&instance)?;
        let tcp = Tcp {
            sent,
            received: columns[1][&instance],
            retransmits: columns[2][&instance],
        };
        Some((*pids.get(&instance)?, tcp))
    };
    columns[0].iter().filter_map(row).collect()
}

/// Waits until a process has a row for which a condition holds.
fn row_when(link: &mut Link, pid: u32, what: &str, is_right: impl Fn(Tcp) -> bool) -> Tcp {
    let mut last = None;
    let found = crate::support::soon(|| {
        last = rows(link).remove(&pid);
        last.filter(|row| is_right(*row))
    });
    found.unwrap_or_else(|| panic!("pid {pid}: not {what}: {last:?}"))
}

/// Waits until the row of a process has what the kernel counts for the connections in a variable of it.
fn exact_row(link: &mut Link, process: &mut Process, variable: &str) -> Tcp {
    let counts = process.counts(variable);
    row_when(link, process.pid(), "exact", |row| row == counts)
}

/// Waits until a process has no row.
fn row_goes(link: &mut Link, pid: u32) {
    wait_for("the process has no row", || {
        (!rows(link).contains_key(&pid)).then_some(())
    });
}
