// SPDX-License-Identifier: GPL-2.0-or-later

//! Questions to the name services, by getent(1), which is killed if it does not answer in time.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time for an answer. pmcd waits for five seconds for the daemon, and a configuration waits for three answers at most:
/// of the user, of the owners, and of the user of the option -U.
pub const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Time in which a process ends after its output.
const END_TIME: Duration = Duration::from_millis(200);
/// Time for what is there already.
const MOMENT: Duration = Duration::from_millis(1);
/// Limit of an answer, in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Exit status of getent(1) if a key does not exist.
const KEY_MISSING: i32 = 2;

/// Beginning of the text of each [`NotAnswered`].
pub const NOT_ANSWERED: &str = "the name services of this host have not answered";

/// Why a look-up has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum NotAnswered {
    /// The time is over.
    #[error("{NOT_ANSWERED} within {} s", ANSWER_TIME.as_secs())]
    InTime,
    /// It was not asked, since the process is locked in.
    #[error("{NOT_ANSWERED}: they are asked at the start only, so run ./Install again")]
    AfterStart,
    /// getent(1) cannot be started, or ended with another error.
    #[error("{NOT_ANSWERED}: getent {why}")]
    Failed {
        /// What happened to getent(1).
        why: String,
    },
}

/// A question to the name services: these keys in a database of nsswitch.conf(5).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Question {
    /// Database.
    pub database: String,
    /// Keys. The answer has a line for each that exists.
    pub keys: Vec<String>,
}

/// Answer of the name services: lines of the database.
pub type Answer = Result<String, NotAnswered>;

/// Asks a question, and waits for the answer until `deadline`.
///
/// # Errors
/// There is none in time.
pub fn look_up(question: &Question, deadline: Instant) -> Answer {
    let mut answers = look_up_all(std::slice::from_ref(question), deadline);
    answers.pop().unwrap_or(Err(NotAnswered::InTime))
}

/// Asks questions, all at the same time, and waits for the answers until `deadline`.
#[must_use]
pub fn look_up_all(questions: &[Question], deadline: Instant) -> Vec<Answer> {
    // All are started before the first one is waited for.
    let started = questions.iter().map(|question| {
        // After `--` a key is not taken for an option.
        let mut command = Command::new("getent");
        command
            .args(["--", &question.database])
            .args(&question.keys);
        Lookup::start(&mut command)
    });
    let started: Vec<_> = started.collect();
    let wait = |lookup: Result<Lookup, NotAnswered>| lookup?.wait(deadline);
    started.into_iter().map(wait).collect()
}

/// A running getent(1).
#[derive(Debug)]
struct Lookup {
    child: Child,
    output: ChildStdout,
    text: Vec<u8>,
}

impl Lookup {
    fn start(command: &mut Command) -> Result<Self, NotAnswered> {
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
        })
    }

    /// Waits for the answer until the deadline, and a moment more for one that has come long ago.
    fn wait(mut self, deadline: Instant) -> Answer {
        let mut left = deadline.saturating_duration_since(Instant::now());
        while !self.read(left.max(MOMENT)) {
            left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NotAnswered::InTime);
            }
        }
        // The process ends at the same moment as its output.
        let end = Instant::now() + END_TIME;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(1)),
                Ok(None) => return Err(NotAnswered::InTime),
                Ok(Some(status)) => return self.answer(status.code()),
                // With SIGCHLD ignored, the kernel keeps no status.
                Err(_) => return self.answer(Some(0)),
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
    fn answer(&self, status: Option<i32>) -> Answer {
        match status {
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
