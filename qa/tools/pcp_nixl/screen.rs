// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl` on a terminal: its size, its redraws, and lost connections.

use super::{minutes, of_archive, pcp};
use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, Pmcd, run, soon, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::PathBuf;
use std::process::{Child, Stdio};

#[test]
fn very_narrow_terminal_does_not_stop_the_command() {
    let home = Home::new();
    let path = minutes(&home);
    for (columns, heading) in [("1", ""), ("2", "."), ("3", ".."), ("4", "h..")] {
        let mut narrow = of_archive(&home, &path, &["-t", "60", "-1"]);
        let mut narrow = narrow
            .env("COLUMNS", columns)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let ended = soon(|| narrow.try_wait().expect("our child"));
        // Otherwise, the command would run after the test.
        narrow.kill().expect("our child");
        let said = narrow.wait_with_output().expect("our child");
        assert!(ended.is_some(), "{columns} columns");
        assert_eq!(text(&said).lines().next(), Some(heading));
    }
}

/// `pcp nixl` on a terminal of ten lines. Dropping it ends the command.
struct Screen {
    script: Child,
    typescript: PathBuf,
}

impl Screen {
    fn start(home: &Home, pmcd: &Pmcd, name: &str, retry: Option<&str>) -> Self {
        let typescript = home.path(name);
        let mut script = pcp(home, pmcd.tool("script"));
        script.env("LINES", "10").env("TERM", "xterm");
        script.env_remove("PMCD_RECONNECT_TIMEOUT");
        script.envs(retry.map(|seconds| ("PMCD_RECONNECT_TIMEOUT", seconds)));
        script.args(["-qfec", "pcp nixl -t 0.2"]).arg(&typescript);
        let script = script.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Self {
            script: script.expect("it starts"),
            typescript,
        }
    }

    /// Whole output so far.
    fn drawn(&self) -> String {
        std::fs::read_to_string(&self.typescript).unwrap_or_default()
    }

    /// Number of occurrences of a text in the output.
    fn count(&self, text: &str) -> usize {
        self.drawn().matches(text).count()
    }

    /// Waits until the last screen has the agent.
    fn shows_steady(&self) {
        wait_for("the agent is shown", || {
            let drawn = self.drawn();
            let (_, last) = drawn.rsplit_once("\x1b[H\x1b[J")?;
            last.contains("steady ").then_some(())
        });
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.script.id()) {
            // The command ends with its terminal.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = self.script.wait();
    }
}

#[test]
fn screen_shows_a_missing_answer_and_recovers() {
    let home = Home::new();
    let _ring = home.new_ring("steady", 64);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("steady", 0)]);
    let screen = Screen::start(&home, &pmcd, "typescript", None);
    screen.shows_steady();
    let signal = |pid: u32, signal| {
        let pid = i32::try_from(pid).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    };
    signal(pmcd.pmda_pid(), Signal::SIGKILL);
    wait_for("the lost connection is shown", || {
        let lost = "  no values: pmdanixl has not answered since ";
        (screen.count(lost) > 0).then_some(())
    });
    // pmcd restarts PMDAs that have ended.
    signal(pmcd.pid(), Signal::SIGHUP);
    screen.shows_steady();
}

#[test]
fn screen_resumes_when_pmcd_returns_or_after_the_given_time() {
    const AWAY: &str = "  no values: pmcd does not answer, or pmdanixl has just ended";
    let home = Home::new();
    let _ring = home.new_ring("steady", 64);
    let mut pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("steady", 0)]);
    let at_once = Screen::start(&home, &pmcd, "at-once", None);
    let later = Screen::start(&home, &pmcd, "later", Some("3600"));
    for screen in [&at_once, &later] {
        screen.shows_steady();
    }
    pmcd.kill();
    // By default, libpcp would reconnect after 5 s, 10 s more, 20 s more and so on.
    for screen in [&at_once, &later] {
        wait_for("the lost connection is shown", || {
            (screen.count(AWAY) >= 40).then_some(())
        });
    }
    pmcd.start_anew();
    pmcd.wait_until_it_answers();
    let before = at_once.count(AWAY);
    at_once.shows_steady();
    let missed = at_once.count(AWAY) - before;
    assert!(missed < 15, "{missed} times after pmcd was back");
    let before = later.count(AWAY);
    wait_for("the second command has not reconnected", || {
        (later.count(AWAY) >= before + 10).then_some(())
    });
}

#[test]
fn terminal_shows_one_screen_of_agents() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _rings: Vec<_> = (0..20)
        .map(|number| {
            let path = home.ring(format!("agent-{number:02}"));
            RingWriter::create(&path, Layout::V4, 16).expect("a ring")
        })
        .collect();
    wait_for("all are there", || {
        (pmcd.count("nixl.agent.state") == 20).then_some(())
    });
    let mut script = pcp(&home, pmcd.tool("script"));
    script.env("LINES", "10").env("TERM", "xterm");
    script
        .args(["-qec", "pcp nixl -t 0.2 -s 2 -k agent"])
        .arg(home.path("typescript"));
    let drawn = run(&mut script);
    let screens: Vec<_> = drawn.split("\x1b[H\x1b[J").collect();
    assert_eq!((screens.len(), screens[0]), (3, ""), "{drawn}");
    for screen in &screens[1..] {
        let lines: Vec<_> = screen.lines().map(str::trim_end).collect();
        assert_eq!(lines.len(), 10, "{screen}");
        assert!(
            lines[2].starts_with("agent-00 ") && lines[8].starts_with("agent-06 "),
            "{screen}"
        );
        assert_eq!(lines[9], "... and 13 more");
    }
}
