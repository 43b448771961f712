// SPDX-License-Identifier: GPL-2.0-or-later

//! Worker processes: started, kept for the next order, killed, and waited for.

use crate::observer::group::Group;
use crate::observer::link::{Closed, Link};
use crate::observer::protocol::{Reply, Task};
use crate::procfs::process::ProcessId;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Option that makes this program a worker.
pub const OPTION: &str = "--observer-worker";
/// The group of a process that has stalled a worker is skipped for at least this long.
pub const SKIP_TIME: Duration = Duration::from_secs(600);
/// With this many blocked workers, nothing else is read.
pub const MAX_BLOCKED: usize = 8;
/// Pause after a worker that has failed, and its limit. It doubles with each one that follows.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    /// Link to it.
    pub link: Link<Task, Reply>,
    /// Number of the process scan that it knows the files of.
    pub scan: u64,
}

/// Worker that was killed, in most cases because it waits for a process.
#[derive(Debug)]
struct Killed {
    child: Closed,
    /// Process that it waits for, and its group.
    stalled: Option<(ProcessId, Group)>,
    skip_until: Instant,
}

/// All workers that read nothing.
#[derive(Debug, Default)]
pub struct Workers {
    program: PathBuf,
    /// The one for the next order.
    idle: Option<Worker>,
    killed: Vec<Killed>,
    /// Number of workers that have failed since one has answered.
    failures: u32,
    /// When the pause after a failure ends.
    pause_ends: Option<Instant>,
}

impl Workers {
    /// Returns no workers. `program` is started with [`OPTION`].
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            ..Self::default()
        }
    }

    /// Returns a worker, the idle one or a new one.
    ///
    /// # Errors
    /// None can be started.
    pub fn take(&mut self, now: Instant) -> io::Result<Worker> {
        if let Some(mut worker) = self.idle.take() {
            if worker.link.is_running() {
                return Ok(worker);
            }
            // It was killed since its last answer.
            self.kill(worker, None, now);
        }
        self.start()
    }

    fn start(&self) -> io::Result<Worker> {
        let child = Command::new(&self.program)
            .arg0("pmdanixl")
            .arg(OPTION)
            .current_dir("/")
            // With getent(1), which it starts.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let link = Link::new(child)?;
        Ok(Worker { link, scan: 0 })
    }

    /// Takes a worker back that has answered.
    pub fn put_back(&mut self, worker: Worker, now: Instant) {
        (self.failures, self.pause_ends) = (0, None);
        match self.idle {
            None => self.idle = Some(worker),
            Some(_) => self.kill(worker, None, now),
        }
    }

    /// Kills a worker. If it waits for a process, the group of that is skipped for a while.
    pub fn kill(&mut self, worker: Worker, stalled: Option<(ProcessId, Group)>, now: Instant) {
        self.keep(worker.link.close(), stalled, now);
    }

    /// Kills a worker, and keeps it until it has ended.
    fn keep(&mut self, mut child: Closed, stalled: Option<(ProcessId, Group)>, now: Instant) {
        child.kill();
        self.killed.push(Killed {
            child,
            stalled,
            skip_until: stalled.map_or(now, |_| now + SKIP_TIME),
        });
    }

    /// Gives up a worker that has ended, has sent something else than a reply, or cannot be started. Returns what
    /// happened. The next one is started after a pause.
    pub fn fail(&mut self, worker: Option<Worker>, err: &io::Error, now: Instant) -> String {
        let pause = PAUSE * 2_u32.saturating_pow(self.failures);
        self.failures += 1;
        let pause = pause.min(MAX_PAUSE);
        self.pause_ends = Some(now + pause);
        let status = worker.and_then(|worker| {
            let mut child = worker.link.close();
            let status = child.wait();
            self.keep(child, None, now);
            status
        });
        let why = match status {
            Some(status) => format!("it has ended ({status})"),
            None => err.to_string(),
        };
        format!("{why}; the next one starts in {} s", pause.as_secs())
    }

    /// True if no worker is to be started, because one has failed.
    pub fn are_in_pause(&self, now: Instant) -> bool {
        self.pause_ends.is_some_and(|end| now < end)
    }

    /// Reaps workers that have ended, and ends the skipping of their groups when it is time.
    pub fn reap(&mut self, now: Instant) {
        self.killed
            .retain_mut(|one| one.child.is_running() || now < one.skip_until);
    }

    /// Returns the number of killed workers that have not ended.
    pub fn killed(&mut self) -> usize {
        let killed = self.killed.iter_mut().map(|one| one.child.is_running());
        killed.filter(|&is_running| is_running).count()
    }

    /// Returns the processes for which killed workers wait.
    pub fn stalled(&mut self) -> Vec<u32> {
        let killed = self.killed.iter_mut();
        let running = killed.filter_map(|one| one.stalled.filter(|_| one.child.is_running()));
        running.map(|(process, _)| process.pid).collect()
    }

    /// Returns the processes of the workers here that have not ended.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let killed = self.killed.iter().map(|one| one.child.pid());
        killed.chain(self.idle.iter().map(|worker| worker.link.pid()))
    }

    /// Returns the groups that are skipped.
    pub fn skipped(&self) -> impl Iterator<Item = Group> {
        let stalled = self.killed.iter().filter_map(|one| one.stalled);
        stalled.map(|(_, group)| group)
    }
}
