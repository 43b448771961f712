// SPDX-License-Identifier: GPL-2.0-or-later

//! The sample producer: writes the rings of simulated NIXL agents, and prints exactly what it wrote.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

mod agent;
mod options;
mod stop;
mod truth;
#[allow(dead_code, unused_imports)] // the tests use the rest
#[path = "../support/writer.rs"]
mod writer;

use agent::Agent;
use options::Options;
use stop::Stop;

/// Interval of NIXL between two flushes to the ring.
const FLUSH: Duration = Duration::from_millis(100);

/// Longest sleep, which limits arithmetic with times. A flush without due transfers has no effect.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Reason of an early end of the producer.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Usage(#[from] lexopt::Error),
    #[error("{path:?}: cannot make the directory: {source}; name another one with --dir")]
    Dir { path: PathBuf, source: io::Error },
    #[error("{path:?}: cannot make the ring: {source}; see --dir, --name and --capacity")]
    Ring { path: PathBuf, source: io::Error },
    #[error(
        "{path:?}: still full after {seconds} s; drain it, or see --on-full and --full-timeout"
    )]
    Full { path: PathBuf, seconds: f64 },
    #[error("{path:?}: cannot remove the ring: {source}; remove it by hand")]
    Remove { path: PathBuf, source: io::Error },
    #[error("signals: {0}")]
    Signals(#[from] nix::Error),
    #[error("standard output: {0}; it takes the JSON")]
    Output(#[source] io::Error),
}

/// Writes the rings that the command line describes.
pub fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("producer: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Error> {
    let Some(options) = options::parse(lexopt::Parser::from_env())? else {
        return print(options::HELP);
    };
    let mut stop = Stop::new()?;
    fs::create_dir_all(&options.dir).map_err(|source| Error::Dir {
        path: options.dir.clone(),
        source,
    })?;
    let agents = (0..options.agents).map(|index| Agent::start(&options, index));
    let mut agents = agents.collect::<Result<Vec<_>, _>>()?;
    let outcome = produce(&options, &mut agents, &mut stop);
    for agent in &agents {
        print(&format!("{}\n", agent.json(&options)))?;
    }
    if outcome.is_ok() {
        stop.sleep(options.linger);
    }
    if options.unlink {
        remove(&agents)?;
    }
    outcome
}

/// Lets all agents transfer until they are done, a signal comes or a ring stays full.
fn produce(options: &Options, agents: &mut [Agent], stop: &mut Stop) -> Result<(), Error> {
    let tick = match options.pace {
        None => Duration::ZERO,
        Some(_) if options.burst == 0 => FLUSH,
        Some(pace) => {
            let burst = u32::try_from(options.burst).unwrap_or(u32::MAX);
            pace.saturating_mul(burst).min(LONGEST_SLEEP)
        }
    };
    let start = Instant::now();
    let (mut last, mut next, mut report) = (start, start, start);
    while !agents.iter().all(|agent| agent.is_done(options)) && !stop.requested() {
        let now = Instant::now();
        for agent in agents.iter_mut() {
            agent.flush(options, now - last, stop)?;
        }
        last = now;
        if options.progress && now >= report {
            report = now + Duration::from_secs(1);
            progress(now - start, agents);
        }
        next = now.max(next + tick); // after a long wait for a reader, continue from here
        stop.sleep(next.saturating_duration_since(Instant::now()));
    }
    agents
        .iter_mut()
        .try_for_each(|agent| agent.finish(options, stop))
}

fn progress(time: Duration, agents: &[Agent]) {
    let [mut events, mut lost, mut pending] = [0; 3];
    for agent in agents {
        events += agent.truth().events;
        lost += agent.truth().lost;
        pending += agent.pending();
    }
    let seconds = time.as_secs();
    eprintln!("{seconds} s: {events} events, {pending} of them pending, {lost} lost");
}

fn remove(agents: &[Agent]) -> Result<(), Error> {
    agents.iter().try_for_each(|agent| {
        fs::remove_file(agent.path()).map_err(|source| Error::Remove {
            path: agent.path().into(),
            source,
        })
    })
}

/// Prints a line. Unlike `println!`, does not panic at a closed pipe.
fn print(text: &str) -> Result<(), Error> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(Error::Output)
}
