// SPDX-License-Identifier: GPL-2.0-or-later

//! A file that a scan has found, and the same file once it is open and checked.

use crate::base::file::FileFacts;
use crate::config::Config;
use crate::discovery::directory::{Directory, FileKinds};
use crate::discovery::{ring, store as store_check};
use crate::error::Rejection;
use crate::ring::candidate::RingCandidate;
use crate::store;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// A file to be opened and checked: it is not attached, and was not rejected in its present state.
#[derive(Debug)]
pub struct Found {
    /// Directory that has the file.
    pub directory: Directory,
    /// Name of the file. For a ring it is the name of the agent.
    pub name: OsString,
    /// Result of stat(2).
    pub facts: FileFacts,
}

impl Found {
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(&self.name)
    }
}

/// An open file that passed the checks and can be attached.
#[derive(Debug)]
pub enum Opened {
    /// A ring.
    Ring(RingCandidate),
    /// A store.
    Store(Box<store::StoreCandidate>),
}

/// Opens a file in a directory and checks that it is a ring or store, of the kinds that the directory is scanned for.
///
/// # Errors
/// The rejection of the file.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    kinds: FileKinds,
    config: &Config,
) -> Result<Opened, Rejection> {
    let is_store = kinds.stores && (!kinds.rings || store::is_store_name(name));
    if is_store {
        let candidate = store_check::open(directory, name, facts, config)?;
        Ok(Opened::Store(Box::new(candidate)))
    } else {
        ring::open(directory, name, facts, config).map(Opened::Ring)
    }
}
