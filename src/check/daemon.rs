//! The running daemon, found by its state file, and the differences between its configuration and that of `--check`.

use crate::check::silent::as_root;
use crate::config::options;
use crate::config::pcpconf::PcpConf;
use crate::config::{Config, Environment, MULTIPROC_DIR, TELEMETRY_DIR};
use crate::find::name;
use crate::producer::facts::telemetry::Settings;
use crate::producer::holdups::{At, Holdups, Look};
use crate::producer::survey::{Mapper, Mappers};
use crate::producer::writer::Writer;
use crate::shm;
use crate::state;
use nix::time::{ClockId, clock_gettime};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes that are read of a command line and of an environment: more than a process can be started with (execve(2)).
const MAX_TEXT: u64 = 8 << 20;

/// The daemon that keeps its totals in this host's state file.
#[derive(Debug)]
pub enum Daemon {
    /// No daemon runs.
    Absent,
    /// It is not known whether a daemon runs, or which process it is; the reason.
    Unknown(String),
    /// A daemon runs.
    Running {
        /// Process id.
        pid: u32,
        /// What the process was started with, or why that is not known.
        setup: io::Result<Setup>,
    },
}

/// What a daemon was started with, as far as it decides about its configuration.
#[derive(Debug)]
pub struct Setup {
    /// The file that `-c` names.
    config: Option<PathBuf>,
    /// The user that `-U` names.
    username: Option<String>,
    /// NIXL_TELEMETRY_DIR and NIXL_TELEMETRY_MULTIPROC_DIR of the environment.
    directories: [Option<String>; 2],
    /// When the daemon last read its configuration, or was started, if the state file does not say: in time since the epoch.
    config_read: Duration,
}

impl Daemon {
    /// Finds the daemon among the processes that have a file mapped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn find(state: &Path, mappers: &Mappers, holdups: &mut Holdups) -> io::Result<Self> {
        let meta = match fs::metadata(state) {
            Ok(meta) => meta,
            Err(err) if err.kind() == ErrorKind::NotFound => {
                return Ok(Self::Unknown(format!(
                    "{} does not exist: no daemon was started since the last boot, or the daemon cannot make this file, which its log says",
                    state.display()
                )));
            }
            Err(err) => return Ok(Self::Unknown(unreadable(state, &err))),
        };
        // Any user can give a process this name and map a file of this path and number in a mount namespace of its own.
        let is_daemon = |mapper: &&Mapper| mapper.is_pmdanixl(&[meta.uid()]);
        let mut mappers = mappers.of(meta.dev(), meta.ino(), state).into_iter();
        let Some(found) = mappers.find(is_daemon) else {
            return Ok(
                match File::open(state).and_then(|file| shm::is_locked(&file)) {
                    Ok(false) => Self::Absent,
                    Ok(true) => Self::Unknown(format!(
                        "one has locked {}, and /proc does not show its process{}",
                        state.display(),
                        as_root()
                    )),
                    Err(err) => Self::Unknown(unreadable(state, &err)),
                },
            );
        };
        let process = found.process;
        let setup = holdups.look(|avoided| {
            Look::begin("daemon", move |at| match avoided.has(process) {
                true => Err(ErrorKind::TimedOut.into()),
                false => Setup::read(process, at),
            })
        })?;
        let mut setup = setup.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()));
        if let Ok(setup) = &mut setup {
            let noted = File::open(state).and_then(|file| state::config_read(&file));
            setup.config_read = setup.config_read.max(noted.unwrap_or_default());
        }
        Ok(Self::Running {
            pid: process.pid,
            setup,
        })
    }

    /// Returns the lines that `--check` prints: first whether a daemon runs, then a warning for each difference. `path` and
    /// `config` are those of `--check`; `None`: the file has a mistake.
    #[must_use]
    pub fn lines(&self, path: &Path, config: Option<&Config>, conf: &PcpConf) -> Vec<String> {
        match self {
            Self::Absent => vec!["daemon: not running".into()],
            Self::Unknown(why) => vec![format!("daemon: not known: {why}")],
            Self::Running {
                pid,
                setup: Err(err),
            } => vec![format!(
                "daemon: pid {pid}; its command line and environment may not be read ({err}){}, so its configuration may differ",
                as_root()
            )],
            Self::Running {
                pid,
                setup: Ok(setup),
            } => {
                let default = conf.nixl_conf();
                let ours = Environment::read();
                let differences = setup.differences(path, &default, config, &ours);
                let with = match differences.is_empty() {
                    true => "the same configuration file, environment and user",
                    false => "another configuration",
                };
                let warnings = differences
                    .into_iter()
                    .chain(setup.outdated(&default))
                    .map(|line| format!("warning: {line}"));
                let first = format!("daemon: pid {pid}, started with {with}");
                [first].into_iter().chain(warnings).collect()
            }
        }
    }
}

impl Setup {
    fn read(process: Writer, at: At) -> io::Result<Self> {
        at(Some(process));
        let proc = format!("/proc/{}", process.pid);
        let open =
            |file: &str| io::Result::Ok(File::open(format!("{proc}/{file}"))?.take(MAX_TEXT));
        let settings = Settings::read(open("environ")?)?;
        let mut line = Vec::new();
        open("cmdline")?.read_to_end(&mut line)?;
        let words = line.strip_suffix(b"\0").unwrap_or(&line);
        let words = words.split(|&byte| byte == 0);
        let words = words.map(|word| OsString::from(OsStr::from_bytes(word)));
        let options = options::parse_in(&fs::read_link(format!("{proc}/cwd"))?, words);
        let options = options.map_err(io::Error::other)?;
        if !process.is_running() {
            return Err(ErrorKind::NotFound.into());
        }
        Ok(Self {
            config: options.config,
            username: options.username,
            directories: settings.directories().map(|value| value.map(str::to_owned)),
            config_read: started(process)?,
        })
    }

    /// The configuration file of the daemon.
    fn file<'a>(&'a self, default: &'a Path) -> &'a Path {
        self.config.as_deref().unwrap_or(default)
    }

    /// Returns a warning if the configuration file has changed since the daemon read it.
    fn outdated(&self, default: &Path) -> Option<String> {
        let file = self.file(default);
        let meta = fs::metadata(file).ok()?;
        let seconds = u64::try_from(meta.ctime()).ok()?;
        let changed = Duration::new(seconds, u32::try_from(meta.ctime_nsec()).ok()?);
        (changed > self.config_read).then(|| {
            format!(
                "{} has changed since the daemon read it; have the daemon read it again: pmstore nixl.control.reload 1",
                name::shown(file.as_os_str())
            )
        })
    }

    /// Returns a line for each difference, with its remedy.
    fn differences(
        &self,
        path: &Path,
        default: &Path,
        config: Option<&Config>,
        ours: &Environment,
    ) -> Vec<String> {
        let mut found = Vec::new();
        let its = self.file(default);
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if real(its) != real(path) {
            let (its, path) = (name::shown(its.as_os_str()), path.display());
            found.push(format!(
                "the daemon reads {its}, and this check {path}: give it -c {its}"
            ));
        }
        let ours = [&ours.telemetry_dir, &ours.multiproc_dir];
        let names = [
            (TELEMETRY_DIR, "telemetry_dir"),
            (MULTIPROC_DIR, "multiproc_dir"),
        ];
        for (((variable, key), its), ours) in names.into_iter().zip(&self.directories).zip(ours) {
            let ours = ours.as_deref().filter(|value| !value.is_empty());
            match (its.as_deref().map(OsStr::new), ours) {
                (its, ours) if its == ours => {}
                (Some(its), _) => {
                    let its = name::shown(its);
                    found.push(format!(
                        "pmcd's environment gives the daemon {variable}={its}, which it takes in place of {key}: give it to this check, or remove it there and restart pmcd"
                    ));
                }
                (None, ours) => {
                    let ours = name::shown(ours.unwrap_or_default());
                    found.push(format!(
                        "the environment gives this check {variable}={ours} in place of {key}, and the daemon does not have it: unset it"
                    ));
                }
            }
        }
        let is_other = |its: &&String| {
            config.is_some_and(|config| {
                let user = config.user.as_ref();
                user.is_none_or(|account| account.name != **its)
            })
        };
        if let Some(its) = self.username.as_ref().filter(is_other) {
            let its = name::shown(OsStr::new(its));
            found.push(format!(
                "the daemon runs with -U {its}: give it to this check"
            ));
        }
        found
    }
}

/// Returns when a process was started, since the epoch, to 10 ms.
fn started(process: Writer) -> io::Result<Duration> {
    let clocks = [ClockId::CLOCK_REALTIME, ClockId::CLOCK_BOOTTIME];
    let [now, since_boot] = clocks.map(clock_gettime);
    let boot = Duration::from(now?).saturating_sub(Duration::from(since_boot?));
    // The start is rounded down.
    Ok(boot + process.started() + Duration::from_millis(10))
}

fn unreadable(path: &Path, err: &io::Error) -> String {
    format!("{} may not be read ({err}){}", path.display(), as_root())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(config: Option<&str>, rings: Option<&str>, username: Option<&str>) -> Setup {
        Setup {
            config: config.map(PathBuf::from),
            username: username.map(str::to_owned),
            directories: [rings.map(str::to_owned), None],
            config_read: Duration::ZERO,
        }
    }

    fn differences(setup: &Setup, rings: Option<&str>) -> Vec<String> {
        let ours = Environment {
            telemetry_dir: rings.map(OsString::from),
            // Empty is as unset.
            multiproc_dir: Some(OsString::new()),
        };
        let [path, default] = ["/none/a.conf", "/none/nixl.conf"].map(Path::new);
        setup.differences(path, default, Some(&Config::default()), &ours)
    }

    #[test]
    fn each_difference_is_named_with_its_remedy() {
        let same = setup(Some("/none/a.conf"), Some("/rings"), None);
        assert_eq!(differences(&same, Some("/rings")), [""; 0]);
        for (setup, rings, expected) in [
            (
                setup(None, None, None),
                None,
                "the daemon reads /none/nixl.conf, and this check /none/a.conf: give it -c /none/nixl.conf",
            ),
            (
                same,
                Some("/other"),
                "pmcd's environment gives the daemon NIXL_TELEMETRY_DIR=/rings, which it takes in place of telemetry_dir: give it to this check, or remove it there and restart pmcd",
            ),
            (
                setup(Some("/none/a.conf"), None, None),
                Some("/other"),
                "the environment gives this check NIXL_TELEMETRY_DIR=/other in place of telemetry_dir, and the daemon does not have it: unset it",
            ),
            (
                setup(Some("/none/a.conf"), None, Some("pcp")),
                None,
                "the daemon runs with -U pcp: give it to this check",
            ),
        ] {
            assert_eq!(differences(&setup, rings), [expected]);
        }
    }

    #[test]
    fn file_that_changed_after_it_was_read_is_told() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let mut setup = setup(file.path().to_str(), None, None);
        let told = setup.outdated(Path::new("/none")).expect("it is later");
        assert!(told.contains("pmstore nixl.control.reload 1"), "{told}");
        setup.config_read = Duration::from_secs(u32::MAX.into());
        assert_eq!(setup.outdated(Path::new("/none")), None);
        setup.config = None;
        assert_eq!(setup.outdated(Path::new("/none")), None);
    }
}
