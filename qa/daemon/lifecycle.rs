// SPDX-License-Identifier: GPL-2.0-or-later

//! Agents that appear, disappear and are replaced, and the start and end of the daemon, with a real pmcd.

use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, TX_BYTES, needs_root, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;

fn ring(home: &Home, name: &str) -> RingWriter {
    home.new_ring(name, 64)
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), signal).expect("it runs");
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let state = stat.rsplit(") ").next().expect("a state");
    state.starts_with('T')
}

#[test]
fn agent_exits_stays_for_retain_and_returns_with_totals_and_id() {
    needs_root();
    let home = Home::new();
    home.set("retain = \"1h\"");
    let pmcd = Pmcd::start(&home);
    let (mut stays, mut goes) = (ring(&home, "stays"), ring(&home, "goes"));
    stays.push(Kind::TxBytes, 1);
    goes.push(Kind::TxBytes, 2);
    pmcd.becomes(&[("goes", 2), ("stays", 1)]);
    let ids = run(pmcd.tool("pmprobe").args(["-i", TX_BYTES]));
    // The last values of the agent are counted, and published for `retain`.
    goes.push(Kind::TxBytes, 3);
    drop(goes);
    pmcd.becomes(&[("goes", 5), ("stays", 1)]);
    wait_for("the agent has exited", || {
        let shown = pmcd.shown(&["nixl.agent"]);
        let status = shown["nixl.agent.status"].get("goes")?;
        (status == "exited").then_some(())
    });
    assert_eq!(pmcd.sent()["goes"], 5, "published for retain");
    pmcd.configure(&home, "retain = \"0s\"");
    pmcd.becomes(&[("stays", 1)]);
    assert!(
        pmcd.log()
            .contains("agent goes: withdrawn: it has exited, and retain is over"),
        "{}",
        pmcd.log()
    );
    // A restart in place: the inode does not change, and the positions begin at 0.
    let mut goes = ring(&home, "goes");
    goes.push(Kind::TxBytes, 10);
    pmcd.becomes(&[("goes", 15), ("stays", 1)]);
    assert_eq!(run(pmcd.tool("pmprobe").args(["-i", TX_BYTES])), ids);
}

#[test]
fn unlinked_ring_is_drained_while_it_is_written_to() {
    let home = Home::new();
    home.set("retain = \"1s\"");
    let pmcd = Pmcd::start(&home);
    let mut old = ring(&home, "agent");
    old.push(Kind::TxBytes, 1);
    pmcd.becomes(&[("agent", 1)]);
    fs::remove_file(home.ring("agent")).expect("there");
    old.push(Kind::TxBytes, 10);
    pmcd.becomes(&[("agent", 11)]);
    // A new inode with this name, while the agent still writes to the old one: one agent.
    let mut new = ring(&home, "agent");
    new.push(Kind::TxBytes, 100);
    pmcd.becomes(&[("agent", 111)]);
    old.push(Kind::TxBytes, 1000);
    drop(old);
    pmcd.becomes(&[("agent", 1111)]);
    drop(new);
    pmcd.becomes(&[]);
}

#[test]
fn restart_with_another_layout_and_size_keeps_the_agent() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut total = 0;
    for (layout, capacity) in [
        (Layout::V4, 64),
        (Layout::V1, 256),
        (Layout::V3, 16),
        (Layout::V2Named, 1024),
        (Layout::V2, 16),
        // Version and capacity do not change, only the length of the file does.
        (Layout::V2Named, 16),
        (Layout::V2, 16),
        (Layout::V4, 16),
    ] {
        let mut writer = RingWriter::create(&home.ring("agent"), layout, capacity).expect("a ring");
        for value in 1..10 {
            assert!(writer.push(Kind::TxBytes, value));
            total += value;
        }
        pmcd.becomes(&[("agent", total)]);
        wait_for("the slots are released", || {
            (writer.pending() == 0).then_some(())
        });
    }
}

#[test]
fn truncated_ring_does_not_affect_other_rings() {
    let home = Home::new();
    let (mut cut, mut whole) = (ring(&home, "cut"), ring(&home, "whole"));
    cut.push(Kind::TxBytes, 1);
    whole.push(Kind::TxBytes, 1);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("cut", 1), ("whole", 1)]);
    let pid = pmcd.pmda_pid();
    for turn in 1..4 {
        // A sent signal does not take away the guard against the next one, which the kernel sends.
        signal(pid, Signal::SIGBUS);
        fs::write(home.ring("cut"), "").expect("there");
        wait_for("the truncation is noticed", || {
            (pmcd
                .log()
                .matches("agent cut: its ring was truncated")
                .count()
                == turn)
                .then_some(())
        });
        whole.push(Kind::TxBytes, 1);
        let now = 1 + turn as u64;
        pmcd.becomes(&[("cut", now - 1), ("whole", now)]);
        cut = ring(&home, "cut");
        cut.push(Kind::TxBytes, 1);
        pmcd.becomes(&[("cut", now), ("whole", now)]);
    }
    assert_eq!(pmcd.pmda_pid(), pid, "the daemon was not restarted");
}

#[test]
fn same_name_in_two_directories_is_two_agents() {
    let home = Home::new();
    let other = home.path("other");
    fs::create_dir(&other).expect("made");
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = [{:?}, {{ path = {other:?}, label = \"gpu1\" }}]\n",
        home.rings()
    ));
    let mut first = ring(&home, "agent");
    first.push(Kind::TxBytes, 1);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("agent", 1)]);
    // The first one that is found has the name without a label.
    let mut second = RingWriter::create(&other.join("agent"), Layout::V4, 64).expect("a ring");
    second.push(Kind::TxBytes, 2);
    pmcd.becomes(&[("agent", 1), ("agent@gpu1", 2)]);
}

#[test]
fn directories_that_match_a_pattern_later_are_scanned() {
    let home = Home::new();
    home.configure(&format!(
        "[nixl]\ntelemetry_dir = \"{}/pod-*/nixl\"\n",
        home.rings().display()
    ));
    let pmcd = Pmcd::start(&home);
    assert!(pmcd.sent().is_empty());
    let dir = home.rings().join("pod-7/nixl");
    fs::create_dir_all(&dir).expect("made");
    let mut writer = RingWriter::create(&dir.join("agent"), Layout::V4, 64).expect("a ring");
    writer.push(Kind::TxBytes, 4);
    pmcd.becomes(&[("agent", 4)]);
}

#[test]
fn ids_survive_a_restart_of_pmcd() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let (mut b, mut c) = (ring(&home, "b"), ring(&home, "c"));
    b.push(Kind::TxBytes, 1);
    c.push(Kind::TxBytes, 1);
    pmcd.becomes(&[("b", 1), ("c", 1)]);
    let probe = |pmcd: &Pmcd| {
        let shown = run(pmcd.tool("pmprobe").args(["-i", TX_BYTES]));
        let names = run(pmcd.tool("pminfo").args(["-f", TX_BYTES]));
        (shown, names)
    };
    let (before, _) = probe(&pmcd);
    let cache = pmcd.path("var/config/pmda/39.0");
    wait_for("the ids are saved", || {
        fs::read_to_string(&cache)
            .ok()
            .filter(|text| text.contains(" c"))
    });
    let kept = home.path("kept");
    fs::copy(&cache, &kept).expect("copied");
    pmcd.stop();
    // If ids were assigned again, "a" would come before both.
    let mut a = ring(&home, "a");
    a.push(Kind::TxBytes, 1);
    let again = Pmcd::start_with(&home, "again", |dir| {
        fs::create_dir_all(dir.join("var/config/pmda")).expect("made");
        fs::copy(&kept, dir.join("var/config/pmda/39.0")).expect("copied");
    });
    again.becomes(&[("a", 1), ("b", 0), ("c", 0)]);
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
    // Larger than any id that may have been assigned after the file was written.
    let new = names.lines().find_map(|line| {
        let (id, name) = line.split_once("inst [")?.1.split_once(" or ")?;
        name.starts_with("\"a\"").then_some(id)?.parse::<u32>().ok()
    });
    assert!(new >= Some(2), "{names}");
}

#[test]
fn ids_are_kept_for_a_week_after_the_last_use() {
    let home = Home::new();
    let mut seen = ring(&home, "seen");
    seen.push(Kind::TxBytes, 1);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("after 1970").as_secs();
    let days_ago = |days: u64| now - days * 24 * 60 * 60;
    // Format of pmdaCache: a header, then one line for each instance: id, time of the last use, name.
    let before = format!(
        "2 0 2147483647\n7 {} seen\n8 {} recent\n9 {} forgotten\n",
        days_ago(6),
        days_ago(6),
        days_ago(8)
    );
    let pmcd = Pmcd::start_with(&home, "pcp", |dir| {
        fs::create_dir_all(dir.join("var/config/pmda")).expect("made");
        fs::write(dir.join("var/config/pmda/39.0"), before).expect("written");
    });
    pmcd.becomes(&[("seen", 1)]);
    let cache = pmcd.path("var/config/pmda/39.0");
    let saved = wait_for("the time of the instance \"seen\" is written", || {
        let text = fs::read_to_string(&cache).ok()?;
        let line = text.lines().find(|line| line.ends_with(" seen"))?;
        let time: u64 = line.split(' ').nth(1)?.parse().ok()?;
        assert!(line.starts_with("7 "), "{text}\n{}", pmcd.log());
        (time >= now).then_some(text.clone())
    });
    assert!(saved.contains(&format!("8 {}", days_ago(6))), "{saved}");
    assert!(!saved.contains("forgotten"), "{saved}");
}

#[test]
fn daemon_drains_once_more_at_sigterm_and_at_the_end_of_pmcd() {
    for end in ["SIGTERM", "EOF"] {
        let home = Home::new();
        let mut writer = ring(&home, "agent");
        let pmcd = Pmcd::start(&home);
        writer.push(Kind::TxBytes, 1);
        pmcd.becomes(&[("agent", 1)]);
        let pid = pmcd.pmda_pid();
        // The daemon is stopped, so that its end comes before its next drain.
        signal(pid, Signal::SIGSTOP);
        wait_for("the daemon is stopped", || is_stopped(pid).then_some(()));
        assert!(writer.push(Kind::TxBytes, 1));
        if end == "SIGTERM" {
            signal(pid, Signal::SIGTERM);
        } else {
            signal(pmcd.pid(), Signal::SIGKILL);
        }
        signal(pid, Signal::SIGCONT);
        wait_for("the daemon has ended", || {
            pmcd.log().contains("Log finished").then_some(())
        });
        assert_eq!(writer.pending(), 0, "{end}: a last drain");
        let why = if end == "SIGTERM" {
            "SIGTERM or SIGINT received"
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
    pmcd.becomes(&[("agent", 6)]);
    assert_eq!(pmcd.pmda_pid(), pid);
}
