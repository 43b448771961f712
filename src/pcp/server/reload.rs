// SPDX-License-Identifier: GPL-2.0-or-later

//! Reload of the configuration, requested through `nixl.control.reload`.

use super::{PmStoreError, Server, since_epoch};
use crate::config::loader::NO_CONFIGURATION;
use crate::pcp::work::{Allowance, FETCH};
use std::error::Error;

impl Server {
    /// Reads the configuration and applies it if it is valid, and if the process has just the rights that it needs.
    ///
    /// # Errors
    /// If the configuration is invalid, its user is not available, or it needs other rights. The previous configuration
    /// stays in force.
    pub(super) fn reload(&mut self) -> Result<(), PmStoreError> {
        let when = since_epoch();
        let loaded = (self.read_config)().map_err(|err| self.reject(&err))?;
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
                    self.update_role_times();
                }
            }
        }
        loaded.log();
        self.note_configuration(config, when);
        self.collector.set_config_times(self.control.config_times);
        tracing::info!("configuration read again");
        Ok(())
    }

    /// Logs why a configuration is rejected, and records the reason for `nixl.control.config_error`.
    fn reject(&mut self, err: &dyn Error) -> PmStoreError {
        let consequence = match self.rights {
            None => NO_CONFIGURATION,
            Some(_) => "the previous configuration stays in force",
        };
        tracing::error!("{err}; {consequence}");
        self.note_rejection(err.to_string());
        PmStoreError::BAD_CONFIGURATION
    }
}
