// SPDX-License-Identifier: GPL-2.0-or-later

//! Typed errors, one type for each consequence: a file that is rejected, a ring that must be checked again, a
//! configuration that is not accepted.

use crate::base::tmpfs::Space;
use nix::errno::Errno;
use std::fmt;
use std::path::PathBuf;

/// Why a file in a telemetry directory is not accepted. It costs that file and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// Not a regular file. Only regular files are opened.
    #[error("is not a regular file; symbolic links are not followed")]
    Kind,
    /// More than one hard link: the file may be a file of another user elsewhere.
    #[error("has {links} hard links, and a ring or a store has one; remove the others")]
    Links {
        /// Number of names of the file.
        links: u64,
        /// True if a ring or a store could have the file's size.
        ring_size: bool,
    },
    /// The owner is not in `owners` of the configuration.
    #[error("belongs to uid {uid}, which is not one of the configured owners")]
    Owner {
        /// Uid of the owner.
        uid: u32,
    },
    /// A size that no ring has, whatever its header says.
    #[error("not a ring: no ring has {size} bytes")]
    Size {
        /// Bytes of the file.
        size: u64,
    },
    /// The version is still 0, which a producer stores last.
    #[error("header is not written: {}", causes(*.full))]
    Uninitialised {
        /// Space of the file's tmpfs, if the file does not fit into the free space there.
        full: Option<Space>,
    },
    /// The version is 0 and no ring has this size. An example is a segment that another library left.
    #[error("not a ring: it has no version, and no ring has {size} bytes")]
    Blank {
        /// Bytes of the file.
        size: u64,
    },
    /// The version and its copy differ.
    #[error("not a ring: version {version} and expected version {expected_version} differ")]
    Versions {
        /// Version in the header.
        version: i32,
        /// Copy of the version in the header.
        expected_version: i32,
    },
    /// A ring of a later NIXL or of a fork, which this build cannot read.
    #[error(
        "ring version {version} is not supported; this build reads 1 to {newest}: upgrade pmdanixl, or use a release of NIXL"
    )]
    Unsupported {
        /// Version in the header.
        version: i32,
        /// Newest version that this build reads.
        newest: i32,
    },
    /// A file in a directory of stores that does not have the name of a store.
    #[error("does not have the name of a store, nixl.PID.RUN.INSTANCE.mmap")]
    Name,
    /// A size that no store of this schema has.
    #[error("not a store of schema 1: {size} bytes, and such a store has 6800; restart its agent")]
    StoreSize {
        /// Bytes of the file.
        size: u64,
    },
    /// The first bytes are not those of a store.
    #[error("not a store: begins with {magic:#018x}, not with NIXLMPS1")]
    Magic {
        /// First eight bytes of the file.
        magic: u64,
    },
    /// A store of a later NIXL, which this build cannot read.
    #[error("store schema {schema} is not supported; this build reads 1: upgrade pmdanixl")]
    Schema {
        /// Schema in the header.
        schema: u32,
    },
    /// A store that NIXL would not have written.
    #[error("the store has {wrong}; remove it, its agent makes another at its next start")]
    Malformed {
        /// The wrong part, and what is allowed.
        wrong: String,
    },
    /// A version that no ring has.
    #[error("not a ring: version {version}")]
    Version {
        /// Version in the header.
        version: i32,
    },
    /// A capacity that is not a power of two, as NIXL's always are.
    #[error("capacity {capacity} is not a power of two; restart its agent")]
    Capacity {
        /// Capacity in the header.
        capacity: u64,
    },
    /// A file size that contradicts the header.
    #[error("{size} bytes do not fit version {version} with {capacity} slots; restart its agent")]
    Length {
        /// Version in the header.
        version: i32,
        /// Capacity in the header.
        capacity: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A mask that is not the capacity minus one.
    #[error("mask {mask} does not belong to capacity {capacity}; restart its agent")]
    Mask {
        /// Mask in the header.
        mask: u64,
        /// Capacity in the header.
        capacity: u64,
    },
    /// A position outside of the ring.
    #[error(
        "positions read={read_pos} write={write_pos} lie outside capacity {capacity}; restart its agent"
    )]
    Positions {
        /// Consumer's position.
        read_pos: u64,
        /// Producer's position.
        write_pos: u64,
        /// Capacity in the header.
        capacity: u64,
    },
    /// A sparse file with fewer allocated blocks than its pending events take.
    #[error(
        "{pending} events are pending, but the file has fewer allocated blocks than these take; remove it, its agent makes another at its next start"
    )]
    Sparse {
        /// Events between the positions.
        pending: u64,
    },
    /// Another file has the name since the file was checked.
    #[error("was replaced during the check")]
    Replaced,
    /// More slots than the configuration allows.
    #[error(
        "has {capacity} slots, and max_capacity is {max_capacity}; raise that, or lower NIXL_TELEMETRY_BUFFER_SIZE"
    )]
    TooLarge {
        /// Capacity in the header.
        capacity: u64,
        /// Limit from the configuration.
        max_capacity: u64,
    },
    /// The limit on agents is reached.
    #[error("{limit}; {}", .limit.remedy())]
    TooMany {
        /// The limit.
        limit: AgentLimit,
    },
    /// Too many new names of the owner's agents lately.
    #[error(
        "its owner's agents have too many new names: at most fifty are accepted in a second. Stop what creates them, or give them names that stay"
    )]
    NewNames,
    /// The agent has exited and nothing is pending: a ring that was detached to make room, or a store whose values are
    /// counted.
    #[error("its agent has exited, and all of its events are counted")]
    Exited,
    /// An internal error, which the log has.
    #[error(
        "pmdanixl has an internal error with it and does not read it until it changes; please report the error in the line before"
    )]
    Failed,
    /// The file may not be read, so that it is not known whether it is a ring.
    #[error("may not be read ({errno}); run as root, or as its owner with permission to read it")]
    NoReadAccess {
        /// Error of open(2).
        errno: Errno,
        /// True if a ring could have the file's size.
        ring_size: bool,
    },
    /// A system call failed.
    #[error("cannot be {what}: {errno}")]
    Io {
        /// What was tried, as a participle.
        what: &'static str,
        /// Error of the system call.
        errno: Errno,
    },
}

impl Rejection {
    /// Converts an error of a system call to the rejection of a file that cannot be `what`. An error without a number
    /// means that the file holds something else by now: it was replaced.
    pub fn io(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |err| {
            err.raw_os_error().map_or(Rejection::Replaced, |errno| {
                let errno = Errno::from_raw(errno);
                Rejection::Io { what, errno }
            })
        }
    }

    /// True if the file is a NIXL ring or store, or may be one, so that the rejection matters to an operator. Other
    /// files are unrelated files in a shared directory.
    #[must_use]
    pub fn may_be_telemetry(&self) -> bool {
        match self {
            Rejection::NoReadAccess { ring_size, .. } | Rejection::Links { ring_size, .. } => {
                *ring_size
            }
            Rejection::Kind
            | Rejection::Owner { .. }
            | Rejection::Size { .. }
            | Rejection::Blank { .. }
            | Rejection::Versions { .. }
            | Rejection::Version { .. }
            | Rejection::Name
            | Rejection::Magic { .. }
            | Rejection::Exited
            | Rejection::Replaced => false,
            _ => true,
        }
    }

    /// True if the file is of a NIXL that this build cannot read.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            Rejection::Unsupported { .. } | Rejection::Schema { .. }
        )
    }

    /// True if the file may be accepted at the next check although neither its size nor its change time differ.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(
            self,
            Rejection::Replaced
                // Stores through a mapping need not change the times of a file.
                | Rejection::Positions { .. }
                | Rejection::Sparse { .. } | Rejection::TooMany { .. } | Rejection::NewNames | Rejection::Io { .. }
        )
    }
}

/// Limit on agents at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentLimit {
    /// Number of places for agents: `max_agents`, or fewer if the process may not open so many files.
    pub places: usize,
    /// Limit from the configuration.
    pub max_agents: usize,
}

impl AgentLimit {
    /// Returns what to do where the limit is reached.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self.places < self.max_agents {
            true => "raise the limit of open files of pmcd's service (LimitNOFILE)",
            false => "raise max_agents in nixl.conf",
        }
    }
}

impl fmt::Display for AgentLimit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.places < self.max_agents {
            true => write!(
                f,
                "the limit of open files leaves room for {} agents, which is reached",
                self.places
            ),
            false => write!(f, "max_agents ({}) is reached", self.max_agents),
        }
    }
}

/// Describes what can cause an unwritten header, with what to do.
fn causes(full: Option<Space>) -> String {
    let unfinished = "its producer has not finished the ring, or it is a file of another kind";
    let size = "set NIXL_TELEMETRY_BUFFER_SIZE to a power of two and start the agent again";
    match full {
        None => format!("{unfinished}; {size}, or remove the file"),
        Some(space) => format!(
            "{unfinished}; {size}; or SIGBUS killed it because its tmpfs has no room for it ({space}): remove files there, or enlarge it"
        ),
    }
}

/// Why an attached ring or store is no longer what was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The version or the capacity changed: an agent with another NIXL or another buffer size re-initialised the file.
    #[error("was re-initialised with another size or version")]
    Reformatted,
    /// A position lies outside of the ring.
    #[error("has positions read={read_pos} write={write_pos} outside its capacity {capacity}")]
    Positions {
        /// Consumer's position.
        read_pos: u64,
        /// Producer's position.
        write_pos: u64,
        /// Capacity of the mapped ring.
        capacity: u64,
    },
    /// The file has fewer allocated blocks than its pending events take.
    #[error("has fewer allocated blocks than its pending events take")]
    Sparse,
    /// A position moved backwards while slots were copied: the producer restarted.
    #[error("was re-initialised by its producer during a read")]
    Restarted,
    /// The file is shorter than the mapping.
    #[error("was truncated")]
    Truncated,
    /// stat(2) of the file fails at the moment.
    #[error("cannot be checked")]
    StatFailed,
}

fn remedy(err: &std::io::Error) -> &'static str {
    match err.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "make it readable for the user that pmdanixl runs as"
        }
        std::io::ErrorKind::InvalidData => "save the file as UTF-8",
        std::io::ErrorKind::NotFound => "put it there, or give another file with -c",
        _ => "give another file with -c",
    }
}

/// Why a configuration is not accepted: the file, the place, the key, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; {}", path.display(), remedy(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// A line of the file is wrong.
    #[error("{}:{line}: {message}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key, where its line has it, what is wrong, and what is allowed.
        message: String,
    },
    /// A value on the command line or in the environment is wrong.
    #[error("{place}: {message}")]
    Outside {
        /// The option or variable.
        place: String,
        /// What is wrong and what is allowed.
        message: String,
    },
}
