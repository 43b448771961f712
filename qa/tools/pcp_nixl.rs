//! `pcp nixl`: what it shows of archives, of a live pmcd and on a terminal, and what it says where there is nothing to be shown.

use crate::support::share::{Logger, archive, link, tool};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, golden, output, project, run, soon, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const COMMAND: &str = "share/pcp/pcp-nixl";

/// `pcp nixl` of a user who has it where pcp(1) looks for commands of one's own.
fn pcp(home: &Home, mut command: Command) -> Command {
    let place = home.path(".pcp/bin/pcp-nixl");
    if !place.exists() {
        link(COMMAND, &place);
    }
    command.env("HOME", home.dir()).env("COLUMNS", "80");
    command
}

/// The same of an archive.
fn of_archive(home: &Home, path: &Path, options: &[&str]) -> Command {
    let mut command = pcp(home, tool("pcp"));
    command.arg("-a").arg(path).args(["nixl", "-z"]);
    command.args(options);
    command
}

/// Four minutes of an agent that is always there, one with a long name, one that leaves, one that comes, and one of which
/// nothing but its state is known.
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
        row("bandwidth.p50", &|_| 3_210_000_000 * number);
        row("errors.total", &|minute| minute * 4000 * number);
        row("ring.dropped", &|_| 123_456 * (number - 1));
        row("ring.full", &|_| number);
    }
    row("agent.state", "unknown", 0, 4, &|_| 0);
    let path = home.path("archive");
    archive(&path, 60, &table);
    path
}

#[test]
fn an_archive_is_shown_report_by_report_within_eighty_columns() {
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

/// Two minutes of two servers of two ranks each, of an agent that has only a local rank, and of one without labels.
fn servers(home: &Home) -> PathBuf {
    let mut table = String::new();
    for (number, uuid, labels) in [
        (1, "b3a1", "engine=vllm role=prefill port=8100 rank=TP10"),
        (
            2,
            "0c57",
            "engine=vllm role=decode port=8200 rank=TP1 local_rank=1",
        ),
        (
            3,
            "77d0",
            "engine=vllm role=prefill port=8100 rank=TP2 local_rank=2",
        ),
        (
            4,
            "4fa1",
            "engine=vllm role=decode port=8200 rank=TP0 local_rank=0",
        ),
        (5, "e09b", "engine=sglang local_rank=3"),
        (6, "9a53", ""),
    ] {
        let name = format!("{uuid}c2de-0b6e-4d0e-9a53-77d0c6a1{uuid}");
        let mut line = |line: String| writeln!(table, "{line}").expect("a string");
        line(format!("nixl.agent.state {name} 1 1"));
        line(format!(
            "nixl.agent.command {name} VLLM::Worker VLLM::Worker"
        ));
        line(format!(
            "nixl.transfer.tx_bytes {name} 0 {}",
            number * 60_000
        ));
        line(format!("nixl.transfer.tx_requests {name} 0 600"));
        line(format!("nixl.ring.full {name} 0 {number}"));
        if !labels.is_empty() {
            line(format!("label {name} {labels}"));
        }
    }
    let path = home.path("servers");
    archive(&path, 60, &table);
    path
}

#[test]
fn servers_and_ranks_of_uuids_are_told_apart_within_eighty_columns() {
    let home = Home::new();
    let path = servers(&home);
    let mut shown = String::new();
    for (columns, options) in [
        ("80", &["-t", "60"][..]),
        ("80", &["-t", "60", "-k", "bytes"]),
        ("80", &["-t", "60", "-k", "bw"]),
        ("120", &["-t", "60", "-k", "server"]),
        ("40", &["-t", "60"]),
    ] {
        let mut command = of_archive(&home, &path, options);
        let said = run(command.env("COLUMNS", columns));
        let width = columns.parse().expect("a number");
        assert!(said.lines().all(|line| line.len() < width), "{said}");
        let options = options.join(" ");
        write!(shown, "$ COLUMNS={columns} pcp nixl {options}\n{said}\n").expect("a string");
    }
    golden("pcp_nixl_servers.out", &shown);
}

#[test]
fn json_has_the_labels_and_the_command_of_each_agent() {
    let home = Home::new();
    let path = servers(&home);
    let fields = |path: &Path, at: usize| {
        let said = run(&mut of_archive(&home, path, &["-t", "60", "-1j"]));
        let report: Value = serde_json::from_str(&said).expect("JSON");
        let agent = &report["agents"][at];
        ["engine", "role", "port", "pod", "rank", "command"].map(|field| agent[field].clone())
    };
    let text = Value::from;
    let none = Value::Null;
    let command = text("VLLM::Worker");
    let [local, labelled, unlabelled] = [0, 1, 5].map(|at| fields(&path, at));
    assert_eq!(
        labelled,
        [
            text("vllm"),
            text("decode"),
            text("8200"),
            none.clone(),
            text("TP0"),
            command.clone()
        ]
    );
    let of_local = [
        text("sglang"),
        none.clone(),
        none.clone(),
        none.clone(),
        text("3"),
        command.clone(),
    ];
    assert_eq!(local, of_local);
    assert_eq!(unlabelled[..5], [const { Value::Null }; 5]);
    // Archives that were written before the labels and the metric were there.
    assert_eq!(fields(&minutes(&home), 0), [const { Value::Null }; 6]);
}

#[test]
fn short_screen_keeps_the_busiest_agents_in_the_order_of_servers() {
    let script = "
class Source(object):
    host, is_archive = 'host', False
    def names(self):
        return {inst: 'agent-%d' % inst for inst in range(8)}
    def labels(self, sample):
        return {inst: {'engine': 'vllm', 'rank': 'TP%d' % (7 - inst)} for inst in range(6)}
    def clock(self, timestamp):
        return '', ''
# Most bytes: 7, 1, 3. Silent: 0 has exited, 2 is live, 4 has just come.
states = {0: 3, 1: 1, 2: 1, 3: 1, 4: 1, 5: 3, 6: 3, 7: 1}
sent = {0: 0, 1: 50, 2: 0, 3: 10, 4: 1, 5: 0, 6: 0, 7: 90}
def sample(time, *new):
    sums = {inst: rate * time for inst, rate in sent.items() if inst not in new}
    return nixl.Sample(time, {'state': states, 'tx_bytes': sums})
samples = [sample(1, 4), sample(2)]
for key in ('server', 'name'):
    report = nixl.Report(Source(), *samples, key=key)
    for height in (8, 4):
        print([line.split()[0] for line in report.lines(80, height)[2:]])
";
    assert_eq!(
        python(script),
        "['agent-4', 'agent-3', 'agent-2', 'agent-1', 'agent-7', '...']
['agent-7', '...']
['agent-0', 'agent-1', 'agent-2', 'agent-3', 'agent-4', '...']
['agent-0', '...']
"
    );
}

#[test]
fn labels_are_read_once_for_each_set_of_instances_and_are_printable() {
    let script = "
import types
class Context(object):
    asked, answer = 0, {1: {'engine': 'a\\x1b[2J', 'port': 8100, 'rank': 'TP0'}}
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
source.context.answer = {1: {}, 2: {'rank': 'TP1'}}
print(*labels(3, 1, 2))
print(*labels(32.9, 1, 2))
print(*labels(33, 1, 2))
# Without an answer, it asks again, and what it knows of the agents that are there stays.
source.context.answer = nixl.pmapi.pmErr(-12386)
print(*labels(34, 2))
print(*labels(35, 2))
print(nixl.server_of(source.known_labels[2]), nixl.server_of({}), nixl.server_of({'port': '80'}))
";
    assert_eq!(
        python(script),
        "{1: {'engine': 'a%1B[2J', 'port': '8100', 'rank': 'TP0'}} 1
{1: {'engine': 'a%1B[2J', 'port': '8100', 'rank': 'TP0'}} 1
{1: {}, 2: {'rank': 'TP1'}} 2
{1: {}, 2: {'rank': 'TP1'}} 2
{1: {}, 2: {'rank': 'TP1'}} 3
{2: {'rank': 'TP1'}} 4
{2: {'rank': 'TP1'}} 5
TP1 None :80
"
    );
}

#[test]
fn help_explains_the_columns_and_names_the_manual_page() {
    let home = Home::new();
    let said = output(pcp(&home, tool("pcp")).args(["nixl", "--help"]));
    let said = text(&said);
    for part in [
        "pcp-nixl(1)",
        "\n  SERVER  engine, role:port and rank",
        "\n  BW      median bandwidth of single transfers in the last minute, bytes/s\n",
        "\n  DROP    events that NIXL dropped before they reached the ring\n",
        "\n  FULL    how often the ring was full: telemetry may have been lost\n",
    ] {
        assert!(said.contains(part), "{part:?}: {said}");
    }
}

#[test]
fn where_lines_are_short_the_last_columns_are_left_out_but_not_the_chosen_one() {
    let home = Home::new();
    let path = minutes(&home);
    for (columns, key, head) in [
        ("79", "full", "XFER/s    P50    P99    BW   ERR  DROP  FULL"),
        ("78", "bytes", "XFER/s    P50    P99    BW   ERR  DROP"),
        ("60", "err", "XFER/s    P50   ERR"),
        ("20", "bytes", "AGENT           STATE"),
        ("5", "full", "AGENT           FULL"),
    ] {
        let mut narrow = of_archive(&home, &path, &["-t", "60", "-1", "-k", key]);
        let said = run(narrow.env("COLUMNS", columns));
        let found = said.lines().nth(1).expect("a head");
        assert!(found.ends_with(head), "{said}");
        let width: usize = columns.parse().expect("a number");
        let widest = said.lines().skip(1).map(|line| line.chars().count()).max();
        assert!(widest < Some(width.max(22)), "{said}");
    }
}

#[test]
fn server_column_is_left_out_where_a_line_has_no_room_for_it() {
    let home = Home::new();
    let path = servers(&home);
    for (columns, head) in [
        ("20", "AGENT           STATE"),
        ("28", "AGENT           STATE"),
        ("29", "AGENT    SERVER        STATE"),
    ] {
        let mut narrow = of_archive(&home, &path, &["-t", "60", "-1"]);
        let said = run(narrow.env("COLUMNS", columns));
        assert!(said.contains(&format!("\n{head}")), "{columns}: {said}");
        let width: usize = columns.parse().expect("a number");
        let widest = said.lines().map(|line| line.chars().count()).max();
        assert!(widest < Some(width.max(22)), "{columns}: {said}");
    }
}

#[test]
fn a_terminal_of_hardly_any_columns_is_no_reason_not_to_end() {
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
        // It would go on after the test.
        narrow.kill().expect("our child");
        let said = narrow.wait_with_output().expect("our child");
        assert!(ended.is_some(), "{columns} columns");
        assert_eq!(text(&said).lines().next(), Some(heading));
    }
}

#[test]
fn json_has_what_the_table_has_and_no_value_is_null() {
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
    assert_eq!(came["tx_bytes_per_second"], Value::Null, "it has just come");
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
fn there_are_no_agents_only_where_an_archive_says_so() {
    let home = Home::new();
    // The host's network is logged all the time, NIXL from the third minute to the fifth.
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
            status == Some(1) && said.starts_with("pcp-nixl: there are no two samples"),
            "{said}"
        );
    }
    // A real one, of a host without agents.
    let pmcd = Pmcd::start(&home);
    let path = home.path("none");
    let logger = Logger::start(&pmcd, &path);
    logger.samples(3);
    drop(logger);
    let said = run(&mut of_archive(&home, &path, &["-1", "-t", "0.5"]));
    assert!(said.ends_with("\nno agents\n"), "{said}");
}

#[test]
fn a_time_that_is_no_whole_number_is_shown_as_it_is() {
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
fn what_the_python_pmda_has_logged_is_shown_without_what_it_has_not() {
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

#[test]
fn a_live_pmcd_is_shown_with_its_agents_and_without() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let live = |options: &[&str]| {
        let mut command = pcp(&home, pmcd.tool("pcp"));
        command.args(["nixl", "-t", "0.2"]).args(options);
        command
    };
    let none = run(&mut live(&["--once"]));
    assert!(
        none.contains("  tx -B/s  rx -B/s  0 agents\n") && none.ends_with("\nno agents\n"),
        "{none}"
    );
    let mut rings = ["one", "two"]
        .map(|name| RingWriter::create(&home.ring(name), Layout::V4, 64).expect("a ring"));
    for (ring, bytes) in rings.iter_mut().zip([1000, 2000]) {
        assert_eq!(ring.push_transfer(false, bytes, 150, 10), 4);
    }
    rings[0].push(Kind::Backend, 1);
    pmcd.becomes(&[("one", 1000), ("two", 2000)]);
    // All but whose it is and the time is the same each time.
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
        assert_eq!(
            agent["tx_bytes_per_second"], 0.0,
            "no more was sent meanwhile"
        );
    }
}

#[test]
fn an_agent_that_leaves_meanwhile_is_in_no_later_report_of_the_same_run() {
    let home = Home::new();
    home.set("retain = \"0s\"");
    let pmcd = Pmcd::start(&home);
    let [stays, leaves] = ["stays", "leaves"]
        .map(|name| RingWriter::create(&home.ring(name), Layout::V4, 64).expect("a ring"));
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
fn one_that_leaves_between_its_values_and_the_names_is_left_out() {
    let script = "
class Source(object):
    def names(self):
        return {1: 'stays'}
    def labels(self, sample):
        return {}
samples = [nixl.Sample(time, {'tx_bytes': {1: 10 * time, 2: time}}) for time in (1, 2)]
report = nixl.Report(Source(), *samples, key='tx_rate')
print([(agent['name'], agent['tx_rate']) for agent in report.agents])
";
    assert_eq!(python(script).trim(), "[('stays', 10.0)]");
}

#[test]
fn no_value_is_wider_than_its_column() {
    let script = "
values = [0] + [int(f * 10 ** e) for e in range(20) for f in (1, 1.00499, 3.14159, 9.949, 9.99, 9.9999)]
for column in nixl.COLUMNS[1:]:
    texts = [column.shown(value) for value in values]
    assert max(map(len, texts)) <= column.width, (column.head, texts)
print([nixl.duration(10 ** e) for e in range(0, 17, 2)])
";
    assert_eq!(
        python(script).trim(),
        "['1us', '100us', '10.0ms', '1.00s', '100s', '2.78h', '278h', '1157d', '>9999d']"
    );
}

#[test]
fn no_character_takes_more_places_of_a_line_than_are_counted_for_it() {
    let script = "
import ctypes, locale
locale.setlocale(locale.LC_ALL, 'C.UTF-8')
libc = ctypes.CDLL(None)
libc.wcwidth.argtypes = [ctypes.c_wchar]
shown = [char for char in map(chr, range(0x20, sys.maxunicode + 1)) if char.isprintable()]
print([hex(ord(char)) for char in shown if libc.wcwidth(char) > nixl.places(char)])
# Marks of none, one and two places; one that only some terminals have as wide, and one that only newer ones have.
print([nixl.places(60 * char) for char in '\\u0301\\u0488\\u0903\\u302e\\u3248\\u4dc0'])
print([len(nixl.fitted(60 * char, 21)) for char in '\\u0903\\u302e'])
";
    assert_eq!(python(script), "[]\n[0, 0, 60, 120, 120, 120]\n[21, 12]\n");
}

#[test]
fn no_name_has_a_twin_that_looks_like_it() {
    let script = "
print([nixl.printable(name) for name in ('a', 'größe-日本語', 'a\\x1b[2J', 'a\\u115f', 'a\\ufe0f', 'a\\U000e0100')])
invisible = [0x34f, 0x115f, 0x1160, 0x17b4, 0x17b5, *range(0x180b, 0x1810), 0x2800, 0x3164, *range(0xfe00, 0xfe10), 0xffa0, 0x1d159,
    *range(0x1d173, 0x1d17b), *range(0xe0000, 0xe1000)]
seen = {nixl.printable('a' + chr(char)) for char in invisible}
print(len(seen) == len(invisible) and all(name.startswith('a%') and name.isascii() for name in seen))
";
    assert_eq!(
        python(script),
        "['a', 'größe-日本語', 'a%1B[2J', 'a%E1%85%9F', 'a%EF%B8%8F', 'a%F3%A0%84%80']\nTrue\n"
    );
}

/// Runs a script that has the command as a module.
fn python(script: &str) -> String {
    const AS_MODULE: &str = "
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.SourceFileLoader('nixl', sys.argv[1])
nixl = importlib.util.module_from_spec(importlib.util.spec_from_loader('nixl', loader))
loader.exec_module(nixl)
";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-B", "-c", &format!("{AS_MODULE}{script}")]);
    run(python.arg(project(COMMAND)))
}

#[test]
fn an_agent_of_pcp_s_that_does_not_answer_is_not_taken_for_none_of_nixl_s() {
    let home = Home::new();
    let _ring = RingWriter::create(&home.ring("a"), Layout::V4, 64).expect("a ring");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("a", 0)]);
    let shown = || output(pcp(&home, pmcd.tool("pcp")).args(["nixl", "-1j", "-t", "0.2"]));
    assert!(text(&shown()).contains("\"agent\": \"a\""));
    let pid = i32::try_from(pmcd.pmda_pid()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    wait_for("it is missed", || {
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

/// `pcp nixl` on a terminal of ten lines, until the value ends.
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

    /// All that was drawn.
    fn drawn(&self) -> String {
        std::fs::read_to_string(&self.typescript).unwrap_or_default()
    }

    /// How often this was drawn.
    fn count(&self, text: &str) -> usize {
        self.drawn().matches(text).count()
    }

    /// Waits until what was drawn last has the agent.
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
            // What it runs ends with it.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let _ = self.script.wait();
    }
}

#[test]
fn a_screen_says_that_there_is_no_answer_and_goes_on_when_there_is_one() {
    let home = Home::new();
    let _ring = RingWriter::create(&home.ring("steady"), Layout::V4, 64).expect("a ring");
    let pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("steady", 0)]);
    let screen = Screen::start(&home, &pmcd, "typescript", None);
    screen.shows_steady();
    let signal = |pid: u32, signal| {
        let pid = i32::try_from(pid).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    };
    signal(pmcd.pmda_pid(), Signal::SIGKILL);
    wait_for("it is missed", || {
        (screen.count("  no values: ") > 0).then_some(())
    });
    // pmcd starts agents anew that have ended.
    signal(pmcd.pid(), Signal::SIGHUP);
    screen.shows_steady();
}

#[test]
fn a_screen_goes_on_when_pmcd_is_back_unless_the_user_wants_it_later() {
    const AWAY: &str = "  no values: pmcd does not answer";
    let home = Home::new();
    let _ring = RingWriter::create(&home.ring("steady"), Layout::V4, 64).expect("a ring");
    let mut pmcd = Pmcd::start(&home);
    pmcd.becomes(&[("steady", 0)]);
    let at_once = Screen::start(&home, &pmcd, "at-once", None);
    let later = Screen::start(&home, &pmcd, "later", Some("3600"));
    for screen in [&at_once, &later] {
        screen.shows_steady();
    }
    pmcd.kill();
    // Of itself libpcp would try after 5 s, 10 s more, 20 s more and so on.
    for screen in [&at_once, &later] {
        wait_for("it is missed", || (screen.count(AWAY) >= 40).then_some(()));
    }
    pmcd.start_anew();
    pmcd.wait_until_it_answers();
    let before = at_once.count(AWAY);
    at_once.shows_steady();
    let missed = at_once.count(AWAY) - before;
    assert!(missed < 15, "{missed} times after pmcd was back");
    let before = later.count(AWAY);
    wait_for("the other does not ask yet", || {
        (later.count(AWAY) >= before + 10).then_some(())
    });
}

#[test]
fn names_of_any_script_and_length_are_whole_where_nobody_says_how_wide_a_line_is() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let names = ["ünïcode-日本語".to_owned(), "n".repeat(150)];
    let _rings = names
        .each_ref()
        .map(|name| RingWriter::create(&home.ring(name), Layout::V4, 16).expect("a ring"));
    wait_for("both are there", || {
        (pmcd.count("nixl.agent.state") == 2).then_some(())
    });
    let mut command = pcp(&home, pmcd.tool("pcp"));
    command
        .args(["nixl", "-1", "-t", "0.2"])
        .env_remove("COLUMNS");
    let shown = run(&mut command);
    // A terminal without these characters is no reason to end.
    let poor = run(command.env("PYTHONIOENCODING", "ascii"));
    assert!(poor.contains("n?code-"), "{poor}");
    command.env_remove("PYTHONIOENCODING");
    let said = run(command.arg("-j"));
    for name in names {
        assert!(shown.contains(&format!("\n{name} ")), "{shown}");
        assert!(
            serde_json::from_str::<Value>(&said).expect("JSON")["agents"]
                .as_array()
                .is_some_and(|agents| agents.iter().any(|agent| agent["agent"] == *name)),
            "{said}"
        );
    }
}

#[test]
fn on_a_terminal_it_is_one_screen_with_as_many_agents_as_there_is_room_for() {
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

#[test]
fn where_there_is_nothing_to_be_shown_it_says_why_and_what_to_do() {
    let home = Home::new();
    let path = minutes(&home);
    let refused = |command: &mut Command, expected: &str| {
        let said = output(command);
        let said = (said.status.code(), text(&said));
        assert!(said.0 == Some(1) && said.1.contains(expected), "{said:?}");
        assert!(!said.1.contains("Traceback"), "{said:?}");
    };
    refused(
        &mut of_archive(&home, &path, &["-k", "nope"]),
        "--sort nope: there is no such column; take one of agent, bw, bytes,",
    );
    refused(
        &mut of_archive(&home, &path, &["once"]),
        "once: there is no such argument",
    );
    refused(
        &mut of_archive(&home, &path, &["-t", "1hour"]),
        "try a shorter interval (-t)",
    );
    refused(
        &mut of_archive(&home, &path, &["--nope"]),
        "Usage: pcp-nixl [options]",
    );
    let other = home.path("other");
    archive(&other, 10, "network.interface.in.bytes eth0 1 2\n");
    refused(
        &mut of_archive(&home, &other, &[]),
        "nixl.transfer.tx_bytes: there is no such metric: the agent is not installed (pmdanixl(1)), or the archive has nothing of NIXL",
    );
    refused(
        &mut of_archive(&home, &home.path("none"), &[]),
        "pcp-nixl: ",
    );
    // Whoever reads it may have seen enough.
    let mut shell = pcp(&home, tool("sh"));
    let command = format!("pcp -a {} nixl -z -t 60 | head -n 1", path.display());
    let said = output(shell.args(["-c", &command]));
    assert!(
        said.stderr.is_empty() && text(&said).lines().count() == 1,
        "{}",
        text(&said)
    );
}
