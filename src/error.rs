//! What can go wrong, typed by its fate: a file that is left alone, a ring that must be looked at anew, a configuration
//! that is not taken.

use crate::layout::MAX_VERSION;
use nix::errno::Errno;
use std::path::PathBuf;

/// Why a file in a telemetry directory is left alone. Costs that file and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only regular files are opened.
    #[error("is a {kind}, not a regular file")]
    Kind {
        /// What it is, in words.
        kind: &'static str,
    },
    /// A file with two names may be somebody else's file.
    #[error("has {links} hard links; a ring has one")]
    Links {
        /// Names that the file has.
        links: u64,
    },
    /// `owners` in the configuration does not list its owner.
    #[error("belongs to uid {uid}, who is not among the configured owners")]
    Owner {
        /// User id of the owner.
        uid: u32,
    },
    /// No ring has this size, whatever its header says.
    #[error("{size} bytes are no ring: none is 40 bytes and a whole number of slots")]
    Size {
        /// Bytes of the file.
        size: u64,
    },
    /// The version, which a producer stores last, is still 0.
    #[error(
        "header is not written yet: its agent is starting, or it died over a wrong NIXL_TELEMETRY_BUFFER_SIZE"
    )]
    Uninitialised,
    /// The two copies of the version differ.
    #[error("no ring: version {version} and expected version {expected_version} differ")]
    Versions {
        /// Version in the header.
        version: i32,
        /// Its copy in the header.
        expected_version: i32,
    },
    /// A ring of a NIXL that this build does not know.
    #[error("ring version {version} is not supported; this build reads 1 to {MAX_VERSION}")]
    Unsupported {
        /// Version in the header.
        version: i32,
    },
    /// Not a version that any ring has.
    #[error("no ring: version {version}")]
    Version {
        /// Version in the header.
        version: i32,
    },
    /// NIXL makes rings of a power of two only.
    #[error("capacity {capacity} is not a power of two")]
    Capacity {
        /// Capacity in the header.
        capacity: u64,
    },
    /// File size and header contradict each other.
    #[error("{size} bytes do not fit version {version} with {capacity} events")]
    Length {
        /// Version in the header.
        version: i32,
        /// Capacity in the header.
        capacity: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// The mask is not the capacity less one.
    #[error("mask {mask} does not belong to capacity {capacity}")]
    Mask {
        /// Mask in the header.
        mask: u64,
        /// Capacity in the header.
        capacity: u64,
    },
    /// A position lies outside the ring.
    #[error("positions read={read_pos} write={write_pos} lie outside capacity {capacity}")]
    Positions {
        /// Consumer's position.
        read_pos: u64,
        /// Producer's position.
        write_pos: u64,
        /// Capacity in the header.
        capacity: u64,
    },
    /// The name led to another file than the one that was checked.
    #[error("was replaced while it was looked at")]
    Replaced,
    /// `max_agents` rings are attached already.
    #[error("{max_agents} rings are attached already; raise max_agents")]
    TooMany {
        /// The configured limit.
        max_agents: usize,
    },
    /// Let go to make room: its agent has exited and nothing waits in it.
    #[error("its agent has exited, and nothing waits in it")]
    Exited,
    /// The ring is good but may not be written to, and to consume is to write.
    #[error(
        "a ring, but may not be written to ({0}); run as root or as the user of the NIXL application (user = \"...\")"
    )]
    NoWriteAccess(Errno),
    /// The operating system says no.
    #[error("cannot be {what}: {errno}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Its answer.
        errno: Errno,
    },
}

impl Refusal {
    /// Whether the file is, or may be, a NIXL ring: the refusal then matters to an operator. The rest are the unrelated
    /// files that a shared directory holds.
    #[must_use]
    pub fn concerns_a_ring(&self) -> bool {
        match self {
            Refusal::Kind { .. }
            | Refusal::Links { .. }
            | Refusal::Owner { .. }
            | Refusal::Size { .. }
            | Refusal::Versions { .. }
            | Refusal::Version { .. }
            | Refusal::Exited
            | Refusal::Replaced => false,
            Refusal::Uninitialised
            | Refusal::Unsupported { .. }
            | Refusal::Capacity { .. }
            | Refusal::Length { .. }
            | Refusal::Mask { .. }
            | Refusal::Positions { .. }
            | Refusal::TooMany { .. }
            | Refusal::NoWriteAccess(_)
            | Refusal::Io { .. } => true,
        }
    }

    /// Whether the same file may pass at the next look although neither its size nor its change time differ.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Refusal::Replaced | Refusal::TooMany { .. } | Refusal::Io { .. }
        )
    }
}

/// Why a ring that was attached is not what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// Version or capacity changed: another NIXL, or another buffer size, took the file over.
    #[error("was set up anew by another agent")]
    Reformatted,
    /// A position lies outside the ring.
    #[error("has positions read={read_pos} write={write_pos} outside its capacity {capacity}")]
    Positions {
        /// Consumer's position.
        read_pos: u64,
        /// Producer's position.
        write_pos: u64,
        /// Our capacity.
        capacity: u64,
    },
    /// A position moved backwards while slots were copied: the producer started anew.
    #[error("was restarted while it was read")]
    Restarted,
    /// The file is shorter than the mapping.
    #[error("was truncated")]
    Truncated,
}

/// Why a configuration is not taken: file, place, key, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; -c names another file", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {key}{message}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key with a colon, or nothing where the line has none.
        key: String,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// An option of the command line has a wrong value.
    #[error("option {option}: {message}")]
    Option {
        /// The option.
        option: &'static str,
        /// What is wrong and what is allowed.
        message: String,
    },
    /// A path in the environment is wrong.
    #[error("environment variable {variable}: {message}")]
    Environment {
        /// Name of the variable.
        variable: &'static str,
        /// What is wrong and what is allowed.
        message: String,
    },
}
