//! The state file: each agent's totals, so that they outlive the daemon but not the host (it lies in `$PCP_RUN_DIR`).
//!
//! A header, with what is kept of forgotten agents (`retired`), then a [`record`] for each agent, all of the same length. The
//! process that holds the lock on the file is the one pmdanixl of this host that drains rings. `file` opens the state file,
//! `records` reads it at the start, and [`Journal`] writes it.

mod file;
pub mod journal;
pub mod ledger;
pub mod record;
mod records;
mod retired;
pub use journal::Journal;
pub use records::{Found, RecordId, boot_id};
pub use retired::{Retired, config_read};
