//! `pmdanixl --check`: what would be done with each file, without pmcd and without consuming anything.

use crate::base::file::{FileFacts, FileId};
use crate::check::silent::Users;
use crate::config::pcpconf::PcpConf;
use crate::config::{Config, Loaded};
use crate::error::{ConfigError, Refusal};
use crate::find::directory::{self, Directory, Holds};
use crate::find::scan::{self, Opened, is_starting};
use crate::find::{discover, name};
use crate::producer::holdups::{Holdups, Look};
use crate::producer::survey::Mappers;
use crate::rights::confine::{self, OwnPlaces};
use crate::rights::privilege;
use crate::{base, store};
use nix::errno::Errno;
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

mod absent;
mod daemon;
mod file;
mod full;
mod release;
pub mod silent;

/// What the check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rings that would be drained.
    pub rings: usize,
    /// Stores that would be read.
    pub stores: usize,
    /// Files that would be left alone.
    pub refused: usize,
    /// Things that stop it from working.
    pub problems: usize,
    /// Processes that use NIXL and write none of these.
    pub silent: usize,
    /// Rings with a writer or with events: those that `max_agents` must have room for.
    wanted: usize,
    /// Each ring once, by whichever path.
    seen: HashSet<FileId>,
    /// The processes that write the rings and stores.
    writers: HashSet<u32>,
    /// The users other than root as whom a daemon runs: the owner of the state file, and the one that the configuration names.
    daemons: Vec<u32>,
}

impl Verdict {
    fn problem(&mut self, out: &mut impl Write, problem: impl Display) -> io::Result<()> {
        self.problems += 1;
        writeln!(out, "problem: {problem}")
    }
}

/// Prints what would be done with each file, as the configured user where this one may become that.
///
/// # Errors
/// The output cannot be written.
pub fn run(
    path: &Path,
    loaded: Result<&Loaded, &ConfigError>,
    own: &OwnPlaces,
    conf: &PcpConf,
    out: &mut impl Write,
) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
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
        Err(err) => verdict.problem(out, err)?,
    }
    let config = loaded.map(|loaded| &loaded.config).ok();
    let configured = config.and_then(|config| Some(config.user.as_ref()?.uid));
    let owner = fs::metadata(conf.state()).ok().map(|meta| meta.uid());
    verdict.daemons = configured.into_iter().chain(owner).collect();
    // Before the user is changed to one that may not see other users' processes.
    let mut holdups = Holdups::default();
    let mappers = holdups.look(|avoided| {
        Look::begin("survey", move |at| {
            Mappers::read(&HashSet::new(), None, &avoided, at)
        })
    })?;
    let mappers = mappers.unwrap_or_default();
    for line in daemon::lines(path, config, conf, &mappers, &mut holdups)? {
        writeln!(out, "{line}")?;
    }
    let Some(config) = config else {
        return Ok(verdict);
    };
    let nixl = holdups.look(|avoided| Look::begin("nixl", move |at| Users::look(&avoided, at)))?;
    let nixl = nixl.unwrap_or_default();
    for pid in holdups.waiting() {
        let problem = format!(
            "process {pid} keeps its memory busy, so that it and its like cannot be looked at; end it"
        );
        verdict.problem(out, problem)?;
    }
    // Threads that wait in the kernel cannot become another user.
    if let Some(account) = config
        .user
        .as_ref()
        .filter(|_| holdups.waiting().is_empty())
    {
        if let Err(err) = privilege::become_user(account, config) {
            verdict.problem(out, err)?;
        }
    }
    if config.user.is_none() {
        if let Err(err) = privilege::limit_root(config) {
            verdict.problem(out, err)?;
        }
    }
    let user = discover::user_name(geteuid().as_raw());
    write!(out, "as user: {user} with {}", privilege::in_force())?;
    if config.proc_facts {
        writeln!(out)?;
    } else {
        match confine::confine(config, own) {
            Ok(how) => writeln!(out, ", {how}")?,
            Err(err) => writeln!(out, "\nwarning: not locked in: {err}")?,
        }
    }
    let Config {
        max_agents,
        max_capacity,
        max_directories,
        ..
    } = config;
    writeln!(
        out,
        "limits: max_agents {max_agents}, max_capacity {max_capacity}, max_directories {max_directories}"
    )?;
    for pattern in config.telemetry_dir.iter().chain(&config.multiproc_dir) {
        if directory::matches_nothing(pattern) {
            let why = directory::cannot_expand(pattern).map(directory::why_not);
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            writeln!(out, "note: {} matches no directory{why}", pattern.path)?;
        }
    }
    let found = directory::expand(&config.places());
    let all = found.len();
    // The PMDA leaves out those of the user who has most.
    let (named, mut matched): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, owner)| owner.is_none());
    matched.truncate(config.max_directories);
    let directories = named.into_iter().chain(matched);
    let directories: Vec<Directory> = directories.map(|(directory, _)| directory).collect();
    let left_out = all - directories.len();
    if directories.is_empty() {
        verdict.problem(out, "telemetry_dir and multiproc_dir match no directory")?;
    }
    for directory in &directories {
        check_directory(directory, config, &mappers, &mut verdict, out)?;
    }
    full::warn(&directories, out)?;
    if verdict.rings + verdict.stores == 0 {
        writeln!(out, "note: {}", absent::advice(config, path))?;
    }
    verdict.silent = nixl.tell(&verdict.writers, &directories, out)?;
    if left_out > 0 {
        let problem = format!(
            "patterns match {left_out} directories more than max_directories, which is {}",
            config.max_directories
        );
        verdict.problem(out, problem)?;
    }
    if verdict.wanted > config.max_agents {
        let problem = format!(
            "{} rings are in use, but max_agents is {}",
            verdict.wanted, config.max_agents
        );
        verdict.problem(out, problem)?;
    }
    let [rings, stores, refused, problems] = [
        (verdict.rings, "ring"),
        (verdict.stores, "store"),
        (verdict.refused, "file"),
        (verdict.problems, "problem"),
    ]
    .map(plural);
    let stores = match config.multiproc_dir.is_empty() {
        true => String::new(),
        false => format!("{stores}, "),
    };
    let silent = match verdict.silent {
        0 => String::new(),
        count => format!(
            ", {} without telemetry",
            plural_of(count, "process", "processes")
        ),
    };
    writeln!(
        out,
        "{rings}, {stores}{refused} refused, {problems}{silent}"
    )?;
    Ok(verdict)
}

/// `1 ring`, `2 rings`.
fn plural((count, what): (usize, &str)) -> String {
    plural_of(count, what, &format!("{what}s"))
}

fn plural_of(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn check_directory(
    directory: &Directory,
    config: &Config,
    mappers: &Mappers,
    verdict: &mut Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "directory {}", directory.path.display())?;
    let listed = directory
        .open()
        .and_then(|fd| Ok((base::file::names(&fd)?, fd)));
    let (names, fd) = match listed {
        Ok(listed) => listed,
        Err(errno) => {
            verdict.problems += 1;
            let why = directory::why_not(errno);
            let remedy = match errno {
                Errno::ENOENT => "; make it, or correct telemetry_dir",
                _ => "",
            };
            return writeln!(out, "  problem: cannot be looked through: {why}{remedy}");
        }
    };
    for name in names {
        let shown = name::shown(&name);
        match look(&fd, &name, directory.holds, config) {
            Ok(opened) => {
                let path = directory.path.join(&name);
                let said = match &opened {
                    Opened::Ring(candidate) => file::describe(candidate, &path, mappers, verdict),
                    Opened::Store(candidate) => {
                        file::describe_store(candidate, &path, mappers, verdict)
                    }
                };
                writeln!(out, "  {shown}: {said}")?;
            }
            Err((Some(facts), _)) if facts.is_file() && store::is_owner_lock(&name, facts.size) => {
                writeln!(
                    out,
                    "  {shown}: a lock file of NIXL's, not a ring or a store"
                )?;
            }
            Err((facts, refusal)) => {
                verdict.refused += 1;
                verdict.problems += usize::from(is_problem(facts.as_ref(), &refusal));
                writeln!(out, "  {shown}: refused: {refusal}")?;
            }
        }
    }
    Ok(())
}

fn look(
    directory: &OwnedFd,
    name: &OsStr,
    holds: Holds,
    config: &Config,
) -> Result<Opened, (Option<FileFacts>, Refusal)> {
    let facts = base::file::facts(directory, name).map_err(|errno| {
        (
            None,
            Refusal::Io {
                what: "looked at",
                errno,
            },
        )
    })?;
    scan::open(directory, name, &facts, holds, &config.terms())
        .map_err(|refusal| (Some(facts), refusal))
}

/// Whether a refusal means that an agent is not seen that should be, rather than that a stranger's file is left alone.
fn is_problem(facts: Option<&FileFacts>, refusal: &Refusal) -> bool {
    let is_silent = match refusal {
        Refusal::NoReadAccess { .. } => true,
        Refusal::Uninitialised { .. } => facts.is_some_and(|facts| !is_starting(facts, refusal)),
        _ => refusal.is_unsupported(),
    };
    is_silent && refusal.concerns_a_ring()
}

/// What helps where something may not be read, unless that is so already.
fn as_root() -> &'static str {
    match geteuid().is_root() {
        true => "",
        false => "; run as root",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_stays_empty_is_a_problem_if_the_file_may_be_a_ring() {
        let file = tempfile::tempfile().expect("a temporary file");
        let young = FileFacts::new(&nix::sys::stat::fstat(&file).expect("open"));
        let mut old = young;
        old.changed = (1, 0);
        for (refusal, facts, expected) in [
            (Refusal::Uninitialised { full: None }, &young, false),
            (Refusal::Uninitialised { full: None }, &old, true),
            (Refusal::Blank { size: 4096 }, &old, false),
            (
                Refusal::Unsupported {
                    version: 5,
                    newest: 4,
                },
                &old,
                true,
            ),
        ] {
            assert_eq!(is_problem(Some(facts), &refusal), expected, "{refusal}");
        }
    }
}
