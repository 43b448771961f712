// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl` for the servers and ranks of an engine.

use super::{minutes, of_archive, python};
use crate::support::sample::Sample;
use crate::support::share::{Logger, archive};
use crate::support::titled::Titled;
use crate::support::writer::{Layout, RingWriter};
use crate::support::{Home, Pmcd, golden, run, wait_for};
use nix::unistd::Uid;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Two minutes of two servers with two ranks each, of an agent with only a local rank, and of one without a server.
fn servers(home: &Home) -> PathBuf {
    let mut table = String::new();
    for (number, uuid, server, rank) in [
        (1, "b3a1", "vllm%20prefill:8100", "TP10"),
        (2, "0c57", "vllm%20decode:8200", "TP1"),
        (3, "77d0", "vllm%20prefill:8100", "TP2"),
        (4, "4fa1", "vllm%20decode:8200", "TP0"),
        (5, "e09b", "sglang", "rank%203"),
        (6, "9a53", "-", "-"),
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
        line(format!("nixl.agent.server {name} {server} {server}"));
        line(format!("nixl.agent.rank {name} {rank} {rank}"));
        // Only the pod of the labels is shown.
        line(format!("label {name} engine=other pod=pod-1 rank=other"));
    }
    let path = home.path("servers");
    archive(&path, 60, &table);
    path
}

#[test]
fn servers_and_ranks_distinguish_uuids_within_80_columns() {
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
fn json_has_server_rank_and_command_of_each_agent() {
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
    let [local, known, unknown] = [0, 1, 5].map(|at| fields(&path, at));
    assert_eq!(
        known,
        [
            text("vllm"),
            text("decode"),
            text("8200"),
            text("pod-1"),
            text("TP0"),
            command.clone()
        ]
    );
    let of_local = [
        text("sglang"),
        none.clone(),
        none.clone(),
        text("pod-1"),
        text("rank 3"),
        command.clone(),
    ];
    assert_eq!(local, of_local);
    let of_unknown = [&none, &none, &none, &text("pod-1"), &none, &command];
    assert_eq!(unknown.each_ref(), of_unknown);
    // Archives of versions without the labels and the metrics.
    assert_eq!(fields(&minutes(&home), 0), [const { Value::Null }; 6]);
}

#[test]
fn short_screen_keeps_the_busiest_agents_by_server() {
    let script = "
class Source(object):
    host, is_archive = 'host', False
    def names(self):
        return {inst: 'agent-%d' % inst for inst in range(8)}
    def labels(self, sample):
        return {}
    def process_shares(self, sample):
        return {}
    def clock(self, timestamp):
        return '', ''
# Most bytes: 7, 1, 3. Silent: 0 has exited, 2 is live, 4 has just started.
states = {0: 3, 1: 1, 2: 1, 3: 1, 4: 1, 5: 3, 6: 3, 7: 1}
sent = {0: 0, 1: 50, 2: 0, 3: 10, 4: 1, 5: 0, 6: 0, 7: 90}
def sample(time, *new):
    sums = {inst: rate * time for inst, rate in sent.items() if inst not in new}
    server, rank = ({inst: text % (7 - inst) for inst in range(6)} for text in ('vllm%.0s', 'TP%d'))
    return nixl.Sample(time, {'state': states, 'tx_bytes': sums, 'server': server, 'rank': rank})
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
fn server_column_is_dropped_on_narrow_lines() {
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
fn archive_has_engine_role_and_rank_of_later_agents() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let path = home.path("later");
    let logger = Logger::start(&pmcd, &path);
    logger.samples(2);
    let rings = ["4fa1c2de", "0c57c2de"].map(|uuid| home.ring(uuid));
    for ring in &rings {
        RingWriter::create(ring, Layout::V4, 4096).expect("a ring");
    }
    let transfer = r#"{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}"#;
    let arguments = ["serve", "m", "--port", "8200", "--kv-transfer-config"];
    let arguments = [&arguments[..], &[transfer]].concat();
    let uid = Uid::current().as_raw();
    let pause = [("PAUSE", "0.05")];
    let _server = Titled::start(&home.path("."), &arguments, &pause, &rings, uid);
    let _other = Sample::start(&home, "b3a1c2de", "--rate 20");
    wait_for("both ranks and the other agent are known", || {
        let ranks = pmcd.count("nixl.agent.rank");
        (ranks == 2 && pmcd.count("nixl.agent.command") == 3).then_some(())
    });
    logger.samples(4);
    drop(logger);
    let reports = run(&mut of_archive(&home, &path, &["-t", "1", "-j"]));
    let last: Value = serde_json::from_str(reports.lines().last().expect("one")).expect("JSON");
    let agents = last["agents"].as_array().expect("a list").iter();
    let agents = agents.map(|agent| {
        let fields = ["agent", "engine", "role", "port", "rank", "command"];
        fields.map(|field| agent[field].as_str().unwrap_or("-").to_owned())
    });
    let shown: Vec<_> = agents.map(|fields| fields.join(" ")).collect();
    let (server, title) = ("vllm decode 8200", "VLLM::Worker");
    assert_eq!(
        shown,
        [
            format!("4fa1c2de {server} TP0 {title}_TP0"),
            format!("0c57c2de {server} TP1 {title}_TP1"),
            "b3a1c2de - - - - producer".to_owned(),
        ]
    );
    let reports = run(&mut of_archive(&home, &path, &["-t", "1"]));
    let (_, last) = reports.rsplit_once("AGENT ").expect("a head");
    for row in [
        "4fa1c2de vllm decode:8200 TP0 ",
        "0c57c2de vllm decode:8200 TP1 ",
        "b3a1c2de producer ",
    ] {
        assert!(last.contains(&format!("\n{row}")), "{reports}");
    }
}
