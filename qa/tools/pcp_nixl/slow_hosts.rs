// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl --hosts`: a host on which all agents are slow, which no comparison within the host finds.

use super::{pcp, python};
use crate::support::share::{archive, tool};
use crate::support::{Home, golden, run};
use std::fs;

/// Writes an archive of a host with two ranks of a prefill server: median time in microseconds, and bandwidth.
fn host(home: &Home, name: &str, time: u32, bandwidth: u64, minutes: usize) {
    let path = home.path("farm").join(name);
    fs::create_dir_all(&path).expect("made");
    let mut table = String::new();
    let mut row = |metric: &str, instance: &str, value: &dyn Fn(usize) -> String| {
        let values: Vec<_> = (0..minutes).map(value).collect();
        table += &format!("nixl.{metric} {instance} {}\n", values.join(" "));
    };
    row("host.transfer.tx_bytes", "-", &|minute| {
        (minute * 6_000_000_000).to_string()
    });
    row("host.agents.live", "-", &|_| "2".into());
    for rank in ["rank-0", "rank-1"] {
        row("agent.server", rank, &|_| "vllm%20prefill:8100".into());
        row("latency.xfer_time.p50", rank, &|_| time.to_string());
        row("latency.xfer_time.p99", rank, &|_| (3 * time).to_string());
        row("operation.bandwidth.p50", rank, &|_| bandwidth.to_string());
        // All agents of a host are alike.
        row("latency.xfer_time.peer_ratio", rank, &|_| "1".into());
    }
    archive(&path.join("20231114"), 60, &table);
}

#[test]
fn slow_host_and_dead_host_come_first() {
    let home = Home::new();
    for name in ["node1", "node2", "node4", "node10"] {
        host(&home, name, 100, 2_600_000_000, 3);
    }
    host(&home, "node3", 980, 260_000_000, 3);
    host(&home, "large", 980, 2_700_000_000, 3);
    host(&home, "dead", 100, 2_600_000_000, 2);
    let mut shown = String::new();
    for options in [&["-S", "1min"][..], &["-s", "1", "-k", "slowest"], &["-1j"]] {
        let mut command = pcp(&home, tool("pcp"));
        command.args(["nixl", "-t", "60", "-H"]);
        let said = run(command.arg(home.path("farm")).args(options));
        shown += &format!("$ pcp nixl -t 60 -H farm {}\n{said}\n", options.join(" "));
    }
    golden("pcp_nixl_slow_hosts.out", &shown);
}

#[test]
fn host_is_compared_with_two_others_of_its_servers() {
    let script = "
class Row(object):
    error = None
    def __init__(self, name, **of):
        self.name, self.typical = name, {tuple(server.split('_')): figures for server, figures in of.items()}
def show(*rows):
    nixl.compare(rows)
    print(*['{} {} {}'.format(row.name, row.slow_server, row.host_ratio) for row in rows if row.slow_server], sep='; ')
a, b, c = Row('a', vllm_decode=(10, 8)), Row('b', vllm_decode=(10, 8)), Row('c', vllm_decode=(90, 1), vllm_prefill=(50, 1))
show(a, c)
show(a, b, c)
# A figure of an earlier comparison does not stay.
show(a, c)
# Stores have no bandwidth; the worse of two servers; a median of 0.
show(a, b, Row('c', vllm_decode=(40, None)))
show(*[Row(name, vllm_decode=(time, None), kvbm_both=(2 * time * time, None)) for name, time in (('a', 1), ('b', 1), ('c', 5))])
show(*[Row(name, vllm_decode=(time, None)) for name, time in (('a', 0), ('b', 0), ('c', 5))])
values = {'p50': {1: 30, 2: 10, 3: 20, 4: 7}, 'bandwidth': {1: 5}, 'server': {1: 'vllm decode:1', 2: 'vllm decode:2', 3: 'vllm decode', 4: ''}}
print(nixl.typical(nixl.Sample(0, values)))
";
    let expected = "\nc vllm decode 9.0\n\nc vllm decode 4.0\nc kvbm both 25.0\n\n{('vllm', 'decode'): (20, 5)}\n";
    assert_eq!(python(script), expected);
}
