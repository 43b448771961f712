//! A directory that stands open.

use crate::find::discover::{FileFacts, FileId};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::hash::{Hash, Hasher};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A directory that was opened elsewhere. Its file system stays mounted as long as this is there.
#[derive(Clone, Debug)]
pub struct Inside {
    fd: Arc<OwnedFd>,
    id: FileId,
}

impl Inside {
    /// Takes an open directory.
    ///
    /// # Errors
    /// What fstat(2) says.
    pub fn new(fd: OwnedFd) -> nix::Result<Self> {
        let id = FileFacts::new(&fstat(&fd)?).id;
        Ok(Self {
            fd: Arc::new(fd),
            id,
        })
    }

    /// A descriptor of its own.
    pub(super) fn open(&self) -> nix::Result<OwnedFd> {
        let fd = self.fd.try_clone();
        fd.map_err(|err| Errno::from_raw(err.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Which directory it is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.id
    }
}

/// The same directory, whichever descriptor it is: while one is open, no other has its numbers.
impl PartialEq for Inside {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Inside {}

impl Hash for Inside {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}
