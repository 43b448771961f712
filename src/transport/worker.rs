// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: reads the processes of a request, and writes what it has read.
//!
//! It is a process of its own, not a thread. Reading a socket waits for its lock without regard to signals (`__lock_sock` of Linux's
//! net/core/sock.c), and any user can keep the lock of a socket of its own: a send(2) from a mapping of a FUSE file that does not
//! answer. A thread that waits there would keep the daemon, its locks and its files for as long.

use crate::base::file::list_names_at;
use crate::procfs::process::{ProcessId, has_ended};
use crate::transport::known_connections::KnownConnections;
use crate::transport::protocol::{ProcessReading, Request, RequestedProcess, Response};
use crate::transport::{sockets, version};
use nix::unistd::close;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time of a scan, as a mean. Each process gets an equal share: after a reading that took n times its share, n scans go without the
/// process. So no process makes another one wait for its turn.
const SCAN_TIME: Duration = Duration::from_secs(1);

/// Limit of the pause of a process, in scans: five minutes.
const MAX_PAUSE: u32 = 30;

/// State of the worker between two scans.
#[derive(Debug, Default)]
struct Worker {
    connections: KnownConnections,
    /// Scans that go without a process.
    pauses: HashMap<ProcessId, u32>,
}

/// Closes all descriptors except standard input, output and error: those that pmcd has left open in the daemon. A worker that cannot end
/// would keep them open.
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

/// Serves requests until the daemon has ended.
///
/// # Errors
/// The pipes are broken.
pub fn run(requests: impl BufRead, mut responses: impl Write) -> io::Result<()> {
    let mut worker = Worker::default();
    for request in requests.lines() {
        let request: Request = serde_json::from_str(&request?)?;
        worker.scan(&request, |response| {
            serde_json::to_writer(&mut responses, response)?;
            responses.write_all(b"\n")?;
            responses.flush()
        })?;
    }
    Ok(())
}

impl Worker {
    fn scan(
        &mut self,
        request: &Request,
        mut respond: impl FnMut(&Response) -> io::Result<()>,
    ) -> io::Result<()> {
        let processes = u32::try_from(request.processes.len()).unwrap_or(u32::MAX);
        let share = SCAN_TIME / processes.max(1);
        let running: HashSet<ProcessId> = request.processes.iter().map(|one| one.id).collect();
        self.pauses.retain(|id, _| running.contains(id));
        self.connections.begin_scan();
        for process in &request.processes {
            let id = process.id;
            let pause = self.pauses.entry(id).or_default();
            if *pause > 0 {
                *pause -= 1;
                self.connections.leave_out(id);
                continue;
            }
            respond(&Response::Begun(id))?;
            let start = Instant::now();
            let response = match self.read(process) {
                Ok(reading) => Response::Read(reading),
                Err(err) => {
                    let why = (!has_ended(&err)).then(|| err.to_string());
                    if why.is_some() {
                        self.connections.leave_out(id);
                    }
                    Response::Failed(id, why)
                }
            };
            let times = start.elapsed().as_nanos() / share.as_nanos().max(1);
            let pause = u32::try_from(times).map_or(MAX_PAUSE, |times| times.min(MAX_PAUSE));
            self.pauses.insert(id, pause);
            respond(&response)?;
        }
        self.connections.end_scan(&running);
        respond(&Response::Done)
    }

    fn read(&mut self, process: &RequestedProcess) -> io::Result<ProcessReading> {
        let files = sockets::read(process.id)?;
        let library = process.library.as_deref();
        let version = library.and_then(|library| version::of_library(process.id.pid, library));
        Ok(ProcessReading {
            version,
            ..self
                .connections
                .add(process.id, process.was_counted, &files)
        })
    }
}
