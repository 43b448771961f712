// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads untrusted files without waiting for a process that writes to them.
//!
//! The kernel locks a file during a write(2). Another user can make that last for ever: the bytes may come from a
//! mapping of a FUSE file system that does not answer. A process that waits for the lock cannot be killed. lseek(2)
//! with SEEK_HOLE waits for it and, on XFS, read(2) does. stat(2), loads from a mapping and read(2) on tmpfs do not
//! wait. On tmpfs, a load from a mapping would allocate pages for holes, so read(2) is used there.

use crate::base::file::is_on;
use crate::shm::Mapping;
use nix::sys::statfs::{EXT4_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;

/// True if stat(2) counts every written block of the file, as on tmpfs, ext4 and XFS.
#[must_use]
pub fn counts_blocks(file: &File) -> bool {
    is_on(file, &[TMPFS_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC])
}

/// Reads the first bytes of a file.
///
/// # Errors
/// Those of mmap(2) or read(2); UnexpectedEof if the file is shorter.
pub fn read_start(file: &File, bytes: &mut [u8]) -> io::Result<()> {
    // There read(2) shows a hole as zeros and allocates no page.
    if is_on(file, &[TMPFS_MAGIC]) {
        return file.read_exact_at(bytes, 0);
    }
    if file.metadata()?.len() < bytes.len() as u64 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mapping = Mapping::read_only(file, bytes.len().div_ceil(8))?;
    mapping.read_access(file, |words| {
        for (bytes, word) in bytes.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Relaxed).to_ne_bytes()[..bytes.len()]);
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a temporary file, and a file on tmpfs.
    fn files() -> [File; 2] {
        let in_memory = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
        assert!(is_on(&in_memory, &[TMPFS_MAGIC]));
        [tempfile::tempfile().expect("a temporary file"), in_memory]
    }

    #[test]
    fn first_bytes_are_read_on_disk_and_in_memory() {
        crate::shm::guard_against_sigbus().expect("a handler");
        for file in files() {
            file.write_all_at(b"0123456789ab", 0).expect("room");
            let mut bytes = [0; 11];
            read_start(&file, &mut bytes).expect("long enough");
            assert_eq!(&bytes, b"0123456789a");
            let err = read_start(&file, &mut [0; 13]).expect_err("too short");
            assert_eq!(err.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
