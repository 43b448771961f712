// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl --hosts`: live hosts of every kind, their events, and 200 hosts.

use super::pcp;
use crate::support::share::{Logger, tool};
use crate::support::writer::Kind;
use crate::support::{Home, PATIENCE, Pmcd, output, project, run, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pretended hosts (qa/many_hosts.py). Dropping it ends them.
pub(super) struct Hosts {
    child: Child,
    /// Host specifications: those that answer, that refuse, and that drop packets.
    pub(super) names: [Vec<String>; 3],
}

impl Hosts {
    /// Starts so many hosts of each kind, which all have this pmcd.
    pub(super) fn start(pmcd: &Pmcd, numbers: [usize; 3]) -> Self {
        let mut python = Command::new("/usr/bin/python3");
        python.arg(project("qa/many_hosts.py"));
        python.arg(pmcd.env("PMCD_SOCKET"));
        python.args(numbers.map(|number| number.to_string()));
        let python = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = python.expect("the distribution's Python");
        let listed = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut listed = listed.map(|line| line.expect("UTF-8"));
        let names = numbers.map(|number| listed.by_ref().take(number).collect());
        Self { child, names }
    }

    /// Writes the list of all of them, and of others.
    pub(super) fn list(&self, home: &Home, others: &[String]) -> PathBuf {
        let list = home.path("hosts");
        let names: Vec<_> = self.names.iter().flatten().chain(others).collect();
        let names = names.iter().map(|name| format!("{name}\n"));
        fs::write(&list, names.collect::<String>()).expect("written");
        list
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Address of a pmcd by TCP.
pub(super) fn address(pmcd: &Pmcd) -> String {
    format!("127.0.0.1:{}", pmcd.env("PMCD_PORT"))
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).expect("a pid");
    kill(Pid::from_raw(pid), signal).expect("it runs");
}

/// A command that writes lines of JSON. Dropping it ends the command.
pub(super) struct Lines {
    child: Child,
    lines: Box<dyn Iterator<Item = Value>>,
}

impl Lines {
    pub(super) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let lines =
            lines.map(|line| serde_json::from_str(&line.expect("UTF-8")).expect("a line of JSON"));
        Self {
            child,
            lines: Box::new(lines),
        }
    }

    /// Reads until the last line of each of these hosts fits.
    pub(super) fn until(&mut self, hosts: &[&str], fits: impl Fn(&str, &Value) -> bool) {
        let mut last = BTreeMap::new();
        let end = Instant::now() + PATIENCE;
        while !hosts
            .iter()
            .all(|host| last.get(*host).is_some_and(|line| fits(host, line)))
        {
            let line = self.lines.next().expect("it goes on");
            assert!(Instant::now() < end, "{hosts:?}: {last:?}");
            last.insert(line["host"].as_str().expect("a host").to_owned(), line);
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn live_hosts_answer_beside_dead_and_silent_ones() {
    let [home, other] = [Home::new(), Home::new()];
    let mut ring = home.new_ring("busy", 64);
    let (pmcd, mut without) = (Pmcd::start(&home), Pmcd::start(&other));
    pmcd.becomes(&[("busy", 0)]);
    let hosts = Hosts::start(&pmcd, [1, 1, 1]);
    let [answers, refuses, silent] = [0, 1, 2].map(|kind| hosts.names[kind][0].as_str());
    let dead = address(&without);
    let list = hosts.list(&home, std::slice::from_ref(&dead));
    let mut command = pcp(&home, pmcd.tool("pcp"));
    // The private pmcd raises it to two minutes.
    command.env("PMCD_CONNECT_TIMEOUT", "1");
    command.args(["nixl", "-j", "-t", "0.2", "-H"]).arg(&list);
    let mut lines = Lines::start(command);
    let is_error = |line: &Value, part: &str| {
        let error = line["error"].as_str();
        error.is_some_and(|error| error.contains(part)) && line["since"].is_number()
    };
    lines.until(
        &[answers, refuses, silent, &dead],
        |host, line| match host {
            _ if host == refuses => is_error(line, "Connection refused"),
            _ if host == silent => is_error(line, "it has not answered yet"),
            _ => line["error"].is_null() && line["tx_bytes_per_second"] == 0.0,
        },
    );
    lines.until(&[silent], |_, line| is_error(line, "no connection within"));

    // The PMDA of a host ends, then its pmcd, and both are back. The other host transfers and loses meanwhile.
    signal(without.pmda_pid(), Signal::SIGKILL);
    lines.until(&[&dead], |_, line| is_error(line, "pmdanixl"));
    assert_eq!(ring.push_transfer(false, 1_000_000, 150, 10), 4);
    ring.push(Kind::EventsDropped, 7);
    lines.until(&[answers], |_, line| line["dropped"] == 7);
    without.kill();
    lines.until(&[&dead], |_, line| is_error(line, "onnect"));
    without.start_anew();
    lines.until(&[&dead, answers], |_, line| line["error"].is_null());
    drop(lines);

    let mut once = pcp(&home, pmcd.tool("pcp"));
    once.env("PMCD_CONNECT_TIMEOUT", "1");
    let shown = run(once.args(["nixl", "-1", "-t", "0.5", "-H"]).arg(&list));
    let shown: Vec<_> = shown.lines().collect();
    assert!(shown[0].starts_with("2 of 4 hosts  "), "{shown:?}");
    assert!(shown[0].ends_with("  1 of 1 agents live"), "{shown:?}");
    assert_eq!(shown[1], "standing out: no answer 2");
    let order: Vec<_> = shown[3..]
        .iter()
        .map(|line| line.split(' ').next())
        .collect();
    let sorted = [refuses, silent, answers, &dead].map(Some);
    assert_eq!(order, sorted, "{shown:?}");
    assert!(shown[3].contains("no values since "), "{shown:?}");
}

#[test]
fn events_of_hosts_are_merged_in_the_order_of_time() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _ring = home.new_ring("first", 64);
    pmcd.becomes(&[("first", 0)]);
    let hosts = Hosts::start(&pmcd, [2, 1, 0]);
    let list = hosts.list(&home, &[]);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    let said = output(command.args(["nixl", "-e1", "-H"]).arg(&list));
    let shown = String::from_utf8_lossy(&said.stdout).into_owned();
    let of = |host: &str, kind: &str| {
        let part = format!(" {host} {kind} ");
        shown
            .lines()
            .position(|line| line.contains(&part))
            .unwrap_or_else(|| panic!("{part}: {shown}"))
    };
    for kind in ["configuration", "appeared     "] {
        let places = [0, 1].map(|host| of(&hosts.names[0][host], kind));
        assert_eq!(places[0].abs_diff(places[1]), 1, "{shown}");
    }
    let refused = format!("pcp-nixl: {}: Connection refused\n", hosts.names[1][0]);
    assert_eq!(String::from_utf8_lossy(&said.stderr), refused);

    // Two directories of archives, of the same pmcd.
    let farm = home.path("farm");
    for host in ["one", "two"] {
        fs::create_dir_all(farm.join(host)).expect("made");
        let logger = Logger::start(&pmcd, &farm.join(host).join("log"));
        logger.samples(2);
    }
    let mut command = pcp(&home, tool("pcp"));
    let shown = run(command.args(["nixl", "-ej", "-H"]).arg(&farm));
    let shown: Vec<Value> = shown
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let times: Vec<_> = shown
        .iter()
        .map(|event| event["timestamp"].as_f64().expect("a time"))
        .collect();
    assert!(times.is_sorted(), "{shown:?}");
    for host in ["one", "two"] {
        let is_there = |event: &Value| event["host"] == host && event["kind"] == "appeared";
        assert_eq!(
            shown.iter().filter(|event| is_there(event)).count(),
            1,
            "{shown:?}"
        );
    }
}

#[test]
#[ignore = "asserts a time"]
fn two_hundred_hosts_are_shown_within_two_seconds() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let _rings: Vec<_> = (0..8)
        .map(|number| home.new_ring(format!("agent-{number}"), 64))
        .collect();
    wait_for("all are there", || {
        (pmcd.count("nixl.agent.state") == 8).then_some(())
    });
    let hosts = Hosts::start(&pmcd, [160, 20, 20]);
    let list = hosts.list(&home, &[]);
    for attempt in 0..3 {
        let mut command = pcp(&home, pmcd.tool("pcp"));
        command.env_remove("PMCD_CONNECT_TIMEOUT");
        let begun = Instant::now();
        let shown = run(command.args(["nixl", "-1", "-H"]).arg(&list));
        let took = begun.elapsed();
        println!(
            "{attempt}: {took:?}: {}",
            shown.lines().next().expect("a heading")
        );
        assert!(shown.starts_with("160 of 200 hosts  "), "{shown}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
}
