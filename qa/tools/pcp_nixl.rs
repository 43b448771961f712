// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl`: output for archives, a live pmcd and a terminal, and messages if there is no data.

mod columns;
mod host_lists;
mod hostile;
mod hosts;
mod hosts_screen;
mod live;
mod peers;
mod screen;
mod servers;
mod slow_hosts;

use crate::support::share::{Logger, archive, link, tool};
use crate::support::{Home, Pmcd, golden, output, project, run, text};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMMAND: &str = "share/pcp/pcp-nixl";
/// Directory of its package `pcp_nixl`.
const MODULES: &str = "share/pcp";

/// `pcp nixl`, installed as a command of the user for pcp(1).
pub(super) fn pcp(home: &Home, mut command: Command) -> Command {
    let place = home.path(".pcp/bin/pcp-nixl");
    if !place.exists() {
        link(COMMAND, &place);
    }
    command.env("HOME", home.dir()).env("COLUMNS", "80");
    command
}

/// `pcp nixl` for an archive.
fn of_archive(home: &Home, path: &Path, options: &[&str]) -> Command {
    let mut command = pcp(home, tool("pcp"));
    command.arg("-a").arg(path).args(["nixl", "-z"]);
    command.args(options);
    command
}

/// Four minutes of five agents: one lives all the time, one has a long name, one exits, one starts, and one has only a
/// state.
fn minutes(home: &Home) -> PathBuf {
    let mut table = String::new();
    let long = format!("4fa1c2de-{}-end", "very-long-name-".repeat(12));
    let mut row = |metric: &str, agent: &str, from: u64, upto: u64, value: &dyn Fn(u64) -> u64| {
        let values = (0..4).map(|minute| match (from..upto).contains(&minute) {
            true => value(minute).to_string(),
            false => "-".into(),
        });
        let values: Vec<_> = values.collect();
        writeln!(table, "nixl.{metric} {agent} {}", values.join(" ")).expect("a string");
    };
    for (number, agent, from, upto) in [
        (1, "stays", 0, 4),
        (2, &*long, 0, 4),
        (3, "leaves", 0, 3),
        (4, "comes", 2, 4),
    ] {
        let mut row = |metric: &str, value: &dyn Fn(u64) -> u64| {
            row(metric, agent, from, upto, value);
        };
        row("agent.state", &|minute| 1 + (minute + number) % 3);
        row("transfer.tx_bytes", &|minute| {
            minute * 60 * 1_234_567 * number
        });
        row("transfer.rx_bytes", &|minute| minute * 60 * 999 / number);
        row("transfer.tx_requests", &|minute| minute * 60 * 12_345);
        row("transfer.rx_requests", &|minute| minute * 60 * number);
        row("latency.xfer_time.p50", &|minute| {
            10_u64.pow(1 + u32::try_from(minute).expect("few"))
        });
        row("latency.xfer_time.p99", &|_| {
            10_u64.pow(u32::try_from(2 * number).expect("few")) - 1
        });
        row("operation.bandwidth.p50", &|_| 3_210_000_000 * number);
        row("errors.total", &|minute| minute * 4000 * number);
        row("queue.dropped", &|_| 123_456 * (number - 1));
        row("ring.full", &|_| number);
    }
    row("agent.state", "unknown", 0, 4, &|_| 0);
    let path = home.path("archive");
    archive(&path, 60, &table);
    path
}

#[test]
fn archive_is_shown_in_reports_within_80_columns() {
    let home = Home::new();
    let path = minutes(&home);
    let mut shown = String::new();
    for options in [
        &["-t", "60"][..],
        &["-t", "60", "--once", "--sort", "agent"],
        &["-t", "1min", "-s", "2", "-k", "p99", "-S", "1min"],
        &["-t", "60", "-j", "-s", "1"],
        &["-t", "60", "-T", "90", "-k", "agent"],
        &["-t", "60", "-O", "1min", "-s", "1"],
        &["-t", "60", "-S", "30", "-A", "1min", "-s", "1"],
    ] {
        let said = output(&mut of_archive(&home, &path, options));
        assert!(
            said.status.success() && said.stderr.is_empty(),
            "{}",
            text(&said)
        );
        let said = String::from_utf8(said.stdout).expect("UTF-8");
        if !options.contains(&"-j") {
            assert!(said.lines().all(|line| line.len() < 80), "{said}");
        }
        write!(shown, "$ pcp nixl {}\n{said}\n", options.join(" ")).expect("a string");
    }
    let mut elsewhere = pcp(&home, tool("pcp"));
    elsewhere.arg("-a").arg(&path);
    let said = run(elsewhere.args(["nixl", "-t", "60", "-1", "-Z", "EST5"]));
    assert!(said.starts_with("host  17:14:20  "), "{said}");
    let mut wide = of_archive(&home, &path, &["-t", "60", "-1"]);
    let wide = run(wide.env("COLUMNS", "300"));
    assert!(
        wide.contains(&format!("\n4fa1c2de-{}-end ", "very-long-name-".repeat(12))),
        "{wide}"
    );
    golden("pcp_nixl.out", &shown);
}

#[test]
fn labels_are_read_once_a_set_of_instances_and_printable() {
    let script = "
import types
class Context(object):
    asked, answer = 0, {1: {'pod': 'a\\x1b[2J', 'port': 8100}}
    def pmGetInstancesLabels(self, indom):
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
source = nixl.Source.__new__(nixl.Source)
source.context, source.metrics = Context(), [(None, None, 0)]
source.labelled, source.known_labels, source.labels_until = None, {}, float('-inf')
nixl.pmapi.get_indom = lambda desc: desc
def labels(time, *insts):
    return source.labels(nixl.Sample(time, {'tx_bytes': dict.fromkeys(insts, 0)})), source.context.asked
print(*labels(1, 1))
print(*labels(2, 1))
source.context.answer = {1: {}, 2: {'pod': 'b'}}
print(*labels(3, 1, 2))
print(*labels(32.9, 1, 2))
print(*labels(33, 1, 2))
# Without an answer, it asks again, and what it knows of the agents that are there stays.
source.context.answer = nixl.pmapi.pmErr(-12386)
print(*labels(34, 2))
print(*labels(35, 2))
";
    assert_eq!(
        python(script),
        "{1: {'pod': 'a%1B[2J', 'port': '8100'}} 1
{1: {'pod': 'a%1B[2J', 'port': '8100'}} 1
{1: {}, 2: {'pod': 'b'}} 2
{1: {}, 2: {'pod': 'b'}} 2
{1: {}, 2: {'pod': 'b'}} 3
{2: {'pod': 'b'}} 4
{2: {'pod': 'b'}} 5
"
    );
}

#[test]
fn help_explains_columns_and_names_the_manual_page() {
    let home = Home::new();
    let said = output(pcp(&home, tool("pcp")).args(["nixl", "--help"]));
    let said = text(&said);
    for part in [
        "pcp-nixl(1)",
        "\n  SERVER  engine, role:port and rank, else the command\n",
        "\n  BW      median bandwidth of single transfers in the last minute, bytes/s\n",
        "\n  TCP%    share of the bytes over TCP in the last minute; ! marks a fallback to TCP\n",
        "\n  FULL    how often the ring was full: telemetry may have been lost, how much is unknown\n",
        "\n  DROP    events that NIXL dropped before they reached the ring\n",
    ] {
        assert!(said.contains(part), "{part:?}: {said}");
    }
}

#[test]
fn json_has_the_values_of_the_table_and_no_null() {
    let home = Home::new();
    let path = minutes(&home);
    let said = run(&mut of_archive(
        &home,
        &path,
        &["-t", "60", "--json", "-k", "agent"],
    ));
    let reports: Vec<Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let names = |report: &Value| -> Vec<String> {
        let agents = report["agents"].as_array().expect("a list").iter();
        agents
            .map(|agent| agent["agent"].as_str().expect("a name").into())
            .collect()
    };
    assert_eq!(reports.len(), 3);
    assert_eq!(names(&reports[0])[1..], ["leaves", "stays", "unknown"]);
    assert_eq!(
        names(&reports[1])[1..],
        ["comes", "leaves", "stays", "unknown"]
    );
    assert_eq!(names(&reports[2])[1..], ["comes", "stays", "unknown"]);
    let [came, after] = [&reports[1]["agents"][1], &reports[2]["agents"][1]];
    assert_eq!(
        came["tx_bytes_per_second"],
        Value::Null,
        "it has just started"
    );
    assert_eq!(after["tx_bytes_per_second"], 1_234_567.0 * 4.0);
    assert_eq!(after["tx_bytes"], 3 * 60 * 1_234_567 * 4_u64);
    assert_eq!(after["transfers_per_second"], 12_345.0 + 4.0);
    let unknown = &reports[2]["agents"][3];
    assert_eq!(
        (&unknown["state"], &unknown["errors"]),
        (&"unknown".into(), &Value::Null)
    );
}

#[test]
fn no_agents_is_reported_only_if_an_archive_has_nixl() {
    let home = Home::new();
    // The network of the host is logged all the time, NIXL from the third minute to the fifth.
    let path = home.path("part");
    archive(
        &path,
        60,
        "network.interface.in.bytes eth0 0 1 2 3 4 5 6 7\nnixl.transfer.tx_bytes a - - 0 60 120 - - -\n",
    );
    let reports = |options: &[&str]| -> Vec<String> {
        let said = run(&mut of_archive(&home, &path, options));
        let reports = said.lines().map(|line| {
            let report: Value = serde_json::from_str(line).expect("JSON");
            let agents = report["agents"].as_array().expect("a list");
            format!("{}: {}", report["timestamp"], agents.len())
        });
        reports.collect()
    };
    assert_eq!(
        reports(&["-j", "-t", "30"]),
        ["150", "180", "210", "240"].map(|time| format!("1700000{time}.0: 1"))
    );
    assert_eq!(reports(&["-j1", "-t", "30"]), ["1700000150.0: 1"]);
    for options in [
        &["-t", "10", "-T", "90"][..],
        &["-t", "10", "-S", "5min"],
        &["-j1", "-t", "10", "-S", "5min"],
    ] {
        let said = output(&mut of_archive(&home, &path, options));
        let status = said.status.code();
        let said = text(&said);
        assert!(
            status == Some(1) && said.starts_with("pcp-nixl: that time has fewer than two samples"),
            "{said}"
        );
    }
    // A live pmcd without agents.
    let pmcd = Pmcd::start(&home);
    let path = home.path("none");
    let logger = Logger::start(&pmcd, &path);
    logger.samples(3);
    drop(logger);
    let said = run(&mut of_archive(&home, &path, &["-1", "-t", "0.5"]));
    assert!(said.ends_with("\nno agents\n"), "{said}");
}

#[test]
fn fractional_time_is_shown_unrounded() {
    let home = Home::new();
    let path = home.path("fractions");
    archive(
        &path,
        10,
        "nixl.transfer.tx_bytes a 0 1000\nnixl.latency.xfer_time.p50 a 0.5 0.5\nnixl.latency.xfer_time.p99 a 77.5 77.5\n",
    );
    let shown = run(&mut of_archive(&home, &path, &["-t", "10", "-1"]));
    assert!(shown.contains(" 0.5us 77.5us "), "{shown}");
    let said = run(&mut of_archive(&home, &path, &["-t", "10", "-1", "-j"]));
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let agent = &report["agents"][0];
    assert_eq!(agent["xfer_time_p50_us"], 0.5);
    assert_eq!(agent["xfer_time_p99_us"], 77.5);
}

#[test]
fn python_pmda_archive_is_shown_without_missing_columns() {
    let home = Home::new();
    let path = home.path("python");
    archive(
        &path,
        10,
        "nixl.transfer.tx_bytes a 0 1000 2000\nnixl.transfer.tx_requests a 0 10 20\n",
    );
    let said = run(&mut of_archive(&home, &path, &["-t", "10", "-1"]));
    let agent = said.lines().last().expect("a line");
    let fields: Vec<_> = agent.split_whitespace().collect();
    assert_eq!(
        fields,
        ["a", "-", "100", "-", "1.00", "-", "-", "-", "-", "-", "-"]
    );
}

/// Runs a Python script in which `nixl` has what all modules of the command have.
fn python(script: &str) -> String {
    const AS_MODULE: &str = "
import importlib, pkgutil, sys, types
sys.path.insert(0, sys.argv[1])
import pcp_nixl
nixl = types.SimpleNamespace()
for module in pkgutil.iter_modules(pcp_nixl.__path__):
    nixl.__dict__.update(vars(importlib.import_module('pcp_nixl.' + module.name)))
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-B", "-c", &format!("{AS_MODULE}{script}")]);
    run(python.arg(project(MODULES)))
}

#[test]
fn missing_data_is_reported_with_cause_and_action() {
    let home = Home::new();
    let path = minutes(&home);
    let fails_with = |command: &mut Command, expected: &str| {
        let said = output(command);
        let said = (said.status.code(), text(&said));
        assert!(said.0 == Some(1) && said.1.contains(expected), "{said:?}");
        assert!(!said.1.contains("Traceback"), "{said:?}");
    };
    fails_with(
        &mut of_archive(&home, &path, &["-k", "nope"]),
        "--sort nope: there is no such column; use one of agent, bw, bytes,",
    );
    fails_with(
        &mut of_archive(&home, &path, &["once"]),
        "once: there is no such argument",
    );
    fails_with(
        &mut of_archive(&home, &path, &["-t", "1hour"]),
        "or a shorter interval (-t)",
    );
    fails_with(
        &mut of_archive(&home, &path, &["--nope"]),
        "Usage: pcp-nixl [options]",
    );
    let other = home.path("other");
    archive(&other, 10, "network.interface.in.bytes eth0 1 2\n");
    fails_with(
        &mut of_archive(&home, &other, &[]),
        "nixl.transfer.tx_bytes: there is no such metric: the PMDA is not installed (pmdanixl(1)), or the archive has no metrics of NIXL",
    );
    fails_with(
        &mut of_archive(&home, &home.path("none"), &[]),
        "pcp-nixl: ",
    );
    // The reader may close the pipe early.
    let mut shell = pcp(&home, tool("sh"));
    let command = format!("pcp -a {} nixl -z -t 60 | head -n 1", path.display());
    let said = output(shell.args(["-c", &command]));
    assert!(
        said.stderr.is_empty() && text(&said).lines().count() == 1,
        "{}",
        text(&said)
    );
}
