//! pmdanixl, the Performance Co-Pilot agent (PMDA) for the telemetry of NVIDIA NIXL.
//!
//! Data goes one way: a NIXL agent writes events into a ring in shared memory; [`scan`] finds the ring, [`ring`] takes the
//! events out of it, [`agents`] adds them to the agent's totals, and `pcp` answers pmcd from those. One thread does it all; only
//! what may hang, a look through /proc ([`survey`], [`containers`]), has one of its own.

pub mod account;
pub mod agent;
pub mod agents;
pub mod check;
pub mod commit;
pub mod config;
pub mod confine;
pub mod containers;
pub mod control;
pub mod directory;
pub mod discover;
pub mod error;
pub mod event;
pub mod facts;
pub mod gaps;
pub mod histogram;
pub mod ini;
pub mod layout;
pub mod ledger;
pub mod log;
pub mod metrics;
pub mod name;
pub mod options;
pub mod pairing;
#[cfg(feature = "pcp")]
pub mod pcp;
pub mod pcpconf;
pub mod presence;
pub mod privilege;
pub mod ranges;
pub mod record;
pub mod removal;
pub mod render;
pub mod ring;
pub mod scale;
pub mod scan;
pub mod shm;
pub mod silent;
pub mod source;
pub mod sparse;
pub mod state;
pub mod store;
pub mod survey;
pub mod window;
pub mod windows;
pub mod words;
pub mod writer;
