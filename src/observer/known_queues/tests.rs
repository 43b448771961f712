// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;

const NETWORK: u64 = 5;
const PERIOD: Duration = Duration::from_secs(10);

fn process(pid: u32) -> ProcessId {
    ProcessId { pid, start: 1 }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn queue(bytes: u64, passed: u64) -> Queue {
    Queue { bytes, passed }
}

/// Connection between these addresses.
fn connection(cookie: u64, local: &str, peer: &str) -> QueuedConnection {
    QueuedConnection {
        cookie,
        local: address(local),
        peer: address(peer),
        unacknowledged: Queue::default(),
        unread: Queue::default(),
    }
}

fn running(connections: &[QueuedConnection]) -> ProcessQueues {
    ProcessQueues {
        network: NETWORK,
        connections: connections.to_vec(),
        halt: None,
    }
}

fn halted(halt: Halt, connections: &[QueuedConnection]) -> ProcessQueues {
    ProcessQueues {
        halt: Some(halt),
        ..running(connections)
    }
}

/// Reads processes, of which the first one is silent. Returns what is said of it.
fn read(known: &mut KnownQueues, all: &[(u32, ProcessQueues)]) -> Option<Sign> {
    let now = known.began.unwrap_or_else(Instant::now) + PERIOD;
    let first = all[0].0;
    let request = |&(pid, _): &(u32, _)| QueueRequest {
        id: process(pid),
        uid: 0,
        is_silent: pid == first,
    };
    known.begin(&all.iter().map(request).collect::<Vec<_>>(), now);
    for (pid, queues) in all {
        known.add(process(*pid), queues.clone());
    }
    let readings = known.end();
    assert_eq!((readings.len(), readings[0].id), (1, process(first)));
    readings[0].sign
}

/// Sign of the second of two readings, with its time.
fn read_twice(before: &[(u32, ProcessQueues)], after: &[(u32, ProcessQueues)]) -> Option<Sign> {
    let mut known = KnownQueues::default();
    let first = read(&mut known, before);
    assert!(first.is_none_or(|sign| sign.time.is_zero()), "{first:?}");
    read(&mut known, after)
}

/// True if a sign was in two readings.
fn is_confirmed(sign: Option<Sign>) -> bool {
    sign.is_some_and(|sign| sign.time == PERIOD)
}

const HERE: &str = "10.0.0.1:1000";
const THERE: &str = "10.0.0.2:2000";

#[test]
fn bytes_wait_while_none_leaves_their_queue() {
    let with = |bytes, acked| {
        let unacknowledged = queue(bytes, acked);
        let one = QueuedConnection {
            unacknowledged,
            ..connection(1, HERE, THERE)
        };
        vec![(1, running(&[one]))]
    };
    let sign = read_twice(&with(500, 70), &with(900, 70)).expect("they wait");
    let expected = Sign {
        peer: Some(address(THERE).ip()),
        unacknowledged: 900,
        time: PERIOD,
        ..Sign::default()
    };
    assert_eq!(sign, expected);
    assert!(
        !is_confirmed(read_twice(&with(500, 70), &with(500, 71))),
        "some were acknowledged"
    );
    assert_eq!(read_twice(&with(500, 70), &with(0, 570)), None);
    // The number of one that has ended is not given again, but a connection may be opened again.
    let mut known = KnownQueues::default();
    for (bytes, acked) in [(500, 70), (0, 570), (500, 70)] {
        let sign = read(&mut known, &with(bytes, acked));
        assert!(!is_confirmed(sign));
    }
}

#[test]
fn unread_bytes_count_for_their_sender() {
    let unread = |bytes, read| QueuedConnection {
        unread: queue(bytes, read),
        ..connection(2, THERE, HERE)
    };
    let own = running(&[connection(1, HERE, THERE)]);
    let both = |bytes, read| [(1, own.clone()), (2, running(&[unread(bytes, read)]))];
    let sign = read_twice(&both(300, 40), &both(400, 40)).expect("they wait");
    let expected = Sign {
        peer: Some(address(THERE).ip()),
        process: Some(process(2)),
        unread: 400,
        time: PERIOD,
        ..Sign::default()
    };
    assert_eq!(sign, expected);
    assert!(
        !is_confirmed(read_twice(&both(300, 40), &both(300, 90))),
        "some were read"
    );
    // For the receiver they are no sign.
    let receiver = |bytes, read| [(2, running(&[unread(bytes, read)])), (1, own.clone())];
    assert_eq!(read_twice(&receiver(300, 40), &receiver(300, 40)), None);
    // Nor for a process with other connections.
    let idle = running(&[connection(3, "10.0.0.1:1001", THERE)]);
    let idle = [
        (3, idle),
        (1, own.clone()),
        (2, running(&[unread(300, 40)])),
    ];
    assert_eq!(read_twice(&idle, &idle), None);
}

#[test]
fn halted_peer_is_a_sign_without_bytes() {
    let own = running(&[connection(1, HERE, THERE)]);
    let peer = [connection(2, THERE, HERE)];
    let with = |halt| [(1, own.clone()), (2, halted(halt, &peer))];
    let stopped = with(Halt::Stopped);
    let sign = read_twice(&stopped, &stopped).expect("it is stopped");
    assert_eq!(
        (sign.process, sign.halt),
        (Some(process(2)), Some(Halt::Stopped))
    );
    assert_eq!(
        (sign.unread, sign.unacknowledged, sign.time),
        (0, 0, PERIOD)
    );
    let blocked = with(Halt::Blocked(3));
    assert!(is_confirmed(read_twice(&blocked, &blocked)));
    // It ran in between, as a process that uses a disk does.
    assert!(!is_confirmed(read_twice(&blocked, &with(Halt::Blocked(5)))));
    let running = [(1, own.clone()), (2, running(&peer))];
    assert_eq!(read_twice(&stopped, &running), None);
    let own = [(1, halted(Halt::Stopped, &[connection(1, HERE, THERE)]))];
    let sign = read_twice(&own, &own).expect("it is stopped");
    assert_eq!(
        (sign.peer, sign.process, sign.halt),
        (None, None, Some(Halt::Stopped))
    );
}

#[test]
fn loopback_peers_are_in_one_network_namespace() {
    let (here, there) = ("127.0.0.1:1000", "127.0.0.1:2000");
    let own = running(&[connection(1, here, there)]);
    let peer = |network| ProcessQueues {
        network,
        ..halted(Halt::Stopped, &[connection(2, there, here)])
    };
    let with = |network| [(1, own.clone()), (2, peer(network))];
    assert!(is_confirmed(read_twice(&with(NETWORK), &with(NETWORK))));
    assert_eq!(read_twice(&with(NETWORK + 1), &with(NETWORK + 1)), None);
    let own = running(&[connection(1, HERE, THERE)]);
    let peer = ProcessQueues {
        network: NETWORK + 1,
        ..halted(Halt::Stopped, &[connection(2, THERE, HERE)])
    };
    let pods = [(1, own), (2, peer)];
    assert!(is_confirmed(read_twice(&pods, &pods)));
}

#[test]
fn sign_that_lasts_longest_is_returned() {
    let waits = |cookie, peer, bytes| QueuedConnection {
        unacknowledged: queue(bytes, 1),
        ..connection(cookie, HERE, peer)
    };
    let first = waits(1, "10.0.0.3:1", 5);
    let later = waits(2, "10.0.0.4:1", 900);
    let both = |connections: &[QueuedConnection]| [(1, running(connections))];
    let sign = read_twice(&both(&[first]), &both(&[later, first])).expect("one");
    assert_eq!(sign.unacknowledged, 5);
    let sign = read_twice(&both(&[first, later]), &both(&[first, later])).expect("one");
    assert_eq!(
        sign.unacknowledged, 900,
        "of equal ones that with more bytes"
    );
    let own = [
        (1, running(&[later, connection(1, HERE, THERE)])),
        (2, halted(Halt::Stopped, &[connection(3, THERE, HERE)])),
    ];
    let sign = read_twice(&own, &own).expect("one");
    assert_eq!(
        sign.halt,
        Some(Halt::Stopped),
        "of equal ones the halted process"
    );
}

#[test]
fn process_that_cannot_be_read_counts_for_a_minute() {
    let mut known = KnownQueues::default();
    let own = (1, running(&[connection(1, HERE, THERE)]));
    let peer = (2, halted(Halt::Stopped, &[connection(2, THERE, HERE)]));
    for _ in 0..2 {
        read(&mut known, &[own.clone(), peer.clone()]);
    }
    let mut times = Vec::new();
    for _ in 0..7 {
        let now = known.began.expect("begun") + PERIOD;
        let requests = [(1, true), (2, false)].map(|(pid, is_silent)| QueueRequest {
            id: process(pid),
            uid: 0,
            is_silent,
        });
        known.begin(&requests, now);
        assert_eq!(
            known.end(),
            [],
            "a process that was not read has no reading"
        );
        known.add(process(1), own.1.clone());
        times.push(known.end()[0].sign.map(|sign| sign.time));
    }
    // Its time does not go on.
    assert_eq!(times[..5], [Some(PERIOD); 5]);
    assert_eq!(times[5..], [None; 2]);
    // One that has ended does not count.
    for _ in 0..2 {
        read(&mut known, &[own.clone(), peer.clone()]);
    }
    known.remove(process(2));
    assert_eq!(known.end()[0].sign, None);
    known.add(process(9), own.1);
    assert!(
        !known.processes.contains_key(&process(9)),
        "it was not requested"
    );
}

#[test]
fn connections_beyond_the_limit_are_left_out() {
    let mut known = KnownQueues::default();
    let many = (0..)
        .take(MAX_CONNECTIONS)
        .map(|cookie| connection(cookie, HERE, THERE));
    let many = (1, running(&Vec::from_iter(many)));
    let more = (2, running(&[connection(1 << 40, HERE, THERE)]));
    read(&mut known, &[many, more.clone()]);
    assert!(known.processes[&process(2)].connections.is_empty());
    read(&mut known, &[more]);
    assert_eq!(known.processes.len(), 1);
    assert_eq!(known.processes[&process(2)].connections.len(), 1);
}
