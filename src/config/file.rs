//! The configuration as it is written in a file, and what is wrong with it.

use super::value::{Buckets, Directories, Number, Owners, Period, Place, UserName};
use super::{Config, DRAIN_INTERVAL_MS, Loaded};
use crate::config::ini;
use crate::error::ConfigError;
use serde::Deserialize;
use std::path::Path;

/// Reads the text of a configuration file.
///
/// # Errors
/// The first thing that is wrong, with its place and what is allowed.
pub fn parse(path: &Path, text: &str) -> Result<Loaded, ConfigError> {
    match toml::from_str::<File>(text) {
        Ok(file) => {
            let section = file.nixl.unwrap_or_default();
            let asks_for_containers = section.containers == Some(true);
            let config = Config::from(section);
            if config.telemetry_dir.is_empty() && config.multiproc_dir.is_empty() {
                return Err(finds_nothing(path, text));
            }
            Ok(Loaded {
                config,
                warnings: Vec::from_iter(
                    asks_for_containers.then(|| containers_are_gone(path, text)),
                ),
                ..Loaded::default()
            })
        }
        // What is TOML, but not as it should be, is not taken for something else.
        Err(err) if ini::is_toml(text) => Err(located(path, text, &err)),
        Err(err) => match ini::convert(text) {
            Some(converted) => {
                let loaded = from_ini(path, &converted)?;
                // All values are right, and lack their quotes.
                if !converted.is_python {
                    return Err(located(path, text, &err));
                }
                Ok(loaded)
            }
            None => Err(located(path, text, &err)),
        },
    }
}

/// Neither rings nor stores are looked for anywhere.
fn finds_nothing(path: &Path, text: &str) -> ConfigError {
    at_key(
        path,
        text,
        "telemetry_dir",
        "an empty list finds no agent unless multiproc_dir names a directory; name at least one",
    )
}

/// What `containers = true` of 0.1.0 did not leave to the administrator.
fn containers_are_gone(path: &Path, text: &str) -> String {
    at_key(
        path,
        text,
        "containers",
        "ignored: directories inside containers are not read any more; share the telemetry directory with the host (a volume, \
         docker run --ipc=host, hostPath) and name it in telemetry_dir",
    )
    .to_string()
}

/// What is wrong with a key that is taken by itself.
fn at_key(path: &Path, text: &str, key: &str, message: &str) -> ConfigError {
    let is_there = |line: &str| line.trim_start().starts_with(key);
    ConfigError::Value {
        path: path.into(),
        line: text.lines().position(is_there).map_or(1, |at| at + 1),
        key: format!("{key}: "),
        message: message.into(),
    }
}

/// The text of a file, which is UTF-8 as all TOML is.
pub(super) fn text(path: &Path, bytes: Vec<u8>) -> Result<String, ConfigError> {
    String::from_utf8(bytes).map_err(|err| {
        let good = &err.as_bytes()[..err.utf8_error().valid_up_to()];
        ConfigError::Value {
            path: path.into(),
            line: good.iter().filter(|&&byte| byte == b'\n').count() + 1,
            key: String::new(),
            message: "holds a byte that is no UTF-8; save the file as UTF-8".into(),
        }
    })
}

fn from_ini(path: &Path, converted: &ini::Converted) -> Result<Loaded, ConfigError> {
    if let Some((line, key)) = &converted.comment {
        return Err(ConfigError::Value {
            path: path.into(),
            line: *line,
            key: format!("{key}: "),
            message: "a comment behind a value is a part of the value in the Python PMDA's format; give the comment a line of its own"
                .into(),
        });
    }
    let file = toml::from_str::<File>(&converted.toml)
        .map_err(|err| located(path, &converted.toml, &err))?;
    let warning = format!(
        "{}: this is the Python PMDA's format, taken as it is meant; write instead: {}",
        path.display(),
        converted.lines().join("; "),
    );
    Ok(Loaded {
        config: file.nixl.unwrap_or_default().into(),
        warnings: vec![warning],
        ..Loaded::default()
    })
}

/// Turns toml's error into one line with file, line and key.
fn located(path: &Path, text: &str, err: &toml::de::Error) -> ConfigError {
    let at = err.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..at].matches('\n').count() + 1;
    // What is no TOML at all is not the fault of the key above.
    let is_toml = ini::is_toml(text);
    let unquoted = match is_toml {
        true => None,
        false => text.lines().nth(line - 1).and_then(about_quotes),
    };
    let message = match unquoted {
        Some(about) => about,
        None => err.message().to_owned(),
    };
    ConfigError::Value {
        path: path.into(),
        line,
        key: key_at(text, line, is_toml).unwrap_or_default(),
        message: one_line(&message),
    }
}

/// What is wrong with a line that lacks the quotes of its value: these, or the value even with them. `None`: something else.
fn about_quotes(line: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), ini::without_comment(value.trim()));
    let is_unquoted = !value.is_empty() && !value.contains(['"', '\'']);
    if !is_unquoted || !ini::is_bare(key) || ini::is_toml(line) {
        return None;
    }
    let quoted = ini::quoted(key, value);
    Some(match toml::from_str::<Section>(&quoted) {
        Ok(_) => format!("{value} lacks its quotes; write {quoted}"),
        Err(err) => err.message().to_owned(),
    })
}

/// Text of the file that goes into a message: one line of the log, which moves no cursor on a terminal.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The key that a line belongs to, with a colon: on the line itself, or `above` it where a list goes over several lines.
fn key_at(text: &str, line: usize, above: bool) -> Option<String> {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let reach = if above { lines.len() } else { 1 };
    for above in lines.iter().rev().take(reach) {
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
    multiproc_dir: Option<Directories>,
    drain_interval: Option<Period<{ DRAIN_INTERVAL_MS.0 }, { DRAIN_INTERVAL_MS.1 }>>,
    retain: Option<Period<0, 604_800_000>>,
    remember: Option<Period<0, 31_536_000_000>>,
    idle_after: Option<Period<1_000, 604_800_000>>,
    histogram_buckets_us: Option<Buckets>,
    max_agents: Option<Number<100_000>>,
    max_capacity: Option<Number<{ 1 << 40 }>>,
    max_directories: Option<Number<100_000>>,
    owners: Option<Owners>,
    observe: Option<bool>,
    remove_exited_after: Option<Period<0, 31_536_000_000>>,
    proc_facts: Option<bool>,
    /// Of 0.1.0.
    containers: Option<bool>,
    pod_logs: Option<Place>,
}

impl From<Section> for Config {
    fn from(section: Section) -> Self {
        let default = Config::default();
        Config {
            user: section.user.map(|user| user.0),
            telemetry_dir: section
                .telemetry_dir
                .map_or(default.telemetry_dir, |dirs| dirs.0),
            multiproc_dir: section.multiproc_dir.map(|dirs| dirs.0).unwrap_or_default(),
            drain_interval: section
                .drain_interval
                .map_or(default.drain_interval, |period| period.0),
            retain: section.retain.map_or(default.retain, |period| period.0),
            remember: section.remember.map_or(default.remember, |period| period.0),
            idle_after: section
                .idle_after
                .map_or(default.idle_after, |period| period.0),
            bounds: section
                .histogram_buckets_us
                .map_or(default.bounds, |buckets| buckets.0),
            max_agents: section
                .max_agents
                .and_then(|max| usize::try_from(max.0).ok())
                .unwrap_or(default.max_agents),
            max_capacity: section
                .max_capacity
                .map_or(default.max_capacity, |max| max.0),
            max_directories: section
                .max_directories
                .and_then(|max| usize::try_from(max.0).ok())
                .unwrap_or(default.max_directories),
            owners: section.owners.map(|owners| owners.0),
            observe: section.observe.unwrap_or(default.observe),
            remove_exited_after: section.remove_exited_after.map(|period| period.0),
            proc_facts: section.proc_facts.unwrap_or(default.proc_facts),
            pod_logs: section.pod_logs.map_or(default.pod_logs, |place| place.0),
        }
    }
}
