// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers of real NIXL between network namespaces, seen by a daemon in another one.

mod hangs;
mod traces;

use crate::support::fleet::{Holder, is_possible};
use crate::support::rule::Rule;
use crate::support::share::Logger;
use crate::support::{Home, Nixl, Pmcd, command_within, leave_out, run, wait_for};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const MIB: u64 = 1 << 20;

/// Namespaces on one bridge, with the addresses 10.77.0.1 and so on, and a namespace of the daemon without an address.
struct Network {
    switch: Holder,
    hosts: Vec<Holder>,
    daemon: Holder,
}

impl Network {
    fn start(home: &Home, hosts: usize) -> Self {
        let space = |name: &str, script| Holder::start(&["--net"], script, &home.path(name));
        let switch = space(
            "switch",
            "ip link add switch type bridge; ip link set switch up",
        );
        let mut network = Self {
            switch,
            hosts: Vec::new(),
            daemon: space("daemon", "ip link set lo up"),
        };
        for number in 1..=hosts {
            let host = space(&format!("host{number}"), "ip link set lo up");
            let pid = host.pid();
            network.on_switch(&format!(
                "ip link add to-{number} type veth peer name eth0 netns {pid}"
            ));
            network.on_switch(&format!("ip link set to-{number} master switch up"));
            let script =
                format!("ip address add 10.77.0.{number}/24 dev eth0; ip link set eth0 up");
            run(command_within(&host.enter(&["--net"]), "sh").args(["-ec", &script]));
            network.hosts.push(host);
        }
        network
    }

    fn on_switch(&self, command: &str) {
        run(command_within(&self.switch.enter(&["--net"]), "sh").args(["-ec", command]));
    }

    /// Starts the daemon, with pmcd.
    fn pmcd(&self, home: &Home) -> Pmcd {
        Pmcd::start_within(home, "pcp", &self.daemon.enter(&["--net"]), &[], |_| ())
    }
}

/// A process of qa/nixl/peers.py. Dropping it ends the process.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(nixl: &Nixl, host: &Holder, transports: &str, role: &str, name: &str) -> Self {
        Self::start_with(nixl, host, &[("UCX_TLS", transports)], role, name)
    }

    /// Starts a process with these variables.
    fn start_with(
        nixl: &Nixl,
        host: &Holder,
        more: &[(&str, &str)],
        role: &str,
        name: &str,
    ) -> Self {
        let program = nixl.program("peers.py");
        let mut command = command_within(&host.enter(&["--net"]), program.get_program());
        command.args(program.get_args()).args([role, name]);
        let variables = program.get_envs();
        command.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        let mut child = command
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python is there");
        Self {
            input: child.stdin.take().expect("piped"),
            output: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("UTF-8");
        assert!(line.ends_with('\n'), "the process has ended");
        line
    }

    /// Starts a process that writes to targets.
    fn initiator(
        nixl: &Nixl,
        host: &Holder,
        transports: &str,
        name: &str,
        targets: &mut [Self],
    ) -> Self {
        let mut initiator = Self::start(nixl, host, transports, "initiator", name);
        initiator.meet(targets);
        initiator
    }

    /// Tells an initiator of its targets.
    fn meet(&mut self, targets: &mut [Self]) {
        for target in targets {
            let memory = target.line();
            self.input.write_all(memory.as_bytes()).expect("it reads");
        }
    }

    /// Writes so many MiB to a target.
    fn write(&mut self, count: u64, target: usize) {
        self.transfer("write", count, target);
    }

    /// Reads so many MiB from a target.
    fn read(&mut self, count: u64, target: usize) {
        self.transfer("read", count, target);
    }

    fn transfer(&mut self, kind: &str, count: u64, target: usize) {
        self.transfer_of(kind, count, MIB, target);
    }

    /// Does so many transfers of a size.
    fn transfer_of(&mut self, kind: &str, count: u64, size: u64, target: usize) {
        writeln!(self.input, "{kind} {count} {size} {target}").expect("it reads");
        assert_eq!(self.line(), "done\n");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Values of a metric, named without `nixl.`, by instance name.
fn texts(pmcd: &Pmcd, metric: &str) -> BTreeMap<String, String> {
    let shown = run(pmcd.tool("pminfo").arg("-f").arg(format!("nixl.{metric}")));
    let value = |line: &str| {
        let (name, value) = line.split_once(" or \"")?.1.split_once("\"] value ")?;
        Some((name.to_owned(), value.trim_matches('"').to_owned()))
    };
    shown.lines().filter_map(value).collect()
}

fn numbers(pmcd: &Pmcd, metric: &str) -> BTreeMap<String, f64> {
    let number = |(name, value): (String, String)| (name, value.parse().expect("a number"));
    texts(pmcd, metric).into_iter().map(number).collect()
}

/// Value of the process with this pid.
fn of_process(pmcd: &Pmcd, metric: &str, pid: u32) -> Option<String> {
    let mut values = texts(pmcd, metric).into_iter();
    let is_of = |name: &str| name.split(' ').next() == Some(&pid.to_string());
    values.find_map(|(name, value)| is_of(&name).then_some(value))
}

/// Asserts that a number is at most 2 % beside another one.
fn assert_near(what: &str, number: f64, expected: f64) {
    let ratio = number / expected;
    assert!(
        (0.98..=1.02).contains(&ratio),
        "{what}: {number}, not {expected}"
    );
}

#[test]
#[ignore = "real NIXL for minutes"]
fn transfers_by_tcp_and_by_shared_memory_are_told_apart() {
    const WRITES: u64 = 400;
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let network = Network::start(&home, 2);
    let nixl = Nixl::new("1.5.1", &home.rings());
    let [first, second] = &network.hosts[..] else {
        panic!("two hosts");
    };
    let mut targets = [Peer::start(&nixl, second, "tcp", "target", "by-tcp-target")];
    let mut by_tcp = Peer::initiator(&nixl, first, "tcp", "by-tcp", &mut targets);
    let mut neighbours = [Peer::start(
        &nixl,
        first,
        "all",
        "target",
        "by-memory-target",
    )];
    let mut by_memory = Peer::initiator(&nixl, first, "all", "by-memory", &mut neighbours);
    let pmcd = network.pmcd(&home);
    by_tcp.write(WRITES, 0);
    by_memory.write(WRITES, 0);
    let moved = (WRITES * MIB) as f64;
    assert_eq!(pmcd.sent()["by-tcp"], WRITES * MIB);
    // What the kernel counts is read every ten seconds.
    let all = |metric, pid| {
        wait_for("all bytes are read", || {
            let bytes = of_process(&pmcd, metric, pid)?.parse::<f64>().ok()?;
            (bytes >= 0.98 * moved).then_some(bytes)
        })
    };
    let sent = all("process.tcp.tx_bytes", by_tcp.pid());
    assert_near("sent", sent, moved);
    let received = all("process.tcp.rx_bytes", targets[0].pid());
    assert_near("received", received, moved);
    let peers = numbers(&pmcd, "agent.peer.tcp.tx_bytes");
    assert_near("to the peer", peers["by-tcp::10.77.0.2"], moved);
    let shares = wait_for("both have a share", || {
        let shares = numbers(&pmcd, "agent.tcp_share");
        let has_both = shares.contains_key("by-tcp") && shares.contains_key("by-memory");
        has_both.then_some(shares)
    });
    assert_near("share", shares["by-tcp"], 1.0);
    assert!(shares["by-memory"] < 0.01, "{shares:?}");
    let of_peer = numbers(&pmcd, "agent.peer.tcp.agent_share");
    assert_eq!(of_peer["by-tcp::10.77.0.2"], shares["by-tcp"]);
    let of_process = |metric| of_process(&pmcd, metric, by_tcp.pid());
    assert_eq!(of_process("process.nixl_version").as_deref(), Some("1.5.1"));
    assert_eq!(of_process("process.agents").as_deref(), Some("1"));
    assert!(of_process("process.backends").is_some_and(|backends| backends.contains("UCX")));

    let archive = home.path("archive");
    let logger = Logger::start(&pmcd, &archive);
    // 20 MB/s and more, for a minute and more.
    for _ in 0..35 {
        by_tcp.write(40, 0);
        by_memory.write(40, 0);
        logger.samples(2);
    }
    drop(logger);
    let rule = Rule::new("tcp_fallback").with(&[("delta", "\"20 sec\"")]);
    let said = rule.says_of(&home, &archive);
    assert!(!said.is_empty());
    for message in said {
        assert!(
            message.contains("[by-tcp::10.77.0.2]") && !message.contains("by-memory"),
            "{message}"
        );
    }
}

#[test]
#[ignore = "real NIXL for minutes"]
fn lost_packets_are_retransmits_of_their_peer_only() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let network = Network::start(&home, 3);
    let traffic_control = command_within(&network.switch.enter(&["--net"]), "tc")
        .args("qdisc add dev to-3 root tbf rate 400mbit burst 32kb limit 20kb".split(' '))
        .status();
    if !traffic_control.is_ok_and(|status| status.success()) {
        leave_out("no tbf here (tc-tbf(8))");
    }
    let nixl = Nixl::new("1.5.1", &home.rings());
    let target = |host: &Holder, name| Peer::start(&nixl, host, "tcp", "target", name);
    let mut targets = [
        target(&network.hosts[1], "well"),
        target(&network.hosts[2], "lossy"),
    ];
    let mut initiator = Peer::initiator(&nixl, &network.hosts[0], "tcp", "initiator", &mut targets);
    let pmcd = network.pmcd(&home);
    for target in [0, 1] {
        initiator.write(50, target);
        initiator.read(10, target);
    }
    let of_both = |metric| {
        let numbers = numbers(&pmcd, metric);
        let of = |address| {
            numbers
                .get(&format!("initiator::10.77.0.{address}"))
                .copied()
        };
        Some([of(2)?, of(3)?])
    };
    for (metric, count) in [
        ("agent.peer.tcp.tx_bytes", 50),
        ("agent.peer.tcp.rx_bytes", 10),
    ] {
        let least = (count * MIB) as f64 * 0.98;
        wait_for("all bytes are read", || {
            of_both(metric).filter(|bytes| bytes.iter().all(|bytes| *bytes >= least))
        });
    }
    let [well, lossy] = of_both("agent.peer.tcp.retransmits").expect("read");
    // A busy machine drops some packets between its own namespaces.
    assert!(lossy > 0.0 && well <= lossy / 100.0, "{well} {lossy}");
    let retransmits = of_process(&pmcd, "process.tcp.retransmits", initiator.pid());
    assert_eq!(retransmits, Some((well + lossy).to_string()));
}
