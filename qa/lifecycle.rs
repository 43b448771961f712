//! Agents that appear, vanish and are replaced, and the agent's own start and end, behind a real pmcd.

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::{Duration, Instant};
use support::writer::{Kind, Layout, RingWriter};
use support::{Home, Pmcd, run, wait_for};

const TX_BYTES: &str = "nixl.transfer.tx_bytes";

fn ring(home: &Home, name: &str) -> RingWriter {
    RingWriter::create(&home.ring(name), Layout::V4, 64).expect("a ring")
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), signal).expect("it runs");
}

/// Waits until the metric has these values.
fn becomes(pmcd: &Pmcd, expected: &[(&str, u64)]) {
    let expected = expected
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    let mut last = Default::default();
    let end = Instant::now() + Duration::from_secs(10);
    while last != expected {
        assert!(
            Instant::now() < end,
            "{last:?} never became {expected:?}\n{}",
            pmcd.log()
        );
        last = pmcd.values(TX_BYTES);
    }
}

#[test]
fn an_agent_appears_exits_stays_for_retain_and_returns_with_its_totals_and_id() {
    let home = Home::new();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {:?}\nretain = \"2s\"\n",
        home.rings()
    ));
    let pmcd = Pmcd::start(&home);
    let (mut stays, mut goes) = (ring(&home, "stays"), ring(&home, "goes"));
    stays.push(Kind::TxBytes, 1);
    goes.push(Kind::TxBytes, 2);
    becomes(&pmcd, &[("goes", 2), ("stays", 1)]);
    let ids = run(pmcd.tool("pmprobe").args(["-i", TX_BYTES]));
    // What it says last is counted, and seen while it is retained.
    goes.push(Kind::TxBytes, 3);
    drop(goes);
    becomes(&pmcd, &[("goes", 5), ("stays", 1)]);
    becomes(&pmcd, &[("stays", 1)]);
    assert!(
        pmcd.log().contains("agent goes: is no instance any more"),
        "{}",
        pmcd.log()
    );
    // Restarted in place: the inode is the same, its positions begin at 0.
    let mut goes = ring(&home, "goes");
    goes.push(Kind::TxBytes, 10);
    becomes(&pmcd, &[("goes", 15), ("stays", 1)]);
    assert_eq!(run(pmcd.tool("pmprobe").args(["-i", TX_BYTES])), ids);
}

#[test]
fn a_ring_that_is_unlinked_is_drained_as_long_as_it_is_written_to() {
    let home = Home::new();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = {:?}\nretain = \"1s\"\n",
        home.rings()
    ));
    let pmcd = Pmcd::start(&home);
    let mut old = ring(&home, "agent");
    old.push(Kind::TxBytes, 1);
    becomes(&pmcd, &[("agent", 1)]);
    fs::remove_file(home.ring("agent")).expect("there");
    old.push(Kind::TxBytes, 10);
    becomes(&pmcd, &[("agent", 11)]);
    // The same name on a new inode, while the old one is still written to: one agent.
    let mut new = ring(&home, "agent");
    new.push(Kind::TxBytes, 100);
    becomes(&pmcd, &[("agent", 111)]);
    old.push(Kind::TxBytes, 1000);
    drop(old);
    becomes(&pmcd, &[("agent", 1111)]);
    drop(new);
    becomes(&pmcd, &[]);
}

#[test]
fn an_agent_that_restarts_in_place_with_another_layout_and_size_goes_on() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut total = 0;
    for (layout, capacity) in [
        (Layout::V4, 64),
        (Layout::V1, 256),
        (Layout::V3, 16),
        (Layout::V2Named, 1024),
        (Layout::V2, 16),
        (Layout::V4, 16),
    ] {
        let mut writer = RingWriter::create(&home.ring("agent"), layout, capacity).expect("a ring");
        for value in 1..10 {
            assert!(writer.push(Kind::TxBytes, value));
            total += value;
        }
        becomes(&pmcd, &[("agent", total)]);
        wait_for("its slots are released", 5, || {
            (writer.pending() == 0).then_some(())
        });
    }
}

#[test]
fn the_same_name_in_two_directories_is_two_agents() {
    let home = Home::new();
    let other = home.path("other");
    fs::create_dir(&other).expect("made");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = [{:?}, {{ path = {other:?}, label = \"gpu1\" }}]\n",
        home.rings()
    ));
    let mut first = ring(&home, "agent");
    let mut second = RingWriter::create(&other.join("agent"), Layout::V4, 64).expect("a ring");
    first.push(Kind::TxBytes, 1);
    second.push(Kind::TxBytes, 2);
    let pmcd = Pmcd::start(&home);
    becomes(&pmcd, &[("agent", 1), ("agent@gpu1", 2)]);
}

#[test]
fn directories_that_match_a_pattern_later_are_found() {
    let home = Home::new();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = \"{}/pod-*/nixl\"\n",
        home.rings().display()
    ));
    let pmcd = Pmcd::start(&home);
    assert!(pmcd.values(TX_BYTES).is_empty());
    let dir = home.rings().join("pod-7/nixl");
    fs::create_dir_all(&dir).expect("made");
    let mut writer = RingWriter::create(&dir.join("agent"), Layout::V4, 64).expect("a ring");
    writer.push(Kind::TxBytes, 4);
    becomes(&pmcd, &[("agent", 4)]);
}

#[test]
fn ids_last_over_a_restart_of_pmcd() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let (mut b, mut c) = (ring(&home, "b"), ring(&home, "c"));
    b.push(Kind::TxBytes, 1);
    c.push(Kind::TxBytes, 1);
    becomes(&pmcd, &[("b", 1), ("c", 1)]);
    let probe = |pmcd: &Pmcd| {
        let shown = run(pmcd.tool("pmprobe").args(["-i", TX_BYTES]));
        let names = run(pmcd.tool("pminfo").args(["-f", TX_BYTES]));
        (shown, names)
    };
    let (before, _) = probe(&pmcd);
    let cache = pmcd.path("var/config/pmda/39.0");
    wait_for("the ids are saved", 5, || {
        fs::read_to_string(&cache)
            .ok()
            .filter(|text| text.contains(" c"))
    });
    let kept = home.path("kept");
    fs::copy(&cache, &kept).expect("copied");
    pmcd.stop();
    // "a" would come before both if ids were given anew.
    let mut a = ring(&home, "a");
    a.push(Kind::TxBytes, 1);
    let again = Pmcd::start_with(&home, "again", |dir| {
        fs::create_dir_all(dir.join("var/config/pmda")).expect("made");
        fs::copy(&kept, dir.join("var/config/pmda/39.0")).expect("copied");
    });
    becomes(&again, &[("a", 1), ("b", 0), ("c", 0)]);
    let (_, names) = probe(&again);
    let ids = before
        .split_whitespace()
        .skip(2)
        .map(|id| id.trim_start_matches('?'))
        .collect::<Vec<_>>();
    for (id, name) in ids.iter().zip(["b", "c"]) {
        assert!(
            names.contains(&format!("inst [{id} or \"{name}\"]")),
            "{before}\n{names}"
        );
    }
    assert!(names.contains("inst [2 or \"a\"]"), "{names}");
}

#[test]
fn it_drains_once_more_and_ends_at_sigterm_and_when_pmcd_goes() {
    for end in ["SIGTERM", "EOF"] {
        let home = Home::new();
        // Only the last drain can come between the last push and the end.
        home.configure(&format!(
            "[nixl]\ntelemetry_dir = {:?}\ndrain_interval = \"1s\"\n",
            home.rings()
        ));
        let mut writer = ring(&home, "agent");
        let pmcd = Pmcd::start(&home);
        writer.push(Kind::TxBytes, 1);
        becomes(&pmcd, &[("agent", 1)]);
        let pid = pmcd.pmda_pid();
        writer.push(Kind::TxBytes, 1);
        let asked = Instant::now();
        if end == "SIGTERM" {
            signal(pid, Signal::SIGTERM);
        } else {
            signal(pmcd.pid(), Signal::SIGKILL);
        }
        wait_for("its last drain", 5, || {
            (writer.pending() == 0).then_some(())
        });
        let took = asked.elapsed();
        assert!(took < Duration::from_millis(150), "{end}: {took:?}");
        wait_for("its end", 5, || {
            pmcd.log().contains("Log finished").then_some(())
        });
        let why = if end == "SIGTERM" {
            "asked to end"
        } else {
            "pmcd has closed the connection"
        };
        assert!(pmcd.log().contains(why), "{}", pmcd.log());
    }
}

#[test]
fn sighup_and_sigio_change_nothing() {
    let home = Home::new();
    let mut writer = ring(&home, "agent");
    let pmcd = Pmcd::start(&home);
    let pid = pmcd.pmda_pid();
    for value in 1..=3 {
        signal(pid, Signal::SIGHUP);
        signal(pid, Signal::SIGIO);
        writer.push(Kind::TxBytes, value);
    }
    becomes(&pmcd, &[("agent", 6)]);
    assert_eq!(pmcd.pmda_pid(), pid);
}

#[test]
fn an_agent_that_runs_as_another_user_drains_that_users_rings_and_keeps_ids() {
    let home = Home::new();
    // pmcd and its files stay root's; the rings are nobody's.
    fs::set_permissions(
        home.path("."),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .expect("ours");
    home.configure(&format!(
        "[nixl]\nuser = \"nobody\"\ntelemetry_dir = {:?}\n",
        home.rings()
    ));
    let mut theirs = ring(&home, "theirs");
    std::os::unix::fs::chown(home.ring("theirs"), Some(65_534), Some(65_534)).expect("root");
    let mut roots = ring(&home, "roots");
    theirs.push(Kind::TxBytes, 1);
    roots.push(Kind::TxBytes, 1);
    let pmcd = Pmcd::start(&home);
    becomes(&pmcd, &[("theirs", 1)]);
    assert_eq!(roots.pending(), 1);
    let log = pmcd.log();
    assert!(log.contains("runs as user nobody"), "{log}");
    assert!(
        log.contains("/roots\": refused: a ring, but may not be written to"),
        "{log}"
    );
    let status = fs::read_to_string(format!("/proc/{}/status", pmcd.pmda_pid())).expect("it runs");
    assert!(
        status.contains("Uid:\t65534\t65534\t65534\t65534"),
        "{status}"
    );
    let cache = pmcd.path("var/config/pmda/39.0");
    wait_for("the ids are saved", 5, || {
        fs::read_to_string(&cache)
            .ok()
            .filter(|text| text.contains("theirs"))
    });
}
