//! What can go wrong, typed by its fate: a file that is left alone, a ring that must be looked at anew, a configuration
//! that is not taken.

use crate::base::tmpfs::Space;
use nix::errno::Errno;
use std::path::PathBuf;

/// Why a file in a telemetry directory is left alone. Costs that file and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only regular files are opened.
    #[error("is not a regular file; symbolic links are not followed")]
    Kind,
    /// A file with two names may be somebody else's file.
    #[error("has {links} hard links, and a ring or a store has one; remove the others")]
    Links {
        /// Names that the file has.
        links: u64,
        /// Whether it is as long as a ring or a store.
        ring_size: bool,
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
    #[error("header is not written: {}", causes(*.full))]
    Uninitialised {
        /// Space of the file's tmpfs, if the file does not fit into what is free there.
        full: Option<Space>,
    },
    /// The version is 0, and no ring has this size: a segment that another library has left, say.
    #[error("no ring: it has no version, and {size} bytes are not 40 and a whole number of slots")]
    Blank {
        /// Bytes of the file.
        size: u64,
    },
    /// The two copies of the version differ.
    #[error("no ring: version {version} and expected version {expected_version} differ")]
    Versions {
        /// Version in the header.
        version: i32,
        /// Its copy in the header.
        expected_version: i32,
    },
    /// A ring of a NIXL that this build does not know.
    #[error(
        "ring version {version} is not supported; this build reads 1 to {newest}: upgrade pmdanixl"
    )]
    Unsupported {
        /// Version in the header.
        version: i32,
        /// The newest that is read.
        newest: i32,
    },
    /// A file among stores that is not called as one.
    #[error("is not called as a store is, nixl.PID.RUN.INSTANCE.mmap")]
    Name,
    /// No store of this schema has this size.
    #[error("{size} bytes are no store of schema 1: such a store has 6800")]
    StoreSize {
        /// Bytes of the file.
        size: u64,
    },
    /// It does not begin as a store does.
    #[error("no store: begins with {magic:#018x}, not with NIXLMPS1")]
    Magic {
        /// First eight bytes of the file.
        magic: u64,
    },
    /// A store of a NIXL that this build does not know.
    #[error("store schema {schema} is not supported; this build reads 1: upgrade pmdanixl")]
    Schema {
        /// Schema in the header.
        schema: u32,
    },
    /// Another number of event types than this schema has.
    #[error(
        "the store has {slots} slots, and schema 1 has 21; remove it, its agent makes another at its next start"
    )]
    Slots {
        /// Slots in the header.
        slots: u32,
    },
    /// Bounds of which no histogram can be.
    #[error("the store has {wrong}; remove it, its agent makes another at its next start")]
    Bounds {
        /// Which are wrong, and what would be right.
        wrong: String,
    },
    /// A text that is empty, or does not end within its field.
    #[error(
        "the store's {field} is empty or does not end; remove it, its agent makes another at its next start"
    )]
    Text {
        /// What it is.
        field: &'static str,
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
    /// A sparse file with fewer allocated blocks than its pending events take.
    #[error(
        "{pending} events are pending, but the file has fewer allocated blocks than these take; remove it, its agent makes another at its next start"
    )]
    Sparse {
        /// Events between the positions.
        pending: u64,
    },
    /// The name led to another file than the one that was checked.
    #[error("was replaced while it was looked at")]
    Replaced,
    /// It has more slots than are taken.
    #[error(
        "has {capacity} slots, and max_capacity is {max_capacity}; raise that, or lower NIXL_TELEMETRY_BUFFER_SIZE"
    )]
    TooLarge {
        /// Capacity in the header.
        capacity: u64,
        /// What is configured.
        max_capacity: u64,
    },
    /// `max_agents` rings are attached already.
    #[error("all {max_agents} places are taken; raise max_agents")]
    TooMany {
        /// The configured limit.
        max_agents: usize,
    },
    /// Its owner's agents have had many new names lately.
    #[error(
        "its owner's agents have had too many new names; fifty are taken in a second. Remove what writes them, or give them names that stay"
    )]
    Newcomers,
    /// Its agent has exited and nothing waits in it: a ring that was let go to make room, or a store whose values are counted.
    #[error("its agent has exited, and nothing is left in it to be counted")]
    Exited,
    /// An error of pmdanixl's own, which its log tells.
    #[error(
        "pmdanixl has failed over it, and leaves it alone until it changes; please report the error before this line"
    )]
    Failed,
    /// The file may not be read, so that it is not known whether it is a ring.
    #[error("may not be read ({errno}); run as root or as its owner")]
    NoReadAccess {
        /// What open(2) said.
        errno: Errno,
        /// Whether a ring could have the file's size.
        ring_size: bool,
    },
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
    /// The refusal of a file that cannot be `what`; one that holds something else by now was replaced.
    pub fn io(what: &'static str) -> impl Fn(std::io::Error) -> Self {
        move |err| {
            err.raw_os_error().map_or(Refusal::Replaced, |errno| {
                let errno = Errno::from_raw(errno);
                Refusal::Io { what, errno }
            })
        }
    }

    /// Whether the file is, or may be, a NIXL ring or store: the refusal then matters to an operator. The rest are the unrelated
    /// files that a shared directory holds.
    #[must_use]
    pub fn concerns_a_ring(&self) -> bool {
        match self {
            Refusal::NoReadAccess { ring_size, .. } | Refusal::Links { ring_size, .. } => {
                *ring_size
            }
            _ => !matches!(
                self,
                Refusal::Kind
                    | Refusal::Owner { .. }
                    | Refusal::Size { .. }
                    | Refusal::Blank { .. }
                    | Refusal::Versions { .. }
                    | Refusal::Version { .. }
                    | Refusal::Name
                    | Refusal::Magic { .. }
                    | Refusal::Exited
                    | Refusal::Replaced
            ),
        }
    }

    /// Whether it is an agent's, of a NIXL that this build does not know.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Refusal::Unsupported { .. } | Refusal::Schema { .. })
    }

    /// Whether the same file may pass at the next look although neither its size nor its change time differ.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Refusal::Replaced
                // What is written through a mapping need not change the times of the file.
                | Refusal::Positions { .. }
                | Refusal::Sparse { .. } | Refusal::TooMany { .. } | Refusal::Newcomers | Refusal::Io { .. }
        )
    }
}

/// Causes of an unwritten header, in words.
fn causes(full: Option<Space>) -> String {
    let [starting, size] = [
        "its agent is starting",
        "NIXL_TELEMETRY_BUFFER_SIZE is not a power of two",
    ];
    match full {
        None => format!("{starting}, or {size}"),
        Some(space) => format!(
            "{starting}, {size}, or SIGBUS killed it because its tmpfs has no room for it ({space}): remove files there, or enlarge it"
        ),
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
    /// The file has fewer allocated blocks than its pending events take.
    #[error("has fewer allocated blocks than its pending events take")]
    Sparse,
    /// A position moved backwards while slots were copied: the producer started anew.
    #[error("was restarted while it was read")]
    Restarted,
    /// The file is shorter than the mapping.
    #[error("was truncated")]
    Truncated,
    /// What stat(2) says of its file cannot be had just now.
    #[error("cannot be looked at")]
    Unseen,
}

fn remedy(err: &std::io::Error) -> &'static str {
    match err.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "let everybody read it, or the user that pmdanixl runs under"
        }
        std::io::ErrorKind::InvalidData => "save the file as UTF-8",
        std::io::ErrorKind::NotFound => "put it there, or give another file with -c",
        _ => "give another file with -c",
    }
}

/// Why a configuration is not taken: file, place, key, and what is allowed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}; {}", path.display(), remedy(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Something in the file is wrong.
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
