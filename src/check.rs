// SPDX-License-Identifier: GPL-2.0-or-later

//! `pmdanixl --check`: prints what the daemon would do with each file. Needs no pmcd and consumes no event.

use crate::base::file::FileId;
use crate::check::silent::NixlProcesses;
use crate::config::pcpconf::PcpConf;
use crate::config::{Config, LoadedConfig};
use crate::discovery::directory::{self, Directory};
use crate::discovery::name;
use crate::discovery::scan::{Found, Scanner, is_starting};
use crate::error::ConfigError;
use crate::procfs::process_scan::{ProcessScan, ScanRequest};
use crate::procfs::scan_threads::ScanThreads;
use crate::rights;
use crate::rights::confine::OwnPaths;
use nix::unistd::geteuid;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod advice;
mod daemon;
mod file;
mod silent;
mod tmpfs;

/// Time of one piece of the scan. The scan takes as many pieces as it needs.
const PIECE: Duration = Duration::from_secs(1);

/// Beginning of a line that needs action. With such a line the exit status is 1.
const PROBLEM: &str = "problem: ";

/// Line below a directory: about a file, or why the directory cannot be scanned.
#[derive(Debug, Default)]
struct Line {
    /// [`PROBLEM`] or nothing.
    level: &'static str,
    text: String,
}

/// Result of the check, for its last line and the exit status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rings that would be drained.
    pub rings: usize,
    /// Stores that would be read.
    pub stores: usize,
    /// Files that would be rejected.
    pub rejected: usize,
    /// Lines that begin with [`PROBLEM`].
    pub problems: usize,
    /// Processes that use NIXL and write to none of these rings and stores.
    pub silent: usize,
    /// Rings and stores that `max_agents` must have room for: those with a writer or with events.
    wanted: usize,
    /// Files that were counted. A file can have several paths.
    seen: HashSet<FileId>,
    /// Process ids of the writers of these rings and stores.
    writers: HashSet<u32>,
    /// Uids, other than root, that a daemon can run as: the configured user and the owner of the state file.
    daemons: Vec<u32>,
}

impl Summary {
    fn problem(&mut self, out: &mut impl Write, problem: impl Display) -> io::Result<()> {
        self.problems += 1;
        writeln!(out, "{PROBLEM}{problem}")
    }
}

/// Prints what would be done with each file. Becomes the configured user if this process has the right to.
///
/// # Errors
/// If the output cannot be written, or no thread can be started.
pub fn run(
    path: &Path,
    loaded: Result<&LoadedConfig, &ConfigError>,
    own: &OwnPaths,
    conf: &PcpConf,
    out: &mut impl Write,
) -> io::Result<Summary> {
    let mut summary = Summary::default();
    match loaded {
        Ok(loaded) => {
            writeln!(out, "configuration: {}", path.display())?;
            for note in &loaded.notes {
                writeln!(out, "note: {note}")?;
            }
            for warning in &loaded.warnings {
                writeln!(out, "warning: {warning}")?;
            }
        }
        Err(err) => summary.problem(out, err)?,
    }
    let config = loaded.map(|loaded| &loaded.config).ok();
    let configured = config.and_then(|config| Some(config.user.as_ref()?.uid));
    let owner = fs::metadata(conf.state()).ok().map(|meta| meta.uid());
    summary.daemons = configured.into_iter().chain(owner).collect();
    // Before the user is changed: another user may not see the processes of other users.
    let mut threads = ScanThreads::default();
    let state = conf.state();
    let processes = threads.run(move |context| {
        let process_scan = ProcessScan::run(ScanRequest::default(), context);
        let nixl_processes = NixlProcesses::read(&process_scan, context);
        let daemon = daemon::find(&state, &process_scan, context);
        (process_scan, nixl_processes, daemon)
    });
    let (process_scan, nixl_processes, daemon) = processes.unwrap_or_default();
    for line in daemon::lines(path, config, conf, daemon) {
        writeln!(out, "{line}")?;
    }
    let Some(config) = config else {
        return Ok(summary);
    };
    for pid in threads.stalled_pids() {
        let problem = format!(
            "process {pid} blocks every read of its memory, so that it and other processes of its user or container cannot be examined; end it"
        );
        summary.problem(out, problem)?;
    }
    // A stalled thread in the kernel cannot change its user.
    if threads.stalled_pids().is_empty() {
        match rights::enter(config, own) {
            Ok(user) => writeln!(out, "as user: {user}")?,
            Err(err) => summary.problem(out, err)?,
        }
    }
    writeln!(
        out,
        "limits: max_agents {}, max_capacity {}, max_directories {}",
        config.max_agents, config.max_capacity, config.max_directories
    )?;
    let directories = scan(config, &process_scan, &mut summary, out)?;
    tmpfs::warn(&directories, out)?;
    if summary.rings + summary.stores == 0 {
        writeln!(out, "note: {}", advice::advice(config, path))?;
    }
    summary.silent = nixl_processes.report(&summary.writers, &directories, out)?;
    if summary.wanted > config.max_agents {
        let problem = format!(
            "{} rings and stores are in use, but max_agents is {}; raise it in nixl.conf",
            summary.wanted, config.max_agents
        );
        summary.problem(out, problem)?;
    }
    let stores = (!config.multiproc_dir.is_empty()).then_some(summary.stores);
    let silent = Some(summary.silent).filter(|&count| count > 0);
    let counts = [
        (Some(summary.rings), "ring", "s", ""),
        (stores, "store", "s", ""),
        (Some(summary.rejected), "file", "s", " rejected"),
        (Some(summary.problems), "problem", "s", ""),
        (silent, "process", "es", " without telemetry"),
    ];
    let counts = counts.iter().filter_map(|&(count, what, ending, rest)| {
        let (count, ending) = (count?, if count? == 1 { "" } else { ending });
        Some(format!("{count} {what}{ending}{rest}"))
    });
    writeln!(out, "{}", Vec::from_iter(counts).join(", "))?;
    Ok(summary)
}

/// Scans all directories as the daemon does. Returns the scanned ones.
fn scan(
    config: &Config,
    process_scan: &ProcessScan,
    summary: &mut Summary,
    out: &mut impl Write,
) -> io::Result<Vec<Directory>> {
    for pattern in config.telemetry_dir.iter().chain(&config.multiproc_dir) {
        if directory::has_no_match(pattern) {
            writeln!(out, "note: {} matches no directory", pattern.path)?;
        }
    }
    let mut scanner = Scanner::new(config.clone());
    let (now, none) = (Instant::now(), HashSet::new());
    let mut files: HashMap<PathBuf, Vec<Found>> = HashMap::new();
    loop {
        for found in scanner.scan(now, Instant::now() + PIECE, &none) {
            let path = found.directory.path.clone();
            files.entry(path).or_default().push(found);
        }
        if scanner.is_done() {
            break;
        }
    }
    let (mut directories, mut left_out) = (Vec::new(), 0);
    for (directory, _) in directory::expand(config) {
        let lines = match directory.open() {
            Err(errno) => {
                let text = format!("cannot be scanned: {}", directory::open_error(errno));
                let level = PROBLEM;
                vec![Line { level, text }]
            }
            Ok(_) if scanner.directory(&directory.path).is_some() => {
                let mut files = files.remove(&directory.path).unwrap_or_default();
                files.sort_unstable_by(|one, other| one.name.cmp(&other.name));
                let line = |found| check_file(found, &mut scanner, process_scan, summary);
                files.into_iter().map(line).collect()
            }
            // max_directories was reached before this directory.
            Ok(_) => {
                left_out += 1;
                continue;
            }
        };
        writeln!(out, "directory {}", directory.path.display())?;
        for Line { level, text } in lines {
            summary.problems += usize::from(level == PROBLEM);
            writeln!(out, "  {level}{text}")?;
        }
        directories.push(directory);
    }
    if directories.is_empty() {
        let problem = "telemetry_dir and multiproc_dir match no directory; make one, or correct the patterns in nixl.conf";
        summary.problem(out, problem)?;
    }
    if left_out > 0 {
        let problem = format!(
            "patterns: {left_out} matching directories are not scanned: max_directories ({}) is reached; raise it in nixl.conf, or make the patterns narrower",
            config.max_directories
        );
        summary.problem(out, problem)?;
    }
    Ok(directories)
}

/// Opens a file, and counts it in `summary`.
fn check_file(
    mut found: Found,
    scanner: &mut Scanner,
    process_scan: &ProcessScan,
    summary: &mut Summary,
) -> Line {
    let mut line = Line {
        text: format!("{}: ", name::printable(&found.name)),
        ..Line::default()
    };
    match scanner.open(&mut found) {
        Ok(opened) => {
            let path = found.directory.path.join(&found.name);
            file::describe(&opened, &path, process_scan, summary, &mut line);
        }
        Err(rejection) => {
            summary.rejected += 1;
            line.text.push_str(&format!("rejected: {rejection}"));
            // The log has a warning of such a file.
            if rejection.concerns_a_ring() {
                match is_starting(&found.facts, &rejection) {
                    true => line
                        .text
                        .push_str("; while its agent starts, look again in 10 s"),
                    false => line.level = PROBLEM,
                }
            }
        }
    }
    line
}

/// Returns the advice to run as root, or nothing if the process is root.
fn as_root() -> &'static str {
    match geteuid().is_root() {
        true => "",
        false => "; run as root",
    }
}
