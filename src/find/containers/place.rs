//! A directory of a container, or why it is left alone.

use crate::find::directory::{Directory, Holds, Inside};
use crate::producer::writer::Writer;
use nix::errno::Errno;
use std::path::PathBuf;

/// How many directories are looked through at most.
pub const MAX_PLACES: usize = 1024;
/// How many of one mount namespace: no container's are all.
pub const MAX_PLACES_EACH: usize = 32;

/// A directory of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is called, see [`super::name`].
    pub path: PathBuf,
    /// Tells agents of the same name apart.
    pub label: Option<String>,
    /// What is looked for there.
    pub holds: Holds,
    /// The mount namespace.
    pub mnt: u64,
    /// The processes that have files of it mapped, the first one first.
    pub processes: Vec<Writer>,
    /// Where it is, as they see it.
    pub directory: PathBuf,
    /// The directory, open.
    pub inside: Inside,
}

impl Place {
    /// Where anybody who may look at its process finds it now.
    #[must_use]
    pub fn reached_at(&self) -> PathBuf {
        let pid = self.processes.first().map_or(0, |process| process.pid);
        let mut path = PathBuf::from(format!("/proc/{pid}/root")).into_os_string();
        path.push(&self.directory);
        path.into()
    }

    /// As the scanner takes it.
    #[must_use]
    pub fn to_scan(&self) -> Directory {
        let (path, label) = (self.path.clone(), self.label.clone());
        Directory::in_container(path, label, self.holds, self.inside.clone())
    }
}

/// Why a directory of a container is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Its process is in a user namespace that is not ours.
    #[error(
        "its container has a user namespace of its own; name a volume of the host's in telemetry_dir instead"
    )]
    UserNamespace,
    /// Reading there may wait for a server or a process.
    #[error(
        "is on a file system (type {0:#x}) that may keep who reads it waiting; give it a memory-backed or a local one"
    )]
    FileSystem(i64),
    /// It cannot be opened.
    #[error("cannot be opened: {0}")]
    Open(Errno),
    /// There are enough.
    #[error("{MAX_PLACES} directories of containers are looked through already")]
    TooMany,
    /// Its container has enough.
    #[error("{MAX_PLACES_EACH} directories of this container are looked through already")]
    TooManyOfIts,
}

/// A directory of a container that is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// A process that has a file of it mapped.
    pub pid: u32,
    /// Its mount namespace.
    pub mnt: u64,
    /// Where it is, as that process sees it.
    pub directory: PathBuf,
    /// Why.
    pub why: Why,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (pid, directory) = (self.pid, self.directory.display());
        write!(f, "/proc/{pid}/root{directory}: {}", self.why)
    }
}
