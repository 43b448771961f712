// SPDX-License-Identifier: GPL-2.0-or-later

//! Leases and locks, which show whether another process has a file.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Condition under which the kernel grants a lease (fcntl(2), F_SETLEASE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// No other process has the file open or mapped (F_WRLCK).
    Exclusive,
    /// No process has the file open for writing (F_RDLCK). Needs a descriptor that is open for reading only.
    NoWriter,
}

/// Lease on a file, released when it is dropped. `nix` does not wrap leases.
#[derive(Debug)]
pub struct Lease<'a> {
    file: &'a File,
    kind: c_int,
}

impl<'a> Lease<'a> {
    /// Acquires the lease.
    ///
    /// # Errors
    /// EAGAIN while another process has the file. EACCES on another user's file without CAP_LEASE. Others on file
    /// systems without leases.
    pub fn acquire(file: &'a File, kind: LeaseKind) -> io::Result<Self> {
        let kind = match kind {
            LeaseKind::Exclusive => libc::F_WRLCK,
            LeaseKind::NoWriter => libc::F_RDLCK,
        };
        // A process that opens the file waits until the lease is released. The kernel sends SIGIO, which the daemon
        // ignores.
        lease_call(file, libc::F_SETLEASE, kind)?;
        Ok(Self { file, kind })
    }

    /// True if another process waits for the release of the lease.
    #[must_use]
    pub fn is_breaking(&self) -> bool {
        lease_call(self.file, libc::F_GETLEASE, 0).map_or(true, |kind| kind != self.kind)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        let _ = lease_call(self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn lease_call(file: &File, command: c_int, kind: c_int) -> io::Result<c_int> {
    // SAFETY: both commands take an int or nothing, and access no memory of this process; the descriptor is open as
    // long as `file` lives.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, kind) };
    Ok(Errno::result(result)?)
}

/// Locks a file that is open for writing, until its last descriptor is closed. Returns false while another process has
/// a lock.
///
/// The lock is an open file description lock for writing (fcntl(2)), which needs permission to write the file. A user
/// with permission to read can block it with a lock for reading; [`is_locked`] returns false then.
///
/// # Errors
/// Those of fcntl(2), such as ENOLCK on a file system without locks.
pub fn lock(file: &File) -> io::Result<bool> {
    let lock = whole_file();
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// True while another open file description has the lock of [`lock`]. `file` may be open for reading only.
///
/// # Errors
/// Those of fcntl(2).
pub fn is_locked(file: &File) -> io::Result<bool> {
    let mut found = whole_file();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(c_int::from(found.l_type) == libc::F_WRLCK)
}

/// Returns a lock for writing of the whole file.
fn whole_file() -> libc::flock {
    libc::flock {
        // libc declares these constants as int.
        l_type: libc::F_WRLCK.try_into().unwrap_or_default(),
        l_whence: libc::SEEK_SET.try_into().unwrap_or_default(),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

    #[test]
    fn exclusive_lease_needs_a_file_without_other_holder() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("no other holder");
        let other = File::open(file.path()).expect("still there");
        let err =
            Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect_err("another descriptor");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        drop(other);
        Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("closed");
    }

    #[test]
    fn lease_against_writers_is_granted_beside_readers() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let read_only = File::open(file.path()).expect("there");
        let err =
            Lease::acquire(&read_only, LeaseKind::NoWriter).expect_err("it is open for writing");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        let path = file.into_temp_path();
        let _reader = File::open(&path).expect("there");
        Lease::acquire(&read_only, LeaseKind::NoWriter).expect("no writer");
    }

    #[test]
    fn lease_shows_that_another_process_waits() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // The default action of SIGIO, which the kernel sends, would end the test.
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is installed.
        unsafe { sigaction(Signal::SIGIO, &ignore) }.expect("ignored");
        let lease = Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("no other holder");
        assert!(!lease.is_breaking());
        let path = file.path().to_owned();
        let opener = std::thread::spawn(move || File::open(path).map(drop));
        while !lease.is_breaking() {
            std::thread::yield_now();
        }
        drop(lease);
        opener.join().expect("no panic").expect("it had to wait");
    }
}
