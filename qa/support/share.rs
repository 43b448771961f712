// SPDX-License-Identifier: GPL-2.0-or-later

//! Files of share/ for PCP's tools, and archives to test them with.

use super::{Pmcd, output, project, text, wait_for};
use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Derived metrics, which rules and views need.
pub const DERIVED: &str = "share/derived/nixl.conf";

/// Makes a link to a file or directory of the project at the path where PCP reads it.
pub fn link(file: &str, place: &Path) {
    let parent = place.parent().expect("in a directory");
    fs::create_dir_all(parent).expect("made");
    symlink(project(file), place).expect("made");
}

/// Text of a file of the project.
pub fn text_of(file: &str) -> String {
    fs::read_to_string(project(file)).unwrap_or_else(|err| panic!("{file}: {err}"))
}

/// Sorted names of the files in a directory of the project.
pub fn files_in(directory: &str) -> Vec<String> {
    let entries = fs::read_dir(project(directory)).expect(directory).flatten();
    let names = entries.map(|entry| entry.file_name().into_string().expect("UTF-8"));
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

/// A PCP tool without pmcd, with the derived metrics of the project and no others.
pub fn tool(tool: &str) -> Command {
    let mut command = Command::new(tool);
    command
        .env("PATH", "/usr/bin:/bin")
        .env("TZ", "UTC")
        .env("PCP_DERIVED_CONFIG", project(DERIVED));
    command
}

/// Writes an archive with a sample every so many seconds. A line of the table is a metric, an instance or `-`, and a
/// value or `-` for each sample.
pub fn archive(path: &Path, seconds: u32, table: &str) {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(project("qa/archive.py")).arg(path);
    let mut python = python
        .arg(seconds.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the distribution's Python: scripts/setup check");
    let mut input = python.stdin.take().expect("piped");
    input.write_all(table.as_bytes()).expect("it reads");
    drop(input);
    let output = python.wait_with_output().expect("our child");
    assert!(output.status.success(), "{}\n{table}", text(&output));
}

/// Names of metrics in a text, both of this PMDA and derived.
pub fn names_in(text: &str) -> Vec<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let words = text.split(|c| !is_name(c));
    let names = words.filter(|word| word.starts_with("nixl.") || word.starts_with("nixl_derived."));
    names.map(|name| name.trim_end_matches('.')).collect()
}

/// True if a metric, or a group of metrics, has that name.
pub fn is_metric(name: &str) -> bool {
    let metrics = text_of("qa/golden/pminfo_dm.out");
    let derived = text_of(DERIVED);
    let mut names = metrics
        .lines()
        .filter_map(|line| Some(line.split_once(" PMID: ")?.0))
        .chain(
            derived
                .lines()
                .filter_map(|line| Some(line.split_once(" = ")?.0)),
        );
    names.any(|found| {
        let rest = found.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// A pmlogger that samples all our metrics each second. Dropping it ends pmlogger.
pub struct Logger {
    child: Child,
    archive: PathBuf,
}

impl Logger {
    /// Starts pmlogger. The paths of its files begin with `archive`.
    pub fn start(pmcd: &Pmcd, archive: &Path) -> Self {
        Self::start_as(pmcd.tool("pmlogger"), archive)
    }

    /// Starts pmlogger with a command that may wrap it or add options.
    pub fn start_as(pmlogger: Command, archive: &Path) -> Self {
        Self::start_configured(pmlogger, archive, "log mandatory on 1 sec { nixl }\n")
    }

    /// Starts a pmlogger with this configuration. Its log is beside the archive and ends in `.log`.
    pub fn start_configured(mut pmlogger: Command, archive: &Path, configuration: &str) -> Self {
        let (config, log) = (
            archive.with_extension("conf"),
            archive.with_extension("log"),
        );
        fs::write(&config, configuration).expect("written");
        pmlogger.arg("-c").arg(config).arg("-l").arg(log);
        let child = pmlogger.arg(archive).spawn();
        Self {
            child: child.expect("pmlogger is installed: scripts/setup check"),
            archive: archive.to_owned(),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until pmlogger has written so many more samples.
    pub fn samples(&self, more: usize) {
        let count = || {
            let dumped = output(
                tool("pmdumplog")
                    .arg(&self.archive)
                    .arg("nixl.control.version"),
            );
            text(&dumped).matches("(nixl.control.version):").count()
        };
        let before = count();
        wait_for("pmlogger writes samples", || {
            (count() >= before + more).then_some(())
        });
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            let pid = nix::unistd::Pid::from_raw(pid);
            // On this signal, pmlogger flushes its archive and ends.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        }
        let _ = self.child.wait();
    }
}
