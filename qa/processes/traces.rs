// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers in flight, as `nixl.trace` shows them, with the real daemon, its observer and its tracer. The processes
//! call functions of a small library with the symbols of libnixl. A test runs in a PID namespace of its own.

mod hostile;

use crate::support::fleet::is_possible;
use crate::support::pdu::Link;
use crate::support::scripted::{Process, tracers};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, leave_out, project, run, wait_for};
use nix::sys::signal::Signal;
use pmdanixl::metrics::{TRACED, TRACED_TIMES};
use pmdanixl::rights::privilege::{OF_TRACER, permitted};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

/// Home of a test that runs alone, with these settings. `None` if the test has run in its own PID namespace.
fn home(settings: &str) -> Option<Home> {
    if !OF_TRACER.iter().all(|cap| permitted().contains(cap)) {
        leave_out("it takes CAP_BPF and CAP_PERFMON");
    }
    if !is_possible() {
        return None;
    }
    let home = Home::new();
    let library = home.path("libnixl.so");
    let mut compiler = Command::new("cc");
    compiler.args([
        "-shared",
        "-fPIC",
        "-O1",
        "-fno-optimize-sibling-calls",
        "-o",
    ]);
    run(compiler
        .arg(&library)
        .arg(project("qa/processes/traces/libnixl.c")));
    fs::write(home.path("libplugin_UCX.so"), [0; 4096]).expect("written");
    home.set(&format!("trace = true\n{settings}"));
    Some(home)
}

/// Starts a process that has the library loaded, and writes the rings of these names.
fn process(home: &Home, rings: &[&str]) -> Process {
    let mut files = vec![home.path("libplugin_UCX.so")];
    for name in rings {
        let ring = RingWriter::create(&home.ring(name), Layout::V4, 64);
        assert!(ring.expect("room").push(Kind::TxBytes, 1));
        files.push(home.ring(name));
    }
    let mut process = Process::with_files(&[], &files);
    let library = home.path("libnixl.so");
    process.run(&format!("lib = ctypes.CDLL({library:?})"));
    process
}

/// Rows of a metric, without `nixl.trace.`, by instance name.
fn rows(link: &mut Link, metric: &str) -> BTreeMap<String, u64> {
    let values = link
        .fetch(&[&format!("trace.{metric}")])
        .expect("an answer")
        .remove(0);
    let names = link.instances_of(TRACED).expect("an answer");
    let named = values
        .into_iter()
        .filter_map(|(id, value)| Some((names.get(&id)?.clone(), value)));
    named.collect()
}

/// Waits until a metric has these rows.
fn wait_for_rows(link: &mut Link, metric: &str, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    let mut last = BTreeMap::new();
    let found = crate::support::soon(|| {
        last = rows(link, metric);
        (last == expected).then_some(())
    });
    assert!(
        found.is_some(),
        "trace.{metric}: {last:?}, not {expected:?}"
    );
}

/// Waits until the library of a process has probes.
fn wait_for_probes(link: &mut Link) {
    wait_for("libnixl has probes", || {
        let libraries = link.values("control.trace.libraries").expect("an answer");
        (libraries.get("") == Some(&1)).then_some(())
    });
}

#[test]
fn transfers_are_counted_exactly_by_remote_agent() {
    let Some(home) = home("") else { return };
    let mut process = process(&home, &["local"]);
    process.run("lib.make(1, b'early', 5); lib.post(1, 1)");
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    // A handle that was made before is posted again, and the first transfer is not known.
    process.run("lib.post(1, 1)");
    process.run("lib.transfer(b'fast', 4, 100000)");
    process.run("lib.hold(0x10000, b'stuck', 5, 10000)");
    process.run("lib.make(2, b'again', 5); [lib.post(2, 1) for _ in range(7)]; lib.release(2)");
    // A handle of which only the object was deleted, and one that was never posted.
    process.run("lib.make(3, b'again', 5); lib.make(3, b'again', 5); lib.release(3)");
    let in_flight = [
        ("local::again", 0),
        ("local::fast", 0),
        ("local::stuck", 10_000),
        ("local::~unknown", 1),
    ];
    wait_for_rows(&mut link, "in_flight", &in_flight);
    let posted = [
        ("local::again", 7),
        ("local::fast", 100_000),
        ("local::stuck", 10_000),
        ("local::~unknown", 1),
    ];
    wait_for_rows(&mut link, "posted", &posted);
    let released = [
        ("local::again", 1),
        ("local::fast", 100_000),
        ("local::stuck", 0),
        ("local::~unknown", 0),
    ];
    wait_for_rows(&mut link, "released", &released);
    assert_eq!(rows(&mut link, "reposted")["local::again"], 6);
    assert!(rows(&mut link, "failed").is_empty(), "results are not read");
    let ages = rows(&mut link, "oldest_age");
    let has_age = Vec::from_iter(ages.keys());
    assert_eq!(has_age, ["local::stuck", "local::~unknown"]);
    wait_for("the oldest transfer gets older", || {
        (rows(&mut link, "oldest_age")["local::stuck"] > ages["local::stuck"]).then_some(())
    });
    // The mean of 100,000 transfers, and how many took no longer than each bound.
    let sum = rows(&mut link, "xfer_time.sum")["local::fast"];
    assert!(sum > 0, "100,000 transfers took {sum} us");
    let buckets = link
        .fetch(&["trace.xfer_time.bucket"])
        .expect("an answer")
        .remove(0);
    let names = link.instances_of(TRACED_TIMES).expect("an answer");
    let of_fast = buckets
        .iter()
        .filter(|(id, _)| names[id].starts_with("local::fast::le-"));
    let counts = Vec::from_iter(of_fast.map(|(_, &count)| count));
    assert!(counts.is_sorted() && counts.len() == 19, "{counts:?}");
    assert_eq!(counts.last(), Some(&100_000));
    process.run("[lib.release(handle) for handle in range(0x10000, 0x10000 + 10000)]");
    wait_for_rows(
        &mut link,
        "in_flight",
        &in_flight.map(|(name, count)| (name, count % 10_000)),
    );
    assert_eq!(rows(&mut link, "released")["local::stuck"], 10_000);
    assert_eq!(link.values("control.trace.lost").expect("an answer")[""], 0);
}

#[test]
fn killed_process_takes_its_handles_and_counters_along() {
    let Some(home) = home("") else { return };
    let mut first = process(&home, &[]);
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    first.run("lib.hold(0x10000, b'b', 1, 16384); lib.transfer(b'c', 1, 10)");
    let name = |process: &Process, remote| format!("{} python3::{remote}", process.pid());
    let [stuck, lost, unknown] = ["b", "c", "~unknown"].map(|remote| name(&first, remote));
    // The user has as many handles as it may have.
    let expected = [(&*stuck, 16_384), (&lost, 0), (&unknown, 0)];
    wait_for_rows(&mut link, "in_flight", &expected);
    wait_for("a handle found no room", || {
        (link.values("control.trace.lost").expect("an answer")[""] > 0).then_some(())
    });
    first.signal(Signal::SIGKILL);
    drop(first);
    wait_for_rows(&mut link, "in_flight", &[]);
    // Its room is free again. The library is known: nothing is missed before the next process scan.
    let mut second = process(&home, &["local"]);
    second.run("lib.hold(0x10000, b'b', 1, 16384)");
    wait_for_rows(&mut link, "in_flight", &[("local::b", 16_384)]);
}

#[test]
fn failed_and_immediate_posts_are_counted_if_asked_for() {
    let Some(home) = home("trace_failed_posts = true\nhistogram_buckets_us = [1000000000]") else {
        return;
    };
    let mut process = process(&home, &["local", "other"]);
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    process.run("lib.make(1, b'b', 1); [lib.post(1, status) for status in (-3, 0, -1, 1)]");
    // With two agents, the process is named.
    let name = format!("{} python3::b", process.pid());
    wait_for_rows(&mut link, "posted", &[(&name, 4)]);
    for (metric, count) in [
        ("failed", 2),
        ("released", 1),
        ("reposted", 0),
        ("in_flight", 1),
    ] {
        wait_for_rows(&mut link, metric, &[(&name, count)]);
    }
    let buckets = link
        .fetch(&["trace.xfer_time.bucket"])
        .expect("an answer")
        .remove(0);
    assert_eq!(Vec::from_iter(buckets.into_values()), [1, 1]);
    process.run("lib.release(1)");
    wait_for_rows(&mut link, "released", &[(&name, 2)]);
    wait_for_rows(&mut link, "in_flight", &[(&name, 0)]);
}

#[test]
fn tracer_that_does_not_answer_is_replaced() {
    let Some(home) = home("") else { return };
    let mut process = process(&home, &["local"]);
    let mut link = Link::open(&home);
    wait_for_probes(&mut link);
    process.run("lib.make(1, b'b', 1); lib.post(1, 1)");
    wait_for_rows(&mut link, "in_flight", &[("local::b", 1)]);
    let starts = |link: &mut Link| link.values("control.trace.starts").expect("an answer")[""];
    assert_eq!(starts(&mut link), 1);
    let (first, _) = tracers()[0];
    super::transport::worker::signal(first, Signal::SIGSTOP);
    wait_for("another tracer runs", || {
        let is_other = tracers().iter().any(|(pid, _)| *pid != first);
        (is_other && starts(&mut link) == 2).then_some(())
    });
    wait_for_probes(&mut link);
    // What was in flight is not known to it.
    process.run("lib.make(2, b'b', 1); lib.post(2, 1)");
    wait_for_rows(&mut link, "in_flight", &[("local::b", 1)]);
    assert!(
        link.ended().is_none()
            && home
                .log()
                .contains("trace: nothing is traced: the tracer has not answered")
    );
    drop(link);
    wait_for("the tracer ends with the daemon", || {
        tracers().is_empty().then_some(())
    });
}

#[test]
fn without_trace_there_is_no_tracer_and_no_value() {
    let Some(home) = home("") else { return };
    home.set("");
    let mut process = process(&home, &["local"]);
    let mut link = Link::open(&home);
    wait_for("the process has a row", || {
        let rows = link.values("process.agents").expect("an answer");
        rows.values().any(|&agents| agents == 1).then_some(())
    });
    process.run("lib.transfer(b'b', 1, 10)");
    assert!(tracers().is_empty() && rows(&mut link, "posted").is_empty());
    assert!(
        link.values("control.trace.starts")
            .expect("an answer")
            .is_empty()
    );
}
