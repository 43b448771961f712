// SPDX-License-Identifier: GPL-2.0-or-later

//! Values in the configuration file. Each is checked while it is read, so that the error has its line.

use super::{DirectoryPattern, UserAccount};
use crate::accounts::{self, UserKey};
use crate::stats::histogram::Bounds;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Reads a user by name or number.
pub(super) fn user<'de, D: Deserializer<'de>>(value: D) -> Result<Option<UserAccount>, D::Error> {
    let key = UserKey::deserialize(value)
        .map_err(|_| D::Error::custom("write a user name in quotes, or a user id, such as 1000"))?;
    let account = accounts::account(&key);
    account.map(Some).map_err(D::Error::custom)
}

/// Reads a time from MIN to MAX milliseconds, written with its unit.
pub(super) fn period<'de, D, T, const MIN: u64, const MAX: u64>(value: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: From<Duration>,
{
    let text = String::deserialize(value).ok();
    let period = text.and_then(|text| humantime::parse_duration(&text).ok());
    let [min, max] = [MIN, MAX].map(Duration::from_millis);
    let allowed = period.filter(|period| (min..=max).contains(period));
    allowed.map(T::from).ok_or_else(|| {
        let [min, max] = [min, max].map(humantime::format_duration);
        D::Error::custom(format_args!(
            "write a time from {min} to {max} in quotes and with its unit, such as \"{max}\""
        ))
    })
}

/// Reads an integer from 1 to `MAX`.
pub(super) fn number<'de, D: Deserializer<'de>, T: TryFrom<u64>, const MAX: u64>(
    value: D,
) -> Result<T, D::Error> {
    let number = u64::deserialize(value).ok();
    let allowed = number.filter(|number| (1..=MAX).contains(number));
    let allowed = allowed.and_then(|number| T::try_from(number).ok());
    allowed.ok_or_else(|| {
        D::Error::custom(format_args!(
            "write a number from 1 to {MAX}, without quotes"
        ))
    })
}

/// Reads upper bounds of a histogram.
pub(super) fn bounds<'de, D: Deserializer<'de>>(value: D) -> Result<Bounds, D::Error> {
    Bounds::from_config(&Vec::<u64>::deserialize(value)?).map_err(D::Error::custom)
}

/// Reads users by name or number.
pub(super) fn owners<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Vec<u32>>, D::Error> {
    let owners = Vec::<UserKey>::deserialize(value).unwrap_or_default();
    if owners.is_empty() {
        return Err(D::Error::custom(
            "write a list of user names in quotes and user ids, such as [\"root\", 1000]; without the key all users' files are read",
        ));
    }
    accounts::uids(&owners).map(Some).map_err(D::Error::custom)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum DirectoryList {
    Many(Vec<DirectoryEntry>),
    One(DirectoryEntry),
}

#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum DirectoryEntry {
    Path(String),
    Labelled { path: String, label: Option<String> },
}

/// Reads a path or pattern, or a list of them. Each may be `{ path = "...", label = "..." }`.
pub(super) fn directories<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Vec<DirectoryPattern>, D::Error> {
    let entries = match DirectoryList::deserialize(value) {
        Ok(DirectoryList::Many(entries)) => entries,
        Ok(DirectoryList::One(entry)) => vec![entry],
        Err(_) => {
            return Err(D::Error::custom(
                "write a path in quotes, { path = \"...\", label = \"...\" }, or a list of these",
            ));
        }
    };
    let checked = entries.into_iter().map(|entry| match entry {
        DirectoryEntry::Path(path) => directory(&path, None, false),
        DirectoryEntry::Labelled { path, label } => directory(&path, label, false),
    });
    checked.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// Checks a directory or pattern.
pub(super) fn directory(
    path: &str,
    label: Option<String>,
    literal: bool,
) -> Result<DirectoryPattern, String> {
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not an absolute path; begin it with /"));
    }
    if path.contains('\0') {
        return Err(format!("{path:?} contains a NUL byte"));
    }
    // `/a//b/` becomes `/a/b`, like the paths that patterns give.
    let mut pattern = DirectoryPattern::of(Path::new(path).components().collect::<PathBuf>());
    pattern.literal |= literal;
    if !pattern.literal {
        if path.contains("**") {
            return Err(format!(
                "{path:?} contains **, which is not supported; write /*/ for each level"
            ));
        }
        for component in path.split('/') {
            if component == ".." {
                return Err(format!(
                    "{path:?} contains .., which is not supported in a pattern; write the path without it"
                ));
            }
            glob::Pattern::new(component)
                .map_err(|err| format!("{path:?} is not a valid pattern: {err}; correct it"))?;
        }
    }
    if let Some(label) = &label {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if label.is_empty() || label.len() > 64 || !label.bytes().all(allowed) {
            return Err(format!(
                "label {label:?} is not 1 to 64 letters, digits, '_', '.' or '-'; write another"
            ));
        }
    }
    pattern.label = label;
    Ok(pattern)
}

/// Reads the absolute path of a directory.
pub(super) fn path<'de, D: Deserializer<'de>>(value: D) -> Result<PathBuf, D::Error> {
    let directory = directory(&String::deserialize(value)?, None, true);
    directory
        .map(|directory| directory.path.into())
        .map_err(D::Error::custom)
}
