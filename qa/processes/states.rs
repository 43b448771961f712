// SPDX-License-Identifier: GPL-2.0-or-later

//! `nixl.agent.state` with a real pmcd, for each way in which an agent can end, hang or change.

use crate::support::kit::{Core, LONG};
use crate::support::sample::Sample;
use crate::support::show::Shown;
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{self, Home, Pmcd, TX_BYTES, example, note_left_out, wait_for};
use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};

const UNKNOWN: &str = "0";
const LIVE: &str = "1";
const IDLE: &str = "2";
const EXITED: &str = "3";

const STATE: &str = "nixl.agent.state";
const SECOND: Duration = Duration::from_secs(1);

/// Options for endless WRITE transfers of 100 bytes.
const STEADY: &str = "--rate 50 --size 100 --read-every 0";

/// Waits until an agent has a state. Returns the metrics below `nixl.agent`.
fn becomes(pmcd: &Pmcd, name: &str, state: &str) -> Shown {
    wait_for(&format!("{name} has state {state}"), || {
        let shown = pmcd.shown(&["nixl.agent"]);
        // Without an agent, the metric has no values.
        let found = shown.get(STATE)?.get(name)?;
        (found == state).then_some(shown)
    })
}

/// Waits until the metrics below `nixl.host.agents` have these values.
fn become_counts(pmcd: &Pmcd, expected: &[(&str, u64)]) {
    let expected = expected_counts(expected);
    wait_for(&format!("{expected:?}"), || {
        (counts(pmcd) == expected).then_some(())
    });
}

/// States of all agents.
fn states(pmcd: &Pmcd) -> BTreeMap<String, String> {
    pmcd.shown(&[STATE]).remove(STATE).expect("a metric")
}

/// Values below `nixl.host.agents` that are not 0.
fn counts(pmcd: &Pmcd) -> BTreeMap<String, u64> {
    let shown = pmcd.shown(&["nixl.host.agents", "nixl.control.files"]);
    let counts = shown.into_iter().filter_map(|(metric, values)| {
        let kind = metric.rsplit('.').next()?.to_owned();
        let value = values.get("").filter(|_| kind != "rejections")?;
        Some((kind, value.parse().expect("a number")))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

fn expected_counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let counts = counts.iter();
    counts
        .map(|(kind, count)| ((*kind).to_owned(), *count))
        .collect()
}

/// Values of one agent by the last component of the metric name.
fn said<'a>(shown: &'a Shown, name: &str) -> BTreeMap<&'a str, &'a str> {
    let values = shown.iter().filter_map(|(metric, values)| {
        let last = metric.rsplit('.').next()?;
        Some((last, values.get(name)?.as_str()))
    });
    values.collect()
}

/// A ring of an unsupported version with a live writer.
fn future_ring(home: &Home, name: &str) -> RingWriter {
    let made = home.path("made");
    let ring = RingWriter::create(&made, Layout::V4, 64).expect("a ring");
    let file = OpenOptions::new().write(true).open(&made).expect("there");
    let versions = [6_u32.to_le_bytes(), 6_u32.to_le_bytes()].concat();
    file.write_all_at(&versions, 16).expect("written");
    fs::rename(made, home.ring(name)).expect("moved");
    ring
}

#[test]
fn state_shows_exit_kill_hang_resume_and_unknown() {
    let home = Home::new();
    // Longer than a busy machine delays a process.
    home.set("idle_after = \"10s\"");
    let pmcd = Pmcd::start(&home);
    let started = Instant::now();
    let start = |name| Sample::start(&home, name, STEADY);
    let [exits, killed, stays, hangs] = ["exits", "killed", "stays", "hangs"].map(start);
    let future = future_ring(&home, "future");
    for name in ["exits", "killed", "stays", "hangs"] {
        becomes(&pmcd, name, LIVE);
    }
    let user = User::from_uid(Uid::current()).expect("asked");
    let user = user.expect("this one").name;
    for (name, process) in [("exits", &exits), ("hangs", &hangs)] {
        let (pid, path) = (process.pid().to_string(), home.ring(name));
        let expected = BTreeMap::from([
            ("status", "live"),
            ("mode", "drain"),
            ("pid", &*pid),
            ("user", &*user),
            ("format_version", "4"),
            ("starts", "1"),
            ("path", path.to_str().expect("UTF-8")),
        ]);
        // The process is known after a process scan.
        let mut facts = wait_for("all metrics of the agent are known", || {
            let shown = pmcd.shown(&["nixl.agent"]);
            let facts = said(&shown, name).into_iter();
            let facts = facts.map(|(fact, value)| (fact.to_owned(), value.to_owned()));
            let facts: BTreeMap<_, _> = facts.collect();
            let is_right =
                |(fact, value): (&&str, &&str)| facts.get(*fact).map(|v| &**v) == Some(*value);
            expected.iter().all(is_right).then_some(facts)
        });
        let mut number = |fact: &str| -> u64 {
            let value = facts.remove(fact).expect("there");
            value.parse().expect("a number")
        };
        let idle_time = number("idle_time");
        assert!(
            u128::from(idle_time) <= started.elapsed().as_millis(),
            "{idle_time}"
        );
    }
    become_counts(&pmcd, &[("live", 4), ("unsupported", 1)]);

    exits.end();
    let shown = becomes(&pmcd, "exits", EXITED);
    let facts = said(&shown, "exits");
    assert_eq!((facts["status"], facts.get("pid")), ("exited", None));
    killed.kill();
    becomes(&pmcd, "killed", EXITED);
    let memory = pmcd.shown(&["nixl.memory.current"]);
    let registered = Vec::from_iter(memory["nixl.memory.current"].keys());
    assert_eq!(registered, ["hangs", "stays"]);

    // A hang: the agent has its ring open, and writes nothing. It must never be exited.
    hangs.signal(Signal::SIGSTOP);
    let shown = wait_for("the agent is idle", || {
        let shown = pmcd.shown(&["nixl.agent"]);
        let state = &*shown[STATE]["hangs"];
        assert!([LIVE, IDLE].contains(&state), "{state}");
        (state == IDLE).then_some(shown)
    });
    let facts = said(&shown, "hangs");
    let idle_time: u64 = facts["idle_time"].parse().expect("milliseconds");
    assert!(idle_time >= 10_000, "{idle_time}");
    assert_eq!(facts["pid"], hangs.pid().to_string());
    become_counts(
        &pmcd,
        &[("live", 1), ("idle", 1), ("exited", 2), ("unsupported", 1)],
    );
    hangs.signal(Signal::SIGCONT);
    becomes(&pmcd, "hangs", LIVE);
    drop((stays, future));
}

#[test]
#[ignore = "measures the delay of a state"]
fn exit_and_hang_are_shown_within_two_seconds() {
    /// Limit of the time until a change of state is published.
    const IN_TIME: Duration = Duration::from_secs(2);
    let home = Home::new();
    home.set("idle_after = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let start = |name| Sample::start(&home, name, STEADY);
    let [exits, killed, hangs] = ["exits", "killed", "hangs"].map(start);
    for name in ["exits", "killed", "hangs"] {
        becomes(&pmcd, name, LIVE);
    }
    let within = |name: &str, state: &str, time: Duration, end: &mut dyn FnMut()| {
        let asked = Instant::now();
        end();
        becomes(&pmcd, name, state);
        let took = asked.elapsed();
        assert!(took < time, "{name}: {took:?}\n{}", pmcd.log());
    };
    let (mut exits, mut killed) = (Some(exits), Some(killed));
    within("exits", EXITED, IN_TIME, &mut || {
        drop(exits.take().map(Sample::end))
    });
    within("killed", EXITED, IN_TIME, &mut || {
        killed.take().into_iter().for_each(Sample::kill)
    });
    within("hangs", IDLE, SECOND + IN_TIME, &mut || {
        hangs.signal(Signal::SIGSTOP)
    });
    within("hangs", LIVE, IN_TIME, &mut || {
        hangs.signal(Signal::SIGCONT)
    });
}

#[test]
fn restart_in_place_is_live_with_two_starts_and_totals() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let bytes = || {
        let values = pmcd.sent();
        values.get("agent").copied().unwrap_or_default()
    };
    let first = Sample::start(&home, "agent", STEADY);
    becomes(&pmcd, "agent", LIVE);
    // A ring without an event would not show the next start.
    wait_for("the agent has sent", || (bytes() > 0).then_some(()));
    let first = first.end()["tx_bytes"].as_u64().expect("a number");
    wait_for("all events of the first start are counted", || {
        (bytes() == first).then_some(())
    });
    let shown = pmcd.shown(&["nixl.agent", "nixl.ring.resets"]);
    let before = said(&shown, "agent");
    assert_eq!((before["starts"], before["resets"]), ("1", "0"));

    let again = Sample::start(&home, "agent", STEADY);
    let pid = again.pid().to_string();
    let metrics = ["nixl.agent", "nixl.ring.resets", TX_BYTES];
    let shown = wait_for("the second start is seen", || {
        let shown = pmcd.shown(&metrics);
        let now = said(&shown, "agent");
        let sent: u64 = now["tx_bytes"].parse().expect("a number");
        assert!(sent >= first, "{sent} after {first}");
        (now["starts"] == "2" && now["state"] == LIVE && now.get("pid") == Some(&&*pid))
            .then_some(shown)
    });
    let now = said(&shown, "agent");
    assert_eq!(now["resets"], "1");
    // A kill and an immediate restart. Without events in between, the ring would not show the restart.
    wait_for("the agent has sent again", || {
        (bytes() > first).then_some(())
    });
    again.kill();
    let between = bytes();
    let last = Sample::start(&home, "agent", STEADY);
    wait_for("the third start is seen", || {
        let shown = pmcd.shown(&metrics);
        (said(&shown, "agent")["starts"] == "3").then_some(())
    });
    let last = last.end()["tx_bytes"].as_u64().expect("a number");
    wait_for("all events of the last start are counted", || {
        (bytes() == between + last).then_some(())
    });
}

#[test]
fn silent_agent_is_shown_again_when_its_writer_is_found() {
    let mut core = Core::new("proc_facts = true\nretain = \"0s\"\nidle_after = \"1s\"");
    let rings = core.rings();
    let command = Command::new(example("producer"));
    let _agent = Sample::start_as(
        command,
        &rings,
        "agent",
        "--transfers 1 --size 5 --read-every 0 --linger 600",
    );
    let tick = Duration::from_millis(2);
    wait_for("the agent has sent all", || {
        core.tick(1, tick, LONG);
        core.tidy();
        (core.sent() == [("agent", 5)].into()).then_some(())
    });
    core.advance(2 * SECOND);
    core.restart();
    // The first process scan may have begun before the ring was attached.
    wait_for("a process scan finds the writer", || {
        core.tick(1, tick, LONG);
        core.tidy();
        core.sent().contains_key("agent").then_some(())
    });
    assert_eq!(core.status("agent"), "idle");
}

#[test]
fn ring_of_unknown_version_is_counted_but_not_published() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let future = future_ring(&home, "future");
    become_counts(&pmcd, &[("unsupported", 1)]);
    assert!(states(&pmcd).is_empty());
    for metric in [TX_BYTES, "nixl.agent.format_version", "nixl.ring.capacity"] {
        assert!(pmcd.values(metric).is_empty(), "{metric}");
    }
    let path = home.ring("future");
    let named = format!("{path:?}: rejected: ring version 6");
    wait_for("the log names it", || {
        pmcd.log().contains(&named).then_some(())
    });
    assert_eq!(pmcd.log().matches(&named).count(), 1);
    // The next process of the agent writes a supported version.
    drop(future);
    let mut known = RingWriter::create(&path, Layout::V4, 64).expect("a ring");
    known.push(Kind::TxBytes, 7);
    becomes(&pmcd, "future", LIVE);
    pmcd.becomes(&[("future", 7)]);
    become_counts(&pmcd, &[("live", 1)]);
    // An unsupported ring replaces it: the totals stay, and the file is counted as unsupported.
    drop(known);
    let future = future_ring(&home, "future");
    become_counts(&pmcd, &[("exited", 1), ("unsupported", 1)]);
    assert_eq!(pmcd.sent()["future"], 7);
    drop(future);
}

#[test]
fn agent_held_by_a_reader_only_is_exited_or_unknown() {
    for proc_facts in [true, false] {
        // In its own PID namespace, the daemon does not see the processes outside.
        let is_visible = proc_facts && support::sees_all_processes();
        let (state, kind) = match is_visible {
            true => (EXITED, "exited"),
            false => (UNKNOWN, "unknown"),
        };
        let home = Home::new();
        // `retain` is the time that an exited agent stays, and the idle time after which the state is unknown.
        let retain = |time: &str| format!("proc_facts = {proc_facts}\nretain = \"{time}\"");
        home.set(&retain(if is_visible { "1h" } else { "3s" }));
        let pmcd = Pmcd::start(&home);
        let agent = Sample::start(&home, "agent", STEADY);
        let pid = agent.pid().to_string();
        let shown = wait_for("the agent is live with its pid", || {
            let shown = pmcd.shown(&["nixl.agent"]);
            let facts = said(&shown, "agent");
            let is_live = facts.get("state") == Some(&LIVE);
            (is_live && facts.get("pid") == proc_facts.then_some(&&*pid)).then_some(shown)
        });
        assert_eq!(said(&shown, "agent")["status"], "live");
        wait_for("the agent has sent", || {
            (pmcd.values("nixl.ring.events")["agent"] > 0).then_some(())
        });
        let reader = File::open(home.ring("agent")).expect("there");
        agent.kill();
        let shown = becomes(&pmcd, "agent", state);
        let facts = said(&shown, "agent");
        assert_eq!((facts["status"], facts.get("pid")), (kind, None));
        if !is_visible {
            // An idle agent may have exited: its state becomes unknown after `retain`.
            let idle_time: u64 = facts["idle_time"].parse().expect("milliseconds");
            assert!(idle_time >= 3000, "{idle_time}");
        }
        drop(reader);
        pmcd.configure(&home, &retain("1s"));
        wait_for("the agent is withdrawn", || {
            let states = states(&pmcd);
            let now = states.get("agent").map(String::as_str);
            // A process scan that could not read all processes does not tell whether one writes.
            let possible = [None, Some(state), Some(EXITED), Some(UNKNOWN)];
            assert!(possible.contains(&now), "{now:?}");
            now.is_none().then_some(())
        });
        become_counts(&pmcd, &[]);
    }
}

#[test]
#[ignore = "waits a minute for a scan of all processes"]
fn several_writers_of_one_ring_are_logged_and_have_no_pid() {
    if !support::sees_all_processes() {
        note_left_out("the processes of one ring, since not all processes are visible");
        return;
    }
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let first = Sample::start(&home, "agent", STEADY);
    becomes(&pmcd, "agent", LIVE);
    let second = Sample::start(&home, "agent", STEADY);
    let pids = format!(
        "2 processes can write this ring: pid {}, {}; ",
        first.pid(),
        second.pid()
    );
    wait_for("both processes are logged", || {
        pmcd.log().contains(&pids).then_some(())
    });
    let shown = pmcd.shown(&["nixl.agent"]);
    assert_eq!(said(&shown, "agent").get("pid"), None);
    first.kill();
    second.kill();
}

#[test]
fn ring_that_is_not_drained_is_shown_as_such() {
    let home = Home::new();
    home.set("observe = true\nidle_after = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let agent = Sample::start(&home, "agent", "--transfers 5 --size 8 --linger 60");
    let shown = becomes(&pmcd, "agent", IDLE);
    let facts = said(&shown, "agent");
    assert_eq!(facts["mode"], "observe");
    wait_for("its process is known", || {
        let shown = pmcd.shown(&["nixl.agent.pid"]);
        let pid = shown.get("nixl.agent.pid")?.get("agent")?;
        (*pid == agent.pid().to_string()).then_some(())
    });
    assert_eq!(pmcd.values("nixl.ring.pending")["agent"], 20);
    agent.kill();
    let shown = becomes(&pmcd, "agent", EXITED);
    assert_eq!(said(&shown, "agent")["mode"], "observe");
}

#[test]
fn pid_label_follows_a_rolling_restart() {
    let home = Home::new();
    let before = Sample::start(&home, "agent", "--transfers 1 --linger 600");
    let pmcd = Pmcd::start(&home);
    let pid = || {
        let shown = pmcd.shown(&["nixl.agent.pid"]);
        shown.get("nixl.agent.pid")?.get("agent").cloned()
    };
    let is_of = |agent: &Sample| {
        wait_for("the pid is that of the process", || {
            (pid() == Some(agent.pid().to_string())).then_some(())
        });
    };
    let is_shared = || {
        wait_for("two processes have the ring", || {
            pid().is_none().then_some(())
        });
    };
    is_of(&before);
    let events = || pmcd.values("nixl.ring.events")["agent"];
    // A restart of a ring with positions 0 is not seen, as the help of nixl.agent.starts says.
    wait_for("the transfer is counted", || (events() > 0).then_some(()));
    let counted = events();
    let next = Sample::start(&home, "agent", STEADY);
    is_shared();
    wait_for("events of the next process are counted", || {
        (events() > counted).then_some(())
    });
    before.kill();
    is_of(&next);
    let next_but_one = Sample::start(&home, "agent", STEADY);
    is_shared();
    next.kill();
    is_of(&next_but_one);
}
