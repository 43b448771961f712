// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::procfs::process_scan::library::Libraries;
use std::os::unix::ffi::OsStrExt;

fn id(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        start: pid.into(),
    }
}

fn found(pid: u32, uid: u32, library: &[u8]) -> NixlProcess {
    NixlProcess {
        id: id(pid),
        uid,
        command: "python3".into(),
        libraries: Libraries {
            core: Some(OsStr::from_bytes(library).into()),
            ..Libraries::default()
        },
    }
}

/// Returns the table after a process scan that has found these processes. No worker can be started.
fn transports(found: &[NixlProcess]) -> Transports {
    let mut transports = Transports::default();
    transports.set_program("/none".into());
    transports.set_processes(found.iter());
    transports
}

/// Returns the processes whose release a request asks for.
fn asked(transports: &mut Transports) -> Vec<u32> {
    let request = transports.request();
    let processes = request.processes.iter();
    let asked = processes.filter(|process| process.library.is_some());
    asked.map(|process| process.id.pid).collect()
}

#[test]
fn odd_paths_of_libraries_are_not_in_a_request() {
    let long = [b"/".as_slice(), &[b'x'; MAX_PATH]].concat();
    let escaped = [b"/".as_slice(), &[b'\\'; MAX_PATH - 1]].concat();
    let odd: [&[u8]; 4] = [
        b"/\xff/libnixl.so",
        b"/\x01/libnixl.so",
        b"/\x7f/libnixl.so",
        &long,
    ];
    let odd = (1..).zip(odd).map(|(pid, path)| found(pid, 0, path));
    // As many as fit, with paths that need the most room.
    let most = (100..400).map(|pid| found(pid, pid, &escaped));
    let mut transports = transports(&odd.chain(most).collect::<Vec<_>>());
    let request = transports.request();
    let line = serde_json::to_vec(&request).expect("UTF-8 only");
    assert!(line.len() < 1 << 16, "{} bytes exceed a pipe", line.len());
    assert_eq!(request.processes.len(), MAX_PROCESSES);
    let expected: Vec<u32> = (100..).take(MAX_RELEASES).collect();
    assert_eq!(asked(&mut transports), expected);
}

#[test]
fn release_is_asked_for_until_the_worker_has_begun_with_the_process() {
    let path = b"/lib/libnixl.so";
    let mut transports = transports(&[found(1, 0, path), found(2, 0, path), found(3, 0, path)]);
    assert_eq!(asked(&mut transports), [1, 2, 3]);
    // The first one stalls the worker.
    assert_eq!(transports.apply(Response::Begun(id(1))), None);
    assert_eq!(asked(&mut transports), [2, 3]);
    transports.apply(Response::Begun(id(2)));
    let reading = ProcessReading {
        id: id(2),
        release: Some("1.5.1".into()),
        ..ProcessReading::default()
    };
    assert_eq!(transports.apply(Response::Read(reading)), Some(id(2)));
    assert_eq!(asked(&mut transports), [3]);
    let release = |pid| transports.get(id(pid)).expect("there").release.as_deref();
    assert_eq!([release(1), release(2)], [None, Some("1.5.1")]);
}

#[test]
fn each_user_has_an_equal_share_of_the_rows() {
    let many = (10..500).map(|pid| found(pid, 1000, b"/l"));
    let few = [
        found(501, 1001, b"/l"),
        found(502, 1002, b"/l"),
        found(503, 1001, b"/l"),
    ];
    let transports = transports(&many.chain(few).collect::<Vec<_>>());
    let has = |pid| transports.get(id(pid)).is_some();
    assert_eq!(transports.iter().count(), MAX_PROCESSES);
    assert!(
        [501, 502, 503].into_iter().all(has),
        "fewer than their share"
    );
    assert!((10..10 + 253).all(has), "the oldest ones of the others");
}
