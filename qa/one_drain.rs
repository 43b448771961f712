//! One drain of one directory with a state file, without pmcd: `one_drain DIRECTORY STATE [step]` prints what is known of
//! each agent then. With `step` it stops itself right before and right after the drain, for whoever traces it; with `swapped`, too,
//! and gives slots back before it counts their events.

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use pmdanixl::agents::Agents;
use pmdanixl::config::{Config, DirectoryPattern};
use pmdanixl::event::EventType;
use pmdanixl::ring::source::counting::SWAPPED;
use pmdanixl::state::{self, State, StateFile};
use std::error::Error;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (directory, path) = (arguments[0].clone(), Path::new(&arguments[1]));
    let mode = arguments.get(2).map(String::as_str);
    SWAPPED.store(mode == Some("swapped"), Ordering::Relaxed);
    let config = Config {
        telemetry_dir: vec![DirectoryPattern {
            path: directory,
            label: None,
            literal: true,
        }],
        ..Config::default()
    };
    pmdanixl::shm::guard_against_sigbus()?;
    let mut agents = Agents::new(&config);
    let found = State::take(&StateFile::open(path)?, state::boot_id()?)?;
    let found = found.ok_or("the state is locked")?;
    assert_eq!(found.set_aside, None);
    let mut changes = agents.restore(found.state, found.records);
    let (now, budget) = (Instant::now(), Duration::from_secs(3600));
    agents.scan(now, budget);
    if mode.is_some() {
        ptrace::traceme()?;
        raise(Signal::SIGSTOP)?;
        agents.drain(now, budget, &mut changes);
        raise(Signal::SIGSTOP)?;
        return Ok(());
    }
    // The second one settles what the first one found out.
    agents.drain(now, budget, &mut changes);
    agents.drain(now, budget, &mut changes);
    for agent in agents.iter() {
        println!(
            "{} {} {} {}",
            agent.name.instance,
            agent.total(EventType::TxBytes),
            agent.entry.resets,
            agent.entry.foreign_reads
        );
    }
    Ok(())
}
