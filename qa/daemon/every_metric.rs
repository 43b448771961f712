// SPDX-License-Identifier: GPL-2.0-or-later

//! Coverage of the metric table: agents and a daemon in all kinds of trouble set every metric here, or ELSEWHERE names
//! the test that does.

use crate::support::scripted::Process;
use crate::support::show::Shown;
use crate::support::writer::{Kind, RingWriter};
use crate::support::{
    self, Home, Pmcd, needs_root, note_left_out, output, project, run, sees_all_processes, wait_for,
};
use pmdanixl::metrics::METRICS;
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

/// Metrics that other tests set: the metric, the file of the test, and a text in that file.
const ELSEWHERE: [(&str, &str, &str); 14] = [
    // Parameters of event records, without values of their own.
    ("events.kind", "tools/events.rs", "word(\"kind\")"),
    ("events.agent", "tools/events.rs", "word(\"agent\")"),
    ("events.server", "tools/events.rs", "word(\"server\")"),
    ("events.value", "tools/events.rs", "event[\"value\"]"),
    ("events.text", "tools/events.rs", "word(\"text\")"),
    // Needs a process with connections and a ring.
    (
        "agent.peer.tcp.rtt",
        "processes/transport/connections.rs",
        "\"agent.peer.tcp.rtt\"",
    ),
    // Needs a process with connections and two rings.
    (
        "process.tcp_share",
        "processes/transport/connections.rs",
        "\"process.tcp_share\"",
    ),
    // Need a process with the title of an engine.
    ("agent.server", "processes/labels.rs", "\"agent.server\""),
    ("agent.rank", "processes/labels.rs", "\"agent.rank\""),
    // Needs a daemon without access to /proc.
    (
        "host.agents.unknown",
        "processes/states.rs",
        "false => (UNKNOWN, \"unknown\")",
    ),
    // The value is always 0.
    ("control.reload", "daemon/pmstore.rs", "nixl.control.reload"),
    // Depends on the speed of the machine.
    (
        "control.drain.truncated",
        "security/hostile_directory/backlog.rs",
        "\"control.drain.truncated\"",
    ),
    // Needs a kill between two steps of a drain.
    (
        "control.drain.doubtful",
        "ring/decisions.rs",
        "\"control.drain.doubtful\"",
    ),
    // Needs a file system of its own.
    (
        "process.rdma_devices",
        "processes/transport/connections.rs",
        "\"process.rdma_devices\"",
    ),
];

/// Metrics that need transfers of real NIXL over a network. They are in processes/network.rs.
const NETWORK: [&str; 8] = [
    "agent.tcp_share",
    "process.agents",
    "process.nixl_version",
    "process.tcp.retransmits",
    "agent.peer.tcp.agent_share",
    "agent.peer.tcp.tx_bytes",
    "agent.peer.tcp.rx_bytes",
    "agent.peer.tcp.retransmits",
];

/// Metrics that need an agent whose transfers hang. They are in processes/hangs.rs.
const HANGS: [&str; 4] = [
    "agent.stall.state",
    "agent.stall.age",
    "agent.stall.peer",
    "agent.stall.reason",
];

/// Metrics that need processes with transfers in flight. They are in processes/traces.rs.
const TRACES: [&str; 11] = [
    "trace.in_flight",
    "trace.oldest_age",
    "trace.posted",
    "trace.released",
    "trace.reposted",
    "trace.failed",
    "trace.xfer_time.sum",
    "trace.xfer_time.bucket",
    "control.trace.libraries",
    "control.trace.starts",
    "control.trace.lost",
];

fn ring(home: &Home, name: &str) -> RingWriter {
    home.new_ring(name, 64)
}

/// The metrics, without `nixl.`, that have a value other than 0 and the empty string.
fn set(shown: &Shown) -> BTreeSet<String> {
    let is_set = |value: &String| value.parse() != Ok(0.0) && !value.is_empty();
    let set = shown
        .iter()
        .filter(|(_, values)| values.values().any(is_set));
    set.map(|(metric, _)| metric.trim_start_matches("nixl.").to_owned())
        .collect()
}

/// Writes events of all types to `agent`, fills another ring, and makes `taken` appear read by another process and
/// restarted.
fn trouble(home: &Home, agent: &mut RingWriter, taken: &mut RingWriter) {
    for kind in Kind::ALL {
        agent.push(kind, 7);
    }
    agent.push(Kind::MemoryRegistered, 4096);
    agent.push_raw(99, 1);
    for read in [false, true] {
        agent.push_transfer(read, 4096, 100, 10);
    }
    // An XferTime event without a transfer before it.
    agent.push(Kind::XferTime, 5);
    agent.push(Kind::RxRequests, 1);
    // A ring that is full.
    let mut full = ring(home, "full");
    // A peer of the first agent, so that the group has a median.
    full.push_transfer(false, 4096, 100, 10);
    while full.push(Kind::TxBytes, 1) {}
    // Events that another process reads.
    for _ in 0..8 {
        taken.push(Kind::TxBytes, 1);
    }
    taken.forget();
}

#[test]
fn every_metric_is_set_by_a_scene_and_read_by_a_test() {
    needs_root();
    let home = Home::new();
    let more = home.path("more");
    for name in 0..4 {
        fs::create_dir_all(more.join(name.to_string())).expect("made");
    }
    let configuration = format!(
        "[nixl]\ntelemetry_dir = [{:?}, \"{}/*\", {:?}]\nmax_directories = 2\nmax_agents = 6\n\
         drain_interval = \"1s\"\nidle_after = \"1s\"\n",
        home.rings(),
        more.display(),
        home.path("absent")
    );
    home.configure(&configuration);
    let mut agent = ring(&home, "agent");
    // A ring of an unsupported version, and a file with an invalid header.
    let future = home.ring("future");
    let _future = ring(&home, "future");
    let file = fs::OpenOptions::new().write(true).open(&future);
    let versions = [5_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat();
    std::os::unix::fs::FileExt::write_all_at(&file.expect("there"), &versions, 16)
        .expect("written");
    fs::write(home.ring("rubbish"), [7; 4096]).expect("written");
    ring(&home, "exited").push(Kind::TxBytes, 1);
    // A process without telemetry, with a connection.
    let mut server = Process::peer();
    let port = server.number("serve()");
    let mut silent = Process::start(&home);
    silent.run(&format!(
        "one = connect('127.0.0.1', {port}); send(one, 1000)"
    ));
    server.run("answer(1, 1000)");
    let pmcd = Pmcd::start(&home);
    wait_for("pmdanixl serves", || {
        (pmcd.count("nixl.control.version") == 1).then_some(())
    });
    run(pmcd.tool("pmstore").args(["nixl.control.debug", "1"]));
    let conf = pmcd.path("etc/nixl/nixl.conf");
    fs::write(conf, "[nixl]\nmax_agents = \"none\"\n").expect("written");
    // pmstore fails, which sets control.config_error.
    output(pmcd.tool("pmstore").args(["nixl.control.reload", "1"]));

    let mut left: BTreeSet<String> = METRICS
        .iter()
        .map(|metric| metric.name.to_owned())
        .collect();
    let elsewhere = ELSEWHERE.map(|(metric, file, text)| (metric, file, text.to_owned()));
    let in_file = |file| move |metric| (metric, file, format!("\"{metric}\""));
    let network = NETWORK.map(in_file("processes/network.rs"));
    let hangs = HANGS.map(in_file("processes/hangs.rs"));
    let traces = TRACES.map(|metric| {
        // A test names those of a process without the first part.
        let text = metric
            .strip_prefix("trace.")
            .filter(|text| !text.ends_with("bucket"));
        let text = format!("\"{}\"", text.unwrap_or(metric));
        (metric, "processes/traces.rs", text)
    });
    let elsewhere = elsewhere.into_iter().chain(network).chain(hangs);
    for (metric, file, text) in elsewhere.chain(traces) {
        assert!(left.remove(metric), "{metric} is not in the metric table");
        let test = fs::read_to_string(project("qa").join(file)).expect("a test");
        assert!(test.contains(&text), "{file} has no {text:?} for {metric}");
    }
    if !sees_all_processes() {
        note_left_out("host.processes.silent, which needs a /proc with all processes");
        left.remove("host.processes.silent");
    }
    let (mut taken, mut others) = (ring(&home, "taken"), Vec::new());
    let mut poll = || {
        trouble(&home, &mut agent, &mut taken);
        // More agents than max_agents: the exited one is evicted.
        if others.len() < 8 && !left.contains("host.agents.exited") {
            others.push(ring(&home, &format!("other-{}", others.len())));
        }
        for metric in set(&pmcd.shown(&["nixl"])) {
            left.remove(&metric);
        }
        left.is_empty().then_some(())
    };
    let end = Instant::now() + support::PATIENCE;
    while poll().is_none() {
        assert!(Instant::now() < end, "nothing sets {left:?}");
    }
}
