// SPDX-License-Identifier: GPL-2.0-or-later

//! The observer's side of the tracer: started when it is needed, killed when it does not answer, and started again.

use crate::observer::group::Group;
use crate::observer::link::{Closed, Link};
use crate::observer::protocol::{RequestKind, Response, Stalled};
use crate::observer::supervisor::HARD_TIMEOUT;
use crate::observer::workers::SKIP_TIME;
use crate::procfs::process::ProcessId;
use crate::rights::privilege::{self, OF_TRACER};
use crate::trace::protocol::{TraceReply, TraceReport, TraceRequest};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Option that makes this program the tracer.
pub const OPTION: &str = "--observer-tracer";
/// Limit of tracers that were killed and have not ended. They wait for a process.
const MAX_KILLED: usize = 4;
/// Pause after a tracer that has failed, and its limit. It doubles with each one that follows.
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Process that has stalled a tracer. Its user is left out for a while.
#[derive(Debug)]
struct Skipped {
    uid: u32,
    process: ProcessId,
    until: Instant,
}

/// The tracer, and what became of the ones before.
#[derive(Debug, Default)]
pub struct Tracers {
    program: PathBuf,
    tracer: Option<Link<TraceRequest, TraceReply>>,
    /// The request that is being served, and when it began.
    request: Option<(TraceRequest, Instant)>,
    /// Process whose libnixl is probed now.
    attaching: Option<ProcessId>,
    killed: Vec<Closed>,
    skipped: Vec<Skipped>,
    /// Tracers that were started.
    starts: u64,
    /// Tracers that have failed since one has answered, and when the pause after the last one ends.
    failures: u32,
    pause_ends: Option<Instant>,
    /// Why the last one has failed.
    why: String,
}

impl Tracers {
    /// Returns no tracer. `program` is started with [`OPTION`].
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            ..Self::default()
        }
    }

    /// Begins to serve a request. Processes of users that have stalled a tracer are left out.
    pub fn begin(&mut self, mut request: TraceRequest, now: Instant) {
        self.skipped.retain(|skipped| now < skipped.until);
        let skipped = &self.skipped;
        request.processes.retain(|process| {
            let mut skipped = skipped.iter();
            // Root's processes are left out one by one.
            !skipped.any(|one| match one.uid {
                0 => one.process == process.id,
                uid => uid == process.uid,
            })
        });
        if let Err(err) = self.send(&request, now) {
            self.fail(&err, now);
        }
        self.request = Some((request, now));
    }

    /// Sends a request to the tracer, a new one if there is none.
    fn send(&mut self, request: &TraceRequest, now: Instant) -> io::Result<()> {
        self.killed.retain_mut(Closed::is_running);
        let is_in_pause = self.pause_ends.is_some_and(|end| now < end);
        if self.tracer.is_none() && !is_in_pause && self.killed.len() < MAX_KILLED {
            self.tracer = Some(self.start()?);
            self.starts += 1;
        }
        match &mut self.tracer {
            Some(tracer) => tracer.send(request),
            None => Ok(()),
        }
    }

    fn start(&self) -> io::Result<Link<TraceRequest, TraceReply>> {
        let mut command = Command::new(&self.program);
        command
            .arg0("pmdanixl")
            .arg(OPTION)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Link::new(privilege::spawn_with(&OF_TRACER, &mut command)?)
    }

    /// Goes on with the request. Returns responses: at its end, one of the kind [`Response::Trace`].
    pub fn poll(&mut self, now: Instant) -> Vec<Response> {
        let Some((_, began)) = &self.request else {
            return Vec::new();
        };
        let is_late = now.saturating_duration_since(*began) >= HARD_TIMEOUT;
        let mut responses = Vec::new();
        let reading = loop {
            match self.tracer.as_mut().map(Link::receive) {
                None => break Err(self.why.clone()),
                Some(Ok(Some(TraceReply::Attaching(process)))) => self.attaching = Some(process),
                Some(Ok(Some(TraceReply::Read(reading)))) => {
                    (self.failures, self.pause_ends) = (0, None);
                    break reading;
                }
                Some(Ok(None)) if !is_late => return Vec::new(),
                Some(Ok(None)) => {
                    responses.extend(self.give_up(now));
                    let err = io::Error::from(io::ErrorKind::TimedOut);
                    self.fail(&err, now);
                }
                Some(Err(err)) => self.fail(&err, now),
            }
        };
        (self.request, self.attaching) = (None, None);
        responses.push(Response::Trace(TraceReport {
            starts: self.starts,
            reading,
        }));
        responses
    }

    /// Has the process skipped that the tracer waits for. Returns a message for the log.
    fn give_up(&mut self, now: Instant) -> Option<Response> {
        let process = self.attaching?;
        let (request, _) = self.request.as_ref()?;
        let uid = request.processes.iter().find(|one| one.id == process)?.uid;
        self.skipped.push(Skipped {
            uid,
            process,
            until: now + SKIP_TIME,
        });
        let group = match uid {
            0 => Group::Process(process.pid),
            uid => Group::User(uid),
        };
        Some(Response::Stalled(Stalled {
            kind: RequestKind::Trace,
            process: Some((process, group)),
            uid,
            blocked: self.killed.len() + 1,
        }))
    }

    /// Kills the tracer. The next one is started after a pause.
    fn fail(&mut self, err: &io::Error, now: Instant) {
        let pause = PAUSE * 2_u32.saturating_pow(self.failures);
        self.failures += 1;
        let pause = pause.min(MAX_PAUSE);
        self.pause_ends = Some(now + pause);
        let status = self.tracer.take().and_then(|tracer| {
            let mut tracer = tracer.close();
            let status = match err.kind() {
                io::ErrorKind::TimedOut => None,
                _ => tracer.wait(),
            };
            tracer.kill();
            self.killed.push(tracer);
            status
        });
        let what = match (status, err.kind()) {
            (Some(status), _) => format!("the tracer has ended ({status})"),
            (None, io::ErrorKind::TimedOut) => "the tracer has not answered for 10 s".into(),
            (None, _) => format!("the tracer cannot be used: {err}"),
        };
        self.why = format!("{what}; the next one starts after {} s", pause.as_secs());
    }

    /// Returns the link to a tracer that serves a request, and when it is given up.
    pub fn waits_for(&self) -> Option<(&Link<TraceRequest, TraceReply>, Instant)> {
        let (_, began) = self.request.as_ref()?;
        Some((self.tracer.as_ref()?, *began + HARD_TIMEOUT))
    }

    /// Kills a tracer that serves a request. An idle one ends by itself.
    pub fn end(&mut self) {
        if let Some(tracer) = self.tracer.take().filter(|_| self.request.is_some()) {
            tracer.close().kill();
        }
    }

    /// Returns the process id of the tracer.
    pub fn pid(&self) -> Option<u32> {
        self.tracer.as_ref().map(Link::pid)
    }
}
