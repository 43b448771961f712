// SPDX-License-Identifier: GPL-2.0-or-later

//! One drain of one directory with a state file, without pmcd: `one_drain DIRECTORY STATE [step]` prints the values of
//! each agent afterwards. With `step` it stops itself right before and right after the drain, for a tracer.
//!
//! `one_drain DIRECTORY STATE MAX_AGENTS [step]` scans a directory of stores and drains, and prints the bytes of all
//! agents. With `step` it stops itself before the scan and after the drain.

#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "support/kit/mod.rs"]
mod kit;

use kit::Core;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, state) = (Path::new(&arguments[0]), Path::new(&arguments[1]));
    let is_traced = arguments.last().is_some_and(|last| last == "step");
    match arguments.get(2).and_then(|number| number.parse().ok()) {
        Some(max_agents) => stores(directory, state, max_agents, is_traced),
        None => rings(directory, state, is_traced),
    }
}

fn rings(rings: &Path, state: &Path, is_traced: bool) -> Result<(), Box<dyn Error>> {
    let mut core = Core::on(rings, state, "proc_facts = true");
    core.scan();
    if is_traced {
        ptrace::traceme()?;
        raise(Signal::SIGSTOP)?;
        core.drain_only();
        raise(Signal::SIGSTOP)?;
        return Ok(());
    }
    // The second drain recovers what the first one found.
    core.drain();
    core.drain();
    let [sent, resets, foreign] =
        ["transfer.tx_bytes", "ring.resets", "ring.foreign_reads"].map(|name| core.all(name));
    for (name, bytes) in sent.iter() {
        println!("{name} {bytes} {} {}", resets[name], foreign[name]);
    }
    Ok(())
}

fn stores(
    stores: &Path,
    state: &Path,
    max_agents: u32,
    is_traced: bool,
) -> Result<(), Box<dyn Error>> {
    let settings =
        format!("telemetry_dir = []\nmultiproc_dir = {stores:?}\nmax_agents = {max_agents}");
    let mut core = Core::on(stores, state, &settings);
    if is_traced {
        ptrace::traceme()?;
        raise(Signal::SIGSTOP)?;
        core.scan();
        core.drain_only();
        raise(Signal::SIGSTOP)?;
        return Ok(());
    }
    core.run(3);
    println!("{}", core.host_sent());
    Ok(())
}
