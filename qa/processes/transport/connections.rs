// SPDX-License-Identifier: GPL-2.0-or-later

//! Connections that come and go, and those of processes that stop, fork and end.

use super::{Process, Tcp, home, pids, ring, row_goes, row_when, rows, sender};
use crate::support::pdu::Link;
use crate::support::scripted::libraries;
use nix::sys::signal::Signal;
use pmdanixl::metrics::{PEERS, PROCESSES};
use std::fs;

/// Bytes that the kernel counts for the SYN of a connection, as sent by the process that opened it.
pub const SYN: u64 = 1;

/// Starts a process that accepts connections. Returns the arguments of `connect` for it.
pub fn server() -> (Process, String) {
    let mut server = Process::peer();
    let port = server.number("serve()");
    (server, format!("'127.0.0.1', {port}"))
}

#[test]
fn counters_never_go_back_while_10000_connections_come_and_go() {
    const ROUNDS: u64 = 4;
    const EACH: u64 = 2500;
    const SIZE: u64 = 3000;
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = Process::start(&home);
    process.run(&format!("stays = connect({to}, 2)"));
    process.run("send(stays, 5000)");
    let mut link = Link::open(&home);
    let stays = process.counts("stays");
    let mut last = row_when(&mut link, process.pid(), "exact", |row| row == stays);
    let mut seen = 0;
    for round in 1..=ROUNDS {
        process.begin(&format!("churn({to}, {EACH}, {SIZE})"));
        // Rows while the connections come and go, until a reading that began after their end: the second one with bytes
        // that were sent then.
        let mut sent_then = Vec::new();
        let after = crate::support::wait_for("a reading after the last connection", || {
            seen += 1;
            let row = rows(&mut link)[&process.pid()];
            assert!(
                row.sent >= last.sent
                    && row.received >= last.received
                    && row.retransmits >= last.retransmits,
                "{row:?} after {last:?}"
            );
            assert!(
                row.sent <= stays.sent + round * EACH * (SIZE + SYN),
                "{row:?}"
            );
            last = row;
            if seen >= 100 && sent_then.last().is_none_or(|&sent| row.sent >= sent) {
                match sent_then.len() {
                    0 => assert_eq!(process.line(), "None"),
                    1 => {}
                    _ => return Some(row),
                }
                process.run("send(stays, 50)");
                sent_then.push(row.sent + 2 * 50);
            }
            None
        });
        last = after;
    }
    process.run("send(stays, 7000)");
    let expected = last.sent + 2 * 7000;
    row_when(&mut link, process.pid(), "what was sent then", |row| {
        row.sent == expected
    });
    let pid = process.pid();
    drop(process);
    row_goes(&mut link, pid);
    assert!(!home.log().contains("sockets"), "{}", home.log());
}

#[test]
fn stopped_process_keeps_its_row() {
    let Some(home) = home() else { return };
    let (mut server, to) = server();
    let mut process = Process::start(&home);
    process.run(&format!("all = connect({to}, 3); send(all, 1000)"));
    let before = process.counts("all");
    process.signal(Signal::SIGSTOP);
    let mut link = Link::open(&home);
    row_when(&mut link, process.pid(), "exact", |row| row == before);
    // The kernel receives it.
    server.run("answer(3, 400)");
    let expected = Tcp {
        received: 3 * 400,
        ..before
    };
    row_when(&mut link, process.pid(), "exact", |row| row == expected);
    process.signal(Signal::SIGCONT);
    assert_eq!(process.counts("all"), expected);
}

#[test]
fn inherited_connections_count_once_for_the_oldest_process() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = Process::start(&home);
    process.run(&format!("both = connect({to}, 2); send(both, 1000)"));
    let go = home.path("go");
    let child = process.number(&format!(
        "fork('os.close(both[0].fileno()); time.sleep(5); send(both[1:], 500); wait_for_file({go:?}); send(both[1:], 70)')"
    ));
    let mut link = Link::open(&home);
    let none = Tcp::default();
    let pid = process.pid();
    row_when(&mut link, pid, "of both connections", |row| {
        row.sent == 2 * (1000 + SYN) + 500
    });
    assert_eq!(rows(&mut link)[&child], none);
    // The child alone has it now.
    process.run("both.pop().close()");
    fs::write(go, "").expect("room");
    row_when(&mut link, child, "what it has sent then", |row| {
        row.sent == 70
    });
    let parent = rows(&mut link)[&pid].sent;
    assert_eq!(parent, 2 * (1000 + SYN) + 500);
    process.run(&format!("end({child})"));
    row_goes(&mut link, child);
}

#[test]
fn child_forked_between_two_readings_takes_no_bytes_of_its_parent() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut process = sender(&home, &to, 0);
    let mut link = Link::open(&home);
    let pid = process.pid();
    row_when(&mut link, pid, "read", |row| row.sent == 1000 + SYN);
    process.run("send(one, 500)");
    let child = process.number("fork()");
    let _ring = ring(&home, "new");
    let row = row_when(&mut link, child, "read", |_| true);
    assert_eq!(row, Tcp::default());
    row_when(&mut link, pid, "exact", |row| row.sent == 1500 + SYN);
}

/// Instance id of a process.
fn instance_of(link: &mut Link, pid: u32) -> Option<u32> {
    let mut pids = pids(link).into_iter();
    pids.find_map(|(instance, other)| (other == pid).then_some(instance))
}

#[test]
fn process_with_a_reused_pid_gets_a_row_of_its_own() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let mut first = Process::start(&home);
    let pid = first.pid();
    first.run(&format!("all = connect({to}); send(all, 1000)"));
    let mut link = Link::open(&home);
    row_when(&mut link, pid, "of the first", |row| row.sent == 1000 + SYN);
    let before = instance_of(&mut link, pid).expect("there");
    drop(first);
    let last = format!("{}", pid - 1);
    // Another process may get the pid.
    let mut second = crate::support::wait_for("a process gets the pid", || {
        std::fs::write("/proc/sys/kernel/ns_last_pid", &last).expect("root may");
        let process = Process::start(&home);
        (process.pid() == pid).then_some(process)
    });
    second.run(&format!("all = connect({to}); send(all, 30)"));
    let _ring = ring(&home, "new");
    row_when(&mut link, pid, "of the second", |row| row.sent == 30 + SYN);
    assert_ne!(instance_of(&mut link, pid), Some(before));
}

#[test]
fn restarted_daemon_gives_processes_and_peers_other_ids() {
    let Some(home) = home() else { return };
    let (_server, to) = server();
    // The process of the agent, which is also that of its ring.
    let ring = ring(&home, "agent");
    let mut files = vec![home.ring("agent")];
    files.extend(libraries(&home));
    let mut process = Process::with_files(&[], &files);
    drop(ring);
    process.run(&format!("all = connect({to}); send(all, 1000)"));
    let mut instances = Vec::new();
    for added in [0, 30] {
        process.run(&format!("send(all, {added})"));
        let mut link = Link::open(&home);
        row_when(&mut link, process.pid(), "read", |row| row.sent >= 1000);
        // Counters begin at zero with each daemon.
        let peers = crate::support::wait_for("the peer has a row", || {
            let peers = link.instances_of(PEERS).expect("an answer");
            (!peers.is_empty()).then_some(peers)
        });
        let processes = link.instances_of(PROCESSES).expect("an answer");
        assert_eq!((processes.len(), peers.len()), (1, 1));
        instances.push([processes, peers]);
        let rtt = crate::support::wait_for("a round-trip time after bytes were moved", || {
            process.run("send(all, 1)");
            let rtt = link.fetch(&["agent.peer.tcp.rtt"]).expect("an answer");
            rtt[0].values().next().copied()
        });
        // In microseconds, on one host.
        assert!((1..10_000_000).contains(&rtt), "{rtt}");
        // As after SIGKILL: nothing is saved.
        drop(link);
    }
    for (before, after) in instances[0].iter().zip(&instances[1]) {
        assert!(before.values().eq(after.values()), "{before:?} {after:?}");
        assert!(before.keys().ne(after.keys()), "{before:?} {after:?}");
    }
}

#[test]
fn process_with_two_agents_has_the_share_of_both() {
    const MIB: u64 = 1 << 20;
    let Some(home) = home() else { return };
    let (_server, to) = server();
    let names = ["first", "second"];
    // The process is then the only one that has the rings.
    drop(names.map(|name| ring(&home, name)));
    let mut files = names.map(|name| home.ring(name)).to_vec();
    files.extend(libraries(&home));
    let mut process = Process::with_files(&[], &files);
    process.run(&format!("all = connect({to}); send(all, 1000)"));
    let mut link = Link::open(&home);
    let value = |link: &mut Link, metric: &str| {
        let values = link.fetch(&[metric]).expect("an answer");
        values[0].values().next().copied()
    };
    crate::support::wait_for("both agents are known", || {
        (value(&mut link, "process.agents") == Some(2)).then_some(())
    });
    process.run("send(all, 500)");
    row_when(&mut link, process.pid(), "read with both agents", |row| {
        row.sent == 1500 + SYN
    });
    assert_eq!(value(&mut link, "process.tcp_share"), None, "few bytes");
    // Each ring gets an event of type 0, TxBytes, in its second slot. Half of these bytes go over TCP.
    process.run(&format!(
        "for ring in mapped[:2]: struct.pack_into('<QQ', ring, 56, 0, {}); struct.pack_into('<Q', ring, 0, 2)",
        2 * MIB
    ));
    process.run(&format!("send(all, {})", 2 * MIB));
    crate::support::wait_for("the process has the share", || {
        let share = f64::from_bits(value(&mut link, "process.tcp_share")?);
        (0.49..0.51).contains(&share).then_some(())
    });
    assert_eq!(value(&mut link, "agent.tcp_share"), None);
}

#[test]
fn open_rdma_devices_are_counted() {
    let Some(home) = home() else { return };
    let devices = "mount -t tmpfs dev /dev
        mkdir /dev/infiniband
        touch /dev/infiniband/uverbs0 /dev/infiniband/uverbs1 /dev/infiniband/rdma_cm
        exec \"$@\"";
    let within = ["unshare", "--mount", "sh", "-ec", devices, "sh"];
    let within = within.map(str::to_owned);
    let mut process = Process::with_files(&within, &libraries(&home));
    let names = "'uverbs0', 'uverbs1', 'uverbs1', 'rdma_cm'";
    process.run(&format!(
        "files = [open('/dev/infiniband/' + name) for name in [{names}]]"
    ));
    let mut link = Link::open(&home);
    let pid = process.pid();
    row_when(&mut link, pid, "there", |_| true);
    let devices = link.fetch(&["process.rdma_devices"]).expect("an answer");
    let devices: Vec<u64> = devices[0].values().copied().collect();
    assert_eq!(devices, [2], "uverbs1 is open twice, and rdma_cm is none");
}
