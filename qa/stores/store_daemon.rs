// SPDX-License-Identifier: GPL-2.0-or-later

//! Stores of NIXL's `prometheus_mp` with a real pmcd: the daemon is killed while they are written, some have an unknown
//! schema, and hundreds are short-lived. qa/stores/prometheus_mp.rs uses real NIXL.

use crate::support::kill::{Dice, kill_process};
use crate::support::kit::layers::is_instance_name;
use crate::support::kit::store_writer::{
    self, BACKEND, StoreWriter, TX_BYTES as TX, TX_REQUESTS, Who, XFER_TIME,
};
use crate::support::measure::Use;
use crate::support::pdu::Link;
use crate::support::{Home, Pmcd, TX_BYTES, wait_for};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Directory of stores.
pub fn stores(home: &Home) -> PathBuf {
    home.path("stores")
}

/// A home with these settings and with separate directories for rings and stores.
pub fn home(settings: &str) -> Home {
    let home = Home::new();
    fs::create_dir(stores(&home)).expect("made");
    home.set(&format!("multiproc_dir = {:?}\n{settings}", stores(&home)));
    home
}

/// `nixl.agent.state`.
const EXITED: u64 = 3;

pub fn store(home: &Home, identity: &Who) -> StoreWriter {
    StoreWriter::create(&stores(home), identity).expect("a store")
}

/// Values of `nixl.agent.status` by instance.
pub fn status(pmcd: &Pmcd) -> BTreeMap<String, String> {
    let mut shown = pmcd.shown(&["nixl.agent.status"]);
    shown.remove("nixl.agent.status").expect("a metric")
}

pub fn wait_for_status(pmcd: &Pmcd, instance: &str, expected: &str) {
    wait_for(&format!("{instance} is {expected}"), || {
        (status(pmcd).get(instance)? == expected).then_some(())
    });
}

#[test]
fn killed_daemon_counts_each_value_of_a_store_once() {
    let home = home("drain_interval = \"2ms\"");
    let (done, turn) = (AtomicBool::new(false), Mutex::new(()));
    let mut dice = Dice::new(5);
    let truth = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // One agent after the other, without a pause.
            let (mut bytes, mut errors, mut transfers) = (0, 0, 0);
            let mut writer_store = store(&home, &Who::named("fast").rank("0"));
            let mut turns: u64 = 0;
            while !done.load(Ordering::Relaxed) {
                turns += 1;
                writer_store.count(TX, turns % 1000);
                writer_store.count(TX_REQUESTS, 1);
                writer_store.count(XFER_TIME, turns % 50);
                bytes += turns % 1000;
                transfers += 1;
                if turns % 16 == 0 {
                    writer_store.count(BACKEND, 1);
                    writer_store.flush_at(store_writer::monotonic());
                    errors += 1;
                }
                if turns % 400_000 == 0 {
                    writer_store.flush_at(store_writer::monotonic());
                    // A forked child has the old store open until its execve(2): no child may be started at this
                    // moment.
                    let _turn = turn.lock().expect("no panic");
                    drop(writer_store);
                    writer_store = store(&home, &Who::named("fast").rank("0"));
                }
                if turns % 64 == 0 {
                    thread::sleep(Duration::from_micros(50));
                }
            }
            writer_store.flush_at(store_writer::monotonic());
            (writer_store, bytes, errors, transfers)
        });
        for _ in 0..30 {
            let link = {
                let _turn = turn.lock().expect("no panic");
                Link::open(&home)
            };
            dice.wait(Duration::from_millis(200));
            kill_process(link.pid());
        }
        done.store(true, Ordering::Relaxed);
        writer.join().expect("it ends")
    });
    let (writer_store, bytes, errors, transfers) = truth;
    let check = |expected: [u64; 5]| {
        let mut link = Link::open(&home);
        let mut last = [0; 5];
        for _ in 0..300 {
            let values = link.fetch(&[
                "transfer.tx_bytes",
                "transfer.tx_requests",
                "errors.backend",
                "latency.xfer_time.histogram",
                "host.transfer.tx_bytes",
            ]);
            let values = values.expect("an answer");
            last = std::array::from_fn(|at| values[at].values().sum());
            if last == expected {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(last, expected);
        let instances = link.instances().expect("an answer");
        assert_eq!(instances.len(), 1, "{instances:?}");
        link
    };
    let mut expected = [bytes, transfers, errors, transfers, bytes];
    assert!(check(expected).end().success());
    // The agent ends while pmdanixl is down, and its file stays.
    writer_store.add(TX, 7);
    drop(writer_store);
    expected[0] += 7;
    expected[4] += 7;
    for killed in [false, true, false, true] {
        let mut link = check(expected);
        let state = link.fetch(&["agent.state"]).expect("an answer");
        assert!(state[0].values().all(|state| *state == EXITED), "{state:?}");
        if killed {
            kill_process(link.pid());
        } else {
            assert!(link.end().success());
        }
    }
}

#[test]
fn end_of_a_writer_is_seen_and_last_values_stay() {
    let home = home("");
    let pmcd = Pmcd::start(&home);
    let [ends, owner, stays] = ["ends", "owner", "stays"].map(|name| {
        let store = store(&home, &Who::named(name).rank("5"));
        store.add(TX, 1);
        store
    });
    pmcd.becomes(&[("ends", 1), ("owner", 1), ("stays", 1)]);
    for name in ["ends", "owner", "stays"] {
        wait_for_status(&pmcd, name, "live");
    }
    assert_eq!(
        pmcd.values("nixl.agent.pid")["ends"],
        u64::from(std::process::id())
    );
    let (path, last) = (owner.path().to_owned(), 1 << 40);
    ends.add(TX, last);
    drop(ends);
    // NIXL's collector can remove the file, too.
    owner.add(TX, last);
    drop(owner);
    fs::remove_file(path).expect("there");
    for name in ["ends", "owner"] {
        wait_for_status(&pmcd, name, "exited");
    }
    assert_eq!(status(&pmcd)["stays"], "live");
    pmcd.becomes(&[("ends", last + 1), ("owner", last + 1), ("stays", 1)]);
    let labels = pmcd.labels(TX_BYTES);
    for (label, expected) in [
        ("local_rank", "5"),
        ("nixl_hostname", "node-1"),
        ("telemetry", "store"),
    ] {
        assert_eq!(labels["ends"][label], expected, "{:?}", labels["ends"]);
    }
    let none = format!("multiproc_dir = {:?}\nretain = \"0s\"", stores(&home));
    pmcd.configure(&home, &none);
    pmcd.becomes(&[("stays", 1)]);
    drop(stays);
}

#[test]
fn stores_of_another_schema_are_counted_but_not_published() {
    let home = home("");
    let pmcd = Pmcd::start(&home);
    let sizes = [16, 17, 6800, 123_456];
    for (number, len) in sizes.into_iter().enumerate() {
        let mut bytes = Who::named("later").bytes();
        bytes[8] = 2;
        bytes.resize(len, 7);
        let path = stores(&home).join(format!("nixl.4242.17.{number}.mmap"));
        fs::write(&path, bytes).expect("room");
    }
    wait_for("all are counted", || {
        (pmcd.values("nixl.control.files.unsupported")[""] == sizes.len() as u64).then_some(())
    });
    assert!(status(&pmcd).is_empty());
    assert!(pmcd.sent().is_empty());
    assert_eq!(
        pmcd.log().matches("rejected: store schema 2").count(),
        sizes.len()
    );
}

/// Each agent has a new file. The test checks memory, descriptors, mappings and ids after 12 waves of agents.
#[test]
#[ignore = "hundreds of stores"]
fn short_lived_stores_leave_no_memory_or_records() {
    const WAVE: usize = 25;
    let home = home("retain = \"0s\"\nmax_agents = 32");
    let mut link = Link::open(&home);
    let (mut sent, mut uses, mut largest) = (0, Vec::new(), 0);
    for wave in 0..12 {
        let all: Vec<StoreWriter> = (0..WAVE)
            .map(|number| store(&home, &Who::named(format!("{wave}-{number}"))))
            .collect();
        for store in &all {
            store.add(TX, 1 + wave);
            sent += 1 + wave;
        }
        let names = wait_for("all are instances", || {
            let values = link.sent();
            let sum: u64 = values.values().sum();
            (values.len() == WAVE && sum == WAVE as u64 * (1 + wave)).then_some(values)
        });
        let ids = link.instances().expect("an answer");
        largest = ids.keys().copied().max().unwrap_or(0).max(largest);
        // One drain withdraws an agent of the wave before. The next drain unmaps its store.
        uses.push(wait_for("the wave before is unmapped", || {
            let used = Use::of(&link, &stores(&home));
            (used.mappings == WAVE).then_some(used)
        }));
        drop(all);
        wait_for("the agents are withdrawn", || {
            link.instances()
                .expect("an answer")
                .is_empty()
                .then_some(())
        });
        // NIXL's collector removes stores of exited agents after 30 s.
        if wave % 2 == 0 {
            let files = fs::read_dir(stores(&home)).expect("there").flatten();
            files.for_each(|file| fs::remove_file(file.path()).expect("there"));
        }
        drop(names);
    }
    let host = link.fetch(&["host.transfer.tx_bytes"]).expect("an answer");
    assert_eq!(host[0][&u32::MAX], sent);
    // From wave 6 on, the number of records is at its limit.
    let (first, last) = (&uses[6], &uses[11]);
    assert!(last.memory <= first.memory + 512, "{uses:?}");
    for used in &uses {
        assert!(used.descriptors <= first.descriptors + 2, "{uses:?}");
    }
    let bound = u32::try_from(4 * 32 + WAVE).expect("few");
    assert!(largest <= 8 * bound, "ids are used again: {largest}");
    wait_for("all are unmapped", || {
        (Use::of(&link, &stores(&home)).mappings == 0).then_some(())
    });
    assert!(link.end().success());
    // The files that remain are not counted again.
    let mut link = Link::open(&home);
    thread::sleep(Duration::from_millis(500));
    let host = link.fetch(&["host.transfer.tx_bytes"]).expect("an answer");
    assert_eq!(host[0][&u32::MAX], sent);
    assert!(link.instances().expect("an answer").is_empty());
    assert!(link.end().success());
}

#[test]
fn store_with_any_agent_name_is_shown() {
    use std::os::unix::ffi::OsStrExt;
    let home = home("");
    let pmcd = Pmcd::start(&home);
    let texts: [&[u8]; 4] = [
        &[0xff; 300],
        b"x\ny\"z\\ \x1b[2J",
        b"../../etc",
        "\u{85}\u{2028}".as_bytes(),
    ];
    let mut all = vec![store(&home, &Who::named("plain").rank("0"))];
    for text in texts {
        let text = std::ffi::OsStr::from_bytes(text);
        let mut identity = Who::named(text).rank(text);
        identity.host = text.as_bytes().to_vec();
        all.push(store(&home, &identity));
        // NIXL truncates long names, so two live agents may have equal identities.
        all.push(store(&home, &identity));
    }
    for store in &all {
        store.add(TX, 1);
    }
    let labels = wait_for("all are instances, with labels", || {
        let labels = pmcd.labels(TX_BYTES);
        (pmcd.sent().len() == all.len() && labels.len() == all.len()).then_some(labels)
    });
    assert_eq!(labels["plain"]["local_rank"], "0");
    for (instance, labels) in &labels {
        assert!(is_instance_name(instance), "{instance:?}");
        for label in ["nixl_agent", "local_rank", "nixl_hostname"] {
            assert!(!labels[label].as_str().expect("a text").is_empty());
        }
    }
    let quoted = "x\ny\"z\\ \u{1b}[2J";
    let found = labels
        .values()
        .filter(|labels| labels["nixl_agent"] == quoted);
    assert_eq!(found.count(), 2, "{labels:?}");
    assert_eq!(pmcd.values("nixl.control.persistent")[""], 1);
}
