// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: the configuration file, in TOML or in the INI format of the Python PMDA, and `NIXL_TELEMETRY_DIR`.

use super::{Input, assert_one_line};
use pmdanixl::config::ini;
use pmdanixl::config::{Config, ENVIRONMENT_VARIABLES, load, parse};
use pmdanixl::error::ConfigError;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// The input is the length of the value of the variable, the value, and the file.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let len = usize::from(input.u8());
    let variable = OsStr::from_bytes(input.bytes(len));
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(input.0).expect("written");

    let environment = [Some(variable.into()), None];
    let loaded = load(file.path(), false, &environment);
    match &loaded {
        Ok(loaded) => {
            check(&loaded.config);
            for line in loaded.warnings.iter().chain(&loaded.notes) {
                assert_one_line(line);
            }
            let name = file.path().to_str().expect("UTF-8");
            assert!(loaded.warnings.iter().all(|line| line.starts_with(name)));
        }
        Err(err) => check_error(err, file.path(), input.0),
    }
    let Ok(text) = std::str::from_utf8(input.0) else {
        return assert!(loaded.is_err(), "TOML is always UTF-8");
    };
    if let (Ok(loaded), Some(converted)) = (parse(Path::new("nixl.conf"), text), ini::convert(text))
    {
        // The replacement in the warning has an equal meaning, and causes no warning.
        let again = parse(Path::new("nixl.conf"), &converted).expect("as good");
        assert_eq!((again.config, again.warnings.len()), (loaded.config, 0));
    }
}

/// Asserts that all values are within the limits.
fn check(config: &Config) {
    let (millisecond, second) = (Duration::from_millis(1), Duration::from_secs(1));
    assert!((millisecond..=second).contains(&config.drain_interval));
    assert!(config.retain <= 7 * 24 * 3600 * second);
    let remove = config.remove_exited_after.unwrap_or_default();
    assert!(remove <= 365 * 24 * 3600 * second);
    assert!((1..=100_000).contains(&config.max_agents));
    assert!(
        config
            .owners
            .as_ref()
            .is_none_or(|owners| !owners.is_empty())
    );
    let mut patterns = config
        .telemetry_dir
        .iter()
        .chain(&config.multiproc_dir)
        .peekable();
    assert!(patterns.peek().is_some());
    for pattern in patterns {
        let path = &pattern.path;
        assert!(path.starts_with('/') && !path.contains('\0'), "{path:?}");
        assert!(pattern.literal || !path.contains("**"), "{path:?}");
        let part = |part: char| part.is_ascii_alphanumeric() || "_.-".contains(part);
        if let Some(label) = &pattern.label {
            assert!((1..=64).contains(&label.len()) && label.chars().all(part));
        }
    }
}

/// Asserts that an error is one line with the file, the line and the cause.
fn check_error(err: &ConfigError, path: &Path, bytes: &[u8]) {
    let message = err.to_string();
    assert_one_line(&message);
    match err {
        ConfigError::Value { line, .. } => {
            let start = format!("{}:{line}: ", path.display());
            let said = message.strip_prefix(&start).unwrap_or_default();
            assert!(!said.trim().is_empty(), "{message:?}");
            let lines = 1 + bytes.iter().filter(|&&byte| byte == b'\n').count();
            assert!((1..=lines).contains(line), "{message:?}");
        }
        ConfigError::Outside { place, .. } => assert!(place.ends_with(ENVIRONMENT_VARIABLES[0])),
        ConfigError::Read { .. } => assert!(std::str::from_utf8(bytes).is_err(), "{message}"),
    }
}
