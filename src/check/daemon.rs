// SPDX-License-Identifier: GPL-2.0-or-later

//! `--check`: the running daemon, found by its state file, and the differences between its configuration and that of
//! the check.

use crate::base::file::FileFacts;
use crate::base::text;
use crate::check::seen::Seen;
use crate::check::{WARNING, as_root};
use crate::config::options::{self, Options};
use crate::config::pcpconf::PcpConf;
use crate::config::{Config, ENVIRONMENT_VARIABLES, Environment};
use crate::journal::{self, ConfigTimes};
use crate::observer::examination::DaemonExamination;
use crate::shm;
use nix::sys::stat::stat;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Finds the process of the running daemon by its state file. `None`: /proc shows none.
pub fn find(state: &Path, seen: &Seen) -> Option<u32> {
    let file = FileFacts::new(&stat(state).ok()?);
    let mut processes = seen.process_scan.processes_of(&file, state).into_iter();
    // The uid is compared: any user can give a process this name and map such a file in a mount namespace.
    let found = processes.find(|process| process.info.is_pmdanixl(&[file.uid]))?;
    Some(found.info.id.pid)
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
    found: Option<(u32, Option<&DaemonExamination>)>,
) -> Result<Vec<String>, String> {
    let state = conf.state();
    let (shown, hint) = (text::printable(&state), as_root());
    let file = File::open(&state).map_err(|err| match err.kind() {
        ErrorKind::NotFound => format!(
            "daemon: not known: {shown} does not exist: no daemon was started with a valid nixl.conf since the last boot, or the daemon cannot create this file; see its log"
        ),
        _ => format!("daemon: not known: {shown} cannot be read ({err}){hint}"),
    })?;
    let (pid, reading) = found.ok_or_else(|| match shm::is_locked(&file).unwrap_or_default() {
        false => "daemon: not running, or without a valid nixl.conf since its start".into(),
        true => format!(
            "daemon: not known: a process has locked {shown}, and /proc does not show it{hint}"
        ),
    })?;
    let (options, variables) = setup(reading).map_err(|err| {
        format!(
            "daemon: pid {pid}; its command line and environment cannot be read ({err}){hint}, so its configuration may differ"
        )
    })?;
    let default = conf.nixl_conf();
    let file_of_daemon = options.config.as_deref().unwrap_or(&default);
    let its = variables
        .each_ref()
        .map(|value| value.as_ref().map(OsString::from));
    // An empty variable is like an unset one.
    let ours =
        ENVIRONMENT_VARIABLES.map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    let username = options.username.as_deref();
    let mut warnings = differences([file_of_daemon, path], [&its, &ours], username, config);
    let with = match warnings.is_empty() {
        true => "the same configuration file, environment and user",
        false => "another configuration",
    };
    let times = journal::config_times(&file).unwrap_or_default();
    warnings.extend(outdated_warning(file_of_daemon, times));
    let warnings = warnings.iter().map(|line| format!("{WARNING}{line}"));
    let first = format!("daemon: pid {pid}, started with {with}");
    Ok([first].into_iter().chain(warnings).collect())
}

/// Options and [`ENVIRONMENT_VARIABLES`] that a daemon was started with. They decide about its configuration.
type Setup<'a> = (Options, &'a [Option<String>; 2]);

fn setup(reading: Option<&DaemonExamination>) -> Result<Setup<'_>, Box<dyn Error>> {
    let reading = reading.ok_or("it does not answer")?;
    let start = reading.start.as_ref().map_err(Clone::clone)?;
    let words = start.words.iter().cloned();
    let options = options::parse(Path::new(&start.directory), words)?;
    Ok((options, &start.variables))
}

/// Returns a warning if the daemon runs with another configuration than its file has now: it rejected the file, or the
/// file has changed since the daemon read it. Returns `None` if the state file does not have these times.
fn outdated_warning(file: &Path, times: ConfigTimes) -> Option<String> {
    let meta = fs::metadata(file).ok()?;
    let seconds = u64::try_from(meta.ctime()).ok()?;
    let changed = Duration::new(seconds, u32::try_from(meta.ctime_nsec()).ok()?);
    let ConfigTimes { read, rejected } = times;
    let shown = text::printable(file);
    match !read.is_zero() && read < changed.max(rejected) {
        true if changed < rejected => Some(format!(
            "the daemon has rejected {shown}, and runs with the configuration that it had before; pminfo -f nixl.control.config_error has the reason"
        )),
        true => Some(format!(
            "{shown} has changed since the daemon read it; have the daemon read it again: pmstore nixl.control.reload 1, or ./Install after a change of directories or user"
        )),
        false => None,
    }
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
    for (index, variable) in ENVIRONMENT_VARIABLES.iter().enumerate() {
        let what = format!("{variable} of the environment, which overrides the file");
        let [its, ours] = variables.map(|values| values[index].as_deref());
        compare(&what, its, ours);
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
        let warning = |read, rejected| {
            let [read, rejected] =
                [read, rejected].map(|when: u32| Duration::from_secs(when.into()));
            outdated_warning(file.path(), ConfigTimes { read, rejected })
        };
        let (early, late) = (1, u32::MAX - 1);
        for (read, rejected, expected) in [
            (early, 0, Some("pmstore nixl.control.reload 1")),
            (early, early, Some("pmstore nixl.control.reload 1")),
            (early, late, Some("the daemon has rejected ")),
            (late, late + 1, Some("the daemon has rejected ")),
            (late + 1, late, None),
            (late, 0, None),
            (0, 0, None),
            (0, late, None),
        ] {
            let said = warning(read, rejected);
            let is_expected = match (&said, expected) {
                (Some(said), Some(part)) => said.contains(part),
                (said, part) => said.is_none() && part.is_none(),
            };
            assert!(is_expected, "{read} {rejected}: {said:?}");
        }
    }
}
