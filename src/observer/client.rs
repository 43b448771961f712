// SPDX-License-Identifier: GPL-2.0-or-later

//! The daemon's side of the worker process: starts it, sends requests, and receives what it has read. Never waits for it.

use crate::observer::protocol::{Request, Response};
use crate::procfs::process;
use crate::rights::privilege;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Option that makes this program the worker process.
pub const OPTION: &str = "--transport-worker";
/// Size of the pipe with the responses, in bytes. The worker waits while it is full.
const PIPE_LEN: i32 = 1 << 20;
/// Limit of a response, in bytes.
const MAX_RESPONSE: usize = 1 << 20;

/// Worker process with its pipes.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    requests: ChildStdin,
    responses: ChildStdout,
    /// Bytes of a request that did not fit into the pipe yet.
    unsent: Vec<u8>,
    /// Bytes of responses that were not taken yet.
    received: Vec<u8>,
}

impl WorkerProcess {
    /// Starts a program with [`OPTION`].
    ///
    /// # Errors
    /// Those of fork(2), execve(2) and pipe(2).
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg0("pmdanixl")
            .arg(OPTION)
            .current_dir("/")
            .env_clear();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let mut child = privilege::spawn_reader(&mut command)?;
        let (Some(requests), Some(responses)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        for pipe in [requests.as_fd(), responses.as_fd()] {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        // Without it, a long scan takes some ticks more.
        let _ = fcntl(&responses, FcntlArg::F_SETPIPE_SZ(PIPE_LEN));
        Ok(Self {
            child,
            requests,
            responses,
            unsent: Vec::new(),
            received: Vec::new(),
        })
    }

    /// Sends a request, as far as it fits into the pipe: [`WorkerProcess::receive`] sends the rest. The worker must have responded to the
    /// last one.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send(&mut self, request: &Request) -> io::Result<()> {
        self.unsent = serde_json::to_vec(request)?;
        self.unsent.push(b'\n');
        self.send_rest()
    }

    fn send_rest(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.requests.write(&self.unsent) {
                Ok(len) => drop(self.unsent.drain(..len)),
                Err(err) if err.raw_os_error() == Some(Errno::EAGAIN as i32) => break,
                Err(err) => return Err(err),
            }
        }
        Ok(())
    }

    /// Kills the process, and waits until it has ended.
    #[cfg(test)]
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("our child");
    }

    /// True if the process is stopped by a signal.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        process::is_stopped(self.child.id())
    }

    /// Returns the next response; `None` if there is none yet.
    ///
    /// # Errors
    /// The worker has ended, or its response is invalid.
    pub fn receive(&mut self) -> io::Result<Option<Response>> {
        self.send_rest()?;
        loop {
            if let Some(end) = self.received.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            let mut bytes = [0; 1 << 14];
            match self.responses.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received.extend(&bytes[..len]),
                Err(err) if err.raw_os_error() == Some(Errno::EAGAIN as i32) => return Ok(None),
                Err(err) => return Err(err),
            }
            if self.received.len() > MAX_RESPONSE {
                return Err(ErrorKind::InvalidData.into());
            }
        }
    }

    /// Gives the worker up. It ends as soon as it no longer waits for the process that stalls it.
    #[must_use]
    pub fn abandon(mut self) -> AbandonedWorker {
        let _ = self.child.kill();
        AbandonedWorker(self.child)
    }
}

/// Worker process that was killed, and may wait for a process.
#[derive(Debug)]
pub struct AbandonedWorker(Child);

impl AbandonedWorker {
    /// True until the process has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}
