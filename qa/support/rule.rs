// SPDX-License-Identifier: GPL-2.0-or-later

//! Rules of share/pmieconf, run by PCP's own pmieconf and pmie on archives.

use super::share::{archive, tool};
use super::writer::Kind;
use super::{Home, Pmcd, pcp, project, run, text, wait_for};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directory of the rules.
pub const RULES: &str = "share/pmieconf/nixl";

/// pmieconf with our rules and PCP's own global settings, which writes that file.
pub fn pmieconf(home: &Home) -> Command {
    let global = format!("{}/config/pmieconf/global", pcp("PCP_VAR_DIR"));
    let mut pmieconf = tool("pmieconf");
    pmieconf
        .arg("-r")
        .arg(format!("{}:{global}", project(RULES).display()))
        .arg("-f")
        .arg(home.path("pmie.conf"));
    pmieconf
}

/// Messages of the rules in a configuration of pmie on an archive, in the order of time.
pub fn said_by(config: &Path, archive: &Path) -> Vec<String> {
    let mut pmie = tool("pmie");
    pmie.args(["-q", "-z", "-a"]).arg(archive).arg("-c");
    let said = run(pmie.arg(config));
    let lines = said.lines().filter_map(|line| line.strip_prefix("shell "));
    lines
        .map(|line| line.split_once(": echo ").expect("an action").1.to_owned())
        .collect()
}

/// Writes a configuration of pmie that has these rules on, with messages by echo. Returns its path.
pub fn configure(home: &Home, rules: &[Rule]) -> PathBuf {
    let config = home.path("pmie.conf");
    // Rules that are on in a configuration stay on.
    let _ = std::fs::remove_file(&config);
    let mut pmieconf = pmieconf(home);
    let mut child = pmieconf
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmieconf is installed: scripts/setup check");
    let mut commands = String::new();
    for Rule { name, settings, .. } in rules {
        writeln!(commands, "enable nixl.{name}").expect("a string");
        for (variable, value) in *settings {
            writeln!(commands, "modify nixl.{name} {variable} {value}").expect("a string");
        }
    }
    commands += "modify global syslog_action no\nmodify global user_action yes\nquit\n";
    let mut input = child.stdin.take().expect("piped");
    input.write_all(commands.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("our child");
    assert!(output.status.success(), "{commands}{}", text(&output));
    assert!(output.stderr.is_empty(), "{}", text(&output));
    config
}

/// One enabled rule, for archives with a fixed sample interval.
pub struct Rule {
    name: &'static str,
    seconds: u32,
    settings: &'static [(&'static str, &'static str)],
}

impl Rule {
    /// The rule with its default variables, for archives with one sample each minute.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            seconds: 60,
            settings: &[],
        }
    }

    /// Sets variables of the rule.
    pub fn with(mut self, settings: &'static [(&'static str, &'static str)]) -> Self {
        self.settings = settings;
        self
    }

    /// Sets the sample interval of the archives, in seconds.
    pub fn every(mut self, seconds: u32) -> Self {
        self.seconds = seconds;
        self
    }

    /// Messages of the rule for a table of samples.
    pub fn says(&self, table: &str) -> Vec<String> {
        let home = Home::new();
        let path = home.path("archive");
        archive(&path, self.seconds, table);
        self.says_of(&home, &path)
    }

    /// Messages of the rule in the order of time. The rule must be silent for 10 minutes after each.
    pub fn says_of(&self, home: &Home, path: &Path) -> Vec<String> {
        said_by(&configure(home, std::slice::from_ref(self)), path)
    }

    /// Asserts that the rule fires once on these samples, with this message.
    pub fn fires(&self, table: &str, expected: &str) {
        assert_eq!(self.says(table), [expected], "{}\n{table}", self.name);
    }

    /// Asserts that the rule does not fire on these samples.
    pub fn is_silent(&self, table: &str) {
        assert!(
            self.says(table).is_empty(),
            "{}: {:?}\n{table}",
            self.name,
            self.says(table)
        );
    }
}

/// Loses events of each kind with an agent that leaves before this returns. The home's `retain` must be 0.
pub fn lose_and_leave(home: &Home, pmcd: &Pmcd) {
    let full = || pmcd.values("nixl.host.ring.full").remove("");
    let before = full();
    let mut ring = home.new_ring("brief", 256);
    for _ in 0..90 {
        assert!(ring.push(Kind::Backend, 1) && ring.push(Kind::EventsDropped, 3));
    }
    while ring.push(Kind::TxBytes, 1) {}
    wait_for("the full ring is counted", || {
        (full() > before).then_some(())
    });
    drop(ring);
    wait_for("the agent has left", || {
        (!pmcd.sent().contains_key("brief")).then_some(())
    });
}
