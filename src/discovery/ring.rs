// SPDX-License-Identifier: GPL-2.0-or-later

//! Checks of a file in a telemetry directory: whether it is a ring that may be attached.
//!
//! The directories may be world-writable, so every file is untrusted. Nothing is written to a file before it has passed
//! all checks.

use crate::base::file::{self, FileFacts};
use crate::base::tmpfs::Space;
use crate::config::Config;
use crate::error::Rejection;
use crate::ring::candidate::{Access, RingCandidate};
use crate::ring::layout::{Header, Layout, header};
use crate::ring::sparse;
use crate::shm::nonblocking;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{SFlag, fstat};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;

/// Checks that a file is regular, has one hard link, and belongs to one of `owners`. `None` allows all owners.
/// `has_ring_size` is true if the file is as long as a ring or a store; the error contains it.
///
/// # Errors
/// The rejection of the file.
pub fn check_kind(
    facts: &FileFacts,
    owners: Option<&[u32]>,
    has_ring_size: bool,
) -> Result<(), Rejection> {
    if facts.kind != SFlag::S_IFREG {
        return Err(Rejection::Kind);
    }
    if facts.links != 1 {
        let links = facts.links;
        return Err(Rejection::Links {
            links,
            ring_size: has_ring_size,
        });
    }
    if owners.is_some_and(|owners| !owners.contains(&facts.uid)) {
        return Err(Rejection::Owner { uid: facts.uid });
    }
    Ok(())
}

/// Opens a ring and checks its header. It is opened for writing only after the header has passed the checks.
///
/// # Errors
/// The rejection of the file.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    config: &Config,
) -> Result<RingCandidate, Rejection> {
    let has_ring_size = Layout::fits_any(facts.size);
    check_kind(facts, config.owners.as_deref(), has_ring_size)?;
    // Any whole number of words passes: a later NIXL may have slots of another size, and its ring is then reported as
    // unsupported.
    if facts.size <= header::BYTES as u64 || facts.size % 8 != 0 {
        return Err(Rejection::Size { size: facts.size });
    }
    let read_only = open_to_read(directory, name, facts, has_ring_size)?;
    check_header(&read_only, facts.size, config)?;
    let (file, access) = match config.observe {
        true => (read_only, Access::ReadOnly),
        false => match open_file(directory, name, OFlag::O_RDWR) {
            Ok(file) => (unchanged(file, facts)?, Access::Write),
            Err(errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS)) => {
                (read_only, Access::Denied(errno))
            }
            Err(errno) => return Err(Rejection::io("opened for writing")(errno.into())),
        },
    };
    // Check again, on the descriptor that will be mapped.
    let (header, layout) = check_header(&file, facts.size, config)?;
    let pending = header.pending();
    if !sparse::has_blocks_for(&file, layout, pending) {
        return Err(Rejection::Sparse { pending });
    }
    Ok(RingCandidate {
        file,
        facts: *facts,
        header,
        layout,
        access,
    })
}

/// Reads the header of a file and checks it against the file's size and the largest accepted capacity.
fn check_header(file: &File, size: u64, config: &Config) -> Result<(Header, Layout), Rejection> {
    let mut bytes = [0; header::BYTES];
    nonblocking::read_start(file, &mut bytes).map_err(Rejection::io("read"))?;
    let header = Header::from_bytes(&bytes);
    let layout = header.check(size).map_err(|rejection| match rejection {
        // fstatfs(2) may block, but the server of this file has just answered a read.
        Rejection::Uninitialised { .. } => Rejection::Uninitialised {
            full: Space::of_tmpfs(file).filter(|space| space.free < size),
        },
        rejection => rejection,
    })?;
    let (capacity, max_capacity) = (header.capacity, config.max_capacity);
    if capacity > max_capacity {
        return Err(Rejection::TooLarge {
            capacity,
            max_capacity,
        });
    }
    Ok((header, layout))
}

/// Opens a file for reading. `is_expected` is true if the name or size of the file is that of a ring or store; a
/// missing read permission is then reported.
///
/// # Errors
/// `NoReadAccess` for EACCES and EPERM, `Replaced` for another file than `facts` describes, `Io` for other errors of
/// open(2).
pub fn open_to_read(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    is_expected: bool,
) -> Result<File, Rejection> {
    let ring_size = is_expected;
    let file = open_file(directory, name, OFlag::O_RDONLY).map_err(|errno| match errno {
        Errno::EACCES | Errno::EPERM => Rejection::NoReadAccess { errno, ring_size },
        errno => Rejection::io("opened")(errno.into()),
    })?;
    unchanged(file, facts)
}

fn open_file(directory: &OwnedFd, name: &OsStr, mode: OFlag) -> nix::Result<File> {
    // O_NONBLOCK: the file may have been replaced with a FIFO or a device, which could block the open.
    let flags = mode | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    file::open_entry(directory, name, flags).map(File::from)
}

/// Returns the file if `facts` still describe it.
fn unchanged(file: File, facts: &FileFacts) -> Result<File, Rejection> {
    let opened = fstat(&file).map_err(|errno| Rejection::io("checked")(errno.into()))?;
    // The producer changes the times of a ring at any moment, so they are not compared.
    let opened = FileFacts {
        changed: facts.changed,
        modified: facts.modified,
        ..FileFacts::new(&opened)
    };
    (opened == *facts)
        .then_some(file)
        .ok_or(Rejection::Replaced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MAX_CAPACITY;
    use nix::fcntl::open as open_directory;
    use nix::sys::stat::Mode;
    use std::os::unix::fs::FileExt;

    #[test]
    fn ring_is_rejected_above_max_capacity_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::create(dir.path().join("huge")).expect("a file");
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open_directory(dir.path(), flags, Mode::empty()).expect("there");
        let open = |capacity: u64, max_capacity| {
            // An empty ring of version 4 without a block for its slots.
            let words = [0, 0, (4 << 32) | 4, capacity, capacity - 1];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            file.write_all_at(&bytes, 0).expect("written");
            file.set_len(40 + 16 * capacity).expect("sparse");
            let name = OsStr::new("huge");
            let facts = file::facts(&directory, name).expect("there");
            let config = Config {
                max_capacity,
                ..Config::default()
            };
            super::open(&directory, name, &facts, &config).map(|found| found.header.capacity)
        };
        let rejected = Err(Rejection::TooLarge {
            capacity: 1 << 23,
            max_capacity: MAX_CAPACITY,
        });
        assert_eq!(open(1 << 23, MAX_CAPACITY), rejected);
        assert_eq!(open(1 << 22, MAX_CAPACITY), Ok(1 << 22));
        assert_eq!(open(1 << 23, 1 << 23), Ok(1 << 23));
        // The checks have filled no block of the sparse file.
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("open"));
        assert!(blocks <= 16, "{blocks}");
    }
}
