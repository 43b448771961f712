// SPDX-License-Identifier: GPL-2.0-or-later

//! One question to the name services, by getent(1), which is killed if it does not answer in time.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time for an answer. pmcd waits for five seconds for the daemon, and a configuration waits for three answers at most: of the user, of
/// the owners, and of the user of the option -U.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Time in which a killed process ends, unless the kernel holds it.
pub(super) const END_TIME: Duration = Duration::from_millis(200);
/// Limit of an answer, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Exit status of getent(1) if a key does not exist.
const KEY_MISSING: i32 = 2;

/// Beginning of the text of each [`NotAnswered`].
pub const NOT_ANSWERED: &str = "the name services of this host have not answered";

/// Why a look-up has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAnswered {
    /// The time is over.
    #[error("{NOT_ANSWERED} within {} s", ANSWER_TIME.as_secs())]
    InTime,
    /// getent(1) cannot be started, or ended with another error.
    #[error("{NOT_ANSWERED}: getent {why}")]
    Failed {
        /// What happened to getent(1).
        why: String,
    },
}

/// A running getent(1).
#[derive(Debug)]
pub(super) struct Lookup {
    child: Child,
    output: ChildStdout,
    text: Vec<u8>,
    /// True once the output has ended.
    has_ended: bool,
    /// True once the process was killed.
    is_killed: bool,
    deadline: Instant,
}

impl Lookup {
    /// Starts a look-up of these keys in a database of nsswitch.conf(5).
    pub fn start(database: &str, keys: &[String], now: Instant) -> Result<Self, NotAnswered> {
        // After `--` a key is not taken for an option.
        Self::run(
            Command::new("getent").args(["--", database]).args(keys),
            now,
        )
    }

    pub(super) fn run(command: &mut Command, now: Instant) -> Result<Self, NotAnswered> {
        let failed = |err: io::Error| NotAnswered::Failed {
            why: format!("cannot be run: {err}"),
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| failed(ErrorKind::BrokenPipe.into()))?;
        Ok(Self {
            child,
            output,
            text: Vec::new(),
            has_ended: false,
            is_killed: false,
            deadline: now + ANSWER_TIME,
        })
    }

    /// Waits for the answer until the time for it is over.
    pub fn wait(mut self) -> Result<String, NotAnswered> {
        loop {
            let now = Instant::now();
            if let Some(answer) = self.poll(END_TIME, now) {
                return answer;
            }
            if now >= self.deadline + END_TIME {
                return Err(NotAnswered::InTime);
            }
        }
    }

    /// Waits for the answer for `wait` at most. Returns `None` while the process runs. Kills it if its time was over before.
    pub fn poll(&mut self, wait: Duration, now: Instant) -> Option<Result<String, NotAnswered>> {
        // It may have answered long ago, while this process did something else.
        let answer = self.answer_within(Duration::ZERO);
        if answer.is_some() {
            return answer;
        }
        if now >= self.deadline && !self.is_killed {
            self.is_killed = self.child.kill().is_ok();
        }
        self.answer_within(wait)
    }

    fn answer_within(&mut self, wait: Duration) -> Option<Result<String, NotAnswered>> {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if !self.has_ended {
                self.has_ended = self.read(left);
            } else if !left.is_zero() {
                // The process ends at the same moment as its output.
                thread::sleep(Duration::from_millis(1));
            }
            if self.has_ended {
                match self.child.try_wait() {
                    Ok(None) => {}
                    Ok(Some(status)) => return Some(self.answer(status.code())),
                    // With SIGCHLD ignored, the kernel keeps no status.
                    Err(_) => return Some(self.answer(Some(0))),
                }
            }
            if left.is_zero() {
                return None;
            }
        }
    }

    /// Reads some output, if there is any within a time. Returns true at its end.
    fn read(&mut self, wait: Duration) -> bool {
        let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::ZERO);
        if !poll(&mut fds, timeout).is_ok_and(|ready| ready > 0) {
            return false;
        }
        let mut part = [0; 4096];
        match self.output.read(&mut part) {
            Ok(0) => true,
            Ok(len) => {
                self.text.extend_from_slice(&part[..len]);
                self.text.len() >= MAX_ANSWER
            }
            Err(err) => err.kind() != ErrorKind::Interrupted,
        }
    }

    /// Returns the answer of a process with this exit status; `None`: a signal has ended it.
    fn answer(&self, status: Option<i32>) -> Result<String, NotAnswered> {
        match status {
            _ if self.is_killed => Err(NotAnswered::InTime),
            Some(0 | KEY_MISSING) => Ok(String::from_utf8_lossy(&self.text).into_owned()),
            _ => Err(NotAnswered::Failed {
                why: status.map_or("was killed".into(), |status| {
                    format!("ended with status {status}")
                }),
            }),
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.try_wait();
    }
}
