//! Processes that can transfer data by NIXL and whose telemetry is not found: why an operator sees nothing. For `--check`.
//!
//! Such a process has a NIXL backend loaded ([`crate::producer::survey::library`]). One whose agent has ended, or a child that
//! was forked after a backend was loaded, cannot be told from one whose telemetry is off; the environment says which is more
//! likely.

use crate::check::{as_root, release};
use crate::find::directory::Directory;
use crate::find::discover;
use crate::find::name;
use crate::producer::ancestors;
use crate::producer::facts::Facts;
use crate::producer::facts::environ::Environ;
use crate::producer::facts::telemetry::{self, Enable};
use crate::producer::holdups::Gate;
use crate::producer::survey::Mappers;
use crate::producer::writer::{Stat, Writer, namespace};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::iter::once;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of an environment that are read: more than a process can be started with (execve(2)).
const MAX_ENVIRON_LEN: u64 = 8 << 20;
/// The first release of NIXL, major and minor, that writes telemetry by `capture_telemetry` alone.
const CAPTURE_TELEMETRY_SINCE: (u32, u32) = (1, 4);

/// Processes that have a NIXL backend loaded, as far as /proc may be read.
#[derive(Debug, Default)]
pub struct NixlProcesses {
    found: Vec<NixlProcess>,
    /// False if /proc hides processes, or what they have mapped.
    is_complete: bool,
}

/// A process that has a NIXL backend loaded.
#[derive(Debug)]
struct NixlProcess {
    pid: u32,
    uid: u32,
    /// Title or program, without arguments.
    command: String,
    enable: Enable,
    /// The environment of the process or of its nearest ancestor that has one, which has this process id.
    environment: Option<(u32, Environ)>,
    /// True if the process is in another mount namespace than this one.
    is_in_other_namespace: bool,
}

impl NixlProcesses {
    /// Reads the environments of the processes that have a NIXL backend loaded. Reading one may take as long as its process likes.
    #[must_use]
    pub fn read(mappers: &Mappers, gate: &Gate) -> Self {
        let all = mappers.nixl.iter();
        let read = all.filter_map(|(process, core)| NixlProcess::read(*process, core, gate));
        let mut found: Vec<NixlProcess> = read.collect();
        found.sort_by_key(|user| user.pid);
        Self {
            found,
            is_complete: mappers.complete,
        }
    }

    /// Prints those that are none of these writers, each with what is to be changed. Returns their number.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn report(
        &self,
        writers: &HashSet<u32>,
        directories: &[Directory],
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let silent = self.found.iter();
        let silent: Vec<_> = silent
            .filter(|process| !writers.contains(&process.pid))
            .collect();
        if !silent.is_empty() {
            writeln!(out, "processes that use NIXL, without telemetry here:")?;
        }
        for process in &silent {
            let name = discover::user_name(process.uid);
            let reason = process.reason(directories);
            writeln!(
                out,
                "  pid {} ({}) user {name}: {reason}",
                process.pid, process.command
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

impl NixlProcess {
    /// `core` is the path of libnixl as the process sees it. `None`: the process has ended.
    fn read(process: Writer, core: &Path, gate: &Gate) -> Option<Self> {
        if !gate.may_read(process) {
            return None;
        }
        let facts = Facts::of_process(process, &mut |one| gate.may_read(one))?;
        let command = facts.get("command").map(str::to_owned).or_else(|| {
            // The process has overwritten its command line with nothing.
            let comm = fs::read(format!("/proc/{}/comm", process.pid)).ok()?;
            Some(name::shown(OsStr::from_bytes(comm.trim_ascii_end())))
        });
        let mut processes = once(process).chain(ancestors::of(process));
        let environment = processes.find_map(|one| {
            if !gate.may_read(one) {
                return None;
            }
            let shown_at = Stat::of(one.pid).ok()?.shown_at().ok()?;
            let environ = File::open(format!("{shown_at}/environ")).ok()?;
            let environ = telemetry::read(environ.take(MAX_ENVIRON_LEN)).ok()?;
            one.is_running().then_some((one.pid, environ))
        });
        let shown_at = Stat::of(process.pid).ok()?.shown_at().ok()?;
        let namespaces = [shown_at.trim_start_matches("/proc/"), "self"];
        let [its, ours] = namespaces.map(|process| namespace(process, "mnt").ok());
        // Another mount namespace has other files at the path.
        let core = Some(core).filter(|_| its == ours);
        let enable = match core.and_then(release::of_library) {
            _ if facts.get("engine") != Some("vllm") => Enable::Needed,
            None => Enable::NeededBefore14,
            Some(release) if release < CAPTURE_TELEMETRY_SINCE => Enable::Needed,
            Some(_) => Enable::NotNeeded,
        };
        Some(Self {
            pid: process.pid,
            uid: ancestors::uid(process.pid)?,
            command: command?,
            enable,
            environment,
            is_in_other_namespace: its != ours,
        })
    }

    fn reason(&self, directories: &[Directory]) -> String {
        match &self.environment {
            None => format!(
                "its environment may not be read, or the process has written a title over it: see what it was started with{}",
                as_root()
            ),
            Some((pid, environ)) if *pid == self.pid => self.advice(environ, directories),
            Some((pid, environ)) => format!(
                "its environment cannot be read; by that of its ancestor pid {pid}: {}",
                self.advice(environ, directories)
            ),
        }
    }

    fn advice(&self, environ: &Environ, directories: &[Directory]) -> String {
        let mut faults = telemetry::faults(environ, self.enable, |path, stores| {
            // What a container calls a directory says nothing of the host's.
            let known = |directory: &Directory| {
                let holds = directory.holds;
                (if stores { holds.stores } else { holds.rings })
                    && is_same_directory(&directory.path, path)
            };
            self.is_in_other_namespace || directories.iter().any(known)
        });
        if self.is_in_other_namespace {
            faults.push("it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)".into());
        }
        if faults.is_empty() {
            return "the environment is as it should be: the agent has ended, the process was forked from one that has an agent, or NIXL's own log says why it has no telemetry"
                .into();
        }
        faults.join("; ")
    }
}

/// True if two paths lead to one directory.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    // A relative one is so to a directory that is not ours.
    one == other || other.is_absolute() && place(one).is_some_and(|one| place(other) == Some(one))
}
