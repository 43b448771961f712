//! A file that was checked and can be attached as a ring.

use crate::base::file::FileFacts;
use crate::ring::layout::{Header, Layout};
use nix::errno::Errno;
use std::fs::File;

/// A file that is a ring, and what it was when it was checked.
#[derive(Debug)]
pub struct RingCandidate {
    /// Open for writing as well, if `access` says so.
    pub file: File,
    /// What stat(2) said.
    pub facts: FileFacts,
    /// The header, checked.
    pub header: Header,
    /// What it says.
    pub layout: Layout,
    /// Whether it may be drained.
    pub access: Access,
}

/// Whether a ring may be drained, which is to write to it, or only followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is open for writing.
    Write,
    /// It is to be followed only (`observe` in the configuration).
    FollowOnly,
    /// It may not be written to.
    Denied(Errno),
}
