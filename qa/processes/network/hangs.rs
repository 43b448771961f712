// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers of real NIXL that hang, since their target is stopped.

use super::{Network, Peer, numbers, texts};
use crate::support::fleet::is_possible;
use crate::support::{Home, Nixl, Pmcd};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

/// Time for which the targets are stopped, and limits after the stop and after its end.
const STOP: Duration = Duration::from_secs(180);
const SUSPECT: Duration = Duration::from_secs(45);
const STALLED: Duration = Duration::from_secs(150);
const RECOVERED: Duration = Duration::from_secs(20);

/// What an agent transfers, and whether its hang is seen.
struct Pair {
    name: &'static str,
    kind: &'static str,
    initiator: Peer,
    target: Peer,
}

impl Pair {
    fn start(
        nixl: &Nixl,
        network: &Network,
        hosts: [usize; 2],
        transports: &str,
        [name, kind]: [&'static str; 2],
    ) -> Self {
        let [here, there] = hosts.map(|host| &network.hosts[host]);
        let target = Peer::start(nixl, there, transports, "target", &format!("{name}-target"));
        let mut targets = [target];
        let initiator = Peer::initiator(nixl, here, transports, name, &mut targets);
        let [target] = targets;
        let mut pair = Self {
            name,
            kind,
            initiator,
            target,
        };
        pair.initiator.transfer(kind, 20, 0);
        pair
    }

    /// Begins transfers that do not end.
    fn load(&mut self) {
        let kind = self.kind;
        writeln!(self.initiator.input, "{kind} 100000000 {} 0", super::MIB).expect("it reads");
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.target.pid()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it runs");
    }
}

fn states(pmcd: &Pmcd) -> BTreeMap<String, f64> {
    numbers(pmcd, "agent.stall.state")
}

#[test]
#[ignore = "real NIXL for minutes"]
fn stopped_targets_of_real_nixl_are_found() {
    if !is_possible() {
        return;
    }
    let home = Home::new();
    let network = Network::start(&home, 2);
    let nixl = Nixl::new("1.5.1", &home.rings());
    let start = |hosts, transports, what| Pair::start(&nixl, &network, hosts, transports, what);
    let mut hung = [
        start([0, 1], "tcp", ["writes", "write"]),
        start([0, 1], "tcp", ["reads", "read"]),
        // NIXL does not start with shared memory alone: UCX agrees on it over another transport, and keeps the
        // connection.
        start([0, 0], "sm,tcp", ["by-memory", "write"]),
    ];
    let idle = start([0, 1], "tcp", ["idle", "write"]);
    let pmcd = network.pmcd(&home);
    crate::support::wait_for("all processes are read", || {
        let states = states(&pmcd);
        ["writes", "reads", "by-memory", "idle"]
            .iter()
            .all(|name| states.contains_key(*name))
            .then_some(())
    });
    hung.iter_mut().for_each(Pair::load);
    std::thread::sleep(Duration::from_secs(5));
    hung.iter().for_each(|pair| pair.signal(Signal::SIGSTOP));
    let stopped = Instant::now();
    let mut first: BTreeMap<(&str, u32), Duration> = BTreeMap::new();
    let mut signs = BTreeMap::new();
    while stopped.elapsed() < STOP {
        let (now, states) = (stopped.elapsed(), states(&pmcd));
        let is_idle_suspected = states.get(idle.name).is_some_and(|&state| state > 0.0);
        assert!(!is_idle_suspected, "after {now:?}");
        for pair in &hung {
            for state in [1, 2] {
                if states.get(pair.name) >= Some(&f64::from(state)) {
                    first.entry((pair.name, state)).or_insert(now);
                }
            }
        }
        if now > STALLED {
            signs = texts(&pmcd, "agent.stall.peer");
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    println!(
        "{first:?}\n{signs:?}\n{:?}",
        texts(&pmcd, "agent.stall.reason")
    );
    for (pair, address) in hung.iter().zip(["10.77.0.2", "10.77.0.2", ""]) {
        let [suspect, stalled] = [1, 2].map(|state| first.get(&(pair.name, state)));
        assert!(
            suspect.is_some_and(|time| *time <= SUSPECT),
            "{}: {first:?}",
            pair.name
        );
        assert!(
            stalled.is_some_and(|time| *time <= STALLED),
            "{}: {first:?}",
            pair.name
        );
        let process = format!(", process {} ", pair.target.pid());
        let peer = &signs[pair.name];
        assert!(
            peer.starts_with(address) && peer.contains(&process),
            "{peer}"
        );
    }
    hung.iter().for_each(|pair| pair.signal(Signal::SIGCONT));
    let continued = Instant::now();
    while states(&pmcd).values().any(|state| *state > 0.0) {
        assert!(continued.elapsed() < RECOVERED, "{:?}", states(&pmcd));
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("recovered after {:?}", continued.elapsed());
    assert_eq!(states(&pmcd)[idle.name], 0.0);
}
