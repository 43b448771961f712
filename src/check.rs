//! `pmdanixl --check`: what would be done with each file, without pmcd and without consuming anything.

use crate::config::{Config, Loaded};
use crate::directory::{self, Directory};
use crate::discover::{self, Candidate};
use crate::error::{ConfigError, Refusal};
use crate::privilege;
use crate::writer::Mappers;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What the check came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rings that would be drained.
    pub rings: usize,
    /// Files that would be left alone.
    pub refused: usize,
    /// Things that stop it from working.
    pub problems: usize,
}

/// Prints what would be done with each file, as the configured user where this one may become that.
///
/// # Errors
/// The output cannot be written.
pub fn run(
    path: &Path,
    loaded: Result<&Loaded, &ConfigError>,
    out: &mut impl Write,
) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(err) => {
            writeln!(out, "problem: {err}")?;
            return Ok(Verdict {
                problems: 1,
                ..verdict
            });
        }
    };
    writeln!(out, "configuration: {}", path.display())?;
    for warning in &loaded.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    // Looked at before the user is changed, who may not see other users' processes.
    let mappers = Mappers::read();
    if let Some(account) = &loaded.config.user {
        match privilege::become_user(account) {
            Ok(()) => writeln!(out, "as user {}", account.name)?,
            Err(err) => {
                verdict.problems += 1;
                writeln!(out, "problem: {err}")?;
            }
        }
    }
    let directories = directory::expand(&loaded.config.telemetry_dir);
    if directories.is_empty() {
        verdict.problems += 1;
        writeln!(out, "problem: telemetry_dir matches no directory")?;
    }
    for directory in &directories {
        check_directory(directory, &loaded.config, &mappers, &mut verdict, out)?;
    }
    if verdict.rings > loaded.config.max_agents {
        verdict.problems += 1;
        writeln!(
            out,
            "problem: {} rings, but max_agents is {}",
            verdict.rings, loaded.config.max_agents
        )?;
    }
    let Verdict {
        rings,
        refused,
        problems,
    } = verdict;
    writeln!(
        out,
        "{rings} rings, {refused} files refused, {problems} problems"
    )?;
    Ok(verdict)
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
        .and_then(|fd| Ok((directory::names(&fd)?, fd)));
    let (names, fd) = match listed {
        Ok(listed) => listed,
        Err(errno) => {
            verdict.problems += 1;
            return writeln!(
                out,
                "  problem: cannot be looked through: {errno}; make it, or correct telemetry_dir"
            );
        }
    };
    for name in names {
        let shown = shown(&name);
        match look(&fd, &name, config) {
            Ok(candidate) => {
                verdict.rings += 1;
                writeln!(
                    out,
                    "  {shown}: {}",
                    describe(&candidate, &directory.path.join(&name), mappers)
                )?;
            }
            Err(refusal) => {
                verdict.refused += 1;
                verdict.problems += usize::from(is_problem(&refusal));
                writeln!(out, "  {shown}: refused: {refusal}")?;
            }
        }
    }
    Ok(())
}

fn look(directory: &OwnedFd, name: &OsStr, config: &Config) -> Result<Candidate, Refusal> {
    let facts = discover::facts(directory, name).map_err(|errno| Refusal::Io {
        what: "looked at",
        errno,
    })?;
    discover::open(directory, name, &facts, config.owners.as_deref())
}

/// Whether a refusal means that an agent is not seen that should be, rather than that a stranger's file is left alone.
fn is_problem(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::Unsupported { .. } | Refusal::NoWriteAccess(_)
    )
}

/// `ring v4, 4096 events, 12 pending, written by pid 4242 (python3) user dynamo`.
fn describe(candidate: &Candidate, path: &Path, mappers: &Mappers) -> String {
    let Candidate {
        facts,
        header,
        layout,
        ..
    } = candidate;
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
    for writer in &writers {
        let user = discover::user_name(writer.uid);
        text.push_str(&format!(
            ", written by pid {} ({}) user {user}",
            writer.pid,
            shown(OsStr::new(&writer.command))
        ));
    }
    if writers.is_empty() {
        text.push_str(", no writer seen");
    }
    if writers.len() > 1 {
        text.push_str(": more than one writer spoils a ring");
    }
    for reader in ours {
        text.push_str(&format!(", drained by pid {}", reader.pid));
    }
    text
}

/// A name as it can be shown on a terminal.
fn shown(name: &OsStr) -> String {
    match name.to_str() {
        Some(text) if !text.chars().any(|c| c.is_control() || c == ' ') => text.to_owned(),
        _ => format!("{name:?}"),
    }
}
