//! pmdanixl, the Performance Co-Pilot agent (PMDA) for the telemetry of NVIDIA NIXL.
//!
//! Data goes one way: a NIXL agent writes events into a ring in shared memory; [`scan`] finds the ring, [`ring`] takes the
//! events out of it, [`agents`] adds them to the agent's totals, and `pcp` answers pmcd from those. One thread does it all.

pub mod agents;
pub mod check;
pub mod config;
pub mod control;
pub mod directory;
pub mod discover;
pub mod error;
pub mod event;
pub mod ini;
pub mod layout;
pub mod log;
pub mod metrics;
pub mod name;
pub mod options;
#[cfg(feature = "pcp")]
pub mod pcp;
pub mod pcpconf;
pub mod privilege;
pub mod render;
pub mod ring;
pub mod scan;
pub mod shm;
pub mod source;
pub mod writer;
