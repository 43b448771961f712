// SPDX-License-Identifier: GPL-2.0-or-later

//! Scans by the worker process, and the processes that stall it.

use crate::log;
use crate::observer::client::{AbandonedWorker, WorkerProcess};
use crate::observer::protocol::{Request, Response};
use crate::procfs::process::ProcessId;
use crate::procfs::process_dir::uid;
use crate::procfs::scan_threads::{MAX_ABANDONED, SKIP_TIME, STALL_TIMEOUT, skip_group};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Instant;

/// Runs one scan at a time.
#[derive(Debug, Default)]
pub struct TransportScans {
    /// Program to start with [`crate::observer::client::OPTION`]. `None`: nothing is scanned.
    pub program: Option<PathBuf>,
    worker: Option<WorkerProcess>,
    running: Option<RunningSocketScan>,
    /// Groups of the requested processes. A process that stalls a worker may be gone when the worker is abandoned.
    groups: HashMap<ProcessId, String>,
    abandoned: Vec<Abandoned>,
    /// True if the last start of a worker failed, and that was logged.
    has_failed: bool,
}

#[derive(Debug)]
struct RunningSocketScan {
    /// Process that is being read.
    process: Option<ProcessId>,
    progress_at: Instant,
}

#[derive(Debug)]
struct Abandoned {
    worker: AbandonedWorker,
    /// Processes that are skipped.
    group: Option<String>,
    skip_until: Instant,
}

impl TransportScans {
    /// True while a scan runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// True if a process is skipped.
    #[must_use]
    pub fn is_skipped(&self, process: ProcessId) -> bool {
        let mut groups = self.abandoned.iter().filter_map(|one| one.group.as_ref());
        // The group is read from /proc only if there is something to compare.
        let Some(first) = groups.next() else {
            return false;
        };
        let group = self.group(process);
        *first == group || groups.any(|other| *other == group)
    }

    /// Returns the group of a process, as it was before the worker began to read it.
    fn group(&self, process: ProcessId) -> String {
        let known = self.groups.get(&process).cloned();
        known.unwrap_or_else(|| skip_group(process))
    }

    /// Starts a scan. Does nothing if there are 8 abandoned workers, or if no worker can be started.
    pub fn start(&mut self, request: &Request, now: Instant) {
        self.reap(now);
        if self.waiting() >= MAX_ABANDONED {
            return;
        }
        let requested: HashMap<ProcessId, String> = { request.processes.iter() }
            .map(|process| (process.id, self.group(process.id)))
            .collect();
        self.groups = requested;
        match self.send(request, now) {
            Ok(()) => {
                self.running = Some(RunningSocketScan {
                    process: None,
                    progress_at: now,
                });
            }
            Err(err) => self.fail(&err, now),
        }
    }

    /// Reaps abandoned workers that have ended, and ends the skipping of their groups when it is time.
    fn reap(&mut self, now: Instant) {
        self.abandoned
            .retain_mut(|one| one.worker.is_running() || now < one.skip_until);
    }

    /// Returns the number of abandoned workers that have not ended.
    fn waiting(&mut self) -> usize {
        let workers = self.abandoned.iter_mut().map(|one| &mut one.worker);
        workers
            .filter_map(|worker| worker.is_running().then_some(()))
            .count()
    }

    fn send(&mut self, request: &Request, now: Instant) -> io::Result<()> {
        let worker = self.worker.as_mut();
        if worker.is_some_and(|worker| worker.send(request).is_ok()) {
            return Ok(());
        }
        // There is none, or it was killed since the last scan.
        self.stop(now);
        match &self.program {
            Some(program) => self
                .worker
                .insert(WorkerProcess::start(program)?)
                .send(request),
            None => Ok(()),
        }
    }

    /// Returns the responses since the last call.
    pub fn poll(&mut self, now: Instant) -> Vec<Response> {
        let mut responses = Vec::new();
        let Some(running) = self.running.as_mut() else {
            return responses;
        };
        let failure = loop {
            let received = match &mut self.worker {
                Some(worker) => worker.receive(),
                None => Ok(None),
            };
            match received {
                Ok(Some(Response::Done)) => break None,
                Ok(Some(response)) => {
                    if let Response::Begun(process) = response {
                        running.process = Some(process);
                    }
                    running.progress_at = now;
                    responses.push(response);
                }
                Ok(None) if now.saturating_duration_since(running.progress_at) < STALL_TIMEOUT => {
                    return responses;
                }
                Ok(None) => break Some(None),
                Err(err) => break Some(Some(err)),
            }
        };
        // A worker that a signal has stopped does not wait for the process.
        let is_stopped = self.worker.as_ref().is_some_and(WorkerProcess::is_stopped);
        let process = running.process.filter(|_| !is_stopped);
        match failure {
            None => self.has_failed = false,
            Some(Some(err)) => self.fail(&err, now),
            Some(None) => match process {
                Some(process) => self.abandon(process, now),
                None => self.fail(&ErrorKind::TimedOut.into(), now),
            },
        }
        self.running = None;
        responses
    }

    /// Ends the worker process. The next scan starts another. Where none follows, a later call reaps the process.
    pub fn stop(&mut self, now: Instant) {
        self.running = None;
        self.reap(now);
        if let Some(worker) = self.worker.take() {
            self.abandoned.push(Abandoned {
                worker: worker.abandon(),
                group: None,
                skip_until: now,
            });
        }
    }

    fn fail(&mut self, err: &io::Error, now: Instant) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!(
                "transport worker: no response, or it ended or cannot be started: {err}; the next socket scan starts another"
            );
        }
        self.stop(now);
    }

    /// Abandons the worker, which a process has stalled.
    fn abandon(&mut self, stalled: ProcessId, now: Instant) {
        self.stop(now);
        let (waiting, group) = (self.waiting(), self.group(stalled));
        let Some(abandoned) = self.abandoned.last_mut() else {
            return;
        };
        let _about = log::about(uid(stalled));
        tracing::warn!(
            "process {}: reading its sockets blocks, so a socket scan was abandoned after 10 s; while it blocks, and for at least 10 minutes, processes {group} are skipped in nixl.process and nixl.peer; end it, or repair the file system that it waits for ({waiting} scans wait; with {MAX_ABANDONED}, no scan starts)",
            stalled.pid
        );
        abandoned.group = Some(group);
        abandoned.skip_until = now + SKIP_TIME;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::protocol::RequestedProcess;
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    /// Returns scans by a worker that is a shell script. Its first run in the directory is `first`, all later ones serve requests.
    fn scans(directory: &Path, first: &str) -> TransportScans {
        let program = directory.join("worker");
        let script = format!(
            "#!/bin/sh\ncd {}\n\
             if mkdir ran 2>/dev/null; then\n{first}\nexit\nfi\n\
             while read -r line; do echo '\"Done\"'; done\n",
            directory.display()
        );
        // By another process: a file that this one writes cannot be executed while a thread forks.
        let written = Command::new("/bin/sh")
            .args(["-c", "printf %s \"$1\" >\"$0\"; chmod 700 \"$0\""])
            .arg(&program)
            .arg(script)
            .status();
        assert!(written.expect("sh is there").success());
        TransportScans {
            program: Some(program),
            ..TransportScans::default()
        }
    }

    /// Runs a scan. Returns its responses, and `None` if it did not start.
    fn run(scans: &mut TransportScans) -> Option<Vec<Response>> {
        scans.start(&Request::default(), Instant::now());
        let mut responses = scans.is_running().then(Vec::new);
        while scans.is_running() {
            responses.as_mut()?.extend(scans.poll(Instant::now()));
            std::thread::yield_now();
        }
        responses
    }

    #[test]
    fn bad_response_costs_one_scan_and_one_worker() {
        let begun = r#"{"Begun":{"pid":7,"start":9}}"#;
        for first in [
            "read -r line",
            "read -r line; echo '{\"Begun\":'",
            "read -r line; echo '\"Finished\"'; exec sleep 600",
            "read -r line; printf '\\377\\000\\n'",
            // Longer than the limit, without an end of the line.
            "read -r line; exec cat /dev/zero",
            "read -r line; exec 1>&-; exec sleep 600",
        ] {
            let directory = tempfile::tempdir().expect("a directory");
            let script = format!("echo '{begun}'\n{first}");
            let mut scans = scans(directory.path(), &script);
            let responses = run(&mut scans).expect("it started");
            let process = ProcessId { pid: 7, start: 9 };
            assert_eq!(responses, [Response::Begun(process)], "{first}");
            assert!(!scans.is_skipped(process), "{first}");
            assert_eq!(run(&mut scans), Some(Vec::new()), "{first}");
            // The first one was killed if it has not ended.
            while scans.waiting() > 0 {
                std::thread::yield_now();
            }
            scans.stop(Instant::now());
            while !scans.abandoned.is_empty() {
                scans.stop(Instant::now());
            }
        }
    }

    #[test]
    fn worker_without_progress_is_killed_after_ten_seconds() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "echo '{\"Begun\":{\"pid\":4194304,\"start\":9}}'; exec sleep 600";
        let mut scans = scans(directory.path(), script);
        let start = Instant::now();
        scans.start(&Request::default(), start);
        let mut responses = Vec::new();
        while responses.is_empty() {
            responses = scans.poll(start);
        }
        assert_eq!(responses.len(), 1);
        assert_eq!(
            scans.poll(start + STALL_TIMEOUT - Duration::from_millis(1)),
            []
        );
        assert!(scans.is_running());
        assert_eq!(scans.poll(start + STALL_TIMEOUT), []);
        assert!(!scans.is_running(), "abandoned");
        let process = ProcessId {
            pid: 4_194_304,
            start: 9,
        };
        assert!(scans.is_skipped(process));
        assert_eq!(run(&mut scans), Some(Vec::new()));
        while scans.waiting() > 0 {
            std::thread::yield_now();
        }
        assert!(scans.is_skipped(process), "for ten minutes");
        scans.reap(start + STALL_TIMEOUT + SKIP_TIME);
        assert!(!scans.is_skipped(process));
    }

    #[test]
    fn group_of_a_process_is_skipped_after_its_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut child = Command::new("sleep")
            .arg("600")
            .spawn()
            .expect("sleep is there");
        let process = ProcessId::of(child.id()).expect("it runs");
        let begun = serde_json::to_string(&Response::Begun(process)).expect("JSON");
        let mut scans = scans(directory.path(), &format!("echo '{begun}'; exec sleep 600"));
        let request = Request {
            processes: vec![RequestedProcess {
                id: process,
                uid: 0,
                was_counted: false,
                library: None,
            }],
        };
        let start = Instant::now();
        scans.start(&request, start);
        while scans.poll(start).is_empty() {}
        scans.groups.insert(process, "of uid 7".into());
        child.kill().and_then(|()| child.wait()).expect("it runs");
        scans.poll(start + STALL_TIMEOUT);
        let groups = scans.abandoned.iter().map(|one| one.group.as_deref());
        assert!(groups.eq([Some("of uid 7")]));
    }

    #[test]
    fn stopped_worker_is_blamed_on_no_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let script = "echo '{\"Begun\":{\"pid\":7,\"start\":9}}'; kill -STOP $$";
        let mut scans = scans(directory.path(), script);
        let start = Instant::now();
        scans.start(&Request::default(), start);
        while scans.poll(start).is_empty() {}
        while !scans.worker.as_ref().expect("it runs").is_stopped() {
            std::thread::yield_now();
        }
        scans.poll(start + STALL_TIMEOUT);
        assert!(!scans.is_running() && !scans.is_skipped(ProcessId { pid: 7, start: 9 }));
        assert_eq!(run(&mut scans), Some(Vec::new()));
    }

    #[test]
    fn worker_killed_between_two_scans_costs_no_scan() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut scans = scans(directory.path(), "read -r line");
        // The first one ends.
        assert_eq!(run(&mut scans), Some(Vec::new()));
        assert_eq!(run(&mut scans), Some(Vec::new()));
        scans.worker.as_mut().expect("it runs").kill();
        assert_eq!(run(&mut scans), Some(Vec::new()));
        assert!(scans.worker.is_some() && !scans.has_failed);
    }

    #[test]
    fn request_that_is_longer_than_a_pipe_is_sent_in_parts() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut scans = scans(directory.path(), "exit 0");
        run(&mut scans);
        let process = RequestedProcess {
            id: ProcessId { pid: 7, start: 9 },
            uid: 0,
            was_counted: false,
            library: Some("x".repeat(1 << 18).into()),
        };
        let request = Request {
            processes: vec![process; 4],
        };
        scans.start(&request, Instant::now());
        while scans.is_running() {
            scans.poll(Instant::now());
        }
        assert!(scans.worker.is_some() && !scans.has_failed);
    }

    #[test]
    fn missing_program_starts_no_scan() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut scans = scans(directory.path(), "exit 0");
        scans.program = Some(directory.path().join("none"));
        assert_eq!(run(&mut scans), None);
        assert!(scans.has_failed && scans.abandoned.is_empty());
    }
}
