//! Memory shared with the producers: one of the three modules that hold unsafe code.
//!
//! A mapped file is only ever seen as words that are loaded and stored atomically. No reference to plain memory is made of
//! it, since its producers (and any stranger who may write the file) change it at will.
#![allow(unsafe_code)]

use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

/// A file mapped shared and writable, as 8-byte words.
///
/// If the file is made shorter, an access beyond its new end raises SIGBUS. Callers ask for the file's length first; the
/// window between the two is one copy of the ring long.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
    words: usize,
}

impl Mapping {
    /// Maps the first `words` words of a file that is open for reading and writing.
    ///
    /// # Errors
    /// What mmap(2) says, EACCES where the file is not open for writing among it.
    pub fn new(file: &File, words: usize) -> io::Result<Self> {
        let len = words.checked_mul(8).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(len).map_raw(file)?;
        Ok(Self { map, words })
    }

    /// The file's words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: `new` mapped this many words, at a page boundary and so aligned; the mapping lives as long as `self`;
        // every access through it is atomic, and the other processes' accesses are not this program's.
        unsafe { std::slice::from_raw_parts(start, self.words) }
    }
}

/// Takes a write lease on a file that is open for writing, and gives it back at once. The kernel grants it only while
/// nobody else has the file open or mapped (fcntl(2), F_SETLEASE). `nix` does not wrap leases.
///
/// # Errors
/// EAGAIN while somebody has it; EACCES without CAP_LEASE on another user's file; others where there are no leases.
pub fn lease(file: &File) -> io::Result<()> {
    // A second opener waits for the lease to be given back, and the kernel sends SIGIO, which the daemon ignores.
    set_lease(file, libc::F_WRLCK)?;
    set_lease(file, libc::F_UNLCK)
}

fn set_lease(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: F_SETLEASE takes an int and touches no memory of ours; the descriptor is open as long as `file` lives.
    let sts = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    if sts < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn stores_reach_the_file_and_other_mappings() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[0; 24]).expect("room");
        let (one, other) = (
            Mapping::new(&file, 3).expect("mapped"),
            Mapping::new(&file, 3).expect("mapped"),
        );
        one.words()[2].store(7, Relaxed);
        assert_eq!(other.words()[2].load(Relaxed), 7);
        assert_eq!(one.words().len(), 3);
    }

    #[test]
    fn a_lease_is_granted_when_nobody_else_has_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        lease(file.as_file()).expect("nobody else has it");
        let other = File::open(file.path()).expect("still there");
        let err = lease(file.as_file()).expect_err("another descriptor");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        drop(other);
        lease(file.as_file()).expect("nobody else has it any more");
    }

    #[test]
    fn a_length_that_overflows_is_an_error() {
        let file = tempfile::tempfile().expect("a temporary file");
        assert!(Mapping::new(&file, usize::MAX).is_err());
    }
}
