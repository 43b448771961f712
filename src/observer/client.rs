// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon's side of the observer. Waits for its responses no longer than it is told to, and for its end 0.1 s.

use crate::log;
use crate::observer::link::Link;
use crate::observer::protocol::{Request, RequestKind, Response, Stalled};
use crate::observer::workers::MAX_BLOCKED;
use crate::rights::privilege;
use caps::Capability;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Option that makes this program the observer.
pub const OPTION: &str = "--observer";
/// What follows from an observer that does not run, for the log.
pub const CONSEQUENCE: &str = "processes are not scanned any more: new agents have no labels of their process, nixl.host.processes.silent has no value, and after a minute nixl.process, nixl.agent.peer and nixl.agent.tcp_share have none; restart pmcd";

/// The observer process, as long as it runs.
#[derive(Debug, Default)]
pub struct ObserverHandle {
    link: Option<Link<Request, Response>>,
}

impl ObserverHandle {
    /// Starts a program with [`OPTION`], and with these capabilities, as far as this process has them.
    ///
    /// # Errors
    /// Those of fork(2), execve(2) and pipe(2).
    pub fn start(program: &Path, kept: &[Capability]) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg0("pmdanixl")
            .arg(OPTION)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let link = Link::new(privilege::spawn_with(kept, &mut command)?)?;
        Ok(Self { link: Some(link) })
    }

    /// True while it runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.link.is_some()
    }

    /// Sends a request. It must have served the last one of this kind. Does nothing if it does not run.
    pub fn send(&mut self, request: &Request) {
        if let Some(Err(err)) = self.link.as_mut().map(|link| link.send(request)) {
            self.end(&err);
        }
    }

    /// Returns the responses since the last call. Waits for one for `wait` at most. A process that has stalled is
    /// logged as well, and a worker that has failed is only logged.
    pub fn receive(&mut self, wait: Duration) -> Vec<Response> {
        let (mut responses, end) = (Vec::new(), Instant::now() + wait);
        while let Some(link) = &mut self.link {
            match link.receive() {
                Ok(Some(Response::Stalled(stalled))) => {
                    log_stalled(&stalled);
                    responses.push(Response::Stalled(stalled));
                }
                Ok(Some(Response::WorkerFailed(why))) => {
                    tracing::warn!("observer: a worker cannot go on: {why}");
                }
                Ok(Some(response)) => responses.push(response),
                Ok(None) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if !responses.is_empty() || left.is_zero() {
                        break;
                    }
                    link.wait(left);
                }
                Err(err) => self.end(&err),
            }
        }
        responses
    }

    /// Gives the observer up, as it has ended or has sent something else than a response.
    fn end(&mut self, err: &io::Error) {
        let Some(link) = self.link.take() else {
            return;
        };
        match link.close().end() {
            Some(status) => tracing::error!("observer: has ended ({status}); {CONSEQUENCE}"),
            None => tracing::error!("observer: cannot be used: {err}; {CONSEQUENCE}"),
        }
    }
}

impl Drop for ObserverHandle {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            // It ends with its pipes.
            link.close().end();
        }
    }
}

/// Logs which process has stalled a worker.
fn log_stalled(stalled: &Stalled) {
    let _span = log::span(Some(stalled.uid));
    let blocked = stalled.blocked;
    if let (RequestKind::Trace, Some((process, group))) = (stalled.kind, &stalled.process) {
        return tracing::warn!(
            "process {}: probing its libnixl blocks, so the tracer was killed after 10 s and begins again; processes {group} are not traced for 10 minutes; end it, or repair the file system that it waits for",
            process.pid
        );
    }
    let what = match stalled.kind {
        RequestKind::Sockets | RequestKind::Queues => "sockets",
        _ => "memory",
    };
    match &stalled.process {
        Some((process, group)) => tracing::warn!(
            "process {}: reading its {what} blocks, so it was given up after 10 s; while it blocks, and for at least 10 minutes, processes {group} are skipped: they have no new labels, and no new values in nixl.process and nixl.agent.peer; end it, or repair the file system that it waits for ({blocked} readings wait; with {MAX_BLOCKED}, no other one begins)",
            process.pid
        ),
        None if stalled.kind == RequestKind::Names => {}
        None => tracing::warn!(
            "pod_logs: reading this directory blocks, so it was given up after 10 s; repair its file system ({blocked} readings wait; with {MAX_BLOCKED}, no other one begins)"
        ),
    }
}
