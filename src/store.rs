//! A store of NIXL's prometheus_mp exporter: the file that an agent writes its values to, and what was last read of one.

use crate::base::file::FileFacts;
use std::fs::File;

pub mod format;
mod reading;
pub use format::{Description, LEN, SCHEMA, is_owner_lock, is_store_name};
pub use reading::{StoreId, StoreReading};

/// A file that is a store, open for reading, and what it says of its agent.
#[derive(Debug)]
pub struct StoreCandidate {
    /// Open for reading only: a lease against writers is granted on no other.
    pub file: File,
    /// What stat(2) said.
    pub facts: FileFacts,
    /// Which store it is.
    pub id: StoreId,
    /// Who its agent is.
    pub description: Description,
}
