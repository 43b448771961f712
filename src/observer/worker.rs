// SPDX-License-Identifier: GPL-2.0-or-later

//! A worker: reads one process after the other, as the observer orders, and answers with what it has read.
//!
//! It is a process, not a thread. A read of /proc/PID/maps, cmdline or environ waits for the memory lock of the
//! process, and any user can keep that lock busy for ever, with a file system that does not answer (FUSE). Reading a
//! socket waits for its lock without regard to signals (`__lock_sock` of Linux's net/core/sock.c). Whoever waits there
//! keeps its locks and files for as long.

use crate::accounts::lookup;
use crate::base::file::list_names_at;
use crate::observer::examination;
use crate::observer::group::Group;
use crate::observer::link::write_message;
use crate::observer::protocol::{Found, Order, QueueRequest, Reply, SocketRequest, Task, Unread};
use crate::observer::supervisor::SOFT_TIMEOUT;
use crate::observer::{queues, sockets, version};
use crate::procfs::facts::pods::Pods;
use crate::procfs::process::{ProcessId, has_ended};
use crate::procfs::process_dir::{ProcessDir, ReadError};
use crate::procfs::process_scan::ScanRequest;
use crate::procfs::process_scan::scanned::ScannedProcess;
use nix::unistd::close;
use std::io::{self, BufRead, ErrorKind, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::time::Duration;

/// Time for an answer of the name services, so that a worker is not set aside for it.
const NAME_TIME: Duration = SOFT_TIMEOUT.saturating_sub(Duration::from_millis(100));

/// Closes all descriptors except standard input, output and error: those that pmcd has left open in the daemon. A
/// process that cannot end would keep them open.
///
/// # Errors
/// /proc cannot be read.
pub fn close_inherited() -> io::Result<()> {
    for name in list_names_at(Path::new("/proc/self/fd"))? {
        let fd = name.to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(fd) = fd.filter(|&fd| fd > libc::STDERR_FILENO) {
            // Fails for the descriptor that listed them.
            let _ = close(fd);
        }
    }
    Ok(())
}

/// Serves orders until the observer has ended.
///
/// # Errors
/// The pipes are broken.
pub fn run(orders: impl BufRead, mut replies: impl Write) -> io::Result<()> {
    let mut scan = ScanRequest::default();
    let mut send = |reply: &Reply| {
        let mut message = Vec::new();
        write_message(reply, &mut message)?;
        replies.write_all(&message)?;
        replies.flush()
    };
    for line in orders.lines() {
        let (order, skipped) = match serde_json::from_str(&line?)? {
            Task::LookFor(request) => {
                scan = request;
                continue;
            }
            Task::Read(order, skipped) => (order, skipped),
        };
        let mut may_read = |process: ProcessId| {
            // The group is read from /proc only if there is something to compare.
            let may_read = skipped.is_empty() || !skipped.contains(&Group::of(process));
            if may_read && Some(process.pid) != order.pid() {
                // The observer may have ended.
                let _ = send(&Reply::Ancestor(process));
            }
            may_read
        };
        let reply = read(&order, &scan, &mut may_read);
        send(&reply)?;
    }
    Ok(())
}

/// Reads what is ordered. `may_read` is called before a process is read, and says whether it may be.
fn read(order: &Order, scan: &ScanRequest, may_read: &mut dyn FnMut(ProcessId) -> bool) -> Reply {
    let reply = match order {
        Order::Pods(logs) => Ok(Reply::Found(Found::Pods(Pods::read(logs)))),
        Order::Scan(pid) => ScannedProcess::read(*pid, scan, may_read).map(|process| match process
            .has_something()
        {
            true => Reply::Found(Found::Scanned(process)),
            false => Reply::Nothing(process.is_complete),
        }),
        Order::Sockets(request) => read_sockets(request, may_read),
        Order::Queues(request) => read_queues(request, may_read),
        Order::LookUp(uids) => {
            let lines = lookup::look_up(uids, NAME_TIME);
            Ok(Reply::Found(Found::LookedUp(uids.clone(), lines)))
        }
        Order::Examine(subject) => examination::read(subject, may_read),
    };
    reply.unwrap_or_else(|err| {
        Reply::Unread(match err {
            ReadError::Skipped => Unread::Skipped,
            ReadError::Io(err) if has_ended(&err) => Unread::Ended,
            ReadError::Io(err) if err.kind() == ErrorKind::PermissionDenied => {
                Unread::Denied(err.to_string())
            }
            ReadError::Io(err) => Unread::Failed(err.to_string()),
        })
    })
}

fn read_queues(
    request: &QueueRequest,
    may_read: &mut dyn FnMut(ProcessId) -> bool,
) -> Result<Reply, ReadError> {
    let directory = ProcessDir::of(request.id)?.allowed_by(may_read)?;
    Ok(Reply::Queues(queues::read(&directory, request)?))
}

fn read_sockets(
    request: &SocketRequest,
    may_read: &mut dyn FnMut(ProcessId) -> bool,
) -> Result<Reply, ReadError> {
    let directory = ProcessDir::of(request.id)?.allowed_by(may_read)?;
    let files = match sockets::read(&directory, usize::MAX) {
        Err(err) if has_ended(&err) => return Err(err.into()),
        files => files.map_err(|err| err.to_string()),
    };
    let library = request.library.as_deref();
    let version = library.and_then(|library| version::of_library(&directory, library.as_ref()));
    Ok(Reply::Sockets(files, version))
}
