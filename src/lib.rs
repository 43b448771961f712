// SPDX-License-Identifier: GPL-2.0-or-later

//! pmdanixl, the Performance Co-Pilot agent (PMDA) for the telemetry of NVIDIA NIXL.
//!
//! Modules in their order: each imports only modules above it, as `qa/packaging/imports.rs` checks.
//!
//! | module | owns |
//! | --- | --- |
//! | [`base`] | leaves: file identity, clocks, words of the state file |
//! | [`log`] | log in PCP's format, with limits |
//! | [`accounts`] | names and accounts of users; getent process |
//! | [`error`] | typed errors with the numbers in them |
//! | [`event`] | NIXL's event types, and sums by type |
//! | [`shm`] | mappings, SIGBUS guard, leases and locks; `unsafe` code |
//! | [`stats`] | what events add up to: histograms, pairing of bytes and times, the window of the last minute |
//! | [`timeline`] | what happened: a bounded queue of events, each read once by each client |
//! | [`ring`] | NIXL's ring in shared memory, and its consumer |
//! | [`config`] | command line, configuration file, PCP's own settings |
//! | [`procfs`] | processes that write a file, and what /proc tells of them |
//! | [`store`] | files of NIXL's `prometheus_mp` exporter |
//! | [`discovery`] | directories that are scanned, candidates in them, rejections |
//! | [`rights`] | user, capabilities, Landlock |
//! | [`trace`] | transfers in flight by uprobes: programs, maps, the tracer process |
//! | [`observer`] | what is read of other processes; observer and worker processes |
//! | [`transport`] | processes that use NIXL, and what they transfer by TCP |
//! | [`entry`] | what outlives the daemon of an agent: names, totals, lifecycle, checkpoints |
//! | [`journal`] | the state file, which makes totals survive a kill |
//! | [`source`] | attached files: a ring that is drained, a store that is read |
//! | [`ids`] | instance ids that survive a boot; worker thread |
//! | [`agents`] | what is known of each agent; agents by key and name |
//! | [`collector`] | one tick: discover, attach, drain, expire |
//! | [`metrics`] | the metric table |
//! | [`check`] | `--check` |
//! | [`pcp`] | libpcp_pmda: callbacks, results, instance domains, the event loop |
//!
//! Data goes from a `source` into the totals of an agent (`agents`), from there to `journal` and, at a fetch, through
//! `metrics` to `pcp`. ARCHITECTURE.md has the way of an event, a table of where each decision is made,
//! the threads and the words.

pub mod accounts;
pub mod agents;
pub mod base;
pub mod check;
pub mod collector;
pub mod config;
pub mod discovery;
pub mod entry;
pub mod error;
pub mod event;
pub mod ids;
pub mod journal;
pub mod log;
pub mod metrics;
pub mod observer;
#[cfg(feature = "pcp")]
pub mod pcp;
pub mod procfs;
pub mod rights;
pub mod ring;
pub mod shm;
pub mod source;
pub mod stats;
pub mod store;
pub mod timeline;
pub mod trace;
pub mod transport;
