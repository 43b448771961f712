//! pmdanixl, the Performance Co-Pilot agent (PMDA) for the telemetry of NVIDIA NIXL.
//!
//! Data goes one way: a NIXL agent writes [`event`]s into a ring in shared memory ([`shm`]); [`find`] finds the file, [`ring`] (or
//! [`store`]) takes out what it holds, [`agents`] adds it to the agent's [`totals`], [`state`] keeps these for after the next
//! start, [`metrics`] says what of it is a value, and `pcp` answers pmcd. [`producer`] tells who writes a file. [`config`] and
//! [`rights`] come before all of it; [`check`] looks at the same files without taking anything. Modules use those before them on
//! this way, and the leaves [`error`], [`event`], [`log`] and [`shm`]. One thread does it all; only what may hang, a look through
//! /proc ([`producer::survey`], [`find::containers`]), has one of its own.

pub mod agents;
pub mod check;
pub mod config;
pub mod error;
pub mod event;
pub mod find;
pub mod ids;
pub mod log;
pub mod metrics;
#[cfg(feature = "pcp")]
pub mod pcp;
pub mod producer;
pub mod rights;
pub mod ring;
pub mod shm;
pub mod state;
pub mod store;
pub mod totals;
