// SPDX-License-Identifier: GPL-2.0-or-later

//! Tools with the files of share/: PCP's tools, Grafana, Prometheus and a browser.

mod dashboard;
mod derived;
mod events;
mod exited;
mod fleet;
mod grafana;
mod hostile_names;
mod pcp_nixl;
mod pmchart;
mod pmieconf;
mod pmlogconf;
mod tutorial;
mod views;
