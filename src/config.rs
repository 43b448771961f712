// SPDX-License-Identifier: GPL-2.0-or-later

//! Configuration file `$PCP_SYSCONF_DIR/nixl/nixl.conf`: TOML, or the INI format of PCP's Python PMDA.

use crate::error::ConfigError;
use crate::stats::histogram::Bounds;
use serde::Deserialize;
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod file;
pub mod ini;
pub mod loader;
pub mod options;
pub mod pcpconf;
mod value;
pub use crate::accounts::UserAccount;
pub use file::parse;

/// Limit of the configuration file, in bytes.
const MAX_LEN: u64 = 1 << 20;

/// Environment variables of NIXL with the directories of rings and stores. They override the file.
pub const ENVIRONMENT_VARIABLES: [&str; 2] = ["NIXL_TELEMETRY_DIR", "NIXL_TELEMETRY_MULTIPROC_DIR"];

/// Settings of an operator. nixl.conf(5) has all keys. One field for each key: `flatten` of serde, for structs in it,
/// loses the line of a mistake.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Account that the daemon changes to after it has connected to pmcd; `None`: no change.
    #[serde(deserialize_with = "value::user")]
    pub user: Option<UserAccount>,
    /// Directories that are scanned for rings.
    #[serde(deserialize_with = "value::directories")]
    pub telemetry_dir: Vec<DirectoryPattern>,
    /// Directories that are scanned for prometheus_mp stores.
    #[serde(deserialize_with = "value::directories")]
    pub multiproc_dir: Vec<DirectoryPattern>,
    /// Time between two drains of the rings.
    #[serde(deserialize_with = "value::period::<_, _, 1, 1_000>")]
    pub drain_interval: Duration,
    /// Time that an exited agent stays an instance, so that loggers see its last values.
    #[serde(deserialize_with = "value::period::<_, _, 0, 604_800_000>")]
    pub retain: Duration,
    /// Time that the record of an agent stays after its files are gone, so that a returning agent keeps its totals.
    #[serde(deserialize_with = "value::period::<_, _, 0, 31_536_000_000>")]
    pub remember: Duration,
    /// Time without an event after which a live agent is idle.
    #[serde(deserialize_with = "value::period::<_, _, 1_000, 604_800_000>")]
    pub idle_after: Duration,
    /// Time without a completed transfer after which an agent whose bytes wait, or whose peer is halted, is suspected
    /// to have stalled; zero: none ever is. Needs `transport`.
    #[serde(deserialize_with = "value::period::<_, _, 0, 3_600_000>")]
    pub stalled_after: Duration,
    /// Bounds of the histograms of times, microseconds.
    #[serde(rename = "histogram_buckets_us", deserialize_with = "value::bounds")]
    pub bounds: Bounds,
    /// Time of a transfer above which it is an event, microseconds; `None`: none is.
    #[serde(deserialize_with = "value::number::<_, _, { 1 << 40 }>")]
    pub slow_transfer_us: Option<u64>,
    /// Limit of agents.
    #[serde(deserialize_with = "value::number::<_, _, 100_000>")]
    pub max_agents: usize,
    /// Limit of slots of a ring. A ring with more is rejected.
    #[serde(deserialize_with = "value::number::<_, _, { 1 << 40 }>")]
    pub max_capacity: u64,
    /// Limit of directories that patterns match.
    #[serde(deserialize_with = "value::number::<_, _, 100_000>")]
    pub max_directories: usize,
    /// Ids of the users with files that are read; `None`: all users.
    #[serde(deserialize_with = "value::owners")]
    pub owners: Option<Vec<u32>>,
    /// True if no ring is drained.
    pub observe: bool,
    /// Time after the exit of its agent at which a drained ring is removed; `None`: never.
    #[serde(deserialize_with = "value::period::<_, _, 0, 31_536_000_000>")]
    pub remove_exited_after: Option<Duration>,
    /// True if /proc is read for the processes that write to rings.
    pub proc_facts: bool,
    /// True if the sockets of processes that use NIXL are read. Needs `proc_facts`.
    pub transport: bool,
    /// True if transfers in flight are traced by probes on libnixl. Needs `transport`.
    pub trace: bool,
    /// True if the result of each post is traced as well. Needs `trace`.
    pub trace_failed_posts: bool,
    /// Directory of the kubelet's logs of pods. Its entries have the names of pods.
    #[serde(deserialize_with = "value::path")]
    pub pod_logs: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            user: None,
            telemetry_dir: vec![DirectoryPattern::of("/var/tmp")],
            multiproc_dir: Vec::new(),
            drain_interval: Duration::from_millis(50),
            retain: Duration::from_secs(600),
            remember: Duration::from_secs(7 * 86_400),
            idle_after: Duration::from_secs(60),
            stalled_after: Duration::from_secs(30),
            bounds: Bounds::default(),
            slow_transfer_us: None,
            max_agents: 4096,
            max_capacity: MAX_CAPACITY,
            max_directories: 1024,
            owners: None,
            observe: false,
            remove_exited_after: None,
            proc_facts: true,
            transport: true,
            trace: false,
            trace_failed_posts: false,
            pod_logs: "/var/log/pods".into(),
        }
    }
}

impl Config {
    /// True if transfers in flight are traced.
    #[must_use]
    pub fn traces(&self) -> bool {
        self.trace && self.transport && self.proc_facts
    }
}

/// Default of `max_capacity`: a thousand times NIXL's default, and 64 MiB in the newest layout. A sparse file of an
/// untrusted user can claim any capacity.
pub const MAX_CAPACITY: u64 = 1 << 22;

/// A directory, or a shell pattern that matches directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPattern {
    /// Absolute path; may contain `*`, `?` and `[...]` unless it is literal.
    pub path: String,
    /// Suffix of the instance name if agents in several directories have one name.
    pub label: Option<String>,
    /// True if `path` is not a pattern.
    pub literal: bool,
}

impl DirectoryPattern {
    /// Directory without a label, or a pattern if the path has a wildcard.
    #[must_use]
    pub fn of(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().display().to_string();
        Self {
            literal: !path.contains(['*', '?', '[']),
            label: None,
            path,
        }
    }
}

/// Configuration that was read, with messages for the operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedConfig {
    /// Settings.
    pub config: Config,
    /// Things to change, one line each.
    pub warnings: Vec<String>,
    /// Settings that are not from the file, one line each.
    pub notes: Vec<String>,
}

impl LoadedConfig {
    /// Logs the messages.
    pub fn log(&self) {
        self.warnings
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        self.notes.iter().for_each(|note| tracing::info!("{note}"));
    }
}

/// Values of [`ENVIRONMENT_VARIABLES`]. They override the file, as in the Python PMDA. An empty value counts as unset.
pub type Environment = [Option<OsString>; 2];

/// Reads a configuration file. If it may be missing and is, the defaults apply.
///
/// # Errors
/// The first mistake, with its line and the allowed values.
pub fn load(
    path: &Path,
    may_be_missing: bool,
    environment: &Environment,
) -> Result<LoadedConfig, ConfigError> {
    let mut loaded = LoadedConfig::default();
    match read(path) {
        Ok(text) => loaded = parse(path, &text)?,
        Err(err) if may_be_missing && err.kind() == io::ErrorKind::NotFound => {
            let path = path.display();
            let note = format!("{path}: missing; the defaults apply");
            loaded.notes.push(note);
        }
        Err(source) => {
            return Err(ConfigError::Read {
                path: path.into(),
                source,
            });
        }
    }
    let LoadedConfig { config, notes, .. } = &mut loaded;
    let keys = [
        ("telemetry_dir", &mut config.telemetry_dir),
        ("multiproc_dir", &mut config.multiproc_dir),
    ];
    for ((key, directories), (variable, value)) in keys
        .into_iter()
        .zip(ENVIRONMENT_VARIABLES.iter().zip(environment))
    {
        if let Some(value) = value.as_ref().filter(|value| !value.is_empty()) {
            let path = value.to_str().ok_or_else(|| "is not UTF-8".to_owned());
            let directory = path.and_then(|path| value::directory(path, None, true));
            let directory = directory.map_err(|message| ConfigError::Outside {
                place: format!("environment variable {variable}"),
                message,
            })?;
            *directories = vec![directory];
            notes.push(format!("{key}: set by environment variable {variable}"));
        }
    }
    Ok(loaded)
}

/// Reads a regular file of limited size without blocking, since pmcd waits during a reload.
fn read(path: &Path) -> io::Result<String> {
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    if meta.len() > MAX_LEN {
        return Err(io::Error::other(format!("is longer than {MAX_LEN} bytes")));
    }
    io::read_to_string(file.take(MAX_LEN))
}

#[cfg(test)]
mod tests;
