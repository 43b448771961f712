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

/// Starts a process that runs an agent of this name, which has completed a transfer.
fn agent(home: &Home, name: &str) -> Process {
    let ring = RingWriter::create(&home.ring(name), Layout::V4, 64);
    assert!(ring.expect("room").push(Kind::TxBytes, 1));
    let mut files = vec![home.ring(name)];
    files.extend(libraries(home));
    Process::with_files(&[], &files)
}

/// Has the agent of a process complete its second transfer, of a byte.
fn complete(process: &mut Process) {
    // The ring has an event of type 0, TxBytes, in its second slot then.
    process.run("struct.pack_into('<QQ', mapped[0], 56, 0, 1)");
    process.run("struct.pack_into('<Q', mapped[0], 0, 2)");
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
    complete(&mut alone);
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
