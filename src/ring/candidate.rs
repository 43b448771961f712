// SPDX-License-Identifier: GPL-2.0-or-later

//! A file that passed the checks and can be attached as a ring.

use crate::base::file::FileFacts;
use crate::ring::layout::{Header, Layout};
use nix::errno::Errno;
use std::fs::File;

/// A ring file that passed all checks, with what the checks found.
#[derive(Debug)]
pub struct RingCandidate {
    /// The open file. It is open for writing if `access` is [`Access::Write`].
    pub file: File,
    /// The result of stat(2).
    pub facts: FileFacts,
    /// The checked header.
    pub header: Header,
    /// The layout that the header and the file's size give.
    pub layout: Layout,
    /// Whether the ring may be drained.
    pub access: Access,
}

/// Access to a ring: draining writes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The file is open for writing.
    Write,
    /// The configuration has `observe`: no ring is drained.
    ReadOnly,
    /// open(2) for writing failed with this error.
    Denied(Errno),
}
