//! Whether an agent lives, as nixl.agent.state says it, for each way in which one can end, hang or be another than expected.

mod support;

use nix::sys::signal::Signal;
use nix::unistd::{Uid, User};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use support::sample::Sample;
use support::show::Shown;
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, Pmcd, TX_BYTES, wait_for};

const UNKNOWN: &str = "0";
const LIVE: &str = "1";
const IDLE: &str = "2";
const EXITED: &str = "3";
const UNSUPPORTED: &str = "4";

const STATE: &str = "nixl.agent.state";
const SECOND: Duration = Duration::from_secs(1);

/// The longest that a state may take to show, after what it tells of.
const IN_TIME: Duration = Duration::from_secs(2);
/// Transfers of 100 bytes, all WRITEs, until it is ended.
const STEADY: &str = "--rate 50 --size 100 --read-every 0";

/// Waits until an agent has a state, which has to be in time; all that is said of agents then.
fn becomes(pmcd: &Pmcd, name: &str, state: &str, since: Instant, in_time: Duration) -> Shown {
    let shown = wait_for(&format!("{name} has state {state}"), || {
        let shown = pmcd.shown(&["nixl.agent"]);
        (shown[STATE].get(name).map(String::as_str) == Some(state)).then_some(shown)
    });
    let took = since.elapsed();
    assert!(took < in_time, "{name}: {took:?}\n{}", pmcd.log());
    shown
}

/// The states of all agents.
fn states(pmcd: &Pmcd) -> BTreeMap<String, String> {
    pmcd.shown(&[STATE]).remove(STATE).expect("a metric")
}

/// How many agents there are of each kind that has any.
fn counts(pmcd: &Pmcd) -> BTreeMap<String, u64> {
    let shown = pmcd.shown(&["nixl.agents"]);
    let counts = shown.into_iter().map(|(metric, values)| {
        let kind = metric.trim_start_matches("nixl.agents.").to_owned();
        (kind, values[""].parse().expect("a number"))
    });
    counts.filter(|(_, count)| *count > 0).collect()
}

fn expected_counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    let counts = counts.iter();
    counts
        .map(|(kind, count)| ((*kind).to_owned(), *count))
        .collect()
}

/// What is said of one agent, by the last name of the metric.
fn said<'a>(shown: &'a Shown, name: &str) -> BTreeMap<&'a str, &'a str> {
    let values = shown.iter().filter_map(|(metric, values)| {
        let last = metric.rsplit('.').next()?;
        Some((last, values.get(name)?.as_str()))
    });
    values.collect()
}

fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}

/// A ring of a version that is to come, mapped and open as its writer has it.
fn future_ring(home: &Home, name: &str) -> RingWriter {
    let made = home.path("made");
    let ring = RingWriter::create(&made, Layout::V4, 64).expect("a ring");
    let file = OpenOptions::new().write(true).open(&made).expect("there");
    let versions = [5_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat();
    file.write_all_at(&versions, 16).expect("written");
    fs::rename(made, home.ring(name)).expect("moved");
    ring
}

#[test]
fn one_that_exits_is_killed_restarts_hangs_or_is_unknown_has_its_state_within_two_seconds() {
    let home = Home::new();
    home.set("idle_after = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let before = seconds();
    let start = |name| Sample::start(&home, name, STEADY);
    let [exits, killed, restarts, hangs] = ["exits", "killed", "restarts", "hangs"].map(start);
    let future = future_ring(&home, "future");
    let begun = Instant::now();
    for name in ["exits", "killed", "restarts", "hangs"] {
        becomes(&pmcd, name, LIVE, begun, 2 * IN_TIME);
    }
    let shown = becomes(&pmcd, "future", UNSUPPORTED, begun, 2 * IN_TIME);
    let user = User::from_uid(Uid::current()).expect("asked");
    let user = user.expect("this one").name;
    for (name, process) in [("exits", &exits), ("hangs", &hangs)] {
        let said = said(&shown, name);
        let (pid, path) = (process.pid().to_string(), home.ring(name));
        let expected = [
            ("status", "live"),
            ("mode", "drain"),
            ("source", "ring"),
            ("pid", &pid),
            ("user", &user),
            ("wire_version", "4"),
            ("starts", "1"),
            ("path", path.to_str().expect("UTF-8")),
        ];
        for (fact, value) in expected {
            assert_eq!(said.get(fact), Some(&value), "{name}: {fact}");
        }
        let first_seen: u64 = said["first_seen"].parse().expect("a number");
        assert!((before..=seconds()).contains(&first_seen), "{first_seen}");
        let idle_time: u64 = said["idle_time"].parse().expect("milliseconds");
        assert!(idle_time < 1000, "{idle_time}");
    }
    assert_eq!(
        counts(&pmcd),
        expected_counts(&[("live", 4), ("unsupported", 1)])
    );

    let asked = Instant::now();
    exits.end();
    let shown = becomes(&pmcd, "exits", EXITED, asked, IN_TIME);
    let facts = said(&shown, "exits");
    assert_eq!((facts["status"], facts.get("pid")), ("exited", None));
    let asked = Instant::now();
    killed.kill();
    becomes(&pmcd, "killed", EXITED, asked, IN_TIME);

    // A hang: it has its ring, and says nothing. That it has exited is never said.
    let asked = Instant::now();
    hangs.signal(Signal::SIGSTOP);
    let shown = becomes(&pmcd, "hangs", IDLE, asked, SECOND + IN_TIME);
    let facts = said(&shown, "hangs");
    let idle_time: u64 = facts["idle_time"].parse().expect("milliseconds");
    assert!(idle_time >= 1000, "{idle_time}");
    assert_eq!(facts["pid"], hangs.pid().to_string());
    let hung = Instant::now();
    while hung.elapsed() < 3 * SECOND {
        assert_eq!(states(&pmcd)["hangs"], IDLE);
    }
    assert_eq!(
        counts(&pmcd),
        expected_counts(&[("live", 1), ("idle", 1), ("exited", 2), ("unsupported", 1)])
    );
    let asked = Instant::now();
    hangs.signal(Signal::SIGCONT);
    becomes(&pmcd, "hangs", LIVE, asked, IN_TIME);
    assert_eq!(states(&pmcd)["future"], UNSUPPORTED);
    drop((restarts, future));
}

#[test]
fn one_that_restarts_in_place_is_live_with_two_starts_and_its_totals_go_on() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let bytes = || {
        let values = pmcd.values(TX_BYTES);
        values.get("agent").copied().unwrap_or_default()
    };
    let first = Sample::start(&home, "agent", STEADY);
    becomes(&pmcd, "agent", LIVE, Instant::now(), 2 * IN_TIME);
    // One that has never said anything leaves a ring by which its next start cannot be told.
    wait_for("it speaks", || (bytes() > 0).then_some(()));
    let first = first.end()["tx_bytes"].as_u64().expect("a number");
    wait_for("all of the first is counted", || {
        (bytes() == first).then_some(())
    });
    let shown = pmcd.shown(&["nixl.agent", "nixl.ring.resets"]);
    let before = said(&shown, "agent");
    assert_eq!((before["starts"], before["resets"]), ("1", "0"));

    let asked = Instant::now();
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
    let took = asked.elapsed();
    assert!(took < IN_TIME, "{took:?}");
    let now = said(&shown, "agent");
    assert_eq!(now["resets"], "1");
    assert_eq!(now["first_seen"], before["first_seen"]);
    // It is killed, and starts once more in one go. One that had said nothing would leave no trace in the ring.
    wait_for("it speaks again", || (bytes() > first).then_some(()));
    again.kill();
    let between = bytes();
    let last = Sample::start(&home, "agent", STEADY);
    wait_for("the third start is seen", || {
        let shown = pmcd.shown(&metrics);
        (said(&shown, "agent")["starts"] == "3").then_some(())
    });
    let last = last.end()["tx_bytes"].as_u64().expect("a number");
    wait_for("all of the last is counted", || {
        (bytes() == between + last).then_some(())
    });
}

#[test]
fn one_of_an_unknown_version_is_shown_as_such_until_it_ends_and_counts_nothing() {
    let home = Home::new();
    home.set("retain = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let begun = Instant::now();
    let future = future_ring(&home, "future");
    let shown = becomes(&pmcd, "future", UNSUPPORTED, begun, IN_TIME);
    let facts = said(&shown, "future");
    assert_eq!(facts["status"], "unsupported");
    assert_eq!((facts["wire_version"], facts["source"]), ("5", "ring"));
    assert_eq!(facts.get("mode"), None, "nothing is done with its events");
    assert_eq!(facts["path"], home.ring("future").to_str().expect("UTF-8"));
    let pid = wait_for("its writer is known", || {
        let shown = pmcd.shown(&["nixl.agent.pid"]);
        shown["nixl.agent.pid"].get("future").cloned()
    });
    assert_eq!(pid, std::process::id().to_string());
    for metric in [TX_BYTES, "nixl.transfer.rx_requests", "nixl.errors.backend"] {
        assert!(pmcd.values(metric).is_empty(), "{metric}");
    }
    assert!(pmcd.values("nixl.ring.capacity").is_empty());
    assert_eq!(counts(&pmcd), expected_counts(&[("unsupported", 1)]));
    // It stays as long as its writer does.
    while begun.elapsed() < 3 * SECOND {
        assert_eq!(states(&pmcd)["future"], UNSUPPORTED);
    }
    drop(future);
    let ended = Instant::now();
    wait_for("it leaves when retain has passed", || {
        states(&pmcd).is_empty().then_some(())
    });
    let took = ended.elapsed();
    assert!((SECOND..SECOND + IN_TIME).contains(&took), "{took:?}");
    // The file is one still; and its agent may come back with a version that is known.
    assert_eq!(counts(&pmcd), expected_counts(&[("unsupported", 1)]));
    let asked = Instant::now();
    let mut known = RingWriter::create(&home.ring("future"), Layout::V4, 64).expect("a ring");
    known.push(Kind::TxBytes, 7);
    let shown = becomes(&pmcd, "future", LIVE, asked, 2 * IN_TIME);
    assert_eq!(said(&shown, "future")["wire_version"], "4");
    pmcd.becomes(&[("future", 7)]);
    assert_eq!(counts(&pmcd), expected_counts(&[("live", 1)]));
}

#[test]
fn where_only_a_reader_is_left_it_has_exited_or_without_proc_it_is_not_known() {
    for proc_facts in [true, false] {
        // In a PID namespace of its own nobody can tell whether it is one outside that writes.
        let is_told = proc_facts && support::sees_all_processes();
        let (state, kind) = match is_told {
            true => (EXITED, "exited"),
            false => (UNKNOWN, "unknown"),
        };
        let home = Home::new();
        home.set(&format!("proc_facts = {proc_facts}\nretain = \"3s\""));
        let pmcd = Pmcd::start(&home);
        let agent = Sample::start(&home, "agent", STEADY);
        let shown = becomes(&pmcd, "agent", LIVE, Instant::now(), 2 * IN_TIME);
        let facts = said(&shown, "agent");
        let pid = agent.pid().to_string();
        assert_eq!(facts.get("pid"), proc_facts.then_some(&&*pid));
        assert_eq!(facts["status"], "live");
        wait_for("it has said something", || {
            (pmcd.values("nixl.ring.events")["agent"] > 0).then_some(())
        });
        let reader = File::open(home.ring("agent")).expect("there");
        let ended = Instant::now();
        agent.kill();
        if !is_told {
            // It may be silent as well as gone, for as long.
            while ended.elapsed() < 2 * SECOND {
                assert_eq!(states(&pmcd)["agent"], LIVE);
            }
        }
        let silence = if is_told { Duration::ZERO } else { 3 * SECOND };
        let shown = becomes(&pmcd, "agent", state, ended, silence + IN_TIME);
        let facts = said(&shown, "agent");
        assert_eq!((facts["status"], facts.get("pid")), (kind, None));
        assert_eq!(counts(&pmcd), expected_counts(&[(kind, 1)]));
        let asked = Instant::now();
        drop(reader);
        // One that has exited stays for retain; then it has left.
        wait_for("it leaves", || {
            let states = states(&pmcd);
            let now = states.get("agent").map(String::as_str);
            assert!([None, Some(state), Some(EXITED)].contains(&now), "{now:?}");
            now.is_none().then_some(())
        });
        assert!(asked.elapsed() < 3 * SECOND + 2 * IN_TIME);
        assert_eq!(counts(&pmcd), expected_counts(&[]));
    }
}

#[test]
fn one_that_is_only_followed_says_so() {
    let home = Home::new();
    home.set("observe = true\nidle_after = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let agent = Sample::start(&home, "agent", "--transfers 5 --size 8 --linger 60");
    let shown = becomes(&pmcd, "agent", IDLE, Instant::now(), 3 * IN_TIME);
    let facts = said(&shown, "agent");
    assert_eq!((facts["mode"], facts["source"]), ("observe", "ring"));
    assert_eq!(facts["pid"], agent.pid().to_string());
    assert_eq!(pmcd.values("nixl.ring.pending")["agent"], 20);
    let asked = Instant::now();
    agent.kill();
    let shown = becomes(&pmcd, "agent", EXITED, asked, IN_TIME);
    assert_eq!(said(&shown, "agent")["mode"], "observe");
}
