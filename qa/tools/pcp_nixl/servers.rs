// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl` for the servers and ranks of an engine.

use super::{minutes, of_archive, python};
use crate::support::share::archive;
use crate::support::{Home, golden, run};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Two minutes of two servers with two ranks each, of an agent with only a local rank, and of one without labels.
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
    // Archives of versions without the labels and the metric.
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
        return {inst: {'engine': 'vllm', 'rank': 'TP%d' % (7 - inst)} for inst in range(6)}
    def clock(self, timestamp):
        return '', ''
# Most bytes: 7, 1, 3. Silent: 0 has exited, 2 is live, 4 has just started.
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
