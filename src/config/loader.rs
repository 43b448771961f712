// SPDX-License-Identifier: GPL-2.0-or-later

//! Loads the configuration from the file, the environment and the command line.

use super::{ENVIRONMENT_VARIABLES, LoadedConfig};
use crate::accounts::{self, UserKey};
use crate::config::options::Options;
use crate::config::pcpconf::PcpConf;
use crate::error::ConfigError;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Loads the configuration, at the start and at each reload.
#[derive(Debug)]
pub struct ConfigLoader {
    /// Path of the file.
    pub path: PathBuf,
    /// True if the file may be missing. False once it was there, so that a reload never falls back to the defaults.
    may_be_missing: AtomicBool,
    username: Option<String>,
}

impl ConfigLoader {
    /// Returns a loader of the file of `-c`, or else of PCP's directory.
    #[must_use]
    pub fn new(options: &Options, conf: &PcpConf) -> Self {
        Self {
            path: options.config.clone().unwrap_or_else(|| conf.nixl_conf()),
            may_be_missing: AtomicBool::new(options.config.is_none()),
            username: options.username.clone(),
        }
    }

    /// Reads the file, and the environment and options that override it.
    ///
    /// # Errors
    /// Those of [`super::load`]; also an unknown account in `-U`.
    pub fn read(&self) -> Result<LoadedConfig, ConfigError> {
        // A link without a target is a mistake: its target may be on a file system that is not mounted yet.
        let entry = self.path.symlink_metadata();
        let is_missing = entry.is_err_and(|err| err.kind() == ErrorKind::NotFound);
        let may_be_missing = is_missing && self.may_be_missing.load(Ordering::Relaxed);
        self.may_be_missing.store(may_be_missing, Ordering::Relaxed);
        let environment = ENVIRONMENT_VARIABLES.map(std::env::var_os);
        let mut loaded = super::load(&self.path, may_be_missing, &environment)?;
        if let Some(name) = &self.username {
            let key = name
                .parse()
                .map_or_else(|_| UserKey::Name(name.clone()), UserKey::Id);
            let account = accounts::account(&key).map_err(|err| ConfigError::Outside {
                place: "option -U".into(),
                message: err.to_string(),
            })?;
            loaded.config.user = Some(account);
        }
        Ok(loaded)
    }
}

/// Consequence of a configuration that is invalid at the start, for the log.
pub const NO_CONFIGURATION: &str = "only nixl.control has values, and no file is read or written, until the configuration is valid";

/// Logs the configuration at the start, or its error.
pub fn log_start(loaded: &Result<LoadedConfig, ConfigError>) {
    match loaded {
        Ok(loaded) => {
            loaded.log();
            let config = &loaded.config;
            for (what, patterns) in [
                ("rings", &config.telemetry_dir),
                ("stores", &config.multiproc_dir),
            ] {
                let paths: Vec<_> = patterns.iter().map(|pattern| &*pattern.path).collect();
                if !paths.is_empty() {
                    let version = env!("CARGO_PKG_VERSION");
                    tracing::info!("version {version} scans for {what} in {}", paths.join(", "));
                }
            }
        }
        Err(err) => {
            let remedy = match err {
                ConfigError::Outside { .. } => "correct it, then restart pmcd",
                _ => "correct it, then run pmstore nixl.control.reload 1",
            };
            tracing::error!("{err}");
            tracing::error!("{NO_CONFIGURATION}; {remedy}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn link_without_a_target_is_a_mistake_not_a_missing_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl.conf");
        let loader = || ConfigLoader {
            path: path.clone(),
            may_be_missing: AtomicBool::new(true),
            username: None,
        };
        assert!(loader().read().is_ok(), "the defaults apply");
        symlink(dir.path().join("target"), &path).expect("made");
        let read = loader().read().map(|_| ()).map_err(|err| err.to_string());
        let why = read.expect_err("no defaults");
        assert!(why.contains("nixl.conf: No such file"), "{why}");
        fs::write(dir.path().join("target"), "[nixl]\n").expect("written");
        assert!(loader().read().is_ok());
    }
}
