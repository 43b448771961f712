// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the open sockets and RDMA devices of one process.

use crate::base::file::LIST_FLAGS;
use crate::procfs::process::ProcessId;
use crate::shm::socket::{self, ProcessHandle};
use crate::transport::protocol::Traffic;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::readlinkat;
use nix::sys::stat::Mode;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

/// Limit of open files of a process. A process with more is not read: connections would be left out at random.
const MAX_FILES: usize = 1 << 15;

/// Open files of a process.
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// TCP connections.
    pub connections: Vec<Connection>,
    /// Number of RDMA devices.
    pub rdma_devices: usize,
}

/// TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Number that no other socket of this boot has.
    pub cookie: u64,
    /// Address of the peer. `None`: it is not connected, or not any more.
    pub peer: Option<IpAddr>,
    /// Smoothed round-trip time in microseconds.
    pub rtt: u32,
    /// Traffic since the connection was opened.
    pub traffic: Traffic,
}

/// Reads the open files of a process. Blocks while a thread of the process holds the lock of a socket, without limit.
///
/// # Errors
/// The process has ended (ESRCH), has too many open files (EMFILE), or may not be read.
pub fn read(id: ProcessId) -> io::Result<OpenFiles> {
    let process = open(id)?;
    let mut files = OpenFiles::default();
    let (mut sockets, mut devices) = (HashSet::new(), HashSet::new());
    let mut copies = CopyResults::default();
    for_each_file(id.pid, |fd, target| {
        if is_rdma_device(&target) {
            devices.insert(target);
        } else if is_socket(&target) && !sockets.contains(&target) {
            if let Some(copy) = copies.make(&process, fd)? {
                files.connections.extend(connection(copy));
                // Only after a copy: if this descriptor was closed meanwhile, another one of the same socket is tried.
                sockets.insert(target);
            }
        }
        Ok(())
    })?;
    files.rdma_devices = devices.len();
    copies.check()?;
    Ok(files)
}

/// Returns the number of RDMA devices that a process has open. With `may_copy`, it copies the descriptor of one socket, to find out
/// whether [`read`] may, and reads nothing of it.
///
/// # Errors
/// Those of [`read`].
pub fn probe(id: ProcessId, may_copy: bool) -> io::Result<usize> {
    let process = open(id)?;
    let mut devices = HashSet::new();
    let mut made = CopyResults::default();
    for_each_file(id.pid, |fd, target| {
        if is_rdma_device(&target) {
            devices.insert(target);
        } else if may_copy && !made.has_any && is_socket(&target) {
            made.make(&process, fd)?;
        }
        Ok(())
    })?;
    made.check()?;
    Ok(devices.len())
}

/// Opens a process. Fails with ESRCH if it has ended.
fn open(id: ProcessId) -> io::Result<ProcessHandle> {
    let process = ProcessHandle::open(id.pid)?;
    // The handle is of a later process if the process has ended before.
    match ProcessId::of(id.pid)? == id {
        true => Ok(process),
        false => Err(Errno::ESRCH.into()),
    }
}

fn is_rdma_device(target: &OsStr) -> bool {
    target.as_bytes().starts_with(b"/dev/infiniband/uverbs")
}

fn is_socket(target: &OsStr) -> bool {
    target.as_bytes().starts_with(b"socket:")
}

/// Calls `visit` with each open file of a process: the descriptor, and what it is (proc_pid_fd(5)).
fn for_each_file(
    pid: u32,
    mut visit: impl FnMut(RawFd, OsString) -> io::Result<()>,
) -> io::Result<()> {
    let path = format!("/proc/{pid}/fd");
    let mut directory = Dir::open(&*path, LIST_FLAGS, Mode::empty())?;
    let names = directory
        .iter()
        .map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    let names = names.take(MAX_FILES + 3).collect::<Result<Vec<_>, _>>()?;
    // Beside `.` and `..`.
    if names.len() > MAX_FILES + 2 {
        return Err(Errno::EMFILE.into());
    }
    for name in names {
        let Some(fd) = name.to_str().ok().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match readlinkat(directory.as_fd(), &*name) {
            Ok(target) => visit(fd, target)?,
            // The file was closed meanwhile.
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Results of copying the sockets of a process.
#[derive(Debug, Default)]
struct CopyResults {
    /// True if a descriptor was copied.
    has_any: bool,
    /// True if SELinux has denied a descriptor. The module of this project allows TCP sockets only.
    was_denied: bool,
}

impl CopyResults {
    /// Copies a descriptor of a process. `None`: it was closed meanwhile, or is denied.
    fn make(&mut self, process: &ProcessHandle, fd: RawFd) -> io::Result<Option<OwnedFd>> {
        let copy = process.descriptor(fd);
        match &copy {
            Ok(_) => self.has_any = true,
            Err(err) if err.raw_os_error() == Some(libc::EACCES) => self.was_denied = true,
            Err(err) if err.raw_os_error() == Some(libc::EBADF) => {}
            Err(_) => return copy.map(Some),
        }
        Ok(copy.ok())
    }

    /// Fails if all descriptors are denied: the process can have connections.
    fn check(&self) -> io::Result<()> {
        match self.was_denied && !self.has_any {
            true => Err(Errno::EACCES.into()),
            false => Ok(()),
        }
    }
}

/// Reads a socket, and closes the copy. Returns `None` if it is not a TCP connection.
fn connection(copy: OwnedFd) -> Option<Connection> {
    let (Ok(info), Ok(cookie)) = (socket::tcp_info(&copy), socket::cookie(&copy)) else {
        return None;
    };
    if info.is_listening {
        return None;
    }
    let peer = TcpStream::from(copy).peer_addr();
    Some(Connection {
        cookie,
        peer: peer.ok().map(|address| address.ip().to_canonical()),
        rtt: info.rtt,
        traffic: Traffic {
            sent: info.acked,
            received: info.received,
            retransmits: info.retransmits.into(),
        },
    })
}
