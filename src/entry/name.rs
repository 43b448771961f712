// SPDX-License-Identifier: GPL-2.0-or-later

//! The names of an agent.

use std::ffi::OsString;
use std::path::PathBuf;

/// The names of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The raw name, which is the name of its file.
    pub raw: OsString,
    /// Its name in the instance domain.
    pub instance: String,
    /// The directory in which its files are found.
    pub directory: PathBuf,
    /// Which agent of this name in this directory: empty for the writer of the ring with this name. `store:NUMBER:RANK`
    /// for a writer of stores, where NUMBER tells agents of one local rank apart.
    pub part: String,
    /// Uid of the owner of its files.
    pub owner: u32,
}
