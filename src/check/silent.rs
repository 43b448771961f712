// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: processes that use NIXL without telemetry here, each with a probable reason.
//!
//! Such a process has a NIXL backend loaded ([`crate::procfs::process_scan::library`]). Its agent may have ended, or it
//! may be a forked child without an agent. These cases look like telemetry that is off. The environment shows which is
//! more likely.

use crate::base::file::FileFacts;
use crate::check::{Summary, as_root};
use crate::discovery::directory::Directory;
use crate::observer::examination::NixlExamination;
use crate::procfs::facts::environ::Environ;
use crate::procfs::facts::telemetry;
use nix::sys::stat::stat;
use std::io::{self, Write};

/// Prints the processes that write to none of the rings and stores, each with the probable reason. Returns their
/// number.
///
/// # Errors
/// If the output cannot be written.
pub fn report(
    summary: &Summary,
    directories: &[Directory],
    out: &mut impl Write,
) -> io::Result<usize> {
    let (seen, writers) = (&summary.seen, &summary.writers);
    let mut silent: Vec<_> = seen.nixl.iter().collect();
    silent.retain(|process| !writers.contains(&process.found.info.id.pid));
    if !silent.is_empty() {
        writeln!(out, "processes that use NIXL, without telemetry here:")?;
    }
    for process in &silent {
        let name = summary.seen.names.get(process.found.info.uid);
        let reason = reason(process, directories);
        writeln!(
            out,
            "  pid {} ({}) user {name}: {reason}",
            process.found.info.id.pid, process.command
        )?;
    }
    if let Some(why) = seen.why_incomplete {
        writeln!(
            out,
            "note: not all processes can be examined for NIXL: {why}"
        )?;
    }
    Ok(silent.len())
}

/// Returns why a process has no telemetry here.
fn reason(process: &NixlExamination, directories: &[Directory]) -> String {
    match &process.environment {
        None => format!(
            "its environment cannot be read, or the process has overwritten it with a title: check how it was started{}",
            as_root()
        ),
        Some((pid, environ)) if *pid == process.found.info.id.pid => {
            advice(process, environ, directories)
        }
        Some((pid, environ)) => format!(
            "its environment cannot be read; that of its ancestor, pid {pid}, says: {}",
            advice(process, environ, directories)
        ),
    }
}

fn advice(process: &NixlExamination, environ: &Environ, directories: &[Directory]) -> String {
    let mut faults = telemetry::faults(environ, |path, stores| {
        // A path in a container is not a path of the host.
        let its_id = process.directories[usize::from(stores)];
        let known = |directory: &Directory| {
            let holds = directory.kinds;
            let id = || Some(FileFacts::new(&stat(&directory.path).ok()?).id);
            (if stores { holds.stores } else { holds.rings })
                && (directory.path == path || its_id.is_some_and(|its_id| id() == Some(its_id)))
        };
        process.is_in_other_namespace || directories.iter().any(known)
    });
    if process.is_in_other_namespace {
        faults.push("it is in a container: share a directory of telemetry_dir with it (a volume, docker run --ipc=host)".into());
    }
    if faults.is_empty() {
        return "its environment is correct: the agent has ended, the process was forked from one with an agent, or the log of NIXL says why there is no telemetry"
            .into();
    }
    faults.join("; ")
}
