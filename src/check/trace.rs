// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: whether transfers in flight can be traced.

use crate::base::text;
use crate::check::{Summary, WARNING, as_root};
use crate::config::Config;
use crate::rights::privilege::{self, OF_TRACER};
use std::io::{self, Write};
use std::path::Path;

/// Prints what prevents `trace`, and the libraries that cannot be traced. Prints nothing without `trace`.
///
/// # Errors
/// If the output cannot be written.
pub fn report(summary: &mut Summary, config: &Config, out: &mut impl Write) -> io::Result<()> {
    if !config.trace {
        return Ok(());
    }
    if !config.traces() {
        return writeln!(
            out,
            "{WARNING}trace needs proc_facts and transport: nothing is traced; set both to true in nixl.conf"
        );
    }
    let permitted = privilege::permitted();
    let lacking = privilege::names(OF_TRACER.into_iter().filter(|cap| !permitted.contains(cap)));
    let has_uprobes = Path::new("/sys/bus/event_source/devices/uprobe").exists();
    let mut problems = Vec::new();
    if OF_TRACER.iter().any(|cap| !permitted.contains(cap)) {
        problems.push(format!(
            "trace: this process lacks {lacking}{}; a container needs --cap-add BPF --cap-add PERFMON",
            as_root()
        ));
    }
    if !has_uprobes {
        problems.push("trace: the kernel has no uprobes (CONFIG_UPROBE_EVENTS), or /sys is not mounted; set trace = false".into());
    }
    if problems.is_empty() {
        writeln!(out, "trace: transfers in flight are traced")?;
    }
    for process in &summary.seen.nixl {
        let Err(why) = &process.traceable else {
            continue;
        };
        let library = process.found.libraries.core.clone().unwrap_or_default();
        let (pid, library) = (process.found.info.id.pid, text::printable(library));
        problems.push(format!(
            "trace: process {pid}: {library} cannot be traced: {why}; NIXL 1.1 to 1.5 can be"
        ));
    }
    for problem in problems {
        summary.problem(out, problem)?;
    }
    Ok(())
}
