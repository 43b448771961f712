// SPDX-License-Identifier: GPL-2.0-or-later

//! Text of the configuration file, and errors with their lines.

use super::{Config, LoadedConfig};
use crate::config::ini;
use crate::error::ConfigError;
use serde::Deserialize;
use std::path::Path;

/// Longest line that an error shows, in bytes.
const MAX_SHOWN: usize = 120;
/// Least similarity of a misspelt key to the one that is meant, of 0 to 1 (Jaro-Winkler).
const SIMILAR: f64 = 0.8;

/// Quotation marks that text editors and web pages put in place of those of TOML.
pub(super) const TYPOGRAPHIC: [char; 4] = ['“', '”', '‘', '’'];

/// Structure of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    nixl: Option<Config>,
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
        line_error(path, text, at, err.message())
    })?;
    // An editor that writes in place leaves an empty file for a moment. Its defaults would be another user and other
    // directories.
    loaded.config = file.nixl.ok_or_else(|| ConfigError::Value {
        path: path.into(),
        line: 1,
        message: "the file has no section [nixl]; write [nixl] above the keys".into(),
    })?;
    if loaded.config.telemetry_dir.is_empty() && loaded.config.multiproc_dir.is_empty() {
        let message = "an empty list finds no agent unless multiproc_dir names a directory; name at least one";
        let at = text.find("telemetry_dir").unwrap_or(0);
        return Err(line_error(path, text, at, message));
    }
    Ok(loaded)
}

/// Returns the error for a mistake at a byte of the text. The message is one line without control characters.
fn line_error(path: &Path, text: &str, at: usize, message: &str) -> ConfigError {
    let index = text.get(..at).map_or(0, |text| text.matches('\n').count());
    let line = text.lines().nth(index).unwrap_or_default().trim();
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    // A comment of an INI file begins with a semicolon.
    let value = value.split(['#', ';']).next().unwrap_or_default().trim();
    let has_quotes = value.is_empty() || value.starts_with(['"', '\'', '[', '{']);
    let message = if is_quoted_typographically(if value.is_empty() { line } else { value }) {
        "typographic quotes; write \" in their place".to_owned()
    } else if has_quotes || line.parse::<toml::Table>().is_ok() {
        message.to_owned()
    } else {
        remedy_without_quotes(key.trim(), value)
    };
    // A list may go on in the next lines.
    let setting = match line.len() > MAX_SHOWN || line.ends_with(['[', ',']) {
        true => key.trim(),
        false => line,
    };
    let message = remedy_of_unknown_key(&message).unwrap_or(message);
    let message = format!("{setting}: {message}").replace(char::is_control, " ");
    ConfigError::Value {
        path: path.into(),
        line: index + 1,
        message,
    }
}

/// True if a value, or an element of a list, begins with a typographic quotation mark.
fn is_quoted_typographically(value: &str) -> bool {
    let mut elements = value
        .split(',')
        .map(|element| element.trim_start_matches(['[', '{', '"', '\'', ' ', '\t']));
    elements.any(|element| element.starts_with(TYPOGRAPHIC))
}

/// Returns a message for a key that serde does not know, with the nearest key in place of a list of all. `None`: the
/// message is about something else.
fn remedy_of_unknown_key(message: &str) -> Option<String> {
    let (unknown, known) = message
        .strip_prefix("unknown field `")?
        .split_once("`, expected ")?;
    let known = Vec::from_iter(known.split('`').skip(1).step_by(2));
    let similarities = known
        .iter()
        .map(|key| (strsim::jaro_winkler(unknown, key), key));
    let nearest = similarities.max_by(|a, b| a.0.total_cmp(&b.0));
    Some(match nearest {
        Some((similarity, key)) if similarity >= SIMILAR => {
            format!("unknown key `{unknown}`: did you mean `{key}`?")
        }
        _ if known == ["nixl"] => {
            format!("unknown key `{unknown}`: write the keys below [nixl]")
        }
        _ => format!("unknown key `{unknown}`: see nixl.conf(5)"),
    })
}

/// Returns what to write in place of a value without quotes that is not TOML.
fn remedy_without_quotes(key: &str, value: &str) -> String {
    let line = format!("{key} = {}", toml::Value::from(value));
    match toml::from_str::<ConfigFile>(&format!("[nixl]\n{line}\n")) {
        Ok(_) => format!("write its value in quotes: {line}"),
        Err(err) => err.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typographic_quotes_are_named_as_the_mistake() {
        let error = |lines: &str| {
            let read = parse(Path::new("nixl.conf"), &format!("[nixl]\n{lines}\n"));
            read.expect_err(lines).to_string()
        };
        for (lines, at) in [
            (
                "telemetry_dir = “/dev/shm/nixl”",
                "2: telemetry_dir = “/dev/shm/nixl”",
            ),
            (
                "telemetry_dir = \"“/tmp”\"",
                "2: telemetry_dir = \"“/tmp”\"",
            ),
            (
                "telemetry_dir = [\"/a\", “/b”]",
                "2: telemetry_dir = [\"/a\", “/b”]",
            ),
            ("telemetry_dir = [\n\"/a\",\n“/b”,\n]", "4: “/b”,"),
            ("retain = ‘1min’", "2: retain = ‘1min’"),
            ("user = “root”", "2: user = “root”"),
        ] {
            let expected = format!("nixl.conf:{at}: typographic quotes; write \" in their place");
            assert_eq!(error(lines), expected);
        }
        let said = error("telemetry_dir = \"a“b”\"");
        assert!(said.contains("is not an absolute path"), "{said}");
    }
}
