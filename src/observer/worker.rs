// SPDX-License-Identifier: GPL-2.0-or-later

//! The worker process: reads the processes of a request, and writes what it has read.
//!
//! It is a separate process, not a thread. Reading a socket waits for its lock without regard to signals (`__lock_sock` of Linux's
//! net/core/sock.c), and any user can keep the lock of a socket of its own: a send(2) from a mapping of a FUSE file that does not
//! answer. A thread that waits there would keep the daemon, its locks and its files for as long.

use crate::base::file::list_names_at;
use crate::observer::known_connections::KnownConnections;
use crate::observer::protocol::{ProcessReading, Request, RequestedProcess, Response};
use crate::observer::{sockets, version};
use crate::procfs::process::{ProcessId, has_ended};
use crate::procfs::process_dir::ProcessDir;
use nix::unistd::close;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, BufRead, Write};
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Elapsed time that scans may take: this part of the time.
const SCAN_SHARE: u32 = 20;
/// Limit of a scan after a pause: no further process is read after it.
const MAX_SCAN_TIME: Duration = Duration::from_secs(1);
/// Limit of the excess over [`MAX_SCAN_TIME`] that is paid back. What [`SCAN_PERIOD`](crate::observer::SCAN_PERIOD) pays back is more,
/// so that the regular scan after a reading that blocked for seconds has time.
const MAX_EXCESS: Duration = Duration::from_millis(400);

/// State of the worker between two scans.
#[derive(Debug, Default)]
struct Worker {
    connections: KnownConnections,
    /// Time that each user has used and that is not paid back. No entry: nothing was read of the user yet.
    used: HashMap<u32, Duration>,
    /// Sum of what was used and is not paid back.
    used_by_all: Duration,
    /// Number of the scan that read a process last, or of the one before the scan that found it.
    last_read: HashMap<ProcessId, u64>,
    /// Number of the current scan.
    scan: u64,
    /// When the current scan began.
    began: Option<Instant>,
}

/// Class of a user, in the order in which they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UserClass {
    /// Its processes have taken at most an equal part of a scan.
    Light,
    /// Nothing was read of it yet.
    New,
    /// Its processes have taken more.
    Heavy,
}

/// Processes of each user that were not read yet in a scan.
type Waiting<'a> = BTreeMap<u32, VecDeque<&'a RequestedProcess>>;

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
    /// Reads the processes of a request, until the time of scans is used.
    fn scan(
        &mut self,
        request: &Request,
        mut respond: impl FnMut(&Response) -> io::Result<()>,
    ) -> io::Result<()> {
        let running: HashMap<ProcessId, u32> = { request.processes.iter() }
            .map(|process| (process.id, process.uid))
            .collect();
        self.last_read.retain(|id, _| running.contains_key(id));
        self.scan += 1;
        for process in &request.processes {
            self.last_read.entry(process.id).or_insert(self.scan - 1);
        }
        let mut waiting = self.by_user(&request.processes);
        self.pay_back(&waiting);
        self.connections.begin_scan(running, Instant::now());
        while let Some(process) = self.take_next(&mut waiting) {
            let (id, uid) = (process.id, process.uid);
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
            let used = start.elapsed();
            *self.used.entry(uid).or_default() += used;
            self.used_by_all = (self.used_by_all + used).min(MAX_SCAN_TIME + MAX_EXCESS);
            respond(&response)?;
        }
        self.connections.end_scan();
        respond(&Response::Done)
    }

    /// Returns the processes of each user: first the one that has waited for longest, of equal ones the oldest, which is their order
    /// in the request.
    fn by_user<'a>(&self, processes: &'a [RequestedProcess]) -> Waiting<'a> {
        let mut waiting = Waiting::new();
        for process in processes {
            waiting.entry(process.uid).or_default().push_back(process);
        }
        for processes in waiting.values_mut() {
            let processes = processes.make_contiguous();
            processes.sort_by_key(|process| self.last_read[&process.id]);
        }
        waiting
    }

    /// Pays back what was used, for the time since the last scan: to each user an equal part. What a user has used is remembered when
    /// it has no process any more.
    fn pay_back(&mut self, waiting: &Waiting) {
        let now = Instant::now();
        let since = self.began.replace(now).map(|began| now - began);
        let paid = since.unwrap_or_default() / SCAN_SHARE;
        self.used_by_all = self.used_by_all.saturating_sub(paid);
        let users = u32::try_from(self.used.len()).unwrap_or(u32::MAX).max(1);
        for used in self.used.values_mut() {
            *used = used.saturating_sub(paid / users);
        }
        self.used
            .retain(|uid, used| !used.is_zero() || waiting.contains_key(uid));
    }

    /// Takes the next process. `None`: all were read, or the time of scans is used.
    ///
    /// First come users whose processes have taken little time, the user with the least before others. Then come new users: each of
    /// them may block a reading for seconds, once. Last come users that have taken more than an equal part of a scan, such as one that
    /// has blocked a reading. So no user waits long for others.
    fn take_next<'a>(&self, waiting: &mut Waiting<'a>) -> Option<&'a RequestedProcess> {
        if self.used_by_all >= MAX_SCAN_TIME {
            return None;
        }
        let users = u32::try_from(waiting.len()).unwrap_or(u32::MAX).max(1);
        let next = waiting.iter().filter_map(|(uid, processes)| {
            let (used, id) = (self.used.get(uid), processes.front()?.id);
            let class = match used {
                Some(&used) if used > MAX_SCAN_TIME / users => UserClass::Heavy,
                Some(_) => UserClass::Light,
                None => UserClass::New,
            };
            Some((class, used, self.last_read[&id], id.start, *uid))
        });
        let (.., uid) = next.min()?;
        waiting.get_mut(&uid)?.pop_front()
    }

    fn read(&mut self, process: &RequestedProcess) -> io::Result<ProcessReading> {
        let directory = ProcessDir::of(process.id)?;
        let files = sockets::read(&directory)?;
        let library = process.library.as_deref();
        let version = library.and_then(|library| version::of_library(&directory, library));
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

    /// Returns the order in which processes are read that take no time.
    fn order(worker: &Worker, processes: &[RequestedProcess]) -> Vec<u32> {
        let mut waiting = worker.by_user(processes);
        let next = std::iter::from_fn(|| worker.take_next(&mut waiting));
        next.map(|process| process.id.pid).collect()
    }

    /// Returns a worker that has read processes, each of which has taken this time.
    fn worker(processes: &[(&RequestedProcess, Duration)]) -> Worker {
        let mut worker = Worker::default();
        for (process, time) in processes {
            worker.last_read.insert(process.id, 1);
            *worker.used.entry(process.uid).or_default() += *time;
        }
        worker
    }

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(9);

    #[test]
    fn user_that_has_used_the_least_is_read_first() {
        let all = [process(1, 7), process(2, 8), process(3, 7)];
        let mut worker = worker(&[(&all[0], LONG), (&all[1], SHORT), (&all[2], SHORT)]);
        assert_eq!(order(&worker, &all), [2, 1, 3]);
        // The second process of the user was found now, and the first was not read for a while.
        worker.last_read.insert(all[2].id, 2);
        assert_eq!(order(&worker, &all), [2, 1, 3]);
        worker.last_read.insert(all[0].id, 3);
        assert_eq!(order(&worker, &all), [2, 3, 1]);
        // It has no process for a while.
        worker.began = Instant::now().checked_sub(Duration::from_secs(60));
        worker.pay_back(&worker.by_user(&all[1..2]));
        assert!(worker.used[&7] > LONG - Duration::from_secs(2));
        assert_eq!(worker.used[&8], Duration::ZERO);
        worker.began = Instant::now().checked_sub(Duration::from_secs(600));
        worker.pay_back(&worker.by_user(&all[1..2]));
        assert_eq!(worker.used.len(), 1, "the other has paid all back");
    }

    #[test]
    fn new_user_is_read_after_light_and_before_heavy_ones() {
        let all = [1, 2, 3, 4].map(|pid| process(pid, pid));
        let mut worker = worker(&[(&all[1], LONG), (&all[3], SHORT)]);
        for process in &all {
            worker.last_read.entry(process.id).or_insert(2);
        }
        assert_eq!(order(&worker, &all), [4, 1, 3, 2]);
    }

    /// Reads this process in one scan, so many times. Returns how many times it was read.
    fn scan(worker: &mut Worker, times: u32) -> u32 {
        let own = ProcessId::of(std::process::id()).expect("it runs");
        let processes = (0..times).map(|uid| RequestedProcess {
            id: own,
            ..process(0, uid)
        });
        let request = Request {
            processes: processes.collect(),
        };
        let mut count = 0;
        let respond = |response: &Response| {
            count += u32::from(matches!(response, Response::Read(_)));
            Ok(())
        };
        worker.scan(&request, respond).expect("no pipe");
        count
    }

    #[test]
    fn scans_take_a_part_of_the_time() {
        let mut worker = Worker::default();
        assert_eq!(scan(&mut worker, 2), 2);
        worker.used_by_all = MAX_SCAN_TIME + MAX_EXCESS;
        assert_eq!(scan(&mut worker, 2), 0);
        worker.began = Instant::now().checked_sub(crate::observer::SCAN_PERIOD);
        assert_eq!(scan(&mut worker, 2), 2);
        assert!(worker.used_by_all < MAX_SCAN_TIME);
    }

    #[test]
    fn each_of_many_processes_is_read_in_turn() {
        let all: Vec<_> = (0..60).map(|pid| process(pid, 7)).collect();
        let mut worker = Worker::default();
        let mut times = [0; 60];
        for _ in 0..12 {
            worker.scan += 1;
            for process in &all {
                let found = worker.scan - 1;
                worker.last_read.entry(process.id).or_insert(found);
            }
            for pid in &order(&worker, &all)[..20] {
                worker.last_read.insert(all[*pid as usize].id, worker.scan);
                times[*pid as usize] += 1;
            }
        }
        assert_eq!(times, [4; 60]);
    }
}
