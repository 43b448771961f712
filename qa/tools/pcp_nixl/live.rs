// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl` with a live pmcd.

use super::{pcp, python};
use crate::support::writer::Kind;
use crate::support::{Home, Pmcd, golden, output, run, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn live_pmcd_is_shown_with_and_without_agents() {
    let home = Home::new();
    // The name of this process is another one after each build.
    home.set("proc_facts = false");
    let pmcd = Pmcd::start(&home);
    let live = |options: &[&str]| {
        let mut command = pcp(&home, pmcd.tool("pcp"));
        command.args(["nixl", "-t", "0.2"]).args(options);
        command
    };
    let none = run(&mut live(&["--once"]));
    assert!(
        none.contains("  tx 0B/s  rx 0B/s  0 agents\n")
            && none.ends_with("\nno agents: pmdanixl --check on the host says why\n"),
        "{none}"
    );
    let mut rings = ["one", "two"].map(|name| home.new_ring(name, 64));
    for (ring, bytes) in rings.iter_mut().zip([1000, 2000]) {
        assert_eq!(ring.push_transfer(false, bytes, 150, 10), 4);
    }
    rings[0].push(Kind::Backend, 1);
    pmcd.becomes(&[("one", 1000), ("two", 2000)]);
    // Only the host and the time differ between runs.
    let shown = run(&mut live(&["-1", "-k", "agent"]));
    let (head, table) = shown.split_once('\n').expect("two lines");
    let (_, head) = head.split_once("  tx ").expect("what all of them send");
    golden(
        "pcp_nixl_live.out",
        &format!("HOST  TIME  tx {head}\n{table}"),
    );
    let said = run(&mut live(&["-1j", "-k", "agent"]));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    for (at, name, bytes, errors) in [(0, "one", 1000, 1), (1, "two", 2000, 0)] {
        let agent = &said["agents"][at];
        assert_eq!(
            (&agent["agent"], &agent["state"]),
            (&name.into(), &"live".into())
        );
        assert_eq!(
            (&agent["tx_bytes"], &agent["errors"]),
            (&bytes.into(), &errors.into())
        );
        assert_eq!(agent["tx_bytes_per_second"], 0.0, "no event in between");
    }
}

#[test]
fn agent_that_leaves_is_in_no_later_report() {
    let home = Home::new();
    home.set("retain = \"0s\"");
    let pmcd = Pmcd::start(&home);
    let [stays, leaves] = ["stays", "leaves"].map(|name| home.new_ring(name, 64));
    pmcd.becomes(&[("stays", 0), ("leaves", 0)]);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    command.args(["nixl", "-j", "-t", "0.1", "-k", "agent"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut reports = lines.map(|line| -> Vec<String> {
        let report: Value = serde_json::from_str(&line.expect("UTF-8")).expect("JSON");
        let agents = report["agents"].as_array().expect("a list").iter();
        agents
            .map(|agent| agent["agent"].as_str().expect("a name").to_owned())
            .collect()
    });
    assert_eq!(reports.next().expect("a report"), ["leaves", "stays"]);
    drop(leaves);
    let after = reports.find(|agents| agents.len() < 2);
    assert_eq!(after.expect("a report"), ["stays"]);
    drop(stays);
    assert!(reports.any(|agents| agents.is_empty()));
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

#[test]
fn reports_go_on_after_the_pmda_or_pmcd_did_not_answer() {
    let home = Home::new();
    let _ring = home.new_ring("steady", 64);
    let mut pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("steady", 0)]);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    command.args(["nixl", "-j", "-t", "0.1"]);
    let errors = home.path("errors");
    command.stderr(File::create(&errors).expect("made"));
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut report = || {
        let line = lines.next().expect("it goes on").expect("UTF-8");
        assert!(line.contains("\"agent\": \"steady\""), "{line}");
    };
    let waits = |count: usize| {
        wait_for("the command says that it waits", || {
            let said = fs::read_to_string(&errors).expect("there");
            let found = said.matches("; waiting until it answers\n").count();
            assert!(found <= count && said.lines().count() == found, "{said}");
            (found == count).then_some(said)
        })
    };
    let signal = |pid: u32, signal| {
        let pid = i32::try_from(pid).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    };
    report();
    signal(pmcd.pmda_pid(), Signal::SIGKILL);
    let said = waits(1);
    let since = said.strip_prefix("pcp-nixl: pmdanixl has not answered since ");
    let (time, reason) = since.expect(&said).split_at(8);
    let is_time = time
        .split(':')
        .all(|part| part.parse::<u8>().is_ok_and(|part| part < 60));
    assert!(is_time && reason.starts_with(": "), "{said}");
    // pmcd restarts PMDAs that have ended.
    signal(pmcd.pid(), Signal::SIGHUP);
    report();
    pmcd.kill();
    waits(2);
    pmcd.start_anew();
    report();
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

#[test]
fn end_of_the_given_time_ends_a_command_that_waits() {
    let script = "
import types
class Source(object):
    is_archive, host, samples = False, 'host', 0
    def sample(self):
        self.samples += 1
        if self.samples > 1:
            raise nixl.NoValues(nixl.PM_ERR_IPC)
        return nixl.Sample(1, {})
    def reconnect(self):
        pass
    def clock(self, timestamp):
        return '', '00:00:01'
options = types.SimpleNamespace(
    once=False, json=True, key='name', pmGetOptionSamples=lambda: 0,
    finish=lambda: 0.2 + nixl.current_time(), pmGetOptionInterval=lambda: nixl.pmapi.timeval(0, 50000))
print('reports:', nixl.run(options, Source()))
";
    let said = python(script);
    assert!(said.contains("reports: 0\n"), "{said}");
}

/// A host whose clock is an hour ahead, or behind.
#[test]
fn end_of_the_given_time_is_that_of_the_own_clock() {
    let script = "
import types
class Source(object):
    is_archive, host = False, 'host'
    def __init__(self, ahead):
        self.ahead, self.context = ahead, None
    def sample(self):
        return nixl.Sample(nixl.current_time() + self.ahead, {'tx_bytes': {}})
    def names(self):
        return {}
    labels = process_shares = lambda self, sample: {}
    def clock(self, timestamp):
        return '', '00:00:01'
class Events(object):
    def __init__(self, source):
        self.source = source
    def read(self):
        time = nixl.current_time() + self.source.ahead
        return time, [{'timestamp': time}]
for name in ('events', 'one_host'):
    importlib.import_module('pcp_nixl.' + name).Events = Events
for ahead in (3600, -3600):
    for run in (nixl.run, nixl.run_events):
        end = nixl.current_time() + 0.3
        options = types.SimpleNamespace(
            once=False, json=True, key='name', has_start=False, pmGetOptionSamples=lambda: 0, delta=0,
            finish=lambda: end, pmGetOptionInterval=lambda: nixl.pmapi.timeval(0, 50000))
        run(options, Source(ahead))
        print('ended', nixl.current_time() > end)
";
    let said = python(script);
    let parts: Vec<_> = said.split("ended True\n").collect();
    let have_lines = parts[..4].iter().all(|part| part.contains("timestamp"));
    assert!(parts.len() == 5 && have_lines, "{said}");
}

/// An agent that is new or gone has no rate of its own, but has moved bytes.
#[test]
fn heading_has_the_rates_of_the_host() {
    let script = "
class Source(object):
    host = 'node1'
    def names(self):
        return {1: 'new'}
    def labels(self, sample):
        return {}
    def process_shares(self, sample):
        return {}
    def clock(self, timestamp):
        return '', '00:00:02'
for host in ({'host_tx': {-1: 0}, 'host_rx': {-1: 7}}, {'host_tx': {-1: 5000}, 'host_rx': {-1: 307}}), ({}, {}):
    before, now = ({'tx_bytes': {}}, host[0]), ({'tx_bytes': {1: 4000}}, host[1])
    samples = [nixl.Sample(time, dict(values[0], **values[1])) for time, values in ((1, before), (2, now))]
    print(nixl.Report(Source(), *samples, key='tx_rate').heading(80))
";
    let expected = "node1  00:00:02  tx 5.00KB/s  rx 300B/s  1 agent\nnode1  00:00:02  tx -B/s  rx -B/s  1 agent\n";
    assert_eq!(python(script), expected);
}

#[test]
fn agent_that_leaves_between_two_requests_is_omitted() {
    let script = "
class Source(object):
    def names(self):
        return {1: 'stays'}
    def labels(self, sample):
        return {}
    def process_shares(self, sample):
        return {}
samples = [nixl.Sample(time, {'tx_bytes': {1: 10 * time, 2: time}}) for time in (1, 2)]
report = nixl.Report(Source(), *samples, key='tx_rate')
print([(agent['name'], agent['tx_rate']) for agent in report.agents])
";
    assert_eq!(python(script).trim(), "[('stays', 10.0)]");
}

#[test]
fn pmda_that_does_not_answer_is_not_shown_as_no_agents() {
    let home = Home::new();
    let _ring = home.new_ring("a", 64);
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("a", 0)]);
    let shown = || output(pcp(&home, pmcd.tool("pcp")).args(["nixl", "-1j", "-t", "0.2"]));
    assert!(text(&shown()).contains("\"agent\": \"a\""));
    let pid = i32::try_from(pmcd.pmda_pid()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    wait_for("the lost connection is shown", || {
        let missed = shown();
        assert!(
            !text(&missed).contains("\"agents\": []"),
            "{}",
            text(&missed)
        );
        let is_said =
            text(&missed).starts_with("pcp-nixl: ") && !text(&missed).contains("installed");
        (!missed.status.success() && is_said).then_some(())
    });
}
