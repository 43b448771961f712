// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: reads the processes of a request, and writes what it has read.
//!
//! It is a separate process, not a thread. Reading a socket waits for its lock without regard to signals (`__lock_sock` of Linux's
//! net/core/sock.c), and any user can keep the lock of a socket of its own: a send(2) from a mapping of a FUSE file that does not
//! answer. A thread that waits there would keep the daemon, its locks and its files for as long.

use crate::base::file::list_names_at;
use crate::procfs::process::{ProcessId, has_ended};
use crate::transport::known_connections::KnownConnections;
use crate::transport::protocol::{ProcessReading, Request, RequestedProcess, Response};
use crate::transport::{SCAN_PERIOD, sockets, version};
use nix::unistd::close;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Elapsed time in each [`SCAN_PERIOD`] that the users share equally. A user is charged for the time of its processes, at most
/// [`MAX_DEBT`] allowances, and postponed until that is paid back. So no user makes another one wait for long.
const SCAN_TIME: Duration = Duration::from_millis(500);
/// Limit of a scan: no further process is read after it. Many users with slow processes reach it, since each is charged
/// [`MAX_DEBT`] allowances at most.
const MAX_SCAN_TIME: Duration = Duration::from_secs(1);
/// Limit of the allowances that a user pays back, so that its readings are never older than a minute for that reason.
const MAX_DEBT: u32 = 4;

/// State of the worker between two scans.
#[derive(Debug, Default)]
struct Worker {
    connections: KnownConnections,
    /// Time that each user has used and has not paid back.
    used: HashMap<u32, Duration>,
    /// Number of the scan that read a process last, or that found it.
    last_read: HashMap<ProcessId, u64>,
    /// Number of the current scan.
    scan: u64,
    began: Option<Instant>,
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
        worker.scan(&request, MAX_SCAN_TIME, |response| {
            serde_json::to_writer(&mut responses, response)?;
            responses.write_all(b"\n")?;
            responses.flush()
        })?;
    }
    Ok(())
}

impl Worker {
    /// Reads the processes of a request, for at most `limit` and the time of one process.
    fn scan(
        &mut self,
        request: &Request,
        limit: Duration,
        mut respond: impl FnMut(&Response) -> io::Result<()>,
    ) -> io::Result<()> {
        let running: HashSet<ProcessId> = request.processes.iter().map(|one| one.id).collect();
        self.last_read.retain(|id, _| running.contains(id));
        self.scan += 1;
        for process in &request.processes {
            self.last_read.entry(process.id).or_insert(self.scan);
        }
        let allowance = self.pay_back(&request.processes);
        let began = Instant::now();
        self.connections.begin_scan(&running);
        for process in self.in_order(&request.processes) {
            let (id, uid) = (process.id, process.uid);
            if self.used[&uid] >= allowance || began.elapsed() >= limit {
                continue;
            }
            respond(&Response::Begun(id))?;
            let start = Instant::now();
            let response = match self.read(process) {
                Ok(reading) => Response::Read(reading),
                Err(err) if has_ended(&err) => {
                    self.connections.remove(id);
                    Response::Ended(id)
                }
                Err(err) => Response::Failed(id, err.to_string()),
            };
            self.last_read.insert(id, self.scan);
            let used = self.used.entry(uid).or_default();
            *used = (*used + start.elapsed()).min(allowance * MAX_DEBT);
            respond(&response)?;
        }
        self.connections.end_scan(&running);
        respond(&Response::Done)
    }

    /// Pays back what each user has used, for the time since the last scan. Returns the allowance of a user.
    fn pay_back(&mut self, processes: &[RequestedProcess]) -> Duration {
        let users: HashSet<u32> = processes.iter().map(|process| process.uid).collect();
        let allowance = SCAN_TIME / u32::try_from(users.len()).unwrap_or(u32::MAX).max(1);
        let now = Instant::now();
        let since = self.began.replace(now).map(|began| now - began);
        let periods = since.unwrap_or_default().as_secs_f64() / SCAN_PERIOD.as_secs_f64();
        let paid = allowance.mul_f64(periods.min(f64::from(MAX_DEBT)));
        self.used.retain(|uid, _| users.contains(uid));
        for uid in users {
            let used = self.used.entry(uid).or_default();
            *used = used.saturating_sub(paid);
        }
        allowance
    }

    /// Returns processes in the order in which they are read: first those of users that have paid back all, the oldest first, which is
    /// their order in the request. Of the others, not all may be read: first comes the one that has waited for longest.
    fn in_order<'a>(&self, processes: &'a [RequestedProcess]) -> Vec<&'a RequestedProcess> {
        let mut all: Vec<_> = processes.iter().collect();
        all.sort_by_key(|process| {
            let has_debt = !self.used[&process.uid].is_zero();
            (has_debt, has_debt.then(|| self.last_read[&process.id]))
        });
        all
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

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, uid: u32) -> RequestedProcess {
        RequestedProcess {
            id: ProcessId {
                pid,
                start: pid.into(),
            },
            uid,
            was_counted: false,
            library: None,
        }
    }

    fn order(worker: &Worker, processes: &[RequestedProcess]) -> Vec<u32> {
        let all = worker.in_order(processes);
        all.iter().map(|process| process.id.pid).collect()
    }

    #[test]
    fn user_that_used_more_than_its_allowance_is_read_last() {
        let all = [process(1, 7), process(2, 8), process(3, 7)];
        // A new process, such as a child that has just been forked, does not come first.
        let mut worker = Worker {
            last_read: all[..2].iter().map(|one| (one.id, 1)).collect(),
            ..Worker::default()
        };
        let allowance = worker.pay_back(&all);
        assert_eq!(allowance, SCAN_TIME / 2, "of two users");
        assert_eq!(order(&worker, &all), [1, 2, 3]);
        // The first one took long, and the third was postponed.
        worker.used.insert(7, 4 * allowance);
        worker.last_read = all.iter().map(|one| (one.id, 2)).collect();
        worker.last_read.insert(all[2].id, 1);
        assert_eq!(order(&worker, &all), [2, 3, 1]);
        // Paid back by time, not by scans: those of the next second change little.
        worker.pay_back(&all);
        assert!(worker.used[&7] > 3 * allowance);
        worker.began = Instant::now().checked_sub(SCAN_PERIOD * 4);
        worker.pay_back(&all);
        assert_eq!(worker.used[&7], Duration::ZERO);
        worker.pay_back(&all[..1]);
        assert_eq!(worker.used.len(), 1, "one user is gone");
    }

    #[test]
    fn user_with_a_debt_is_postponed_and_others_are_read() {
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let all = [7, 8].map(|uid| RequestedProcess {
            id: own,
            ..process(0, uid)
        });
        let request = Request {
            processes: all.to_vec(),
        };
        let mut worker = Worker::default();
        let users = |worker: &mut Worker, limit| {
            let mut count = 0;
            let respond = |response: &Response| {
                count += u32::from(matches!(response, Response::Begun(_)));
                Ok(())
            };
            worker.scan(&request, limit, respond).expect("no pipe");
            count
        };
        assert_eq!(users(&mut worker, MAX_SCAN_TIME), 2);
        worker.used.insert(7, SCAN_TIME);
        assert_eq!(users(&mut worker, MAX_SCAN_TIME), 1);
        worker.began = Instant::now().checked_sub(SCAN_PERIOD * MAX_DEBT);
        assert_eq!(users(&mut worker, MAX_SCAN_TIME), 2);
        assert!(
            worker
                .used
                .values()
                .all(|used| *used <= SCAN_TIME * MAX_DEBT)
        );
        assert_eq!(
            users(&mut worker, Duration::ZERO),
            0,
            "none after the limit"
        );
    }
}
