// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::observer::group::Group;
use crate::observer::protocol::{End, PeerReading, Stalled};
use crate::procfs::process_scan::ProcessInfo;
use crate::procfs::process_scan::library::Libraries;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

fn id(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        start: pid.into(),
    }
}

fn found(pid: u32, uid: u32, library: &[u8]) -> NixlProcess {
    NixlProcess {
        info: ProcessInfo {
            id: id(pid),
            uid,
            command: "python3".into(),
        },
        libraries: Libraries {
            core: Some(OsStr::from_bytes(library).into()),
            ..Libraries::default()
        },
    }
}

fn with_id(id: ProcessId, uid: u32) -> NixlProcess {
    let mut process = found(id.pid, uid, b"/l");
    process.info.id = id;
    process
}

/// Returns the table after a process scan that has found these processes.
fn transports(found: &[NixlProcess]) -> Transports {
    let mut transports = Transports::default();
    scan(&mut transports, found);
    transports
}

/// Applies a process scan that has found these processes. Returns true if they are others than before.
fn scan(transports: &mut Transports, found: &[NixlProcess]) -> bool {
    transports.set_processes(found, None, &mut ClockIds::default());
    std::mem::take(&mut transports.has_changed)
}

fn apply(transports: &mut Transports, response: Response) -> Option<ProcessId> {
    transports.update_by(response, Instant::now())
}

/// Returns the processes with a requested version.
fn requested(transports: &mut Transports) -> Vec<u32> {
    transports.last_scan = None;
    let request = transports.begin_scan(Instant::now()).expect("it is due");
    apply(
        transports,
        Response::Done(RequestKind::Sockets, End::default()),
    );
    let requested = request.iter().filter(|process| process.library.is_some());
    requested.map(|process| process.id.pid).collect()
}

#[test]
fn version_is_requested_until_it_was_read_or_has_stalled() {
    let path = b"/lib/\xff/libnixl.so";
    let mut transports = transports(&[found(1, 0, path), found(2, 0, path), found(3, 0, path)]);
    assert_eq!(requested(&mut transports), [1, 2, 3]);
    let stalled = Response::Stalled(Stalled {
        kind: RequestKind::Sockets,
        process: Some((id(1), Group::User(7))),
        uid: 7,
        blocked: 1,
    });
    assert_eq!(apply(&mut transports, stalled), None);
    assert_eq!(requested(&mut transports), [2, 3]);
    let reading = SocketReading {
        id: id(2),
        version: Some("1.5.1".into()),
        ..SocketReading::default()
    };
    let read = apply(&mut transports, Response::Sockets(reading));
    assert_eq!(read, Some(id(2)));
    assert_eq!(requested(&mut transports), [3]);
    let mut fail = |version: Option<&str>| {
        let failed = Response::Failed {
            id: id(3),
            why: "for a while".into(),
            version: version.map(str::to_owned),
        };
        apply(&mut transports, failed);
        requested(&mut transports)
    };
    assert_eq!(fail(None), [3]);
    assert!(fail(Some("1.4.1")).is_empty());
    let version = |pid| transports.get(id(pid)).expect("there").version.as_deref();
    let versions = [version(1), version(2), version(3)];
    assert_eq!(versions, [None, Some("1.5.1"), Some("1.4.1")]);
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

fn reading(process: ProcessId, sent: u64) -> Response {
    let traffic = Traffic {
        sent,
        ..Traffic::default()
    };
    Response::Sockets(SocketReading {
        id: process,
        traffic,
        ..SocketReading::default()
    })
}

/// Returns agents that have sent so many bytes.
fn moved(names: &[&str], sent: u64) -> AgentSum {
    AgentSum {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        nixl: Traffic {
            sent,
            ..Traffic::default()
        },
        has_uncounted: false,
    }
}

#[test]
fn lost_bytes_leave_the_share_without_a_value() {
    const MIB: u64 = 1 << 20;
    let mut transports = transports(&[found(1, 0, b"/l")]);
    let (start, mut agent) = (Instant::now(), AgentTransport::default());
    let mut read = |seconds, added, nixl, is_resumed| {
        let Response::Sockets(reading) = reading(id(1), added) else {
            unreachable!()
        };
        let response = Response::Sockets(SocketReading {
            is_resumed,
            ..reading
        });
        apply(&mut transports, response);
        let now = start + Duration::from_secs(seconds);
        transports.update_share(id(1), moved(&["a"], nixl), now);
        agent.update(transports.get(id(1)), &mut ClockIds::default());
        agent.tcp_share
    };
    assert_eq!(read(0, 0, 0, false), None);
    assert_eq!(read(10, 2 * MIB, 2 * MIB, false), Some(1.0));
    // Another worker does not know what was moved meanwhile.
    assert_eq!(read(20, 0, 4 * MIB, true), None);
    assert_eq!(read(30, 2 * MIB, 6 * MIB, false), Some(1.0));
}

#[test]
fn process_share_is_of_all_its_agents_while_they_stay() {
    const MIB: u64 = 1 << 20;
    let mut transports = transports(&[found(1, 0, b"/l")]);
    let start = Instant::now();
    let mut read = |seconds, added, names: &[&str], nixl, has_uncounted| {
        let now = start + Duration::from_secs(seconds);
        transports.apply(reading(id(1), added * MIB), now);
        let sum = AgentSum {
            has_uncounted,
            ..moved(names, nixl * MIB)
        };
        transports.update_share(id(1), sum, now);
        transports.get(id(1)).and_then(TransportProcess::tcp_share)
    };
    let (two, three) = (["a", "b"], ["a", "b", "c"]);
    assert_eq!(read(0, 0, &two, 4, false), None);
    assert_eq!(read(10, 6, &two, 16, false), Some(0.5));
    // The bytes of a new agent may be from before.
    assert_eq!(read(20, 6, &three, 99, false), None);
    assert_eq!(read(30, 6, &three, 105, false), Some(1.0));
    assert_eq!(read(40, 6, &three, 111, true), None);
    assert_eq!(read(50, 6, &three, 117, false), None);
    assert_eq!(read(60, 0, &three, 123, false), Some(0.0));
    assert_eq!(read(70, 6, &[], 0, false), None);
}

#[test]
fn process_that_a_scan_could_not_read_keeps_its_sums() {
    let own = ProcessId::of(std::process::id()).expect("it runs");
    let process = |id| with_id(id, 7);
    let ended = id(u32::MAX);
    let mut transports = transports(&[process(own), process(ended)]);
    apply(&mut transports, reading(own, 5));
    assert!(scan(&mut transports, &[]), "one has ended");
    let sent = |transports: &Transports| transports.get(own)?.traffic.map(|all| all.sent);
    assert_eq!((sent(&transports), transports.iter().count()), (Some(5), 1));
    transports.set_processes(&[], Some(&vec![8]), &mut ClockIds::default());
    assert!(transports.has_changed, "no owner");
    assert_eq!(sent(&transports), None);
}

#[test]
fn process_that_has_a_row_again_begins_at_zero_with_another_id() {
    let own = ProcessId::of(std::process::id()).expect("it runs");
    let process = with_id(own, 7);
    let (mut transports, mut ids) = (Transports::default(), ClockIds::default());
    let mut agent = AgentTransport::default();
    let mut scan = |transports: &mut Transports, found: &[NixlProcess]| {
        transports.set_processes(found, None, &mut ids);
        transports.get(own).map(|process| process.instance)
    };
    let first = scan(&mut transports, std::slice::from_ref(&process));
    // Older processes of its user, which have ended, have all rows.
    let older = |pid| with_id(ProcessId { pid, start: 0 }, 7);
    let mut all: Vec<_> = { 1 << 30.. }.take(MAX_PROCESSES).map(older).collect();
    all.push(process.clone());
    let sent = Traffic {
        sent: 5,
        ..Traffic::default()
    };
    let mut read = |transports: &mut Transports| {
        let Response::Sockets(reading) = reading(own, 5) else {
            unreachable!()
        };
        let peers = vec![PeerReading {
            address: [10, 0, 0, 1].into(),
            traffic: sent,
            rtt: None,
        }];
        let reading = SocketReading { peers, ..reading };
        apply(transports, Response::Sockets(reading));
        let (process, mut ids) = (transports.get(own), ClockIds::default());
        agent.update(process, &mut ids);
        let peer = agent.peers.iter().next().map(|peer| peer.traffic.sent);
        (
            process
                .and_then(|process| process.traffic)
                .map(|all| all.sent),
            peer,
        )
    };
    assert_eq!(read(&mut transports), (Some(5), Some(5)));
    assert_eq!(read(&mut transports), (Some(10), Some(10)));
    assert_eq!(scan(&mut transports, &all), None);
    let again = scan(&mut transports, std::slice::from_ref(&process));
    assert_eq!(read(&mut transports), (Some(5), Some(5)));
    // A scan that has failed to read it changes nothing.
    assert_eq!(scan(&mut transports, &[]), again);
    // Under another name it is another instance.
    let mut renamed = process;
    renamed.info.command = "worker".into();
    let renamed = scan(&mut transports, &[renamed]);
    let all = HashSet::from([first, again, renamed]);
    assert_eq!((all.len(), all.contains(&None)), (3, false));
}

#[test]
fn old_reading_has_no_share_and_leaves_the_sums() {
    let mut transports = transports(&[found(1, 0, b"/l")]);
    let (now, mut agent) = (Instant::now(), AgentTransport::default());
    let mib = 1 << 20;
    for (at, bytes) in [(0, 0), (10, 2 * mib)] {
        let now = now + Duration::from_secs(at);
        transports.apply(reading(id(1), bytes), now);
        transports.update_share(id(1), moved(&["a"], bytes), now);
        agent.update(transports.get(id(1)), &mut ClockIds::default());
    }
    assert_eq!((agent.is_read, agent.tcp_share), (true, Some(1.0)));
    let later = now + Duration::from_secs(10) + MAX_READING_AGE;
    assert!(transports.take_updated(later).is_some(), "it was read");
    assert_eq!(transports.take_updated(later), None);
    let later = later + Duration::from_millis(1);
    assert_eq!(transports.take_updated(later), Some([id(1)].into()));
    transports.update_share(id(1), moved(&["a"], 2 * mib), later);
    agent.update(transports.get(id(1)), &mut ClockIds::default());
    let process = transports.get(id(1)).expect("there");
    assert_eq!((agent.is_read, agent.tcp_share), (false, None));
    assert!(process.reading().is_none());
    assert_eq!(process.current_traffic(), None, "no old value");
    assert_eq!(process.traffic.map(|traffic| traffic.sent), Some(2 * mib));
}

#[test]
fn scan_is_due_after_ten_seconds_or_one_with_a_new_process() {
    let mut transports = transports(&[found(1, 0, b"/x")]);
    let start = Instant::now();
    let mut begins = |milliseconds, more: &[NixlProcess]| {
        transports.set_processes(more, None, &mut ClockIds::default());
        apply(
            &mut transports,
            Response::Done(RequestKind::Sockets, End::default()),
        );
        let now = start + Duration::from_millis(milliseconds);
        transports.begin_scan(now).is_some()
    };
    let all = [found(1, 0, b"/x"), found(2, 0, b"/x")];
    assert!(begins(0, &all[..1]), "the first");
    assert!(!begins(9_999, &all[..1]));
    assert!(begins(10_000, &all[..1]));
    assert!(!begins(10_999, &all));
    assert!(begins(11_000, &all));
    assert!(!begins(20_999, &all));
}
