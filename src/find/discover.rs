//! Whether a file in a telemetry directory is a ring, and may be touched.
//!
//! The directories may be world-writable, so every file is a stranger's until it has passed all checks, and nothing is
//! written to one that has not.

use crate::base::file::FileFacts;
use crate::base::tmpfs::Space;
use crate::config::Terms;
use crate::error::Refusal;
use crate::ring::candidate::{Access, Candidate};
use crate::ring::layout::{HEADER_LEN, Header, Layout};
use crate::ring::sparse;
use crate::shm::unlocked;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::unistd::{Uid, User};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;

/// Checks what is true of all files that are looked at: regular, with one name, of an owner whose files are taken. `ring_size`:
/// whether it is as long as a ring or a store.
///
/// # Errors
/// Why the file is left alone.
pub fn check_kind(
    facts: &FileFacts,
    owners: Option<&[u32]>,
    has_ring_size: bool,
) -> Result<(), Refusal> {
    if facts.kind != SFlag::S_IFREG {
        return Err(Refusal::Kind);
    }
    if facts.links != 1 {
        let links = facts.links;
        return Err(Refusal::Links {
            links,
            ring_size: has_ring_size,
        });
    }
    if owners.is_some_and(|owners| !owners.contains(&facts.uid)) {
        return Err(Refusal::Owner { uid: facts.uid });
    }
    Ok(())
}

/// Opens a file and checks its header. It is opened for writing only after the header has been read and found good.
///
/// # Errors
/// Why the file is left alone.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    terms: &Terms,
) -> Result<Candidate, Refusal> {
    let has_ring_size = Layout::fits_any(facts.size);
    check_kind(facts, terms.owners.as_deref(), has_ring_size)?;
    // Any whole number of words is let through: a later NIXL may have slots of another size, and is to be reported as such.
    if facts.size <= HEADER_LEN as u64 || facts.size % 8 != 0 {
        return Err(Refusal::Size { size: facts.size });
    }
    let read_only = open_to_read(directory, name, facts, has_ring_size)?;
    check_header(&read_only, facts.size, terms)?;
    let (file, access) = match terms.observe {
        true => (read_only, Access::Asked),
        false => {
            match open_unchanged(directory, name, facts, OFlag::O_RDWR, "opened for writing") {
                Ok(writable) => (writable, Access::Write),
                Err(Refusal::Io {
                    errno: errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS),
                    ..
                }) => (read_only, Access::Denied(errno)),
                Err(refusal) => return Err(refusal),
            }
        }
    };
    // Once more, from the descriptor that will be mapped.
    let (header, layout) = check_header(&file, facts.size, terms)?;
    let pending = header.pending();
    if !sparse::has_room_for(&file, layout, pending) {
        return Err(Refusal::Sparse { pending });
    }
    Ok(Candidate {
        file,
        facts: *facts,
        header,
        layout,
        access,
    })
}

/// Reads a file's header, and checks it.
fn check_header(file: &File, size: u64, terms: &Terms) -> Result<(Header, Layout), Refusal> {
    let mut bytes = [0; HEADER_LEN];
    unlocked::read_start(file, &mut bytes).map_err(Refusal::io("read"))?;
    let header = Header::from_bytes(&bytes);
    let layout = header.check(size).map_err(|refusal| match refusal {
        // The header was read: fstatfs(2) has answered for this file before.
        Refusal::Uninitialised { .. } => Refusal::Uninitialised {
            full: Space::of_tmpfs(file).filter(|space| space.free < size),
        },
        refusal => refusal,
    })?;
    let (capacity, max_capacity) = (header.capacity, terms.max_capacity);
    if capacity > max_capacity {
        return Err(Refusal::TooLarge {
            capacity,
            max_capacity,
        });
    }
    Ok((header, layout))
}

/// Opens a file to look at it. `is_expected`: whether it is known, from its name or its size, that it matters if it cannot be.
///
/// # Errors
/// Why it cannot be opened.
pub fn open_to_read(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    is_expected: bool,
) -> Result<File, Refusal> {
    let opened = open_unchanged(directory, name, facts, OFlag::O_RDONLY, "opened");
    opened.map_err(|refusal| match refusal {
        Refusal::Io {
            errno: errno @ (Errno::EACCES | Errno::EPERM),
            ..
        } => Refusal::NoReadAccess {
            errno,
            ring_size: is_expected,
        },
        refusal => refusal,
    })
}

/// Opens a file and makes sure that it is the one that was looked at. `what` the file cannot be, in an error's words.
fn open_unchanged(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    mode: OFlag,
    what: &'static str,
) -> Result<File, Refusal> {
    // O_NONBLOCK: a FIFO or a device put in its place meanwhile does not hold us up.
    let flags = mode | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let fd = openat(directory, name, flags, Mode::empty());
    let file = fd
        .map(File::from)
        .map_err(|errno| Refusal::Io { what, errno })?;
    let opened = fstat(&file).map_err(|errno| Refusal::Io { what, errno })?;
    // A ring's times change at any moment.
    let opened = FileFacts {
        changed: facts.changed,
        modified: facts.modified,
        ..FileFacts::new(&opened)
    };
    (opened == *facts).then_some(file).ok_or(Refusal::Replaced)
}

/// A user's name, or the number of one that has none.
#[must_use]
pub fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file;
    use crate::config::MAX_CAPACITY;
    use nix::fcntl::open as open_directory;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_ring_of_any_size_is_refused_above_the_most_and_taken_below() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::create(dir.path().join("huge")).expect("a file");
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open_directory(dir.path(), flags, Mode::empty()).expect("there");
        let open = |capacity: u64, max_capacity| {
            // v4, empty, and a hole from its first slot on.
            let words = [0, 0, (4 << 32) | 4, capacity, capacity - 1];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            file.write_all_at(&bytes, 0).expect("written");
            file.set_len(40 + 16 * capacity).expect("sparse");
            let name = OsStr::new("huge");
            let facts = file::facts(&directory, name).expect("there");
            let terms = Terms {
                max_capacity,
                ..Terms::default()
            };
            super::open(&directory, name, &facts, &terms).map(|found| found.header.capacity)
        };
        let refused = Err(Refusal::TooLarge {
            capacity: 1 << 23,
            max_capacity: MAX_CAPACITY,
        });
        assert_eq!(open(1 << 23, MAX_CAPACITY), refused);
        assert_eq!(open(1 << 22, MAX_CAPACITY), Ok(1 << 22));
        assert_eq!(open(1 << 23, 1 << 23), Ok(1 << 23));
        // Attached or not, nothing of it was ever filled.
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("open"));
        assert!(blocks <= 16, "{blocks}");
    }
}
