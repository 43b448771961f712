// SPDX-License-Identifier: GPL-2.0-or-later

//! Sockets of other processes: copies of their descriptors, and what the kernel knows of their TCP connections.
//!
//! A copy delays the end of the connection until it is closed, so it is kept for three system calls only.

use nix::errno::Errno;
use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Handle of a process (pidfd_open(2)). It never means a later process with the same id.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// Opens the process that has this id now.
    ///
    /// # Errors
    /// ESRCH: there is none. ENOSYS: Linux is older than 5.3.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = libc::pid_t::try_from(pid).map_err(|_| Errno::ESRCH)?;
        // SAFETY: the call takes two numbers, and accesses no memory of this process.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        Ok(Self(owned(fd)?))
    }

    /// Returns a copy of a descriptor of the process (pidfd_getfd(2)).
    ///
    /// # Errors
    /// EBADF: the process has no such descriptor. EPERM: the process must not be traced (ptrace(2)). ENOSYS: Linux is
    /// older than 5.6.
    pub fn descriptor(&self, fd: RawFd) -> io::Result<OwnedFd> {
        let handle = self.0.as_raw_fd();
        // SAFETY: the call takes three numbers, and accesses no memory of this process.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle, fd, 0) };
        owned(copy)
    }
}

/// Takes the ownership of the descriptor that a system call has returned. The kernel sets FD_CLOEXEC on it.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(Errno::result(result)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just created the descriptor for the caller, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What the kernel knows of a TCP connection (`struct tcp_info` of linux/tcp.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// True if the socket listens. It has no peer.
    pub is_listening: bool,
    /// Smoothed round-trip time in microseconds.
    pub rtt: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
}

/// State of a listening socket (`TCP_LISTEN` of linux/tcp_states.h).
const LISTEN: u8 = 10;
/// Offsets in `struct tcp_info`, which only grows at its end. libc's type ends before the two counters of bytes.
const STATE: usize = 0;
const RTT: usize = 68;
const TOTAL_RETRANS: usize = 100;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const INFO_LEN: usize = 136;

/// Asks the kernel for the TCP connection of a socket. Waits while another thread sends to the socket.
///
/// # Errors
/// The descriptor is not a TCP socket; the kernel is older than 4.2.
pub fn tcp_info(socket: &OwnedFd) -> io::Result<TcpInfo> {
    let info: [u8; INFO_LEN] = option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let u32_at =
        |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
    let u64_at = |at: usize| {
        let bytes = info[at..].first_chunk().copied();
        u64::from_ne_bytes(bytes.unwrap_or_default())
    };
    Ok(TcpInfo {
        is_listening: info[STATE] == LISTEN,
        rtt: u32_at(RTT),
        retransmits: u32_at(TOTAL_RETRANS),
        acked: u64_at(BYTES_ACKED),
        received: u64_at(BYTES_RECEIVED),
    })
}

/// Bytes that wait in a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Bytes that the process has sent and the peer has not acknowledged.
    pub unacknowledged: u64,
    /// Bytes received in order that the process has not read.
    pub unread: u64,
}

/// Asks the kernel for the bytes that wait in a TCP connection (tcp(7)). Waits as [`tcp_info`].
///
/// # Errors
/// The descriptor is not a socket, or is one that listens.
pub fn queues(socket: &OwnedFd) -> io::Result<Queues> {
    Ok(Queues {
        unacknowledged: waiting(socket, libc::TIOCOUTQ)?,
        unread: waiting(socket, libc::FIONREAD)?,
    })
}

/// Asks for the bytes in one of the queues of a socket.
fn waiting(socket: &OwnedFd, request: libc::Ioctl) -> io::Result<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: for both requests the kernel writes one int, to `bytes`.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut bytes) };
    Errno::result(done)?;
    u64::try_from(bytes).map_err(|_| Errno::EOVERFLOW.into())
}

/// Returns a number that no other socket of this boot has (SO_COOKIE of socket(7)).
///
/// # Errors
/// The descriptor is not a socket.
pub fn cookie(socket: &OwnedFd) -> io::Result<u64> {
    option(socket, libc::SOL_SOCKET, libc::SO_COOKIE).map(u64::from_ne_bytes)
}

/// Reads an option of a socket that is `N` bytes long or longer.
fn option<const N: usize>(socket: &OwnedFd, level: c_int, name: c_int) -> io::Result<[u8; N]> {
    let mut value = MaybeUninit::<[u8; N]>::zeroed();
    let mut len = libc::socklen_t::try_from(N).map_err(|_| Errno::EINVAL)?;
    let fd = socket.as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, which `value` has.
    let done =
        unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut len) };
    Errno::result(done)?;
    if usize::try_from(len) != Ok(N) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    // SAFETY: all bytes are initialised with zeros, and any bytes are a valid array.
    Ok(unsafe { value.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn own() -> ProcessHandle {
        ProcessHandle::open(std::process::id()).expect("it runs")
    }

    #[test]
    fn connection_of_a_process_has_its_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a peer");
        let (mut server, _) = listener.accept().expect("a peer");
        client.write_all(&[1; 5000]).expect("room");
        server.read_exact(&mut [0; 5000]).expect("sent");
        let copy = own().descriptor(server.as_raw_fd()).expect("our own");
        let info = tcp_info(&copy).expect("TCP");
        assert_eq!(
            (info.received, info.acked, info.is_listening),
            (5000, 0, false)
        );
        let copy = own().descriptor(client.as_raw_fd()).expect("our own");
        let again = own().descriptor(client.as_raw_fd()).expect("our own");
        assert_eq!(
            cookie(&copy).expect("a socket"),
            cookie(&again).expect("a socket")
        );
        // The peer acknowledges within 200 ms.
        while tcp_info(&copy).expect("TCP").acked < 5000 {
            std::thread::yield_now();
        }
        let copy = own().descriptor(listener.as_raw_fd()).expect("our own");
        assert!(tcp_info(&copy).expect("TCP").is_listening);
    }

    #[test]
    fn unread_bytes_wait_at_the_receiver() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a peer");
        let (mut server, _) = listener.accept().expect("a peer");
        let queues_of = |fd| queues(&own().descriptor(fd).expect("our own")).expect("TCP");
        let (sender, receiver) = (client.as_raw_fd(), server.as_raw_fd());
        assert_eq!(queues_of(receiver), Queues::default());
        client.write_all(&[1; 5000]).expect("room");
        let received = Queues {
            unread: 5000,
            ..Queues::default()
        };
        while queues_of(receiver) != received || queues_of(sender) != Queues::default() {
            std::thread::yield_now();
        }
        server.read_exact(&mut [0; 5000]).expect("sent");
        assert_eq!(queues_of(receiver), Queues::default());
        // More than the receive buffer of any host: the rest waits at the sender.
        client.set_nonblocking(true).expect("a socket");
        while client.write(&[1; 1 << 16]).is_ok() {}
        assert!(queues_of(sender).unacknowledged > 0);
        queues(&own().descriptor(listener.as_raw_fd()).expect("our own")).expect_err("it listens");
    }

    #[test]
    fn other_descriptors_are_no_connections() {
        let file = tempfile::tempfile().expect("a temporary file");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        for fd in [file.as_raw_fd(), unix.as_raw_fd(), udp.as_raw_fd()] {
            let copy = own().descriptor(fd).expect("our own");
            tcp_info(&copy).expect_err("no TCP");
        }
        own().descriptor(RawFd::MAX).expect_err("not open");
        ProcessHandle::open(u32::MAX).expect_err("no process");
    }
}
