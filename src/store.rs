// SPDX-License-Identifier: GPL-2.0-or-later

//! Stores of NIXL's prometheus_mp exporter: the format of the file to which an agent writes its values, and what was
//! last read of it.
//!
//! Begin with `format`. This module must not know how a store is mapped, or which agent its values are added to.

use crate::base::file::FileFacts;
use std::fs::File;

pub mod format;
mod reading;
pub use format::{Description, LEN, SCHEMA, is_owner_lock, is_store_name};
pub use reading::{StoreId, StoreReading};

/// A store file that passed all checks, with what it says of its agent.
#[derive(Debug)]
pub struct StoreCandidate {
    /// The file, open for reading only, as a lease that shows writers (F_RDLCK) requires.
    pub file: File,
    /// The result of stat(2).
    pub facts: FileFacts,
    /// Identity of the store.
    pub id: StoreId,
    /// What the store says of its agent.
    pub description: Description,
}
