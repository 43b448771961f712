// SPDX-License-Identifier: GPL-2.0-or-later

//! Reads whether a process runs, and the bytes that wait in its TCP connections.

use crate::observer::protocol::{Halt, QueueRequest};
use crate::observer::sockets;
use crate::procfs::process_dir::ProcessDir;
use crate::shm::socket;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

/// Limit of connections of a process. Of one with more, the others are left out.
const MAX_CONNECTIONS: usize = 4096;
/// Size of the first message that UCX sends to a process that has made a connection: that it was accepted. No transfer
/// waits for it, and a vLLM without requests was seen not to read it for half a minute.
const ACCEPTED: u64 = 9;

/// What is read of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessQueues {
    /// Why the process does not run. `None`: it runs, or waits for an event.
    pub halt: Option<Halt>,
    /// Inode number of its network namespace. Loopback addresses are unique within it only.
    pub network: u64,
    /// Connections that say something of a transfer.
    pub connections: Vec<QueuedConnection>,
}

/// TCP connection, with the bytes that wait in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedConnection {
    /// Number that no other socket of this boot has.
    pub cookie: u64,
    /// Address of this end.
    pub local: SocketAddr,
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Bytes that the peer has not acknowledged.
    pub unacknowledged: Queue,
    /// Bytes that the process has not read.
    pub unread: Queue,
}

/// Bytes that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Number of bytes.
    pub bytes: u64,
    /// Number of bytes that have left the queue since the connection was opened.
    pub passed: u64,
}

/// Reads a process. Blocks as [`sockets::read`].
///
/// # Errors
/// Those of [`sockets::read`].
pub fn read(process: &ProcessDir, request: &QueueRequest) -> io::Result<ProcessQueues> {
    let stat = process.stat()?;
    let halt = match stat.is_blocked() {
        true => process.switches().map(Halt::Blocked),
        false => stat.is_stopped().then_some(Halt::Stopped),
    };
    // Of a process that completes transfers, only the peers with a halted process, or unread bytes, need to know.
    let is_kept = |one: &QueuedConnection| {
        request.is_silent || halt.is_some() || one.unread != Queue::default()
    };
    let mut connections = Vec::new();
    sockets::visit(process, MAX_CONNECTIONS, |copy| {
        connections.extend(connection(copy).filter(is_kept));
    })?;
    Ok(ProcessQueues {
        halt,
        network: process.namespace("net")?,
        connections,
    })
}

/// Reads a socket, and closes the copy. Returns `None` if it is not a TCP connection with a peer.
fn connection(copy: OwnedFd) -> Option<QueuedConnection> {
    let info = socket::tcp_info(&copy).ok()?;
    if info.is_listening {
        return None;
    }
    let queues = socket::queues(&copy).ok()?;
    let cookie = socket::cookie(&copy).ok()?;
    let stream = TcpStream::from(copy);
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let canonical =
        |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let queue = |bytes, passed| match bytes {
        0 => Queue::default(),
        bytes => Queue { bytes, passed },
    };
    let read = info.received.saturating_sub(queues.unread);
    let unread = match (read, queues.unread) {
        (0, ..=ACCEPTED) => 0,
        (_, unread) => unread,
    };
    Some(QueuedConnection {
        cookie,
        local: canonical(local),
        peer: canonical(peer),
        unacknowledged: queue(queues.unacknowledged, info.acked),
        unread: queue(unread, read),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn unread(stream: &TcpStream) -> Queue {
        let copy = stream.try_clone().expect("a descriptor");
        connection(copy.into()).expect("a connection").unread
    }

    fn wait_for(stream: &TcpStream, bytes: u64, passed: u64) {
        while unread(stream) != (Queue { bytes, passed }) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn acceptance_of_a_connection_is_not_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("made");
        let (mut server, _) = listener.accept().expect("connected");
        server.write_all(&[1; 9]).expect("sent");
        // The bytes have arrived when a read finds them.
        assert_eq!(client.peek(&mut [0; 9]).expect("there"), 9);
        assert_eq!(unread(&client), Queue::default());
        server.write_all(&[1]).expect("sent");
        wait_for(&client, 10, 0);
        client.read_exact(&mut [0; 10]).expect("sent");
        assert_eq!(unread(&client), Queue::default());
        // Later messages may be of a transfer, whatever their size.
        server.write_all(&[1; 5]).expect("sent");
        wait_for(&client, 5, 10);
    }
}
