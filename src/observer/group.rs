// SPDX-License-Identifier: GPL-2.0-or-later

//! Processes that are left out together after one of them has stalled.

use crate::procfs::process::{ProcessId, own_namespace};
use crate::procfs::process_dir::ProcessDir;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display, Formatter};

/// Group of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Group {
    /// All processes in user namespaces, which any user can create.
    UserNamespaces,
    /// The processes of a container, by the inode number of its mount namespace.
    Container(u64),
    /// The processes of a user.
    User(u32),
    /// One process, of root.
    Process(u32),
}

impl Group {
    /// Returns the group of a process. Does not wait for the process.
    #[must_use]
    pub fn of(process: ProcessId) -> Self {
        let directory = ProcessDir::of(process).ok();
        // `None`: the namespace is that of this process, or it is hidden.
        let other = |kind| {
            let its = directory.as_ref()?.namespace(kind).ok()?;
            (its != own_namespace(kind).ok()?).then_some(its)
        };
        let uid = directory.as_ref().and_then(ProcessDir::uid);
        match (other("user"), other("mnt"), uid) {
            (Some(_), ..) => Self::UserNamespaces,
            (_, Some(container), _) => Self::Container(container),
            (.., None | Some(0)) => Self::Process(process.pid),
            (.., Some(uid)) => Self::User(uid),
        }
    }
}

impl Display for Group {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        match self {
            Self::UserNamespaces => f.write_str("with user namespaces of their own"),
            Self::Container(namespace) => write!(f, "in mount namespace {namespace}"),
            Self::User(uid) => write!(f, "of uid {uid}"),
            Self::Process(pid) => write!(f, "with pid {pid}"),
        }
    }
}
