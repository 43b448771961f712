//! `pmdanixl --check`: what would be done with each file, without pmcd and without consuming anything.

use crate::check::silent::Users;
use crate::config::{Config, Loaded};
use crate::error::{ConfigError, Refusal};
use crate::find::containers::look;
use crate::find::containers::{self, process};
use crate::find::directory::{self, Directory, Holds};
use crate::find::discover::{self, Access, Candidate, FileFacts, FileId};
use crate::find::name;
use crate::find::scan::{self, Opened, is_starting};
use crate::producer::holdups::{Holdups, Look};
use crate::producer::survey::Mappers;
use crate::producer::writer::{self, Holder};
use crate::rights::confine::{self, OwnPlaces};
use crate::rights::privilege;
use crate::shm::LeaseKind;
use crate::store;
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

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
    out: &mut impl Write,
) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(err) => {
            verdict.problem(out, err)?;
            return Ok(verdict);
        }
    };
    let config = &loaded.config;
    writeln!(out, "configuration: {}", path.display())?;
    for note in &loaded.notes {
        writeln!(out, "note: {note}")?;
    }
    for warning in &loaded.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    // Looked at before the user is changed, who may not see other users' processes.
    let mut holdups = Holdups::default();
    let mappers = holdups.look(|avoided| {
        Look::begin("survey", move |at| {
            Mappers::read(&HashSet::new(), None, &avoided, at)
        })
    })?;
    let nixl = holdups.look(|avoided| Look::begin("nixl", move |at| Users::look(&avoided, at)))?;
    let (mappers, nixl) = (mappers.unwrap_or_default(), nixl.unwrap_or_default());
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
            writeln!(out, "note: {} matches no directory", pattern.path)?;
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
    if directories.is_empty() && !config.containers {
        verdict.problem(out, "telemetry_dir and multiproc_dir match no directory")?;
    }
    for directory in &directories {
        check_directory(directory, None, config, &mappers, &mut verdict, out)?;
    }
    if config.containers {
        check_containers(config, &mappers, &mut holdups, &mut verdict, out)?;
    }
    verdict.silent = nixl.tell(&verdict.writers, &directories, config.containers, out)?;
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
    let stores = match config.multiproc_dir.is_empty() && !config.containers {
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

/// The directories that only containers see.
fn check_containers(
    config: &Config,
    mappers: &Mappers,
    holdups: &mut Holdups,
    verdict: &mut Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    if let Err(errno) = process::can_open_beneath() {
        let why = containers::without_openat2(errno);
        return verdict.problem(out, format!("containers are not looked into: {why}"));
    }
    let found = holdups.look(|avoided| look::begin(Vec::new(), avoided))?;
    let found = found.unwrap_or_default();
    for place in &found.places {
        let at = place.reached_at();
        check_directory(&place.to_scan(), Some(&at), config, mappers, verdict, out)?;
    }
    for refused in &found.refused {
        writeln!(out, "note: {refused}")?;
    }
    if found.hidden > 0 {
        writeln!(out, "note: {}", containers::hidden(found.hidden))?;
    }
    if found.places.is_empty() {
        writeln!(
            out,
            "note: no process of another mount namespace has telemetry open"
        )?;
    }
    Ok(())
}

/// `at` is where a directory can be reached that only a container sees.
fn check_directory(
    directory: &Directory,
    at: Option<&Path>,
    config: &Config,
    mappers: &Mappers,
    verdict: &mut Verdict,
    out: &mut impl Write,
) -> io::Result<()> {
    let path = directory.path.display();
    match at {
        Some(at) => writeln!(out, "directory {path} ({})", at.display())?,
        None => writeln!(out, "directory {path}")?,
    }
    let listed = directory
        .open()
        .and_then(|fd| Ok((directory::names(&fd)?, fd)));
    let (names, fd) = match listed {
        Ok(listed) => listed,
        Err(errno) => {
            verdict.problems += 1;
            let why = directory::why_not(errno);
            return writeln!(
                out,
                "  problem: cannot be looked through: {why}; make it, or correct telemetry_dir"
            );
        }
    };
    for name in names {
        let shown = name::shown(&name);
        match look(&fd, &name, directory.holds, config) {
            Ok(opened) => {
                let path = directory.path.join(&name);
                let said = match &opened {
                    Opened::Ring(candidate) => describe(candidate, &path, mappers, verdict),
                    Opened::Store(candidate) => describe_store(candidate, &path, mappers, verdict),
                };
                writeln!(out, "  {shown}: {said}")?;
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
    let facts = discover::facts(directory, name).map_err(|errno| {
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
        Refusal::Uninitialised => facts.is_some_and(|facts| !is_starting(facts, refusal)),
        _ => refusal.is_unsupported(),
    };
    is_silent && refusal.concerns_a_ring()
}

/// `store of agent "worker", 18 bounds, local rank 0, written by pid 4242 (python3) user dynamo`.
fn describe_store(
    candidate: &store::Candidate,
    path: &Path,
    mappers: &Mappers,
    verdict: &mut Verdict,
) -> String {
    let store::Candidate {
        file,
        facts,
        description,
    } = candidate;
    if !verdict.seen.insert(facts.id) {
        return "the same store by another path".into();
    }
    let bounds = description.ranges.count() - 1;
    let mut text = format!("store of agent {:?}, {bounds} bounds", description.agent);
    if !description.rank.is_empty() {
        text.push_str(&format!(", local rank {:?}", description.rank));
    }
    let writers = writers(facts, path, mappers, verdict);
    let held = writer::holder(file, LeaseKind::NoWriter);
    match held {
        _ if !writers.is_empty() => text.push_str(&writers),
        Holder::Nobody => text.push_str(", its agent has exited"),
        Holder::Somebody => text.push_str(", its agent lives, but /proc does not show it"),
        Holder::Unknown => text.push_str(", no writer seen"),
    }
    verdict.stores += 1;
    verdict.wanted += usize::from(held != Holder::Nobody);
    text
}

/// `, written by pid 4242 (python3) user dynamo`, for each process that has the file mapped.
fn writers(facts: &FileFacts, path: &Path, mappers: &Mappers, verdict: &mut Verdict) -> String {
    let writers = mappers.of(facts.id.dev, facts.id.ino, path).into_iter();
    let writers = writers.filter(|mapper| mapper.command != "pmdanixl");
    writers.fold(String::new(), |text, writer| {
        let user = discover::user_name(writer.uid);
        let command = name::shown(OsStr::new(&writer.command));
        let pid = writer.process.pid;
        verdict.writers.insert(pid);
        format!("{text}, written by pid {pid} ({command}) user {user}")
    })
}

/// `ring v4, 4096 events, 12 pending, written by pid 4242 (python3) user dynamo`.
fn describe(
    candidate: &Candidate,
    path: &Path,
    mappers: &Mappers,
    verdict: &mut Verdict,
) -> String {
    let Candidate {
        facts,
        header,
        layout,
        ..
    } = candidate;
    if !verdict.seen.insert(facts.id) {
        return "the same ring by another path".into();
    }
    let mut text = format!(
        "ring {}, {} events, {} pending",
        layout.name(),
        header.capacity,
        header.pending()
    );
    let (ours, writers): (Vec<_>, Vec<_>) = mappers
        .of(facts.id.dev, facts.id.ino, path)
        .into_iter()
        .partition(|mapper| mapper.command == "pmdanixl");
    text.push_str(&self::writers(facts, path, mappers, verdict));
    if writers.is_empty() {
        text.push_str(", no writer seen");
    }
    if writers.len() > 1 {
        text.push_str(": more than one writer spoils a ring");
    }
    for reader in ours {
        text.push_str(&format!(", drained by pid {}", reader.process.pid));
    }
    match candidate.access {
        Access::Write => {}
        Access::Asked => text.push_str(", only followed"),
        Access::Denied(errno) => {
            verdict.problems += 1;
            text.push_str(&format!(
                ", may not be written to ({errno}) and is only followed; run as root or as the user of its agent"
            ));
        }
    }
    verdict.rings += 1;
    verdict.wanted += usize::from(header.pending() > 0 || !writers.is_empty());
    text
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
            (Refusal::Uninitialised, &young, false),
            (Refusal::Uninitialised, &old, true),
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
