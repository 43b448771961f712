//! pmdanixl, the Performance Co-Pilot agent (PMDA) for the telemetry of NVIDIA NIXL.
//!
//! Data goes one way: a NIXL agent writes [`event`]s into a ring in shared memory ([`shm`]); [`find`] finds the file, [`ring`] (or
//! [`store`]) takes out what it holds, [`agents`] adds it to the agent's [`totals`], [`state`] keeps these for after the next
//! start, [`metrics`] says what of it is a value, [`ids`] which instance id an agent has, and `pcp` answers pmcd. [`producer`]
//! tells who writes a file. [`config`] and [`rights`] come before all of it; [`check`] looks at the same files without taking
//! anything. That is the way of the data; modules on it know each other where a step needs both its ends: a ring counts into its
//! agent's account ([`state::ledger`]) before it gives slots back. [`error`], [`event`], [`log`] and [`shm`] are leaves. One thread
//! does it all; only what may hang, a look through /proc ([`producer::survey`]) and a disk ([`ids::kept`]), has
//! one of its own.

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
