// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: processes that use NIXL without telemetry here, each with a probable reason.
//!
//! Such a process has a NIXL backend loaded ([`crate::procfs::process_scan::library`]). Its agent may have ended, or it may
//! be a forked child without an agent. These cases look like telemetry that is off. The environment shows which is more
//! likely.

use crate::accounts::names::UserNames;
use crate::base::text;
use crate::check::{as_root, transport};
use crate::config::Config;
use crate::discovery::directory::Directory;
use crate::observer::version;
use crate::procfs::ancestors;
use crate::procfs::facts::Facts;
use crate::procfs::facts::environ::Environ;
use crate::procfs::facts::telemetry;
use crate::procfs::process::{own_namespace, sees_host};
use crate::procfs::process_dir::ProcessDir;
use crate::procfs::process_scan::scanned::MAX_COMMAND;
use crate::procfs::process_scan::{NixlProcess, ProcessScan};
use crate::procfs::scan_threads::ScanContext;
use nix::unistd::geteuid;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Processes that have a NIXL backend loaded, as far as /proc may be read.
#[derive(Debug, Default)]
pub struct NixlProcesses {
    found: Vec<CheckedProcess>,
    /// Why /proc does not show all processes and their mapped files. `None` if it does.
    hidden: Option<&'static str>,
}

/// Process that has a NIXL backend loaded.
#[derive(Debug)]
struct CheckedProcess {
    found: NixlProcess,
    /// Version of NIXL.
    version: Option<String>,
    /// Process title or program name, without arguments.
    command: String,
    is_vllm: bool,
    /// Environment of the process or of its nearest ancestor with a readable one, and the process id of that process.
    environment: Option<(u32, Environ)>,
    /// True if the process is in another mount namespace than this one.
    is_in_other_namespace: bool,
}

impl NixlProcesses {
    /// Reads the environments of the processes that have a NIXL backend loaded. A stalled process can block it.
    #[must_use]
    pub fn read(process_scan: &ProcessScan, context: &ScanContext) -> Self {
        let all = process_scan.nixl_processes.iter();
        let read = all.filter_map(|process| CheckedProcess::read(process, context));
        let mut found: Vec<CheckedProcess> = read.collect();
        found.sort_by_key(|user| user.found.id.pid);
        Self {
            found,
            hidden: (!process_scan.is_complete).then(|| why_hidden(process_scan)),
        }
    }

    /// Prints the processes that are not among `writers`, each with the probable reason. Returns their number.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn report(
        &self,
        writers: &HashSet<u32>,
        directories: &[Directory],
        names: &mut UserNames,
        out: &mut impl Write,
    ) -> io::Result<usize> {
        let silent = self.found.iter();
        let silent: Vec<_> = silent
            .filter(|process| !writers.contains(&process.found.id.pid))
            .collect();
        if !silent.is_empty() {
            writeln!(out, "processes that use NIXL, without telemetry here:")?;
        }
        for process in &silent {
            let name = names.wait_for(process.found.uid);
            let reason = process.reason(directories);
            writeln!(
                out,
                "  pid {} ({}) user {name}: {reason}",
                process.found.id.pid, process.command
            )?;
        }
        if let Some(why) = self.hidden {
            writeln!(
                out,
                "note: not all processes can be examined for NIXL: {why}"
            )?;
        }
        Ok(silent.len())
    }
}

impl NixlProcesses {
    /// Prints the transports of all processes, as [`transport::report`] does.
    ///
    /// # Errors
    /// If the output cannot be written.
    pub fn report_transports(
        &self,
        config: &Config,
        names: &mut UserNames,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let owners = config.owners.as_ref();
        let process = |process: &'_ CheckedProcess| {
            let environ = process.environment.as_ref();
            transport::CheckedTransport {
                id: process.found.id,
                command: process.command.clone(),
                user: names.wait_for(process.found.uid),
                backends: Vec::from_iter(process.found.libraries.backends.clone()).join(","),
                version: process.version.clone(),
                transports: environ
                    .and_then(|(_, environ)| environ.get(transport::UCX_TLS))
                    .map(str::to_owned),
                is_excluded: owners.is_some_and(|owners| !owners.contains(&process.found.uid)),
            }
        };
        let off = match (config.proc_facts, config.transport) {
            (false, _) => Some("proc_facts = false"),
            (true, false) => Some("transport = false"),
            (true, true) => None,
        };
        let processes: Vec<_> = self.found.iter().map(process).collect();
        transport::report(&processes, off, out)
    }
}

impl CheckedProcess {
    /// Reads one process. `None`: the process has ended.
    fn read(found: &NixlProcess, context: &ScanContext) -> Option<Self> {
        let process = found.id;
        if !context.may_read(process) {
            return None;
        }
        let directory = ProcessDir::of(process).ok()?;
        let facts = Facts::of_process(&directory, &mut |one| context.may_read(one))?;
        let command = facts.get("command").map(str::to_owned).or_else(|| {
            // The command line is empty, because the process has overwritten it.
            let comm = directory.read("comm", MAX_COMMAND).ok()?;
            Some(text::printable(OsStr::from_bytes(comm.trim_ascii_end())))
        });
        let names = [&telemetry::NAMES[..], &[transport::UCX_TLS]].concat();
        let read = |one: &ProcessDir| {
            let environ = context.may_read(one.id()).then(|| Environ::of(one, &names));
            Some((one.id().pid, environ?.ok()?))
        };
        let ancestors = || ancestors::of(&directory).find_map(|one| read(&one));
        let environment = read(&directory).or_else(ancestors);
        let library = found.libraries.core.as_deref();
        let [its, ours] = [directory.namespace("mnt"), own_namespace("mnt")].map(Result::ok);
        Some(Self {
            version: library.and_then(|library| version::of_library(&directory, library)),
            found: found.clone(),
            command: command?,
            is_vllm: facts.get("engine") == Some("vllm"),
            environment,
            is_in_other_namespace: its != ours,
        })
    }

    fn reason(&self, directories: &[Directory]) -> String {
        match &self.environment {
            None => format!(
                "its environment cannot be read, or the process has overwritten it with a title: check how it was started{}",
                as_root()
            ),
            Some((pid, environ)) if *pid == self.found.id.pid => self.advice(environ, directories),
            Some((pid, environ)) => format!(
                "its environment cannot be read; that of its ancestor, pid {pid}, says: {}",
                self.advice(environ, directories)
            ),
        }
    }

    fn advice(&self, environ: &Environ, directories: &[Directory]) -> String {
        let mut faults = telemetry::faults(environ, self.is_vllm, |path, stores| {
            // A path in a container is not a path of the host.
            let known = |directory: &Directory| {
                let holds = directory.kinds;
                (if stores { holds.stores } else { holds.rings })
                    && is_same_directory(&directory.path, path)
            };
            self.is_in_other_namespace || directories.iter().any(known)
        });
        if self.is_in_other_namespace {
            faults.push("it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)".into());
        }
        if faults.is_empty() {
            return "its environment is correct: the agent has ended, the process was forked from one with an agent, or the log of NIXL says why there is no telemetry"
                .into();
        }
        faults.join("; ")
    }
}

/// Returns why a process scan is not complete, and the remedy.
fn why_hidden(process_scan: &ProcessScan) -> &'static str {
    if process_scan.has_unreadable {
        match geteuid().is_root() {
            true => {
                "some may not be read without CAP_SYS_PTRACE; give it to the container (docker run --cap-add SYS_PTRACE)"
            }
            false => "those of other users may not be read; run as root",
        }
    } else if !Path::new("/proc/1").exists() {
        match geteuid().is_root() {
            true => "/proc has no process 1; mount proc(5) there, without hidepid",
            false => "/proc hides those of other users (hidepid); run as root",
        }
    } else if !sees_host() {
        "those outside of this container are not visible; if NIXL runs outside of it too, run this on the host or in its PID namespace (docker run --pid=host)"
    } else {
        "a process blocks, or too many have one file mapped; run this again"
    }
}

/// Time in which the file system of a directory answers.
const ANSWER_TIME: Duration = Duration::from_secs(1);

/// Returns device and inode of a directory that a process names. `None`: it is not there, or its file system does not answer.
fn place(path: &Path) -> Option<(u64, u64)> {
    let (sender, receiver) = mpsc::channel();
    let path = path.to_owned();
    // A thread that waits for a file system ends with this process.
    thread::spawn(move || {
        let meta = fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
        let _ = sender.send(meta.ok());
    });
    receiver.recv_timeout(ANSWER_TIME).ok()?
}

/// True if two paths lead to one directory.
fn is_same_directory(one: &Path, other: &Path) -> bool {
    // A relative path belongs to the working directory of another process.
    one == other || other.is_absolute() && place(one).is_some_and(|one| place(other) == Some(one))
}
