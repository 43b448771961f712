//! Leases and locks: who else has a file.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// When the kernel grants a lease (fcntl(2), F_SETLEASE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseKind {
    /// While nobody else has the file open or mapped (F_WRLCK).
    Exclusive,
    /// While nobody has the file open for writing (F_RDLCK); on a descriptor that is open for reading only.
    NoWriter,
}

/// A lease on a file, given back when it is dropped. `nix` does not wrap leases.
#[derive(Debug)]
pub struct Lease<'a> {
    file: &'a File,
    kind: c_int,
}

impl<'a> Lease<'a> {
    /// Takes the lease.
    ///
    /// # Errors
    /// EAGAIN while somebody has the file; EACCES without CAP_LEASE on another user's; others where there are no leases.
    pub fn acquire(file: &'a File, kind: LeaseKind) -> io::Result<Self> {
        let kind = match kind {
            LeaseKind::Exclusive => libc::F_WRLCK,
            LeaseKind::NoWriter => libc::F_RDLCK,
        };
        // A second opener waits for the lease to be given back, and the kernel sends SIGIO, which the daemon ignores.
        lease_call(file, libc::F_SETLEASE, kind)?;
        Ok(Self { file, kind })
    }

    /// Whether somebody waits for it to be given back.
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
    // SAFETY: both commands take an int, if anything, and touch no memory of ours; the descriptor is open as long as `file`
    // lives.
    let sts = unsafe { libc::fcntl(file.as_raw_fd(), command, kind) };
    if sts < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(sts)
    }
}

/// Locks a file that is open for writing, until its last descriptor is closed. Returns false while another process has a lock.
///
/// The lock is an open file description lock for writing (fcntl(2)), which takes the right to write the file. Another user's lock
/// for reading keeps it from being taken; [`is_locked`] tells that from the lock of another daemon.
///
/// # Errors
/// What fcntl(2) says; ENOLCK and others where the file system has no locks.
pub fn lock(file: &File) -> io::Result<bool> {
    let lock = whole_file();
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// True while another open file description has the lock that [`lock`] takes. It may be open for reading only.
///
/// # Errors
/// What fcntl(2) says.
pub fn is_locked(file: &File) -> io::Result<bool> {
    let mut found = whole_file();
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(c_int::from(found.l_type) == libc::F_WRLCK)
}

/// A lock for writing of the whole file.
fn whole_file() -> libc::flock {
    libc::flock {
        // C has these as int.
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
        Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("nobody else has it");
        let other = File::open(file.path()).expect("still there");
        let err =
            Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect_err("another descriptor");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        drop(other);
        Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("nobody else has it any more");
    }

    #[test]
    fn lease_against_writers_is_granted_beside_readers() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let ours = File::open(file.path()).expect("there");
        let err = Lease::acquire(&ours, LeaseKind::NoWriter).expect_err("it is open for writing");
        assert_eq!(err.raw_os_error(), Some(libc::EAGAIN));
        let path = file.into_temp_path();
        let _reader = File::open(&path).expect("there");
        Lease::acquire(&ours, LeaseKind::NoWriter).expect("nobody writes");
    }

    #[test]
    fn lease_shows_that_another_process_waits() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        // The kernel sends SIGIO, which would end the test.
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler is installed.
        unsafe { sigaction(Signal::SIGIO, &ignore) }.expect("ignored");
        let lease =
            Lease::acquire(file.as_file(), LeaseKind::Exclusive).expect("nobody else has it");
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
