// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: the running daemon, found by its state file, and the differences between its configuration and that of
//! the check.

use crate::base::file::{FileFacts, FileId};
use crate::base::text;
use crate::check::{WARNING, as_root};
use crate::config::options::{self, Options};
use crate::config::pcpconf::PcpConf;
use crate::config::{self, Config, ENVIRONMENT_VARIABLES, Environment};
use crate::journal;
use crate::procfs::facts::command::MAX_CMDLINE;
use crate::procfs::facts::environ::Environ;
use crate::procfs::facts::telemetry;
use crate::procfs::process::ProcessId;
use crate::procfs::process_dir::ProcessDir;
use crate::procfs::process_scan::ProcessScan;
use crate::procfs::scan_threads::ScanContext;
use crate::shm;
use nix::sys::stat::stat;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Limit of what is read of /proc/PID/fdinfo/FD, in bytes. The lock is in one of its first lines.
const MAX_FDINFO: u64 = 1 << 12;

/// Options and [`ENVIRONMENT_VARIABLES`] that a daemon was started with. They decide about its configuration.
pub type Setup = (Options, [Option<String>; 2]);

/// Finds the process of the running daemon by its state file, and reads what it was started with. `None`: /proc shows none.
pub fn find(
    state: &Path,
    process_scan: &ProcessScan,
    context: &ScanContext,
) -> Option<(ProcessId, io::Result<Setup>)> {
    let FileFacts { id, uid, .. } = FileFacts::new(&stat(state).ok()?);
    let mut processes = process_scan.processes_of(id, state).into_iter();
    // The uid is compared: any user can give a process this name and map such a file in a mount namespace.
    let found = processes.find(|process| process.is_pmdanixl(&[uid]))?;
    Some((found.id, read_setup(found.id, context)))
}

/// Returns the files that a process has open, each with true if the process has locked it.
pub fn open_files(process: &ProcessDir) -> HashMap<FileId, bool> {
    let files = process.descriptors(usize::MAX);
    let files = files.map(|files| files.numbers).unwrap_or_default();
    let files = files.into_iter().filter_map(|fd| {
        let stat = process.metadata(&format!("fd/{fd}")).ok()?;
        // /proc/locks shows no process for an open file description lock.
        // It cannot be read if the file was closed meanwhile.
        let info = process.read(&format!("fdinfo/{fd}"), MAX_FDINFO).ok()?;
        let is_locked = String::from_utf8_lossy(&info).contains("OFDLCK");
        Some((FileFacts::new(&stat).id, is_locked))
    });
    files.collect()
}

/// Returns the limit of open files of a process. `None`: it is not known.
pub fn open_files_limit(process: &ProcessDir) -> Option<usize> {
    let limits = process.text("limits");
    let mut lines = limits.lines();
    // The soft limit, which the daemon has raised.
    let soft = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_whitespace().next()?.parse().ok()
}

/// Returns the lines of `--check` about the daemon: whether one runs, then a warning for each difference. `path` and
/// `config` are those of `--check`. `config` is `None` if the file has a mistake. `found` is the result of [`find`].
///
/// # Errors
/// Nothing is known of the daemon; the error is the only line.
pub fn lines(
    path: &Path,
    config: Option<&Config>,
    conf: &PcpConf,
    found: Option<(ProcessId, io::Result<Setup>)>,
) -> Result<Vec<String>, String> {
    let state = conf.state();
    let (shown, hint) = (text::printable(&state), as_root());
    let file = File::open(&state).map_err(|err| match err.kind() {
        ErrorKind::NotFound => format!(
            "daemon: not known: {shown} does not exist: no daemon was started with a valid nixl.conf since the last boot, or the daemon cannot create this file; see its log"
        ),
        _ => format!("daemon: not known: {shown} cannot be read ({err}){hint}"),
    })?;
    let (process, setup) =
        found.ok_or_else(|| match shm::is_locked(&file).unwrap_or_default() {
            false => "daemon: not running, or without a valid nixl.conf since its start".into(),
            true => format!(
                "daemon: not known: a process has locked {shown}, and /proc does not show it{hint}"
            ),
        })?;
    let pid = process.pid;
    let (options, variables) = setup.map_err(|err| {
        format!(
            "daemon: pid {pid}; its command line and environment cannot be read ({err}){hint}, so its configuration may differ"
        )
    })?;
    let default = conf.nixl_conf();
    let file_of_daemon = options.config.as_deref().unwrap_or(&default);
    let its = variables.map(|value| value.map(OsString::from));
    // An empty variable is like an unset one.
    let ours =
        ENVIRONMENT_VARIABLES.map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    let username = options.username.as_deref();
    let mut warnings = differences([file_of_daemon, path], [&its, &ours], username, config);
    let with = match (warnings.is_empty(), its == ours) {
        (true, true) => "the same configuration file, environment and user",
        (true, false) => "the same configuration file, directories and user",
        (false, _) => "another configuration",
    };
    let config_read = journal::config_read(&file).unwrap_or_default();
    warnings.extend(outdated_warning(file_of_daemon, config_read));
    let warnings = warnings.iter().map(|line| format!("{WARNING}{line}"));
    let first = format!("daemon: pid {pid}, started with {with}");
    Ok([first].into_iter().chain(warnings).collect())
}

/// Reads command line and environment of a daemon from /proc.
fn read_setup(process: ProcessId, context: &ScanContext) -> io::Result<Setup> {
    if !context.may_read(process) {
        return Err(ErrorKind::TimedOut.into());
    }
    let process = ProcessDir::of(process)?;
    let environ = Environ::of(&process, &telemetry::NAMES)?;
    let line = process.read("cmdline", MAX_CMDLINE)?;
    let words = line.strip_suffix(b"\0").unwrap_or(&line);
    let words = words.split(|&byte| byte == 0);
    let words = words.map(|word| OsString::from(OsStr::from_bytes(word)));
    let options = options::parse(&process.link("cwd")?, words);
    let options = options.map_err(io::Error::other)?;
    if !process.is_running() {
        return Err(ErrorKind::NotFound.into());
    }
    let variables = telemetry::directories(&environ);
    Ok((options, variables.map(|value| value.map(str::to_owned))))
}

/// Returns a warning if the configuration file has changed since the daemon read it. Returns `None` if the state file
/// does not have that time.
fn outdated_warning(file: &Path, config_read: Duration) -> Option<String> {
    let meta = fs::metadata(file).ok()?;
    let seconds = u64::try_from(meta.ctime()).ok()?;
    let changed = Duration::new(seconds, u32::try_from(meta.ctime_nsec()).ok()?);
    (!config_read.is_zero() && changed > config_read).then(|| {
        format!(
            "{} has changed since the daemon read it; have the daemon read it again: pmstore nixl.control.reload 1",
            text::printable(file)
        )
    })
}

/// Returns a line for each difference. In `files` and `variables`, the value of the daemon comes first.
fn differences(
    files: [&Path; 2],
    variables: [&Environment; 2],
    username: Option<&str>,
    config: Option<&Config>,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |what: &str, its: Option<&OsStr>, ours: Option<&OsStr>| {
        if its != ours {
            let [its, ours] = [its, ours].map(|value| value.map_or("none".into(), text::printable));
            found.push(format!(
                "{what}: the daemon has {its}, and this check has {ours}; use one value for both"
            ));
        }
    };
    let [its_file, file] = files.map(|path| path.canonicalize().unwrap_or_else(|_| path.into()));
    let [its_file, file] = [&its_file, &file].map(|path| Some(path.as_os_str()));
    compare("configuration file (-c)", its_file, file);
    // The file of one may name the directory that the environment of the other has.
    let its_config = config::load(files[0], true, variables[0]).map(|loaded| loaded.config);
    let its_config = its_config.as_ref().ok();
    for (index, variable) in ENVIRONMENT_VARIABLES.iter().enumerate() {
        let directories = |config: &Config| match index {
            0 => config.telemetry_dir.clone(),
            _ => config.multiproc_dir.clone(),
        };
        let [its, ours] = [its_config, config].map(|config| config.map(directories));
        if its.is_none() || its != ours {
            let what = format!("{variable} of the environment, which overrides the file");
            let [its, ours] = variables.map(|values| values[index].as_deref());
            compare(&what, its, ours);
        }
    }
    if let (Some(its), Some(config)) = (username, config) {
        let ours = config
            .user
            .as_ref()
            .map(|account| OsStr::new(&account.name));
        compare("user (-U)", Some(OsStr::new(its)), ours);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_difference_is_reported() {
        let [a, b] = ["/none/a.conf", "/none/b.conf"].map(Path::new);
        let rings = |path: Option<&str>| [path.map(OsString::from), None];
        let config = Config::default();
        for (files, its, ours, username, expected) in [
            ([a, a], Some("/rings"), Some("/rings"), None, None),
            (
                [b, a],
                None,
                None,
                None,
                Some(
                    "configuration file (-c): the daemon has /none/b.conf, and this check has /none/a.conf; ",
                ),
            ),
            (
                [a, a],
                Some("/rings"),
                Some("/other"),
                None,
                Some(
                    "NIXL_TELEMETRY_DIR of the environment, which overrides the file: the daemon has /rings, and this check has /other; ",
                ),
            ),
            // The default of the file.
            ([a, a], Some("/var/tmp/"), None, None, None),
            (
                [a, a],
                None,
                None,
                Some("pcp"),
                Some("user (-U): the daemon has pcp, and this check has none; "),
            ),
        ] {
            let variables = [&rings(its), &rings(ours)];
            let found = differences(files, variables, username, Some(&config));
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(
                found
                    .iter()
                    .all(|line| expected.is_some_and(|start| line.starts_with(start))),
                "{found:?}"
            );
        }
    }

    #[test]
    fn changed_file_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let warning = outdated_warning(file.path(), Duration::from_secs(1)).expect("it is later");
        assert!(
            warning.contains("pmstore nixl.control.reload 1"),
            "{warning}"
        );
        for read in [Duration::ZERO, Duration::from_secs(u32::MAX.into())] {
            assert_eq!(outdated_warning(file.path(), read), None);
        }
    }
}
