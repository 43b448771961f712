// SPDX-License-Identifier: GPL-2.0-or-later

//! Threads that run process scans, and the processes that stall them.
//!
//! A read of /proc/PID/maps, cmdline or environ waits for the memory lock of the process. Another user can keep that lock busy
//! for ever, with a FUSE file system that does not answer or with userfaultfd(2). A scan that stalls is abandoned. Later scans
//! skip that process and its group for a while, so that one user cannot hide the processes of others.

use crate::log;
use crate::procfs::process::{ProcessId, own_namespace};
use crate::procfs::process_dir::{ProcessDir, uid};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// A scan that reports no progress for this long is abandoned.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// The group of a stalled process is skipped for at least this long.
pub const SKIP_TIME: Duration = Duration::from_secs(600);
/// With this many abandoned scans, no scan starts.
pub const MAX_ABANDONED: usize = 8;

/// Returns a description of the processes that are skipped with a stalled process: all processes in user namespaces, which any
/// user can create; else the processes of its container; else those of its user; for root, that process alone. Nothing here
/// waits for the process.
#[must_use]
pub fn skip_group(process: ProcessId) -> String {
    let directory = ProcessDir::of(process).ok();
    // `None`: the namespace is that of this process, or it is hidden.
    let other = |kind| {
        let its = directory.as_ref()?.namespace(kind).ok()?;
        (its != own_namespace(kind).ok()?).then_some(its)
    };
    let uid = directory.as_ref().and_then(ProcessDir::uid);
    match (other("user"), other("mnt"), uid) {
        (Some(_), ..) => "with user namespaces of their own".into(),
        (_, Some(container), _) => format!("in mount namespace {container}"),
        (.., None | Some(0)) => format!("with pid {}", process.pid),
        (.., Some(uid)) => format!("of uid {uid}"),
    }
}

/// Interface of a process scan to the thread that started it: says which processes are skipped, and reports progress.
#[derive(Debug)]
pub struct ScanContext {
    skipped_groups: Vec<String>,
    progress: Sender<ProcessId>,
}

impl ScanContext {
    /// Returns a context that skips these groups, and a receiver of the processes that the scan reads.
    #[must_use]
    pub fn new(skipped_groups: Vec<String>) -> (Self, Receiver<ProcessId>) {
        let (progress, received) = mpsc::channel();
        (
            Self {
                skipped_groups,
                progress,
            },
            received,
        )
    }

    /// Reports that the scan reads this process next, and returns true; false if the process is skipped.
    #[must_use]
    pub fn may_read(&self, process: ProcessId) -> bool {
        // The group is read from /proc only if there is something to compare.
        let may_read =
            self.skipped_groups.is_empty() || !self.skipped_groups.contains(&skip_group(process));
        if may_read {
            // The receiver is gone if the scan was abandoned.
            let _ = self.progress.send(process);
        }
        may_read
    }
}

/// A process scan in its thread, which shares nothing but two channels.
#[derive(Debug)]
struct RunningScan<T> {
    progress: Receiver<ProcessId>,
    /// Gets the result before `progress` is closed.
    result: Receiver<T>,
    /// Process that is being read. `None`: none was reported yet.
    process: Option<ProcessId>,
    /// Time of the last progress.
    progress_at: Instant,
}

impl<T> RunningScan<T> {
    /// Receives what the scan reports until `timeout` has passed. Returns true if the scan has ended.
    fn receive_progress(&mut self, timeout: Duration, now: Instant) -> bool {
        let end = Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.progress.recv_timeout(left) {
                Ok(process) => (self.process, self.progress_at) = (Some(process), now),
                Err(err) => return err == RecvTimeoutError::Disconnected,
            }
        }
    }

    /// Gives the scan up. Its thread stays until the process answers.
    fn abandon(self, now: Instant) -> AbandonedScan {
        let group = |process| (process, skip_group(process));
        AbandonedScan {
            stalled: self.process.map(group),
            skip_until: now + SKIP_TIME,
            progress: self.progress,
        }
    }
}

/// A process scan without a result: it panicked, or it stalled and was abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanFailed;

/// A scan that was abandoned.
#[derive(Debug)]
struct AbandonedScan {
    /// Process that stalled the scan, and its group. `None`: the scan stalled before it read a process.
    stalled: Option<(ProcessId, String)>,
    /// Earliest end of skipping the group.
    skip_until: Instant,
    progress: Receiver<ProcessId>,
}

impl AbandonedScan {
    /// Logs which process stalled the scan. `number` is how many abandoned scans wait, this one included.
    fn log(&self, number: usize) {
        let stalled = self.stalled.as_ref();
        let _about = log::about(stalled.and_then(|(process, _)| uid(*process)));
        match stalled {
            Some((ProcessId { pid, .. }, group)) => tracing::warn!(
                "process {pid}: reading its memory blocks, so a process scan was abandoned after 10 s; while it blocks, and for at least 10 minutes, processes {group} are skipped; end it, or repair the file system that it waits for ({number} scans wait; with {MAX_ABANDONED}, no scan starts)"
            ),
            None => tracing::warn!(
                "process scan: abandoned after 10 s: it has read no process; check the directory of pod_logs ({number} scans wait; with {MAX_ABANDONED}, no scan starts)"
            ),
        }
    }

    /// True until the thread ends.
    fn is_running(&self) -> bool {
        let mut progress = std::iter::repeat_with(|| self.progress.try_recv());
        progress.find(Result::is_err) == Some(Err(TryRecvError::Empty))
    }
}

/// Runs one process scan at a time, and counts the abandoned ones.
#[derive(Debug, Default)]
pub struct ScanThreads<T> {
    running: Option<RunningScan<T>>,
    abandoned: Vec<AbandonedScan>,
}

impl<T: Send + 'static> ScanThreads<T> {
    /// Starts a scan. Returns false if there are 8 abandoned scans, or if no thread can be created.
    pub fn start(
        &mut self,
        now: Instant,
        scan: impl FnOnce(&ScanContext) -> T + Send + 'static,
    ) -> bool {
        self.abandoned
            .retain(|abandoned| now < abandoned.skip_until || abandoned.is_running());
        if self.waiting().count() >= MAX_ABANDONED {
            return false;
        }
        let stalled = self.abandoned.iter().flat_map(|scan| &scan.stalled);
        let skipped = stalled.map(|(_, group)| group.clone());
        let (context, progress) = ScanContext::new(skipped.collect());
        let (sender, result) = mpsc::channel();
        let thread = thread::Builder::new().name("process scan".into());
        // The receiver is gone if the scan was abandoned. `context` is dropped after the result was sent, which closes `progress`.
        let thread = thread.spawn(move || drop(sender.send(scan(&context))));
        self.running = thread.ok().map(|_| RunningScan {
            progress,
            result,
            process: None,
            progress_at: now,
        });
        self.is_running()
    }

    /// True if a scan runs that is not abandoned.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Waits for the end of the scan, at most for `timeout`. Returns `None` while the scan goes on, or if there is none.
    ///
    /// # Errors
    /// The scan panicked, or it stalled and is abandoned.
    pub fn wait(&mut self, timeout: Duration, now: Instant) -> Option<Result<T, ScanFailed>> {
        let running = self.running.as_mut()?;
        let has_ended = running.receive_progress(timeout, now);
        let is_stalled = now.saturating_duration_since(running.progress_at) >= STALL_TIMEOUT;
        if !has_ended && !is_stalled {
            return None;
        }
        let running = self.running.take()?;
        if has_ended {
            return Some(running.result.try_recv().map_err(|_| ScanFailed));
        }
        let abandoned = running.abandon(now);
        abandoned.log(self.waiting().count() + 1);
        self.abandoned.push(abandoned);
        Some(Err(ScanFailed))
    }

    /// Runs a scan to its end, and starts it again each time a process stalls it. Returns `None` if it never succeeds.
    pub fn run(
        &mut self,
        scan: impl FnOnce(&ScanContext) -> T + Clone + Send + 'static,
    ) -> Option<T> {
        (0..=MAX_ABANDONED).find_map(|_| {
            self.start(Instant::now(), scan.clone()).then_some(())?;
            loop {
                if let Some(result) = self.wait(STALL_TIMEOUT / 10, Instant::now()) {
                    return result.ok();
                }
            }
        })
    }

    /// Returns the abandoned scans with a running thread.
    fn waiting(&self) -> impl Iterator<Item = &AbandonedScan> {
        self.abandoned.iter().filter(|scan| scan.is_running())
    }

    /// Returns the processes that stall abandoned scans now.
    #[must_use]
    pub fn stalled_pids(&self) -> Vec<u32> {
        let stalled = self.waiting().flat_map(|scan| &scan.stalled);
        stalled.map(|(process, _)| process.pid).collect()
    }
}

#[cfg(test)]
mod tests;
