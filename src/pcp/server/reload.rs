// SPDX-License-Identifier: GPL-2.0-or-later

//! Reload of the configuration, requested through `nixl.control.reload`.

use super::{PmStoreError, Server, since_epoch};
use crate::config::Config;
use crate::rights::privilege;
use std::error::Error;

impl Server {
    /// Reads the configuration and applies it if it is valid.
    ///
    /// # Errors
    /// If the configuration is invalid or its user is not available. The previous configuration stays in force.
    pub(super) fn reload(&mut self) -> Result<(), PmStoreError> {
        let when = since_epoch();
        let loaded = (self.read_config)().map_err(|err| self.reject(&err))?;
        loaded.log();
        let config = loaded.config;
        match &self.entered_config {
            Some(before) => warn_of_ignored_changes(before, &config),
            None => {
                (self.enter_account)(&config).map_err(|err| self.reject(&err))?;
                self.entered_config = Some(config.clone());
            }
        }
        // Drains directories that are no longer scanned once more.
        self.refresh();
        self.collector.configure(&config);
        self.update_indoms();
        self.control.drain_interval = config.drain_interval;
        self.control.config_error.clear();
        self.control.config_loads += 1;
        self.control.config_read = Some(when);
        self.collector.set_config_read(when);
        tracing::info!("configuration read again");
        Ok(())
    }

    /// Logs why a configuration is rejected, and records the reason for `nixl.control.config_error`.
    fn reject(&mut self, err: &dyn Error) -> PmStoreError {
        tracing::error!("{err}; the previous configuration stays in force");
        self.control.config_error = err.to_string();
        PmStoreError::BAD_CONFIGURATION
    }
}

/// Logs a warning for each change that a reload cannot apply: the user was changed and rights were given up for good.
fn warn_of_ignored_changes(before: &Config, config: &Config) {
    let user = |config: &Config| config.user.as_ref().map(|user| user.name.clone());
    if user(before) != user(config) {
        tracing::warn!(
            "user: a change takes effect when ./Install is run again in $PCP_PMDAS_DIR/nixl"
        );
    }
    if privilege::asks_more(before, config) {
        tracing::warn!(
            "the configuration asks for rights that were given up at the start; run ./Install again in $PCP_PMDAS_DIR/nixl"
        );
    }
}
