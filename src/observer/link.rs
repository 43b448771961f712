// SPDX-License-Identifier: GPL-2.0-or-later

//! Link to a child process that reads and writes lines of JSON. Never waits for it.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, ErrorKind, Read, Write};
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// Size of the pipe from the child, in bytes. The child waits while it is full.
const PIPE_LEN: i32 = 1 << 20;
/// Limit of a message, in bytes. A process with 32,768 connections is the longest one.
const MAX_MESSAGE: usize = 1 << 24;

/// Time in which a child whose pipes are closed ends.
const END_TIME: Duration = Duration::from_millis(100);

/// A child process that gets messages `S` and returns messages `R`.
#[derive(Debug)]
pub struct Link<S, R> {
    child: Child,
    output: ChildStdin,
    input: ChildStdout,
    /// Bytes that did not fit into the pipe yet.
    unsent: Vec<u8>,
    received: Received,
    types: PhantomData<(S, R)>,
}

/// Bytes that were received and not taken as messages yet.
#[derive(Debug, Default)]
pub struct Received {
    bytes: Vec<u8>,
    /// Number of them that were taken.
    taken: usize,
    /// Number of them that were searched for the end of the next message.
    searched: usize,
}

impl Received {
    /// Adds bytes.
    ///
    /// # Errors
    /// A message is longer than the limit.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.drain(..self.taken);
        self.searched -= self.taken;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
        match self.bytes.len() > MAX_MESSAGE {
            true => Err(ErrorKind::InvalidData.into()),
            false => Ok(()),
        }
    }

    /// Returns the next message; `None` if it is not complete.
    ///
    /// # Errors
    /// It is not valid.
    pub fn take<R: DeserializeOwned>(&mut self) -> io::Result<Option<R>> {
        let Some(len) = self.bytes[self.searched..]
            .iter()
            .position(|&byte| byte == b'\n')
        else {
            self.searched = self.bytes.len();
            return Ok(None);
        };
        let end = self.searched + len;
        let message = serde_json::from_slice(&self.bytes[self.taken..end])?;
        (self.taken, self.searched) = (end + 1, end + 1);
        Ok(Some(message))
    }
}

/// Appends a message to bytes that are to be sent.
///
/// # Errors
/// It has something that JSON cannot have.
pub fn write_message(message: &impl Serialize, mut bytes: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut bytes, message)?;
    bytes.push(b'\n');
    Ok(())
}

/// True if an error of a descriptor that does not block says that it would.
fn would_block(err: &io::Error) -> bool {
    err.raw_os_error() == Some(Errno::EAGAIN as i32)
}

impl<S: Serialize, R: DeserializeOwned> Link<S, R> {
    /// Takes over a child with pipes as its standard input and output.
    ///
    /// # Errors
    /// It has no pipes.
    pub fn new(mut child: Child) -> io::Result<Self> {
        let (Some(output), Some(input)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ErrorKind::BrokenPipe.into());
        };
        for pipe in [output.as_fd(), input.as_fd()] {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        // Without it, the child waits more often.
        let _ = fcntl(&input, FcntlArg::F_SETPIPE_SZ(PIPE_LEN));
        Ok(Self {
            child,
            output,
            input,
            unsent: Vec::new(),
            received: Received::default(),
            types: PhantomData,
        })
    }

    /// Sends a message, as far as it fits into the pipe: [`Link::receive`] sends the rest.
    ///
    /// # Errors
    /// The child has ended.
    pub fn send(&mut self, message: &S) -> io::Result<()> {
        write_message(message, &mut self.unsent)?;
        self.send_rest()
    }

    fn send_rest(&mut self) -> io::Result<()> {
        let mut sent = 0;
        let result = loop {
            if sent == self.unsent.len() {
                break Ok(());
            }
            match self.output.write(&self.unsent[sent..]) {
                Ok(len) => sent += len,
                Err(err) if would_block(&err) => break Ok(()),
                Err(err) => break Err(err),
            }
        };
        self.unsent.drain(..sent);
        result
    }

    /// Returns the next message; `None` if there is none yet.
    ///
    /// # Errors
    /// The child has ended, or its message is not valid.
    pub fn receive(&mut self) -> io::Result<Option<R>> {
        self.send_rest()?;
        loop {
            if let Some(message) = self.received.take()? {
                return Ok(Some(message));
            }
            let mut bytes = [0; 1 << 14];
            match self.input.read(&mut bytes) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.received.add(&bytes[..len])?,
                Err(err) if would_block(&err) => return Ok(None),
                Err(err) => return Err(err),
            }
        }
    }

    /// Waits for a message, at most for a time.
    pub fn wait(&self, time: Duration) {
        wait_for(&[self.input()], &self.waits_to_send(), time);
    }

    /// Returns the descriptor that has messages.
    pub fn input(&self) -> BorrowedFd<'_> {
        self.input.as_fd()
    }

    /// Returns the descriptor that takes the rest of a message, if there is a rest.
    pub fn waits_to_send(&self) -> Vec<BorrowedFd<'_>> {
        let rest = (!self.unsent.is_empty()).then(|| self.output.as_fd());
        rest.into_iter().collect()
    }

    /// Process id of the child.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True until the child has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Closes the pipes, which ends a child that reads them.
    pub fn close(self) -> Closed {
        Closed(self.child)
    }
}

/// Waits until a descriptor can be read or written, at most for a time. Returns true if the first one can be read, or
/// its other end was closed.
pub fn wait_for(read: &[BorrowedFd], written: &[BorrowedFd], time: Duration) -> bool {
    let read = read.iter().map(|&fd| PollFd::new(fd, PollFlags::POLLIN));
    let written = written
        .iter()
        .map(|&fd| PollFd::new(fd, PollFlags::POLLOUT));
    let mut all = Vec::from_iter(read.chain(written));
    // A whole millisecond more, or the end of a short time would be waited for with no pause.
    let time = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
    // Fails if a signal comes.
    poll(&mut all, time).is_ok() && all.first().is_some_and(|fd| fd.any() == Some(true))
}

/// Child whose pipes are closed. It may wait for a process, and not end.
#[derive(Debug)]
pub struct Closed(Child);

impl Closed {
    /// Process id of the child.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Kills the child, and its children if it leads a process group. It ends as soon as it no longer waits for what
    /// stalls it.
    pub fn kill(&mut self) {
        let group = i32::try_from(self.0.id()).map(Pid::from_raw);
        let killed = group.map(|group| killpg(group, Signal::SIGKILL));
        if killed != Ok(Ok(())) {
            // Fails if it has ended.
            let _ = self.0.kill();
        }
    }

    /// Returns how the child has ended. Kills it if it has not within 0.1 s.
    pub fn end(mut self) -> Option<ExitStatus> {
        let status = self.wait();
        if status.is_none() {
            self.kill();
        }
        status
    }

    /// True until the child has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits for the end of the child for 0.1 s, and returns how it has ended.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let end = Instant::now() + END_TIME;
        loop {
            match self.0.try_wait() {
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
                status => return status.ok().flatten(),
            }
        }
    }
}
