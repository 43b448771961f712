// SPDX-License-Identifier: GPL-2.0-or-later

//! Text of the configuration file, and errors with their lines.

use super::{Config, LoadedConfig};
use crate::config::ini;
use crate::error::ConfigError;
use serde::Deserialize;
use std::path::Path;

/// Structure of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    nixl: Config,
}

/// Reads the text of a configuration file.
///
/// # Errors
/// The first mistake, with its line and the allowed values.
pub fn parse(path: &Path, text: &str) -> Result<LoadedConfig, ConfigError> {
    let mut loaded = LoadedConfig::default();
    let converted = ini::convert(text);
    if let Some(toml) = &converted {
        let lines: Vec<&str> = toml.lines().filter(|line| !line.is_empty()).collect();
        loaded.warnings.push(format!(
            "{}: this is the Python PMDA's format, which is accepted; write instead: {}",
            path.display(),
            lines.join("; "),
        ));
    }
    let text = converted.as_deref().unwrap_or(text);
    let file: ConfigFile = toml::from_str(text).map_err(|err| {
        let at = err.span().map_or(0, |span| span.start.min(text.len()));
        value_error(path, text, at, err.message())
    })?;
    loaded.config = file.nixl;
    if loaded.config.containers {
        loaded.warnings.push(format!(
            "{}: containers: ignored: directories inside containers are not read any more; share the telemetry directory with \
             the host (a volume, docker run --ipc=host, hostPath) and name it in telemetry_dir",
            path.display()
        ));
    }
    if loaded.config.telemetry_dir.is_empty() && loaded.config.multiproc_dir.is_empty() {
        let message = "an empty list finds no agent unless multiproc_dir names a directory; name at least one";
        let at = text.find("telemetry_dir").unwrap_or(0);
        return Err(value_error(path, text, at, message));
    }
    Ok(loaded)
}

/// Returns the error for a mistake at a byte of the text. The message is one line without control characters.
fn value_error(path: &Path, text: &str, at: usize, message: &str) -> ConfigError {
    let line = text.as_bytes()[..at]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count();
    let setting = text.lines().nth(line).and_then(|line| line.split_once('='));
    let key = setting.map(|(key, _)| key.trim());
    let message = match key.filter(|key| ini::is_bare(key)) {
        Some(key) => format!("{key}: {message}"),
        None => message.to_owned(),
    };
    ConfigError::Value {
        path: path.into(),
        line: line + 1,
        message: message.replace(char::is_control, " "),
    }
}
