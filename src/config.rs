//! The configuration file: TOML, `$PCP_SYSCONF_DIR/nixl/nixl.conf`; and the INI file of PCP's Python PMDA of the same name.

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
pub use file::parse;

/// The longest configuration that is read, in bytes.
const MAX_LEN: u64 = 1 << 20;
/// Bounds of `drain_interval`, milliseconds, whether the file sets it or a store.
pub const DRAIN_INTERVAL_MS: (u64, u64) = (1, 1_000);

/// The variables that tell NIXL itself where to write rings and stores.
pub const ENVIRONMENT_VARIABLES: [&str; 2] = ["NIXL_TELEMETRY_DIR", "NIXL_TELEMETRY_MULTIPROC_DIR"];

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Account that the daemon runs under once it has connected to pmcd; `None`: the one it was started under.
    #[serde(deserialize_with = "value::user")]
    pub user: Option<UserAccount>,
    /// Directories that are scanned for rings.
    #[serde(deserialize_with = "value::directories")]
    pub telemetry_dir: Vec<DirectoryPattern>,
    /// Directories that are scanned for prometheus_mp stores.
    #[serde(deserialize_with = "value::directories")]
    pub multiproc_dir: Vec<DirectoryPattern>,
    /// Time between two drains of the rings.
    #[serde(
        deserialize_with = "value::period::<_, { DRAIN_INTERVAL_MS.0 }, { DRAIN_INTERVAL_MS.1 }>"
    )]
    pub drain_interval: Duration,
    /// How long an exited agent stays an instance, for loggers to see its last values.
    #[serde(deserialize_with = "value::period::<_, 0, 604_800_000>")]
    pub retain: Duration,
    /// How long an agent whose files are gone is remembered after that, with what it has counted, for its return.
    #[serde(deserialize_with = "value::period::<_, 0, 31_536_000_000>")]
    pub remember: Duration,
    /// After how long without an event a live agent is called idle.
    #[serde(deserialize_with = "value::period::<_, 1_000, 604_800_000>")]
    pub idle_after: Duration,
    /// Bounds of the histograms of times, microseconds.
    #[serde(rename = "histogram_buckets_us", deserialize_with = "value::bounds")]
    pub bounds: Bounds,
    /// How many rings are attached at most.
    #[serde(deserialize_with = "value::number::<_, _, 100_000>")]
    pub max_agents: usize,
    /// How many slots a ring has at most that is attached.
    #[serde(deserialize_with = "value::number::<_, _, { 1 << 40 }>")]
    pub max_capacity: u64,
    /// How many directories are scanned at most that patterns match.
    #[serde(deserialize_with = "value::number::<_, _, 100_000>")]
    pub max_directories: usize,
    /// User ids whose files are read; `None`: those of all users.
    #[serde(deserialize_with = "value::owners")]
    pub owners: Option<Vec<u32>>,
    /// True if rings are only followed, and never drained.
    pub observe: bool,
    /// How long after its agent has exited a drained ring is removed; `None`: never.
    #[serde(deserialize_with = "value::optional_period::<_, 0, 31_536_000_000>")]
    pub remove_exited_after: Option<Duration>,
    /// True if /proc is read for the processes that write to rings.
    pub proc_facts: bool,
    /// Of 0.1.0: ignored, with a warning.
    pub containers: bool,
    /// Where the kubelet has the logs of pods, by which pods have their names.
    #[serde(deserialize_with = "value::path")]
    pub pod_logs: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            user: None,
            telemetry_dir: vec![DirectoryPattern {
                path: "/var/tmp".into(),
                label: None,
                literal: true,
            }],
            multiproc_dir: Vec::new(),
            drain_interval: Duration::from_millis(50),
            retain: Duration::from_secs(600),
            remember: Duration::from_secs(7 * 86_400),
            idle_after: Duration::from_secs(60),
            bounds: Bounds::latency(),
            max_agents: 4096,
            max_capacity: MAX_CAPACITY,
            max_directories: 1024,
            owners: None,
            observe: false,
            remove_exited_after: None,
            proc_facts: true,
            pod_logs: "/var/log/pods".into(),
            containers: false,
        }
    }
}

/// Slots that a ring has at most, where nothing else is wanted: a thousand times NIXL's default, and 64 MiB of the newest layout. A
/// stranger's file can say that it has any number, and be a hole.
pub const MAX_CAPACITY: u64 = 1 << 22;

/// A user account, looked up when the configuration is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
}

/// A directory, or a shell pattern that matches directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPattern {
    /// Absolute path; may hold `*`, `?` and `[...]` unless it is literal.
    pub path: String,
    /// Tells agents of the same name in different directories apart.
    pub label: Option<String>,
    /// Whether the path is taken letter for letter.
    pub literal: bool,
}

/// A configuration that was read, and what the operator should know about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedConfig {
    /// The settings.
    pub config: Config,
    /// What should be changed, one line each.
    pub warnings: Vec<String>,
    /// What is not in the file, one line each.
    pub notes: Vec<String>,
}

impl LoadedConfig {
    /// Logs what the operator should know.
    pub fn log(&self) {
        self.warnings
            .iter()
            .for_each(|warning| tracing::warn!("{warning}"));
        self.notes.iter().for_each(|note| tracing::info!("{note}"));
    }
}

/// The values of [`ENVIRONMENT_VARIABLES`] that override the file, as with the Python PMDA. An empty one is as unset.
pub type Environment = [Option<OsString>; 2];

/// Reads a configuration file. Where it may be missing and is, the defaults hold.
///
/// # Errors
/// The first thing that is wrong, with its place and what is allowed.
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
            let note = format!("{path} is not there; the defaults hold");
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
            notes.push(format!("{key} is {variable} of the environment"));
        }
    }
    Ok(loaded)
}

/// All of a regular file of a size that a configuration may have: what a reload waits for is waited for by pmcd.
fn read(path: &Path) -> io::Result<String> {
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("is no regular file"));
    }
    if meta.len() > MAX_LEN {
        return Err(io::Error::other(format!("is longer than {MAX_LEN} bytes")));
    }
    io::read_to_string(file.take(MAX_LEN))
}

#[cfg(test)]
mod tests;
