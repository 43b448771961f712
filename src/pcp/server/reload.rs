// SPDX-License-Identifier: GPL-2.0-or-later

//! Reload of the configuration: requested through `nixl.control.reload`, or since name services did not answer before
//! the first valid configuration.

use super::state_file::Phase;
use super::{PmStoreError, Server, since_epoch};
use crate::config::loader::NO_CONFIGURATION;
use crate::error::ConfigError;
use crate::pcp::work::{Allowance, FETCH};
use std::error::Error;
use std::time::{Duration, Instant};

/// Time after which a configuration with users that the name services did not answer for is read again.
const READ_AGAIN: Duration = Duration::from_secs(10);

impl Server {
    /// Reads the configuration and applies it if it is valid, and if the process has just the rights that it needs.
    ///
    /// # Errors
    /// If the configuration is invalid, its user is not available, or it needs other rights. The previous configuration
    /// stays in force.
    pub(super) fn reload(&mut self) -> Result<(), PmStoreError> {
        let when = since_epoch();
        let loaded = (self.read_config)().map_err(|err| {
            self.note_error(&err);
            self.reject(&err)
        })?;
        let config = &loaded.config;
        match &self.rights {
            None => self.begin(config).map_err(|err| self.reject(&err))?,
            Some(rights) => {
                rights.allow(config).map_err(|err| self.reject(&err))?;
                // A last drain of the directories that are left out.
                self.refresh();
                self.collector.configure(config);
                if self.is_serving() {
                    self.collect_within(FETCH, Some(Allowance::first_drain()));
                    self.update_indoms();
                }
            }
        }
        loaded.log();
        self.note_configuration(config, when);
        self.collector.set_config_read(when);
        tracing::info!("configuration read again");
        Ok(())
    }

    /// Reads the configuration again if it is time. There was no valid one yet, since name services did not answer.
    pub(super) fn read_again(&mut self, now: Instant) {
        let Phase::NoConfiguration { read_again } = &mut self.phase else {
            return;
        };
        if read_again.is_some_and(|when| now >= when) {
            // Also if the user of a configuration that can be read now is not available.
            *read_again = Some(now + READ_AGAIN);
            let _ = self.reload();
        }
    }

    /// Shows an error of the configuration in `nixl.control.config_error`. Before the first valid one, plans to read it
    /// again if the name services did not answer.
    pub(super) fn note_error(&mut self, err: &ConfigError) {
        self.control.config_error = err.to_string();
        if let Phase::NoConfiguration { read_again } = &mut self.phase {
            let may_be_valid = matches!(err, ConfigError::NotAnswered { .. });
            *read_again = may_be_valid.then(|| Instant::now() + READ_AGAIN);
        }
    }

    /// Logs why a configuration is rejected, and records the reason for `nixl.control.config_error`.
    fn reject(&mut self, err: &dyn Error) -> PmStoreError {
        let consequence = match self.rights {
            None => NO_CONFIGURATION,
            Some(_) => "the previous configuration stays in force",
        };
        tracing::error!("{err}; {consequence}");
        self.control.config_error = err.to_string();
        PmStoreError::BAD_CONFIGURATION
    }
}
