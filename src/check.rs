// SPDX-License-Identifier: GPL-2.0-or-later

//! `pmdanixl --check`: prints what the daemon would do with each file. Needs no pmcd and consumes no event.

use crate::base::file::FileId;
use crate::base::text;
use crate::check::output::Output;
use crate::check::rdma::RdmaHost;
use crate::check::seen::Seen;
use crate::collector::descriptors::{Descriptors, own_limit};
use crate::config::pcpconf::PcpConf;
use crate::config::{Config, LoadedConfig};
use crate::discovery::directory::{self, Directory, Expansion};
use crate::discovery::scan::{Found, Scanner, is_starting};
use crate::error::{AgentLimit, ConfigError, Rejection};
use crate::observer::client::ObserverHandle;
use crate::rights;
use crate::rights::confine::OwnPaths;
use crate::ring::layout::Layout;
use crate::store;
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::slice;
use std::time::{Duration, Instant};

mod advice;
mod daemon;
mod file;
mod output;
mod rdma;
mod seen;
mod silent;
mod tmpfs;
mod trace;
mod transport;

/// Time of one piece of the scan. The scan takes as many pieces as it needs.
const PIECE: Duration = Duration::from_secs(1);

/// Beginning of a line that needs action. With such a line the exit status is 1.
const PROBLEM: &str = "problem: ";

/// Beginning of a line about what is doubtful.
const WARNING: &str = "warning: ";

/// Whether a line needs action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Severity {
    #[default]
    Info,
    Warning,
    Problem,
}

impl Severity {
    fn prefix(self) -> &'static str {
        match self {
            Severity::Info => "",
            Severity::Warning => WARNING,
            Severity::Problem => PROBLEM,
        }
    }
}

/// Line below a directory: about a file, or why the directory cannot be scanned.
#[derive(Debug, Default)]
struct Line {
    severity: Severity,
    text: String,
}

/// Result of the check, for its last line and the exit status, and what the lines of files depend on.
#[derive(Debug, Default)]
pub struct Summary {
    /// Rings that would be drained if `max_agents` had room for them.
    pub rings: usize,
    /// Stores that would be read if `max_agents` had room for them.
    pub stores: usize,
    /// Files that would be rejected for another reason.
    pub rejected: usize,
    /// Rings and stores that `max_agents` must have room for: they have a writer or events.
    wanted: usize,
    /// Lines that begin with `problem: `.
    pub problems: usize,
    /// Files of the size of a ring or store that belong to users outside `owners`.
    foreign: usize,
    /// Processes that use NIXL and write to none of these rings and stores.
    pub silent: usize,
    /// What was read of other processes.
    seen: Seen,
    /// Files that were counted. A file can have several paths.
    counted: HashSet<FileId>,
    /// Process ids of the writers of these rings and stores.
    writers: HashSet<u32>,
    /// Uids, other than root, that a daemon can run as: the configured user and the owner of the state file.
    daemons: Vec<u32>,
}

impl Summary {
    fn problem(&mut self, out: &mut dyn Write, problem: impl Display) -> io::Result<()> {
        self.problems += 1;
        writeln!(out, "{PROBLEM}{problem}")
    }
}

/// Prints what would be done with each file. Becomes the configured user if this process has the right to.
///
/// # Errors
/// If the output cannot be written.
pub fn run(
    path: &Path,
    loaded: Result<&LoadedConfig, &ConfigError>,
    own: &OwnPaths,
    conf: &PcpConf,
    observer: &mut ObserverHandle,
    out: impl Write,
) -> io::Result<Summary> {
    let out = &mut Output(out);
    let mut summary = Summary::default();
    match loaded {
        Ok(loaded) => {
            writeln!(out, "configuration: {}", text::printable(path))?;
            for note in &loaded.notes {
                writeln!(out, "note: {note}")?;
            }
            for warning in &loaded.warnings {
                writeln!(out, "{WARNING}{warning}")?;
            }
        }
        Err(err) => summary.problem(out, err)?,
    }
    let config = loaded.map(|loaded| &loaded.config).ok();
    let configured = config.and_then(|config| Some(config.user.as_ref()?.uid));
    let owner = fs::metadata(conf.state()).ok().map(|meta| meta.uid());
    summary.daemons = configured.into_iter().chain(owner).collect();
    // Before the user is changed: another user may not see the processes of other users.
    summary.seen = Seen::read(observer, &summary.daemons, config);
    let daemon = daemon::find(&conf.state(), &summary.seen);
    let reading = daemon.and_then(|pid| summary.seen.daemons.get(&pid));
    let limit = reading.and_then(|daemon| daemon.open_files_limit);
    let lines = daemon::lines(path, config, conf, daemon.map(|pid| (pid, reading)));
    for line in lines.unwrap_or_else(|line| vec![line]) {
        writeln!(out, "{line}")?;
    }
    let Some(config) = config else {
        return Ok(summary);
    };
    for pid in summary.seen.stalled.clone() {
        let problem = format!(
            "process {pid} does not answer a read of its memory or sockets, so that it and other processes of its user or container cannot be examined; end it, or run this again if the host is busy"
        );
        summary.problem(out, problem)?;
    }
    // Before capabilities are given up.
    trace::report(&mut summary, config, out)?;
    let host = RdmaHost::read();
    match rights::enter(config, own, || ()) {
        Ok(user) => writeln!(out, "as user: {user}")?,
        Err(err) => summary.problem(out, err)?,
    }
    writeln!(
        out,
        "limits: max_agents {}, max_capacity {}, max_directories {}",
        config.max_agents, config.max_capacity, config.max_directories
    )?;
    let room = Descriptors::within(limit.unwrap_or_else(own_limit), config);
    if let Some(warning) = room.warning(config).filter(|_| limit.is_some()) {
        writeln!(out, "{WARNING}{warning}")?;
    }
    let directories = scan(config, room, &mut summary, out)?;
    tmpfs::warn(&directories, out)?;
    match (summary.rings + summary.stores, summary.foreign) {
        (0, 0) => writeln!(out, "note: {}", advice::advice(config, path))?,
        (0, count) => {
            let problem = format!(
                "owners in nixl.conf leaves out all rings and stores that are found ({count}); add their users to it, or remove it"
            );
            summary.problem(out, problem)?;
        }
        _ => {}
    }
    summary.silent = silent::report(&summary, &directories, out)?;
    transport::report(&summary, config, &host, out)?;
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

/// Scans all directories as the daemon does with so many descriptors. Returns the scanned ones.
fn scan(
    config: &Config,
    room: Descriptors,
    summary: &mut Summary,
    out: &mut dyn Write,
) -> io::Result<Vec<Directory>> {
    let config = &room.limit(config);
    let mut expansion = Expansion::new(config.clone());
    let found: Vec<_> = expansion.by_ref().flatten().collect();
    for path in &expansion.served {
        let (path, why) = (text::printable(path), directory::open_error(Errno::EREMOTE));
        writeln!(out, "note: {path} is not scanned: {why}")?;
    }
    for pattern in config.telemetry_dir.iter().chain(&config.multiproc_dir) {
        let is_its = |path: &Path| directory::is_configured(slice::from_ref(pattern), path);
        if !found.iter().any(|(directory, _)| is_its(&directory.path)) {
            let shown = text::printable(&pattern.path);
            writeln!(out, "note: {shown} matches no directory")?;
        }
    }
    let mut scanner = Scanner::new(config.clone());
    let (now, none) = (Instant::now(), HashSet::new());
    let mut all = scanner.scan(now, now + PIECE, &none);
    while !scanner.is_done() {
        all.extend(scanner.scan(now, Instant::now() + PIECE, &none));
    }
    all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut files: HashMap<PathBuf, Vec<Found>> = HashMap::new();
    for found in all {
        let path = found.directory.path.clone();
        files.entry(path).or_default().push(found);
    }
    let mut directories = Vec::new();
    for (directory, _) in found {
        let error = directory.open().err();
        // max_directories was reached before this directory.
        if error.is_none() && scanner.directory(&directory.path).is_none() {
            continue;
        }
        let files = files.remove(&directory.path).unwrap_or_default();
        let line = |found| check_file(found, &mut scanner, summary);
        let mut of_directory: Vec<Line> = files.into_iter().map(line).collect();
        of_directory.extend(error.map(|errno| {
            let text = format!("cannot be scanned: {}", directory::open_error(errno));
            let severity = Severity::Problem;
            Line { severity, text }
        }));
        writeln!(out, "directory {}", text::printable(&directory.path))?;
        for Line { severity, text } in of_directory {
            summary.problems += usize::from(severity == Severity::Problem);
            writeln!(out, "  {}{text}", severity.prefix())?;
        }
        directories.push(directory);
    }
    let limit = AgentLimit {
        places: room.rings,
        max_agents: config.max_agents,
    };
    if summary.wanted > limit.places {
        let problem = format!(
            "{} rings and stores need room, and {limit}, so that some are not read; {}",
            summary.wanted,
            limit.remedy()
        );
        summary.problem(out, problem)?;
    }
    if directories.is_empty() {
        let problem = "telemetry_dir and multiproc_dir match no directory; make one, or correct the patterns in nixl.conf";
        summary.problem(out, problem)?;
    }
    let (_, left_out, _) = scanner.directories();
    if left_out > 0 {
        let problem = format!(
            "patterns: {left_out} matching directories are not scanned: max_directories ({}) is reached; raise it in nixl.conf, or make the patterns narrower",
            config.max_directories
        );
        summary.problem(out, problem)?;
    }
    Ok(directories)
}

/// Returns the name of a file for its line. A name that begins like a problem or a warning is quoted.
fn shown_name(name: &OsStr) -> String {
    let shown = text::printable(name);
    let is_level = |prefix: &&str| format!("{shown}:").starts_with(prefix.trim_end());
    match [PROBLEM, WARNING].iter().any(is_level) {
        true => format!("{shown:?}"),
        false => shown,
    }
}

/// Opens a file, and counts it in `summary`.
fn check_file(mut found: Found, scanner: &mut Scanner, summary: &mut Summary) -> Line {
    let mut line = Line {
        text: format!("{}: ", shown_name(&found.name)),
        ..Line::default()
    };
    match scanner.open(&mut found) {
        Ok(opened) => {
            let path = found.directory.path.join(&found.name);
            file::describe(&opened, &path, summary, &mut line);
        }
        Err(rejection) => {
            summary.rejected += 1;
            let has_size =
                Layout::fits_any(found.facts.size) || found.facts.size == store::LEN as u64;
            let is_foreign = has_size && matches!(rejection, Rejection::Owner { .. });
            summary.foreign += usize::from(is_foreign);
            line.text += &format!("rejected: {rejection}");
            // The log has a warning of such a file.
            if rejection.may_be_telemetry() {
                match is_starting(&found.facts, &rejection) {
                    true => line.text += "; while its agent starts, look again in 10 s",
                    false => line.severity = Severity::Problem,
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
