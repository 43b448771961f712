//! pmStore requests: settings of `nixl.control` that change at run time.

use super::Server;
use crate::config::DRAIN_INTERVAL_MS;
use crate::log;
use crate::metrics;
use crate::pcp::{cluster_and_item, sys};
use std::time::Duration;

/// What a client wants to be stored to one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The metric.
    pub pmid: u32,
    /// The value, or why it is none that any of the metrics takes.
    pub value: Result<u32, StoreRefusal>,
}

/// Why a store is refused: the status for the client, as PCP's sample PMDA has them, and the reason for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreRefusal(pub i32, &'static str);

impl StoreRefusal {
    const NOT_ROOT: Self = Self(
        sys::PM_ERR_PERMISSION,
        "the client is not root on the local socket",
    );
    const NO_METRIC: Self = Self(sys::PM_ERR_PMID, "there is no such metric");
    const READ_ONLY: Self = Self(sys::PM_ERR_PERMISSION, "the metric cannot be stored to");
    /// No value, or several for one metric.
    pub const NOT_ONE: Self = Self(sys::PM_ERR_BADSTORE, "one value is stored at a time");
    /// The value is of another type than the metric.
    pub const TYPE: Self = Self(sys::PM_ERR_CONV, "the value is no number of 32 bits");
    /// "Bad input to pmstore"; PM_ERR_SIGN, which some PMDAs give, is for numbers that have a sign.
    const RANGE: Self = Self(sys::PM_ERR_BADSTORE, "the value is out of range");
    pub(super) const BAD_CONFIGURATION: Self =
        Self(sys::PM_ERR_BADSTORE, "the configuration is not taken");
}

/// What is done about a store that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    DrainEvery(Duration),
    Debug(bool),
    Reload,
}

impl Order {
    fn of(store: Store) -> Result<Self, StoreRefusal> {
        let (cluster, item) = cluster_and_item(store.pmid);
        metrics::find(cluster, item).ok_or(StoreRefusal::NO_METRIC)?;
        match (cluster, item) {
            metrics::DRAIN_INTERVAL => {
                let value = store.value?;
                let (min, max) = DRAIN_INTERVAL_MS;
                if (min..=max).contains(&value.into()) {
                    Ok(Self::DrainEvery(Duration::from_millis(value.into())))
                } else {
                    Err(StoreRefusal::RANGE)
                }
            }
            metrics::DEBUG => match store.value? {
                0 => Ok(Self::Debug(false)),
                1 => Ok(Self::Debug(true)),
                _ => Err(StoreRefusal::RANGE),
            },
            metrics::RELOAD => store.value.map(|_| Self::Reload),
            _ => Err(StoreRefusal::READ_ONLY),
        }
    }
}

impl Server {
    /// Stores to metrics, for a client; to all of them or, where one cannot be stored to, to none.
    ///
    /// # Errors
    /// The client may not, a metric or its value is not taken, or what a store sets off failed.
    pub fn store(&mut self, context: i32, stores: &[Store]) -> Result<(), StoreRefusal> {
        let done = self.obey(context, stores);
        // What any user can cause at will is no more than that.
        done.inspect_err(|StoreRefusal(_, why)| tracing::debug!("a store is refused: {why}"))
    }

    fn obey(&mut self, context: i32, stores: &[Store]) -> Result<(), StoreRefusal> {
        // Only clients of the local socket have a uid.
        if self.users.get(&context) != Some(&0) {
            return Err(StoreRefusal::NOT_ROOT);
        }
        let orders: Result<Vec<Order>, _> = stores.iter().copied().map(Order::of).collect();
        let mut orders = orders?;
        // The one that may still fail comes first.
        orders.sort_by_key(|order| *order != Order::Reload);
        for order in orders {
            match order {
                // The loop sets its timer anew before it waits again.
                Order::DrainEvery(interval) => {
                    self.control.drain_interval = interval;
                    let shown = interval.as_millis();
                    tracing::info!("drains every {shown} ms until the configuration is read again");
                }
                Order::Debug(debug) => {
                    log::set_debug(debug);
                    self.control.figures_logged = None;
                    let shown = if debug { "on" } else { "off" };
                    tracing::info!("debug messages are {shown}");
                }
                Order::Reload => self.reload()?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcp::pmid;

    fn order(
        (cluster, item): (u32, u32),
        value: Result<u32, StoreRefusal>,
    ) -> Result<Order, StoreRefusal> {
        Order::of(Store {
            pmid: pmid(39, cluster, item),
            value,
        })
    }

    #[test]
    fn the_interval_takes_what_the_file_takes() {
        for value in [1, 50, 1000] {
            let interval = Duration::from_millis(value.into());
            let found = order(metrics::DRAIN_INTERVAL, Ok(value));
            assert_eq!(found, Ok(Order::DrainEvery(interval)));
        }
        for value in [0, 1001, u32::MAX] {
            let found = order(metrics::DRAIN_INTERVAL, Ok(value));
            assert_eq!(found, Err(StoreRefusal::RANGE));
        }
    }

    #[test]
    fn debug_is_on_or_off_and_reload_takes_any_number() {
        assert_eq!(order(metrics::DEBUG, Ok(0)), Ok(Order::Debug(false)));
        assert_eq!(order(metrics::DEBUG, Ok(1)), Ok(Order::Debug(true)));
        assert_eq!(order(metrics::DEBUG, Ok(2)), Err(StoreRefusal::RANGE));
        assert_eq!(order(metrics::RELOAD, Ok(u32::MAX)), Ok(Order::Reload));
    }

    #[test]
    fn what_is_no_value_is_refused_by_every_metric() {
        for metric in metrics::METRICS.iter() {
            for refusal in [StoreRefusal::NOT_ONE, StoreRefusal::TYPE] {
                let at = (metric.cluster, metric.item);
                let expected =
                    if [metrics::DRAIN_INTERVAL, metrics::DEBUG, metrics::RELOAD].contains(&at) {
                        refusal
                    } else {
                        StoreRefusal::READ_ONLY
                    };
                assert_eq!(order(at, Err(refusal)), Err(expected), "{}", metric.name);
            }
        }
        assert_eq!(order((0, 999), Ok(1)), Err(StoreRefusal::NO_METRIC));
    }
}
