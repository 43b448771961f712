// SPDX-License-Identifier: GPL-2.0-or-later

//! Stores of NIXL's `prometheus_mp`: values, agents, evictions, restarts, rights and hostile files.

mod counted_stores;
mod store_agents;
mod store_restarts;
mod store_shares;
mod store_values;

#[cfg(feature = "pcp")]
mod nixl_exporters;
#[cfg(feature = "pcp")]
mod prometheus_mp;
#[cfg(feature = "pcp")]
mod store_daemon;
#[cfg(feature = "pcp")]
mod store_hostile;
#[cfg(feature = "pcp")]
mod store_rights;
