// SPDX-License-Identifier: GPL-2.0-or-later

//! Cost of reading what processes that use NIXL transfer by TCP.

use super::report::Table;
use super::runs::Runs;
use super::support::pdu::Link;
use super::support::scripted::Process;
use super::support::{Home, PMDANIXL, wait_for};
use super::{Extent, processor};
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Mappings and connections of a process, as those of an engine.
const MAPPINGS: u32 = 5000;
const CONNECTIONS: u32 = 32;

/// Processes that a process has started and that have not ended.
fn children(pid: u32) -> Vec<u32> {
    let all = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("it runs");
    let pids = all.split_whitespace().map(str::parse);
    pids.collect::<Result<_, _>>().expect("numbers")
}

/// Share of a CPU that the daemon, its observer and its worker use, in percent.
fn cost(extent: Extent, processes: usize, is_on: bool) -> Runs {
    let home = Home::new();
    home.set(&format!("transport = {is_on}"));
    let mut server = Process::peer();
    let port = server.number("serve()");
    let all: Vec<Process> = (0..processes)
        .map(|_| {
            let mut process = Process::start(&home);
            process.run(&format!("map_pages({MAPPINGS})"));
            process.run(&format!(
                "all = connect('127.0.0.1', {port}, {CONNECTIONS}); send(all, 1000)"
            ));
            process
        })
        .collect();
    let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
    let pid = link.pid();
    let mut pids = vec![pid];
    // The first process scan takes more than later ones.
    wait_for("the processes are found", || {
        let silent = link.fetch(&["host.processes.silent"]).expect("an answer");
        let count = silent[0].values().next().copied().unwrap_or_default();
        (count >= all.len() as u64).then_some(())
    });
    if is_on && !all.is_empty() {
        wait_for("all processes are read", || {
            let read = link.fetch(&["process.tcp.tx_bytes"]).expect("an answer");
            (read[0].len() >= all.len()).then_some(())
        });
        let observers = children(pid);
        pids.extend(observers.iter().flat_map(|&pid| children(pid)));
        pids.extend(observers);
    }
    // Each run is as long as the interval of process scans. Five runs would take too long.
    let (runs, time) = (extent.of(3, 2), Duration::from_secs(extent.of(180, 2)));
    let share = processor::share_of_all(&pids, runs, time);
    drop(link);
    share
}

/// Table of the cost by number of processes.
pub fn measure(extent: Extent) -> Table {
    let mut table = Table::new(
        "Sockets of processes that use NIXL",
        "processes | % of a CPU | with transport = false | difference | at most",
        format!(
            "Processes with {MAPPINGS} mappings and {CONNECTIONS} TCP connections each, without telemetry. The daemon, its observer and \
             its worker together."
        ),
    );
    for (processes, limit) in [(0, "0.00"), (extent.of(64, 4), "0.20")] {
        let (on, off) = (
            cost(extent, processes, true),
            cost(extent, processes, false),
        );
        table.row([
            processes.to_string(),
            on.shown(2),
            off.shown(2),
            format!("**{:.2}**", on.median() - off.median()),
            limit.into(),
        ]);
    }
    table
}
