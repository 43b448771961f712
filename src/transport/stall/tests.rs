// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::net::IpAddr;

const LIMIT: Duration = Duration::from_secs(30);
const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

fn process(pid: u32) -> ProcessId {
    ProcessId { pid, start: 1 }
}

/// Sign that was first read so many seconds before its last reading.
fn sign(seconds: u64) -> Option<Sign> {
    Some(Sign {
        peer: Some(PEER),
        unread: 7,
        time: Duration::from_secs(seconds),
        ..Sign::default()
    })
}

/// What happens to the only agent of a process, in seconds after its last completed transfer.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The queues are read.
    Read(Option<Sign>),
    /// A transfer completes.
    Completes,
}
use Event::{Completes, Read};

/// Returns the state, and the age of the stall in seconds, so many seconds after the first completed transfer.
fn state_at(seconds: u64, events: &[(u64, Event)]) -> (Option<StallState>, Option<u64>) {
    let (start, mut stall) = (Instant::now(), Stall::default());
    let at = |seconds| start + Duration::from_secs(seconds);
    let mut completed = 1;
    stall.update(process(1), completed, LIMIT, start);
    for &(seconds, event) in events {
        match event {
            Read(sign) => {
                let reading = QueueReading {
                    id: process(1),
                    sign,
                };
                stall.add(&reading, None, LIMIT, at(seconds));
            }
            Completes => completed += 1,
        }
        stall.update(process(1), completed, LIMIT, at(seconds));
    }
    stall.update(process(1), completed, LIMIT, at(seconds));
    let age = stall.sign().map(|shown| at(seconds) - shown.began);
    (stall.state(), age.map(|age| age.as_secs()))
}

#[test]
fn state_follows_from_silence_and_sign() {
    let none = (Some(StallState::None), None);
    let suspect = |age| (Some(StallState::Suspect), Some(age));
    let stalled = |age| (Some(StallState::Stalled), Some(age));
    let unknown = (None, None);
    // As a hang under load is read: after 15 s, then every 10 s.
    let hang = |until: u64| -> Vec<(u64, Event)> {
        let readings = (0..).map(|number| 15 + 10 * number);
        let readings = readings.take_while(|&seconds| seconds <= until);
        readings
            .map(|seconds| (seconds, Read(sign(seconds - 15))))
            .collect()
    };
    let with = |before: &[(u64, Event)], more: &[(u64, Event)]| [before, more].concat();
    let quiet = [
        (15, Read(None)),
        (25, Read(None)),
        (100, Read(None)),
        (150, Read(None)),
    ];
    for (what, seconds, events, expected) in [
        ("no silence", 29, vec![], none),
        ("silence that was not read", 30, vec![], unknown),
        ("silence without a sign", 30, vec![(15, Read(None))], none),
        ("long silence without a sign", 200, quiet.to_vec(), none),
        (
            "one reading with a sign",
            30,
            vec![(15, Read(sign(0)))],
            none,
        ),
        (
            "other bytes in each reading",
            45,
            vec![(15, Read(sign(0))), (25, Read(sign(0)))],
            none,
        ),
        ("two readings with a sign, early", 29, hang(25), none),
        ("two readings with a sign", 30, hang(25), suspect(30)),
        (
            "a sign for almost four times as long",
            119,
            hang(115),
            suspect(119),
        ),
        (
            "a sign for four times as long",
            120,
            hang(115),
            stalled(120),
        ),
        (
            "a sign that goes",
            60,
            with(&hang(45), &[(55, Read(None))]),
            none,
        ),
        (
            "a sign that goes late",
            140,
            with(&hang(125), &[(135, Read(None))]),
            none,
        ),
        (
            "a transfer that completes",
            131,
            with(&hang(125), &[(130, Completes)]),
            none,
        ),
        ("no reading for a minute", 176, hang(115), unknown),
        (
            "no reading for less than that",
            174,
            hang(115),
            stalled(174),
        ),
        // An idle agent begins a transfer, which hangs: the age is not that of the silence.
        (
            "a sign after a long silence",
            180,
            with(&quiet, &[(160, Read(sign(0))), (170, Read(sign(10)))]),
            none,
        ),
        (
            "a sign for the limit after a long silence",
            190,
            with(
                &quiet,
                &[
                    (160, Read(sign(0))),
                    (170, Read(sign(10))),
                    (185, Read(sign(25))),
                ],
            ),
            suspect(30),
        ),
        // The first reading of a silence comes late: it does not tell when the stall has begun.
        (
            "a late first reading",
            110,
            vec![(100, Read(sign(0))), (110, Read(sign(10)))],
            none,
        ),
        // The daemon was restarted, and the observer was not.
        ("a sign from before", 40, vec![(35, Read(sign(20)))], none),
        (
            "another sign in its place",
            140,
            with(&hang(125), &[(135, Read(sign(0)))]),
            none,
        ),
    ] {
        assert_eq!(state_at(seconds, &events), expected, "{what}");
    }
}

/// Returns the times, in seconds after its last transfer, when an agent is due until `end`. Each reading finds `sign`.
fn readings(end: u64, sign: Option<Sign>) -> Vec<u64> {
    let (start, mut stall, mut read) = (Instant::now(), Stall::default(), Vec::new());
    stall.update(process(1), 1, LIMIT, start);
    for seconds in 0..=end {
        let now = start + Duration::from_secs(seconds);
        stall.update(process(1), 1, LIMIT, now);
        if stall.is_due(LIMIT, now) {
            let reading = QueueReading {
                id: process(1),
                sign,
            };
            stall.add(&reading, None, LIMIT, now);
            read.push(seconds);
        }
    }
    read
}

#[test]
fn readings_become_rare_unless_there_is_a_sign() {
    assert_eq!(readings(50, sign(0)), [15, 25, 35, 45]);
    assert_eq!(readings(100, None), [15, 25, 35, 47, 63, 84]);
    // An idle hour costs less than a thirtieth of its 360 socket scans, and a later one a thirtieth.
    let hours = readings(7200, None);
    let later = hours.iter().filter(|&&seconds| seconds >= 3600).count();
    assert!(hours.len() - later < 30 && later == 12, "{hours:?}");
}

#[test]
fn agent_that_completes_transfers_is_never_due() {
    let (start, mut stall) = (Instant::now(), Stall::default());
    for seconds in 0..100 {
        let now = start + Duration::from_secs(seconds);
        stall.update(process(1), seconds, LIMIT, now);
        assert!(!stall.is_due(LIMIT, now) && stall.silent_process(LIMIT, now).is_none());
        assert_eq!(stall.state(), Some(StallState::None));
    }
}

#[test]
fn agent_with_another_process_begins_again() {
    let (start, mut stall) = (Instant::now(), Stall::default());
    let at = |seconds| start + Duration::from_secs(seconds);
    stall.update(process(1), 1, LIMIT, start);
    for (seconds, time) in [(15, 0), (125, 110)] {
        let reading = QueueReading {
            id: process(1),
            sign: sign(time),
        };
        stall.add(&reading, None, LIMIT, at(seconds));
    }
    assert_eq!(stall.state(), Some(StallState::Stalled));
    stall.update(process(2), 1, LIMIT, at(126));
    assert_eq!(stall.state(), Some(StallState::None));
    // The answer of a request from before.
    let reading = QueueReading {
        id: process(1),
        sign: sign(120),
    };
    stall.add(&reading, None, LIMIT, at(127));
    assert_eq!(stall.state(), Some(StallState::None));
    stall.update(process(2), 1, LIMIT, at(157));
    assert_eq!(stall.state(), None);
    assert_eq!(Stall::default().state(), None);
}

#[test]
fn sign_is_shown_in_words() {
    let shown = |sign, process: Option<&str>| {
        let shown = ShownSign {
            sign,
            process: process.map(str::to_owned),
            began: Instant::now(),
        };
        [shown.peer(), shown.reason()]
    };
    let local = Sign {
        peer: Some(PEER),
        halt: Some(Halt::Stopped),
        unread: 7,
        unacknowledged: 9,
        ..Sign::default()
    };
    assert_eq!(
        shown(local, Some("12 python3")),
        [
            "10.0.0.2, process 12 python3",
            "stopped by a signal or a debugger, 7 bytes not read, 9 bytes not acknowledged"
        ]
    );
    let remote = Sign {
        halt: None,
        unread: 0,
        ..local
    };
    assert_eq!(
        shown(remote, None),
        ["10.0.0.2", "9 bytes not acknowledged"]
    );
    let own = Sign {
        halt: Some(Halt::Blocked(3)),
        ..Sign::default()
    };
    assert_eq!(
        shown(own, None),
        ["its own process", "blocked in the kernel"]
    );
}
