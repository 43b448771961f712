//! The file of an agent that lives and has no place.

use crate::base::file::{self, FileId};
use crate::find::scan::Scanner;
use nix::errno::Errno;
use std::path::{Path, PathBuf};

/// A file that was let go, or not taken, since there was no place for it: while it is there, its agent may be writing to it,
/// and what comes under the agent's name is another's.
#[derive(Debug)]
pub(crate) struct Waiting {
    path: PathBuf,
    id: FileId,
}

impl Waiting {
    pub fn new(path: &Path, id: FileId) -> Self {
        Self {
            path: path.to_owned(),
            id,
        }
    }

    /// Whether, asked now, the file is certainly not there any more.
    pub fn is_gone(&self, scanner: &Scanner) -> bool {
        let Some((directory, name)) = self.path.parent().zip(self.path.file_name()) else {
            return false;
        };
        // What cannot be reached now may be there.
        scanner
            .directory(directory)
            .is_some_and(|directory| match file::facts(directory, name) {
                Ok(facts) => facts.id != self.id,
                Err(errno) => errno == Errno::ENOENT,
            })
    }
}
