//! The configuration file: TOML, `$PCP_SYSCONF_DIR/nixl/nixl.conf`; and the INI file of PCP's Python PMDA of the same name.

use crate::error::ConfigError;
use crate::ini;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

mod value;
use value::{Directories, MaxAgents, Owners, Period, UserName};

/// What an operator can set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Account that the agent runs under once it has connected to pmcd; `None`: the one it was started under.
    pub user: Option<Account>,
    /// Where rings are looked for.
    pub telemetry_dir: Vec<DirectoryPattern>,
    /// Time between two drains of the rings.
    pub drain_interval: Duration,
    /// How long an exited agent stays an instance, for loggers to see its last values.
    pub retain: Duration,
    /// How many rings are attached at most.
    pub max_agents: usize,
    /// User ids whose files are taken; `None`: everybody's.
    pub owners: Option<Vec<u32>>,
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
            drain_interval: Duration::from_millis(50),
            retain: Duration::from_secs(600),
            max_agents: 4096,
            owners: None,
        }
    }
}

/// A user account, looked up when the configuration is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
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
pub struct Loaded {
    /// The settings.
    pub config: Config,
    /// One line each.
    pub warnings: Vec<String>,
}

/// Reads a configuration file. `telemetry_dir` is the value of NIXL_TELEMETRY_DIR in our own environment; it wins over the
/// file, as with the Python PMDA.
///
/// # Errors
/// The first thing that is wrong, with its place and what is allowed.
pub fn load(path: &Path, telemetry_dir: Option<&std::ffi::OsStr>) -> Result<Loaded, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.into(),
        source,
    })?;
    let mut loaded = parse(path, &text)?;
    if let Some(dir) = telemetry_dir.filter(|dir| !dir.is_empty()) {
        loaded.config.telemetry_dir = vec![from_environment(dir)?];
    }
    Ok(loaded)
}

/// The settings without a file: the defaults, and NIXL_TELEMETRY_DIR.
///
/// # Errors
/// NIXL_TELEMETRY_DIR is no absolute path.
pub fn without_file(telemetry_dir: Option<&std::ffi::OsStr>) -> Result<Loaded, ConfigError> {
    let mut loaded = Loaded::default();
    if let Some(dir) = telemetry_dir.filter(|dir| !dir.is_empty()) {
        loaded.config.telemetry_dir = vec![from_environment(dir)?];
    }
    Ok(loaded)
}

/// The account that -U names, which overrides the file.
///
/// # Errors
/// There is no such user.
pub fn account_option(name: &str) -> Result<Account, ConfigError> {
    value::account(name).map_err(|message| ConfigError::Option {
        option: "-U",
        message,
    })
}

/// Reads the text of a configuration file.
///
/// # Errors
/// The first thing that is wrong, with its place and what is allowed.
pub fn parse(path: &Path, text: &str) -> Result<Loaded, ConfigError> {
    match toml::from_str::<File>(text) {
        Ok(file) => Ok(Loaded {
            config: file.nixl.unwrap_or_default().into(),
            warnings: Vec::new(),
        }),
        Err(err) => match ini::convert(text) {
            Some(converted) => from_ini(path, &converted),
            None => Err(located(path, text, &err)),
        },
    }
}

fn from_ini(path: &Path, converted: &ini::Converted) -> Result<Loaded, ConfigError> {
    let file = toml::from_str::<File>(&converted.toml)
        .map_err(|err| located(path, &converted.toml, &err))?;
    let mut warnings = vec![format!(
        "{}: this is the Python PMDA's format, taken as it is meant; write instead: {}",
        path.display(),
        converted.lines().join("; "),
    )];
    warnings.extend(converted.ignored.iter().map(|(line, key)| {
        format!(
            "{}:{line}: {key}: unknown key of the Python PMDA's format, ignored",
            path.display()
        )
    }));
    Ok(Loaded {
        config: file.nixl.unwrap_or_default().into(),
        warnings,
    })
}

fn from_environment(dir: &std::ffi::OsStr) -> Result<DirectoryPattern, ConfigError> {
    let variable = "NIXL_TELEMETRY_DIR";
    let path = dir.to_str().ok_or_else(|| "is not UTF-8".to_owned());
    path.and_then(|path| value::directory(path, None, true))
        .map_err(|message| ConfigError::Environment { variable, message })
}

/// Turns toml's error into one line with file, line and key.
fn located(path: &Path, text: &str, err: &toml::de::Error) -> ConfigError {
    let at = err.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..at].matches('\n').count() + 1;
    let message = err.message().replace('\n', " ");
    ConfigError::Value {
        path: path.into(),
        line,
        key: key_at(text, line).unwrap_or_default(),
        message,
    }
}

/// The key that a line belongs to, with a colon: on the line itself, or above it where a list goes over several lines.
fn key_at(text: &str, line: usize) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(line).collect();
    for above in lines.iter().rev() {
        let above = above.trim();
        if above.starts_with('[') && above.ends_with(']') {
            return None;
        }
        if let Some((key, _)) = above.split_once('=') {
            let key = key.trim();
            if !key.is_empty()
                && key
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-.\"".contains(&byte))
            {
                return Some(format!("{key}: "));
            }
        }
    }
    None
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    nixl: Option<Section>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    user: Option<UserName>,
    telemetry_dir: Option<Directories>,
    drain_interval: Option<Period<1, 1_000>>,
    retain: Option<Period<0, 604_800_000>>,
    max_agents: Option<MaxAgents>,
    owners: Option<Owners>,
}

impl From<Section> for Config {
    fn from(section: Section) -> Self {
        let default = Config::default();
        Config {
            user: section.user.map(|user| user.0),
            telemetry_dir: section
                .telemetry_dir
                .map_or(default.telemetry_dir, |dirs| dirs.0),
            drain_interval: section
                .drain_interval
                .map_or(default.drain_interval, |period| period.0),
            retain: section.retain.map_or(default.retain, |period| period.0),
            max_agents: section.max_agents.map_or(default.max_agents, |max| max.0),
            owners: section.owners.map(|owners| owners.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    fn ok(text: &str) -> Config {
        let loaded = parse(Path::new("nixl.conf"), text).expect("a good configuration");
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        loaded.config
    }

    fn err(text: &str) -> String {
        parse(Path::new("nixl.conf"), text)
            .expect_err("a bad configuration")
            .to_string()
    }

    #[test]
    fn an_empty_file_gives_the_defaults() {
        assert_eq!(ok(""), Config::default());
        assert_eq!(ok("[nixl]\n# user = \"root\"\n"), Config::default());
    }

    #[test]
    fn the_shipped_file_gives_the_defaults_and_each_of_its_examples_is_valid() {
        let shipped = include_str!("../nixl.conf");
        assert_eq!(ok(shipped), Config::default());
        let examples: Vec<&str> = shipped
            .lines()
            .filter_map(|line| line.strip_prefix("#: "))
            .collect();
        assert!(examples.len() >= 6, "{examples:?}");
        for example in examples {
            ok(&format!("[nixl]\n{example}\n"));
        }
    }

    #[test]
    fn every_key_is_taken() {
        let config = ok(
            "[nixl]\nuser = \"root\"\ntelemetry_dir = \"/dev/shm/nixl\"\ndrain_interval = \"20ms\"\n\
                         retain = \"1h 30min\"\nmax_agents = 7\nowners = [\"root\", 4242]\n",
        );
        assert_eq!(
            config.user,
            Some(Account {
                name: "root".into(),
                uid: 0,
                gid: 0
            })
        );
        assert_eq!(config.telemetry_dir[0].path, "/dev/shm/nixl");
        assert_eq!(
            (config.drain_interval, config.retain),
            (Duration::from_millis(20), Duration::from_secs(5400))
        );
        assert_eq!((config.max_agents, config.owners), (7, Some(vec![0, 4242])));
    }

    #[test]
    fn directories_come_as_a_path_a_list_a_pattern_and_with_labels() {
        let config =
            ok("[nixl]\ntelemetry_dir = [\"/a\", { path = \"/b/*/nixl\", label = \"gpu-0\" }]\n");
        let [a, b] = &config.telemetry_dir[..] else {
            panic!("two directories")
        };
        assert!(a.literal && a.label.is_none());
        assert!(!b.literal && b.label.as_deref() == Some("gpu-0"));
        assert_eq!(
            ok("[nixl]\ntelemetry_dir = { path = \"/b\", label = \"x\" }\n")
                .telemetry_dir
                .len(),
            1
        );
    }

    #[test]
    fn errors_name_file_line_key_and_remedy() {
        let cases = [
            (
                "[nixl]\nuser = \"nosuchuser\"\n",
                "nixl.conf:2: user: no user \"nosuchuser\" on this host; name one that",
            ),
            (
                "[nixl]\n\ndrain_interval = 50\n",
                "nixl.conf:3: drain_interval: invalid type: integer `50`, expected a time with its unit",
            ),
            (
                "[nixl]\ndrain_interval = \"5s\"\n",
                "nixl.conf:2: drain_interval: 5s is out of range; allowed are 1ms to 1s",
            ),
            (
                "[nixl]\ndrain_interval = \"0ms\"\n",
                "nixl.conf:2: drain_interval: 0s is out of range; allowed are 1ms to 1s",
            ),
            (
                "[nixl]\nretain = \"long\"\n",
                "nixl.conf:2: retain: \"long\": ",
            ),
            (
                "[nixl]\nmax_agents = 0\n",
                "nixl.conf:2: max_agents: 0 is out of range; allowed are 1 to 100000",
            ),
            (
                "[nixl]\ntelemetry_dir = \"tmp\"\n",
                "nixl.conf:2: telemetry_dir: \"tmp\" is not an absolute path; begin it with /",
            ),
            (
                "[nixl]\ntelemetry_dir = [\n  \"/a\",\n  7,\n]\n",
                "nixl.conf:4: telemetry_dir: invalid type: integer `7`, expected a path",
            ),
            (
                "[nixl]\ntelemetry_dir = \"/a/[\"\n",
                "nixl.conf:2: telemetry_dir: \"/a/[\" is not a valid pattern",
            ),
            (
                "[nixl]\ntelemetry_dir = \"/a/**/b\"\n",
                "nixl.conf:2: telemetry_dir: \"/a/**/b\" holds **, which is not taken",
            ),
            (
                "[nixl]\ntelemetry_dir = []\n",
                "nixl.conf:2: telemetry_dir: an empty list",
            ),
            (
                "[nixl]\nowners = []\n",
                "nixl.conf:2: owners: an empty list",
            ),
            (
                "[nixl]\nowners = [-1]\n",
                "nixl.conf:2: owners: -1 is no user id",
            ),
            (
                "[nixl]\ntelemetry_dir = { path = \"/a\", label = \"x y\" }\n",
                "nixl.conf:2: telemetry_dir: label \"x y\" is not",
            ),
            (
                "[nixl]\ntelemtry_dir = \"/a\"\n",
                "nixl.conf:2: telemtry_dir: unknown field `telemtry_dir`, expected one of `user`, `telemetry_dir`",
            ),
            (
                "[nxil]\n",
                "nixl.conf:1: unknown field `nxil`, expected `nixl`",
            ),
            (
                "[nixl]\nretain = \"10min\n",
                "nixl.conf:2: retain: invalid basic string",
            ),
        ];
        for (text, expected) in cases {
            let message = err(text);
            assert!(
                message.starts_with(expected),
                "{text:?} gave\n{message}\nnot\n{expected}"
            );
            assert!(!message.contains('\n'), "{message}");
        }
    }

    #[test]
    fn the_python_pmdas_file_loads_with_a_warning_that_shows_the_toml() {
        let text = "# comment\n[nixl]\nUser = root\ntelemetry_dir: /dev/shm\n; more\nspeed = 5\n";
        let loaded = parse(Path::new("nixl.conf"), text).expect("the Python PMDA's format");
        assert_eq!(loaded.config.telemetry_dir[0].path, "/dev/shm");
        assert_eq!(loaded.config.user.as_ref().map(|user| user.uid), Some(0));
        assert!(
            loaded.warnings[0].ends_with("[nixl]; user = \"root\"; telemetry_dir = \"/dev/shm\""),
            "{:?}",
            loaded.warnings
        );
        assert_eq!(
            loaded.warnings[1],
            "nixl.conf:6: speed: unknown key of the Python PMDA's format, ignored"
        );
    }

    #[test]
    fn a_wrong_value_in_the_python_pmdas_file_is_an_error_at_its_line() {
        assert!(
            err("[nixl]\n# x\nuser = nosuchuser\n")
                .starts_with("nixl.conf:3: user: no user \"nosuchuser\"")
        );
    }

    #[test]
    fn the_environment_wins_over_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl.conf");
        std::fs::write(&path, "[nixl]\ntelemetry_dir = \"/a\"\n").expect("written");
        let dirs = |env: Option<&str>| {
            load(&path, env.map(OsStr::new)).map(|loaded| loaded.config.telemetry_dir)
        };
        assert_eq!(dirs(None).expect("good")[0].path, "/a");
        assert_eq!(dirs(Some("")).expect("good")[0].path, "/a");
        let from_env = &dirs(Some("/b[1]")).expect("good")[0];
        assert!(from_env.path == "/b[1]" && from_env.literal, "{from_env:?}");
        let message = dirs(Some("b")).expect_err("no absolute path").to_string();
        assert!(
            message.starts_with(
                "environment variable NIXL_TELEMETRY_DIR: \"b\" is not an absolute path"
            ),
            "{message}"
        );
        let missing = load(&dir.path().join("none"), None)
            .expect_err("no file")
            .to_string();
        assert!(missing.contains("none: No such file"), "{missing}");
    }
}
