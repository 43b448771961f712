// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents whose transfers hang, with the real daemon and its observer: what `nixl.agent.stall` says of them, and of
//! agents that are idle. A test runs in a PID namespace of its own.

use crate::support::fleet::is_possible;
use crate::support::pdu::Link;
use crate::support::scripted::{Process, libraries};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, wait_for};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// Starts a process that runs an agent of this name, which has completed a transfer.
fn agent(home: &Home, name: &str) -> Process {
    let ring = RingWriter::create(&home.ring(name), Layout::V4, 64);
    assert!(ring.expect("room").push(Kind::TxBytes, 1));
    let mut files = vec![home.ring(name)];
    files.extend(libraries(home));
    Process::with_files(&[], &files)
}

/// Has the agent of a process complete another transfer, of a byte, after so many.
fn complete(process: &mut Process, completed: u64) {
    // The ring has an event of type 0, TxBytes, in its next slot of 64 then.
    let at = 40 + 16 * (completed % 64);
    process.run(&format!("struct.pack_into('<QQ', mapped[0], {at}, 0, 1)"));
    let end = (completed + 1) % 64;
    process.run(&format!("struct.pack_into('<Q', mapped[0], 0, {end})"));
}

/// Connects a process, as `one`, with another one that reads what it gets.
fn connect(process: &mut Process, peer: &mut Process) {
    let port = peer.number("serve()");
    process.run(&format!(
        "one = connect('127.0.0.1', {port}); send(one, 1000)"
    ));
}

/// Stops a process, and waits until it reads nothing more.
fn stop(process: &Process) {
    process.signal(Signal::SIGSTOP);
    wait_for("the process is stopped", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid())).ok()?;
        stat.contains(") T ").then_some(())
    });
}

fn state(link: &mut Link, name: &str) -> Option<u64> {
    let states = link.values("agent.stall.state").expect("an answer");
    states.get(name).copied()
}

/// Waits until the agent has a state, which no agent of these names has.
fn wait_for_state(link: &mut Link, name: &str, expected: u64, idle: &[&str]) {
    wait_for(&format!("{name} has state {expected}"), || {
        for idle in idle {
            let state = state(link, idle);
            assert!(matches!(state, None | Some(0)), "{idle}: {state:?}");
        }
        (state(link, name) == Some(expected)).then_some(())
    });
}

/// Peer and reason of an agent.
fn sign(link: &mut Link, name: &str) -> [Option<String>; 2] {
    ["agent.stall.peer", "agent.stall.reason"]
        .map(|metric| link.texts(metric).expect("an answer").remove(name))
}

/// Stalls in the timeline: each the agent and the kind.
fn stalls(link: &mut Link) -> Vec<String> {
    let last = link.texts("events.last").expect("an answer").remove("");
    let events: Vec<Value> = serde_json::from_str(&last.expect("a text")).expect("JSON");
    let text = |event: &Value, key| event[key].as_str().unwrap_or_default().to_owned();
    let shown = events
        .iter()
        .map(|event| format!("{} {}", text(event, "agent"), text(event, "kind")));
    shown.filter(|shown| shown.contains(" stalled")).collect()
}

#[test]
fn stopped_receiver_is_named_and_idle_agents_are_not_suspected() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    home.set("stalled_after = \"3s\"");
    let [mut hung, mut idle, mut alone] = ["hung", "idle", "alone"].map(|name| agent(&home, name));
    let [mut target, mut idle_target] = [(); 2].map(|()| Process::start(&home));
    connect(&mut hung, &mut target);
    connect(&mut idle, &mut idle_target);
    let mut link = Link::open(&home);
    let others = ["idle", "alone"];
    wait_for_state(&mut link, "hung", 0, &others);
    stop(&target);
    // The kernel of the receiver acknowledges them: nothing waits at the sender.
    hung.run("send(one, 100)");
    wait_for_state(&mut link, "hung", 1, &others);
    wait_for_state(&mut link, "hung", 2, &others);
    let peer = format!("127.0.0.1, process {} python3", target.pid());
    let reason = "stopped by a signal or a debugger, 100 bytes not read";
    let found = sign(&mut link, "hung");
    assert_eq!(
        found.each_ref().map(Option::as_deref),
        [Some(&*peer), Some(reason)]
    );
    let ages = link.values("agent.stall.age").expect("an answer");
    assert!(ages["hung"] >= 12_000 && ages.len() == 1, "{ages:?}");
    target.signal(Signal::SIGCONT);
    wait_for_state(&mut link, "hung", 0, &others);
    assert_eq!(sign(&mut link, "hung"), [None, None]);
    // Agents are checked once a second.
    let expected = ["hung stalled", "hung stalled_end"];
    wait_for("the end is in the timeline", || {
        (stalls(&mut link) == expected).then_some(())
    });
    // An agent whose process is stopped itself.
    alone.signal(Signal::SIGSTOP);
    wait_for_state(&mut link, "alone", 2, &["hung", "idle"]);
    let found = sign(&mut link, "alone");
    let expected = ["its own process", "stopped by a signal or a debugger"];
    assert_eq!(found.each_ref().map(Option::as_deref), expected.map(Some));
    alone.signal(Signal::SIGCONT);
    complete(&mut alone, 1);
    wait_for_state(&mut link, "alone", 0, &["hung", "idle"]);
    assert_eq!(idle.run("1 + 1"), "2");
}

#[test]
fn bytes_that_a_peer_does_not_acknowledge_are_a_sign() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    home.set("stalled_after = \"3s\"");
    let mut hung = agent(&home, "hung");
    // A process that does not use NIXL is not read, like one of another host.
    let mut target = Process::peer();
    connect(&mut hung, &mut target);
    let mut link = Link::open(&home);
    wait_for_state(&mut link, "hung", 0, &[]);
    stop(&target);
    hung.run("one[0].setblocking(False)");
    hung.run("fill(one[0])");
    wait_for_state(&mut link, "hung", 2, &[]);
    let [peer, reason] = sign(&mut link, "hung").map(|text| text.expect("a sign"));
    let bytes = reason.strip_suffix(" bytes not acknowledged");
    let bytes: Option<u64> = bytes.and_then(|bytes| bytes.parse().ok());
    assert!(peer == "127.0.0.1" && bytes > Some(0), "{peer} {reason}");
    target.signal(Signal::SIGCONT);
    wait_for_state(&mut link, "hung", 0, &[]);
}

#[test]
fn stalled_after_zero_switches_it_off() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    home.set("stalled_after = \"0s\"");
    let hung = agent(&home, "hung");
    hung.signal(Signal::SIGSTOP);
    let mut link = Link::open(&home);
    wait_for("its process is read", || {
        let read = link.values("process.tcp.tx_bytes").expect("an answer");
        (!read.is_empty()).then_some(())
    });
    assert_eq!(state(&mut link, "hung"), None);
    hung.signal(Signal::SIGCONT);
}

/// A rank of a group, and how many transfers it has completed.
struct Rank {
    process: Process,
    completed: u64,
}

impl Rank {
    fn start(home: &Home, name: &str) -> Self {
        let process = agent(home, name);
        Self {
            process,
            completed: 1,
        }
    }

    /// Sends bytes on all its connections, which the peers read, and completes a transfer.
    fn transfer(&mut self) {
        self.process.run("send(all, 65536)");
        complete(&mut self.process, self.completed);
        self.completed += 1;
    }
}

/// Ranks of a server of which each has a connection with each. `idle` has moved data once. `rare` moves data after each
/// pause that is twice as long as `stalled_after`. The others move data all the time.
#[test]
#[ignore = "a minute; MINUTES=30 takes as long, with the default of stalled_after"]
fn idle_ranks_of_a_busy_group_are_never_suspected() {
    const NAMES: [&str; 4] = ["busy", "busy-too", "rare", "idle"];
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let minutes = std::env::var("MINUTES").map(|minutes| minutes.parse::<f64>());
    let (minutes, limit) = match minutes {
        Ok(minutes) => (minutes.expect("MINUTES is a number"), 30),
        Err(_) => (1.0, 3),
    };
    home.set(&format!("stalled_after = \"{limit}s\""));
    let mut ranks = NAMES.map(|name| Rank::start(&home, name));
    let ports = ranks.each_mut().map(|rank| rank.process.number("serve()"));
    for rank in &mut ranks {
        let connect = |port| format!("connect('127.0.0.1', {port})");
        let all = ports.map(connect).join(" + ");
        rank.process.run(&format!("all = {all}"));
        rank.transfer();
    }
    let mut link = Link::open(&home);
    for name in NAMES {
        wait_for_state(&mut link, name, 0, &NAMES);
    }
    let pause = Duration::from_secs(2 * limit);
    let (end, mut next) = (
        Instant::now() + Duration::from_secs_f64(60.0 * minutes),
        Instant::now() + pause,
    );
    while Instant::now() < end {
        let [busy, busy_too, rare, _] = &mut ranks;
        busy.transfer();
        busy_too.transfer();
        if Instant::now() >= next {
            rare.transfer();
            next = Instant::now() + pause;
        }
        let states = link.values("agent.stall.state").expect("an answer");
        assert!(states.values().all(|&state| state == 0), "{states:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(stalls(&mut link), Vec::<String>::new());
    // The idle rank would have been suspected, and the others with it, which are its peers and silent now.
    ranks[3].process.signal(Signal::SIGSTOP);
    wait_for_state(&mut link, "idle", 1, &[]);
    ranks[3].process.signal(Signal::SIGCONT);
    for name in NAMES {
        wait_for_state(&mut link, name, 0, &[]);
    }
}
