// SPDX-License-Identifier: GPL-2.0-or-later

//! `pcp nixl --peers`: pairs of agents, and which host and agent an address is.

use super::hosts::Lines;
use super::{of_archive, pcp, python};
use crate::support::scripted::{Process, libraries};
use crate::support::share::{archive, tool};
use crate::support::writer::{Kind, Layout, RingWriter};
use crate::support::{Home, Pmcd, golden, output, run, text};
use serde_json::Value;
use std::fs;

#[test]
fn pairs_of_an_archive_are_sorted_and_marked() {
    let home = Home::new();
    let path = home.path("archive");
    archive(
        &path,
        10,
        "nixl.transfer.tx_bytes rank-0 0 0\nnixl.transfer.tx_bytes rank-1 0 0\n\
         nixl.agent.server rank-0 vllm%20prefill:8100 vllm%20prefill:8100\nnixl.agent.rank rank-0 TP0 TP0\n\
         nixl.agent.peer.tcp.tx_bytes rank-0::10.0.0.2 0 14600000\nnixl.agent.peer.tcp.rx_bytes rank-0::10.0.0.2 0 10\n\
         nixl.agent.peer.tcp.retransmits rank-0::10.0.0.2 0 90\nnixl.agent.peer.tcp.rtt rank-0::10.0.0.2 500 1000\n\
         nixl.agent.peer.tcp.tx_bytes rank-0::10.0.0.3 0 1460000\nnixl.agent.peer.tcp.rx_bytes rank-0::10.0.0.3 0 0\n\
         nixl.agent.peer.tcp.retransmits rank-0::10.0.0.3 0 11\nnixl.agent.peer.tcp.rtt rank-0::10.0.0.3 900 900\n\
         nixl.agent.peer.tcp.tx_bytes rank-1::fd00::12:3 0 0\nnixl.agent.peer.tcp.rx_bytes rank-1::fd00::12:3 0 29200000\n\
         nixl.agent.peer.tcp.retransmits rank-1::fd00::12:3 5 5\nnixl.agent.peer.tcp.rtt rank-1::fd00::12:3 900 3001\n",
    );
    let mut shown = String::new();
    for columns in ["80", "60"] {
        let mut command = of_archive(&home, &path, &["--peers", "-1"]);
        let said = run(command.env("COLUMNS", columns));
        let width = columns.parse().expect("a number");
        assert!(said.lines().all(|line| line.len() < width), "{said}");
        shown += &format!("$ COLUMNS={columns} pcp nixl --peers -1\n{said}\n");
    }
    shown += &run(&mut of_archive(&home, &path, &["--peers", "-1j"]));
    golden("pcp_nixl_peers.out", &shown);
}

#[test]
fn archive_without_peers_says_so() {
    let home = Home::new();
    let path = home.path("archive");
    archive(&path, 10, "nixl.transfer.tx_bytes a 0 0\n");
    let said = run(&mut of_archive(&home, &path, &["-p1"]));
    assert!(
        said.contains(
            "  0 pairs\nstanding out: none\nover TCP; traffic over RDMA, NVLink and shared memory has no peers\n"
        ),
        "{said}"
    );
    assert!(
        said.ends_with(
            "\nno peers: no agent has TCP connections, or proc_facts is false (nixl.conf(5))\n"
        ),
        "{said}"
    );
    for options in [&["-p", "-k", "tx"][..], &["-pe"]] {
        let said = output(&mut of_archive(&home, &path, options));
        assert!(
            text(&said).contains("--peers: leave out --events and --sort"),
            "{}",
            text(&said)
        );
    }
}

/// Each report has the addresses of its time: one that moves belongs to its new host from then on.
#[test]
fn address_belongs_to_the_host_that_has_it_at_the_time() {
    let home = Home::new();
    let farm = home.path("farm");
    for (name, own, other, shared) in [
        ("a", "10.0.0.1", "10.0.0.9", "10.0.0.9 10.0.0.9 -"),
        ("b", "10.0.0.2", "10.0.0.1", "- - 10.0.0.9"),
        ("c", "10.0.0.3", "10.0.0.9", "- - -"),
    ] {
        let path = farm.join(name);
        fs::create_dir_all(&path).expect("made");
        let table = format!(
            "nixl.transfer.tx_bytes {name}0 0 0 0\n\
             nixl.agent.peer.tcp.tx_bytes {name}0::{other} 0 10 20\n\
             network.interface.inet_addr eth0 {own} {own} {own}\n\
             network.interface.inet_addr eth1 {shared}\n"
        );
        archive(&path.join("log"), 10, &table);
    }
    let mut command = pcp(&home, tool("pcp"));
    let shown = run(command.args(["nixl", "-pj", "-H"]).arg(&farm));
    let found = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let peer = &line["peers"][0];
        let [host, from, to] =
            [&line["host"], &peer["agent"], &peer["to_host"]].map(|text| text.to_string());
        format!("{host} {from} {to}").replace('"', "")
    };
    let lines: Vec<_> = shown.lines().map(found).collect();
    assert_eq!(
        lines,
        ["a a0 a", "b b0 a", "c c0 a", "a a0 b", "b b0 a", "c c0 b"],
        "{shown}"
    );
}

#[test]
fn hosts_without_values_follow_the_pairs() {
    let script = "
row = nixl.PeerRow.__new__(nixl.PeerRow)
row.name, row.addresses = 'a', set()
row.pairs = [{'agent': 'a0', 'server': None, 'address': '10.0.0.2', 'to_host': None, 'to_agent': None, 'peer_tx': 1, 'peer_rx': 1,
              'retransmits': 0, 'rtt': 5}]
failures = [nixl.Failure(name, 'no route', None, None) for name in 'bc']
for rows, height in (([row] + failures, None), ([row] + failures, 6), (failures, None)):
    print(*nixl.PeerTable(rows, 0).lines(60, height)[4:], sep='\\n')
print(*map(len, nixl.PeerTable(failures + [row], 0).lines(20)))
";
    let pair = "a a0 10.0.0.2  1.00  1.00         0     5us\n";
    let [b, c] = ["b no values: no route\n", "c no values: no route\n"];
    let expected = format!("{pair}{b}{c}{pair}... and 2 more\n{b}{c}");
    let shown = python(script);
    assert!(shown.starts_with(&expected), "{shown}");
    let widths = shown[expected.len()..].split_whitespace();
    let widths = widths.map(|width| width.parse().expect("a number"));
    assert!(widths.max() < Some(20), "{shown}");
}

#[test]
fn live_host_alone_is_reported_in_its_zone_or_refuses_at_once() {
    let home = Home::new();
    let pmcd = Pmcd::start(&home);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    let said = run(command.args(["nixl", "-p", "-1", "-t", "0.2", "-h", "local:", "-z"]));
    assert!(said.starts_with("peers  "), "{said}");
    let mut command = pcp(&home, pmcd.tool("pcp"));
    let said = output(command.args(["nixl", "-p", "-h", "127.0.0.1:1"]));
    let expected = "pcp-nixl: Connection refused ['127.0.0.1:1']\n";
    assert_eq!((said.status.code(), &*text(&said)), (Some(1), expected));
}

#[test]
fn address_is_named_only_if_it_can_be_one_host_and_agent() {
    let script = "
def row(name, addresses, *pairs):
    one = nixl.PeerRow.__new__(nixl.PeerRow)
    one.name, one.addresses = name, set(addresses)
    one.pairs = [
        dict({'agent': agent, 'server': None, 'address': address, 'to_host': None, 'to_agent': None},
             sent=moved[0] if moved else 0, received=moved[1] if moved else 0)
        for agent, address, *moved in pairs
    ]
    return one
def show(*rows):
    nixl.resolve(rows)
    for one in rows:
        print(one.name, *['{} -> {} {}'.format(pair['agent'], pair['to_host'], pair['to_agent']) for pair in one.pairs], sep='; ')
    print()
# Both sides are known.
show(row('a', ['10.0.0.1'], ('a0', '10.0.0.2')), row('b', ['10.0.0.2', '10.1.0.2'], ('b0', '10.0.0.1')))
# Two agents of b talk to a, so the agent is not known; b1 talks to a0, the only agent of a that talks to b.
show(row('a', ['10.0.0.1'], ('a0', '10.0.0.2')), row('b', ['10.0.0.2'], ('b0', '10.0.0.1'), ('b1', '10.0.0.1')))
# b does not have a among its peers; an address that two hosts have is neither's; and one of another host.
show(row('a', ['10.0.0.1', '172.17.0.1'], ('a0', '10.0.0.2'), ('a1', '10.9.9.9')),
     row('b', ['10.0.0.2', '172.17.0.1'], ('b0', '172.17.0.1')))
# On one host, by the loopback interface and by its own address: the bytes of both ends must agree.
show(row('a', ['10.0.0.1'], ('a0', '127.0.0.1', 9000, 5), ('a1', '127.0.0.1', 5, 9010), ('a2', '127.0.0.1', 5, 9900)))
show(row('a', ['10.0.0.1'], ('a0', '10.0.0.1', 0, 700), ('a1', '10.0.0.1', 700, 0), ('a2', '::1', 700, 0)))
show(row('a', ['10.0.0.1'], ('a0', '127.0.0.1', 0, 0), ('a1', '127.0.0.1', 0, 0), ('a2', '127.0.0.1', None, 0)))
# Each talks to itself, or to a service.
show(row('a', [], ('a0', '127.0.0.1', 900, 900), ('a1', '127.0.0.1', 70, 70), ('a0', '10.0.0.5')))
# A peer at another host's loopback address is on the own host.
show(row('a', ['10.0.0.1'], ('a0', '127.0.0.1')), row('b', ['10.0.0.2'], ('b0', '127.0.0.1')))
";
    let expected = "\
a; a0 -> b b0
b; b0 -> a a0

a; a0 -> b None
b; b0 -> a a0; b1 -> a a0

a; a0 -> b None; a1 -> None None
b; b0 -> None None

a; a0 -> a a1; a1 -> a a0; a2 -> a None

a; a0 -> a None; a1 -> a a0; a2 -> a a0

a; a0 -> a None; a1 -> a None; a2 -> a None

a; a0 -> a None; a1 -> a None; a0 -> None None

a; a0 -> a None
b; b0 -> b None

";
    assert_eq!(python(script), expected);
}

#[test]
fn addresses_are_compared_in_one_form() {
    let script = "
print(*map(nixl.plain, ['10.0.0.1', 'fe80::1/64', 'fd00:0:0::0012', 'fe80::1%eth0', 'node1', '']))
target = nixl.Target('127.0.0.9:44321', '127.0.0.9:44321')
print(*nixl.addresses_of(target))
print(*nixl.addresses_of(nixl.Target('[::1]:44321', '[::1]:44321')), nixl.addresses_of(nixl.Target('no host', '')))
for address in ('10.0.0.2:1,2@gate', 'pcps://10.0.0.1', 'local:', 'unix:/run/pmcd.socket', 'local://run/x?a'):
    print(*nixl.addresses_of(nixl.Target(address, address)), end=';')
print(*nixl.addresses_of(nixl.Target('node1', '/farm/node1', nixl.PM_CONTEXT_ARCHIVE)))
# Those that many hosts have are of none.
class Source(nixl.PeerSource):
    def __init__(self):
        self.resolved = {'10.0.0.9', '127.0.1.1'}
values = {'inet': {0: '127.0.0.1', 1: '10.0.0.1', 2: '169.254.1.1'}, 'inet6': {0: '::1/128', 1: 'fe80::1/64', 2: 'fd00::1/64'}}
print(sorted(Source().addresses(nixl.Sample(0, values))))
";
    let expected = "10.0.0.1 fe80::1 fd00::12 fe80::1 None None\n127.0.0.9\n::1 set()\n\
                    10.0.0.2;10.0.0.1;;;;\n['10.0.0.1', '10.0.0.9', 'fd00::1']\n";
    assert_eq!(python(script), expected);
}

#[test]
#[ignore = "waits for socket scans, every 10 s"]
fn processes_of_a_host_that_talk_are_a_pair_with_rates() {
    let home = Home::new();
    for name in ["one", "two"] {
        let mut ring = RingWriter::create(&home.ring(name), Layout::V4, 64).expect("room");
        assert!(ring.push(Kind::TxBytes, 1));
    }
    let [library, plugin] = libraries(&home);
    let start =
        |name: &str| Process::with_files(&[], &[library.clone(), plugin.clone(), home.ring(name)]);
    let (mut server, mut client) = (start("one"), start("two"));
    server.run("listener = socket.create_server(('127.0.0.1', 0))");
    let port = server.number("listener.getsockname()[1]");
    client.run(&format!(
        "one = socket.create_connection(('127.0.0.1', {port}))"
    ));
    // Until then, the connection is not of the server's process.
    server.run("accepted.append(listener.accept())");
    let pmcd = Pmcd::start(&home);
    let mut command = pcp(&home, pmcd.tool("pcp"));
    command.args(["nixl", "-pj", "-t", "1"]);
    let mut lines = Lines::start(command);
    client.begin("[(one.sendall(bytes(1000)), time.sleep(0.1)) for _ in range(3000)]");
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("there");
    lines.until(&[own.trim_end()], |_, line| {
        let pair = |from: &str, to: &str, key: &str| {
            let pairs = line["peers"].as_array().into_iter().flatten();
            let mut pairs = pairs.filter(|pair| pair["agent"] == from && pair["to_agent"] == to);
            let is_moving = |pair: &Value| pair[key].as_f64() > Some(0.0);
            pairs.any(is_moving)
        };
        pair("two", "one", "tx_bytes_per_second") && pair("one", "two", "rx_bytes_per_second")
    });
}
