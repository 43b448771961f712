//! Processes that can transfer data by NIXL and whose telemetry is not found: why an operator sees nothing. For `--check`.
//!
//! Such a process has a NIXL backend loaded ([`crate::producer::survey::library`]). One whose agent has ended, or a child that
//! was forked after a backend was loaded, cannot be told from one whose telemetry is off; the environment says which is more
//! likely.

use crate::check::as_root;
use crate::find::directory::Directory;
use crate::find::discover;
use crate::find::name;
use crate::producer::ancestors::{self, Ancestors};
use crate::producer::facts::command::CommandLine;
use crate::producer::facts::engine::Engine;
use crate::producer::facts::telemetry::{Enable, Settings};
use crate::producer::holdups::{At, Avoided};
use crate::producer::survey::Mappers;
use crate::producer::writer::{Stat, Writer, namespace};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::iter::{empty, once};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a command line that are read: the engine is named within.
const COMMAND: u64 = 4096;
/// Bytes of an environment that are read: more than a process can be started with (execve(2)).
const ENVIRON: u64 = 8 << 20;

/// Processes that have a NIXL backend loaded, as far as /proc may be read.
#[derive(Debug, Default)]
pub struct Users {
    found: Vec<User>,
    /// False if /proc hides processes, or what they have mapped.
    is_complete: bool,
}

/// A process that has a NIXL backend loaded.
#[derive(Debug)]
struct User {
    pid: u32,
    uid: u32,
    /// Title or program, without arguments.
    command: String,
    /// The engine that the command line of the process or of an ancestor names.
    engine: Option<Engine>,
    /// The environment of the process or of its nearest ancestor that has one; with the process id and command of that ancestor.
    environment: Option<(Settings, Option<(u32, String)>)>,
    /// True if the process is in another mount namespace than this one.
    is_elsewhere: bool,
}

impl Users {
    /// Reads the environments of the processes that have a NIXL backend loaded. Reading one may take as long as its process likes.
    #[must_use]
    pub fn read(mappers: &mut Mappers, avoided: &Avoided, at: At) -> Self {
        let is_complete = mappers.complete;
        // Otherwise none are named.
        mappers.complete = true;
        let mut all = mappers.silent(empty()).unwrap_or_default();
        mappers.complete = is_complete;
        all.sort_by_key(|process| process.pid);
        let found = all
            .into_iter()
            .filter_map(|process| User::read(process, avoided, at));
        let found = found.collect();
        at(None);
        Self { found, is_complete }
    }

    /// Prints those that are none of these writers, each with what is to be changed. Returns their number.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn tell(
        &self,
        writers: &HashSet<u32>,
        directories: &[Directory],
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let silent = self.found.iter();
        let silent: Vec<_> = silent.filter(|user| !writers.contains(&user.pid)).collect();
        if !silent.is_empty() {
            writeln!(out, "processes that use NIXL, without telemetry here:")?;
        }
        for user in &silent {
            let name = discover::user_name(user.uid);
            let why = user.why(directories);
            writeln!(
                out,
                "  pid {} ({}) user {name}: {why}",
                user.pid, user.command
            )?;
        }
        if !self.is_complete {
            let hint = as_root();
            writeln!(
                out,
                "note: not all processes may be looked at for NIXL{hint}"
            )?;
        }
        Ok(silent.len())
    }
}

impl User {
    /// `None`: the process has ended.
    fn read(process: Writer, avoided: &Avoided, at: At) -> Option<Self> {
        let shown_at = Stat::of(process.pid).ok()?.shown_at(process.pid)?;
        let namespaces = [shown_at.trim_start_matches("/proc/"), "self"];
        let [its, ours] = namespaces.map(|process| namespace(process, "mnt").ok());
        let mut user = Self {
            pid: process.pid,
            uid: ancestors::uid(process.pid)?,
            command: command(&shown_at).ok()?.0,
            engine: None,
            environment: None,
            is_elsewhere: its != ours,
        };
        let ancestors = Ancestors::of(process).into_iter().flatten();
        for one in once(process)
            .chain(ancestors)
            .filter(|one| !avoided.has(*one))
        {
            at(Some(one));
            let Some(shown_at) = Stat::of(one.pid)
                .ok()
                .and_then(|stat| stat.shown_at(one.pid))
            else {
                continue;
            };
            let (Ok(settings), Ok((command, engine))) = (settings(&shown_at), command(&shown_at))
            else {
                continue;
            };
            // The prefix of vLLM's titles can be chosen (VLLM_PROCESS_NAME_PREFIX), and then they do not name the engine.
            user.engine = user.engine.or(engine);
            if !settings.is_overwritten() && one.is_running() {
                let ancestor = (one != process).then_some((one.pid, command));
                user.environment = Some((settings, ancestor));
                break;
            }
        }
        Some(user)
    }

    fn why(&self, directories: &[Directory]) -> String {
        match &self.environment {
            None => format!(
                "its environment may not be read, or the process has written a title over it: see what it was started with{}",
                as_root()
            ),
            Some((settings, None)) => self.advice(settings, directories),
            Some((settings, Some((pid, command)))) => format!(
                "its environment cannot be read; by that of its ancestor pid {pid} ({command}): {}",
                self.advice(settings, directories)
            ),
        }
    }

    fn advice(&self, settings: &Settings, directories: &[Directory]) -> String {
        let enable = match self.engine {
            Some(Engine::Vllm) => Enable::NeededBefore14,
            _ => Enable::Needed,
        };
        let mut faults = settings.faults(enable, |path, stores| {
            // What a container calls a directory says nothing of the host's.
            let known = |directory: &Directory| {
                let holds = directory.holds;
                (if stores { holds.stores } else { holds.rings }) && is_same(&directory.path, path)
            };
            self.is_elsewhere || directories.iter().any(known)
        });
        if self.is_elsewhere {
            faults.push("it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)".into());
        }
        if faults.is_empty() {
            return "the environment is as it should be: the agent has ended, the process was forked from one that has an agent, or NIXL's own log says why it has no telemetry"
                .into();
        }
        faults.join("; ")
    }
}

/// The environment of a process, as far as it concerns NIXL.
fn settings(shown_at: &str) -> io::Result<Settings> {
    Settings::read(File::open(format!("{shown_at}/environ"))?.take(ENVIRON))
}

/// Title or program of a process, without arguments, since these can hold secrets; and the engine that its command line names.
fn command(shown_at: &str) -> io::Result<(String, Option<Engine>)> {
    let read = |file: &str| {
        let mut text = Vec::new();
        let file = File::open(format!("{shown_at}/{file}"))?;
        file.take(COMMAND).read_to_end(&mut text)?;
        io::Result::Ok(text)
    };
    let line = read("cmdline")?;
    let shown = CommandLine::parse(&line).and_then(|line| line.shown());
    let shown = match shown {
        Some(shown) => shown,
        // The process has overwritten its command line with nothing.
        None => name::shown(OsStr::from_bytes(read("comm")?.trim_ascii_end())),
    };
    Ok((shown, Engine::of_command_line(&line)))
}

/// True if two paths lead to one directory.
fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    // A relative one is so to a directory that is not ours.
    one == other || other.is_absolute() && place(one).is_some_and(|one| place(other) == Some(one))
}
