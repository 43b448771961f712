// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads the open sockets and RDMA devices of one process.

use crate::observer::protocol::Traffic;
use crate::procfs::process_dir::{Descriptors, ProcessDir};
use crate::shm::socket::{self, ProcessHandle};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// Limit of open files of a process. A process with more is not read: connections would be left out at random.
const MAX_FILES: usize = 1 << 15;

/// Open files of a process.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct OpenFiles {
    /// TCP connections.
    pub connections: Vec<Connection>,
    /// Number of RDMA devices.
    pub rdma_devices: usize,
}

/// TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

/// Reads the open files of a process, and of its sockets at most so many. Blocks while a thread of the process holds
/// the lock of a socket, without limit.
///
/// # Errors
/// The process has ended (ESRCH), has too many open files (EMFILE), or may not be read.
pub fn read(process: &ProcessDir, max_sockets: usize) -> io::Result<OpenFiles> {
    let mut connections = Vec::new();
    let rdma_devices = visit(process, max_sockets, |copy| {
        connections.extend(connection(copy));
    })?;
    Ok(OpenFiles {
        connections,
        rdma_devices,
    })
}

/// Calls `each` with a copy of each socket of a process, at most so many. Returns the number of RDMA devices that the
/// process has open.
pub(super) fn visit(
    process: &ProcessDir,
    max_sockets: usize,
    mut each: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let (handle, descriptors) = open(process)?;
    let (mut sockets, mut devices) = (HashSet::new(), HashSet::new());
    let mut was_denied = false;
    for file in descriptors.targets() {
        let (fd, target) = file?;
        if is_rdma_device(&target) {
            devices.insert(target);
        } else if is_socket(&target) && sockets.len() < max_sockets && !sockets.contains(&target) {
            match handle.descriptor(fd) {
                Ok(copy) => {
                    each(copy);
                    // Only after a copy: if this descriptor was closed meanwhile, another one of the same socket is
                    // tried.
                    sockets.insert(target);
                }
                // By SELinux: the module of this project allows TCP sockets only.
                Err(err) if err.raw_os_error() == Some(libc::EACCES) => was_denied = true,
                Err(err) if err.raw_os_error() == Some(libc::EBADF) => {}
                Err(err) => return Err(err),
            }
        }
    }
    // If all sockets are denied, the process can have connections.
    match was_denied && sockets.is_empty() {
        true => Err(Errno::EACCES.into()),
        false => Ok(devices.len()),
    }
}

/// Opens a process and lists its open files. Fails with ESRCH if it has ended.
fn open(process: &ProcessDir) -> io::Result<(ProcessHandle, Descriptors)> {
    let handle = ProcessHandle::open(process.id().pid)?;
    // The handle is of a later process if the process has ended before. Then its directory has no files.
    let descriptors = process.descriptors(MAX_FILES + 1)?;
    match descriptors.numbers.len() > MAX_FILES {
        true => Err(Errno::EMFILE.into()),
        false => Ok((handle, descriptors)),
    }
}

fn is_rdma_device(target: &OsStr) -> bool {
    target.as_bytes().starts_with(b"/dev/infiniband/uverbs")
}

fn is_socket(target: &OsStr) -> bool {
    target.as_bytes().starts_with(b"socket:")
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
