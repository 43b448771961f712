// SPDX-License-Identifier: GPL-2.0-or-later

//! pmStore requests: settings of `nixl.control` that change at run time.

use super::Server;
use crate::log;
use crate::metrics;
use crate::pcp::{cluster_and_item, sys};

/// Value that a pmStore request stores to one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmStoreRequest {
    /// pmID of the metric.
    pub pmid: u32,
    /// Value, or the reason why no metric accepts it.
    pub value: Result<u32, PmStoreError>,
}

/// Rejection of a pmStore request: the status for the client, as in the sample PMDA of PCP, and the reason for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmStoreError(pub i32, &'static str);

impl PmStoreError {
    const NOT_ROOT: Self = Self(
        sys::PM_ERR_PERMISSION,
        "pmcd has not authenticated the client as root",
    );
    const NO_METRIC: Self = Self(sys::PM_ERR_PMID, "there is no such metric");
    const READ_ONLY: Self = Self(sys::PM_ERR_PERMISSION, "the metric is read-only");
    /// A metric has no value or several.
    pub const NOT_ONE: Self = Self(sys::PM_ERR_BADSTORE, "each metric needs exactly one value");
    /// The value has another type than the metric.
    pub const TYPE: Self = Self(sys::PM_ERR_CONV, "the value is not a 32-bit number");
    /// PM_ERR_BADSTORE is "Bad input to pmstore". Some PMDAs return PM_ERR_SIGN, which is for signed numbers.
    const RANGE: Self = Self(sys::PM_ERR_BADSTORE, "the value is out of range");
    pub(super) const BAD_CONFIGURATION: Self =
        Self(sys::PM_ERR_BADSTORE, "the configuration is rejected");
}

/// Effect of a valid pmStore request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Debug(bool),
    Reload,
}

impl Command {
    fn parse(request: PmStoreRequest) -> Result<Self, PmStoreError> {
        let (cluster, item) = cluster_and_item(request.pmid);
        metrics::find(cluster, item).ok_or(PmStoreError::NO_METRIC)?;
        match (cluster, item) {
            metrics::DEBUG => match request.value? {
                0 => Ok(Self::Debug(false)),
                1 => Ok(Self::Debug(true)),
                _ => Err(PmStoreError::RANGE),
            },
            metrics::RELOAD => request.value.map(|_| Self::Reload),
            _ => Err(PmStoreError::READ_ONLY),
        }
    }
}

impl Server {
    /// Executes a pmStore request. If one value is invalid, none is stored.
    ///
    /// # Errors
    /// If the client has no permission, a metric or value is invalid, or the reload fails.
    pub fn pmstore(
        &mut self,
        context: i32,
        requests: &[PmStoreRequest],
    ) -> Result<(), PmStoreError> {
        let done = self.execute(context, requests);
        // Debug level only, because any user can cause this message.
        done.inspect_err(|PmStoreError(_, why)| tracing::debug!("pmStore request rejected: {why}"))
    }

    fn execute(&mut self, context: i32, requests: &[PmStoreRequest]) -> Result<(), PmStoreError> {
        // pmcd tells the uid of a client of its local socket, and of one that SASL has authenticated (PCP_ATTR_USERID).
        if self.users.get(&context) != Some(&0) {
            return Err(PmStoreError::NOT_ROOT);
        }
        let commands: Result<Vec<Command>, _> =
            requests.iter().copied().map(Command::parse).collect();
        let mut commands = commands?;
        // Reload first, because only it can fail.
        commands.sort_by_key(|command| *command != Command::Reload);
        for command in commands {
            match command {
                Command::Debug(debug) => {
                    log::set_debug(debug);
                    let shown = if debug { "on" } else { "off" };
                    tracing::info!("debug messages are {shown}");
                    self.control.activity = self.collector.activity();
                    tracing::debug!("{}", self.control.figures());
                }
                Command::Reload => self.reload()?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::pmid;

    fn command(
        (cluster, item): (u32, u32),
        value: Result<u32, PmStoreError>,
    ) -> Result<Command, PmStoreError> {
        Command::parse(PmStoreRequest {
            pmid: pmid(39, cluster, item),
            value,
        })
    }

    #[test]
    fn debug_accepts_0_and_1_and_reload_any_number() {
        assert_eq!(command(metrics::DEBUG, Ok(0)), Ok(Command::Debug(false)));
        assert_eq!(command(metrics::DEBUG, Ok(1)), Ok(Command::Debug(true)));
        assert_eq!(command(metrics::DEBUG, Ok(2)), Err(PmStoreError::RANGE));
        assert_eq!(command(metrics::RELOAD, Ok(u32::MAX)), Ok(Command::Reload));
    }

    #[test]
    fn invalid_value_is_rejected_by_every_metric() {
        for metric in metrics::METRICS.iter() {
            for error in [PmStoreError::NOT_ONE, PmStoreError::TYPE] {
                let at = (metric.cluster, metric.item);
                let expected = match [metrics::DEBUG, metrics::RELOAD].contains(&at) {
                    true => error,
                    false => PmStoreError::READ_ONLY,
                };
                assert_eq!(command(at, Err(error)), Err(expected), "{}", metric.name);
            }
        }
        assert_eq!(command((0, 999), Ok(1)), Err(PmStoreError::NO_METRIC));
    }
}
