// SPDX-License-Identifier: GPL-2.0-or-later

//! Questions to the name services, by getent(1), which timeout(1) kills if it does not answer in time.

use serde::{Deserialize, Serialize};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for an answer. pmcd waits for five seconds for the daemon, and a configuration waits for three answers at most:
/// of the user, of the owners, and of the user of the option -U.
pub const ANSWER_TIME: Duration = Duration::from_secs(1);
/// Shortest time for an answer.
const MOMENT: Duration = Duration::from_millis(1);
/// Limit of an answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// Exit status of getent(1) if a key does not exist.
const KEY_MISSING: i32 = 2;
/// Exit status of timeout(1) if it has killed getent(1).
const KILLED: i32 = 137;

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

/// A question to the name services: names or ids of users. The answer has a line for each that exists.
pub type Question = Vec<String>;

/// Answer of the name services: lines of passwd(5).
pub type Answer = Result<String, NotAnswered>;

/// Asks a question, and waits for the answer until `deadline`.
///
/// # Errors
/// There is none in time.
pub fn look_up(question: &[String], deadline: Instant) -> Answer {
    wait(start(question, deadline)?)
}

/// Asks questions, all at the same time, and waits for the answers until `deadline`.
#[must_use]
pub fn look_up_all(questions: &[Question], deadline: Instant) -> Vec<Answer> {
    let start = |question: &Question| start(question, deadline);
    // All are started before the first one is waited for.
    let started = Vec::from_iter(questions.iter().map(start));
    started.into_iter().map(|child| wait(child?)).collect()
}

/// Starts getent(1) by timeout(1), which kills it at the deadline.
fn start(question: &[String], deadline: Instant) -> Result<Child, NotAnswered> {
    let left = deadline.saturating_duration_since(Instant::now());
    // For timeout(1), 0 is no limit.
    if left < MOMENT {
        return Err(NotAnswered::InTime);
    }
    Command::new("timeout")
        // In the foreground, both stay in the process group of a worker, and end with it.
        .args(["--foreground", "--signal=KILL"])
        .arg(format!("{:.3}", left.as_secs_f64()))
        // After `--` a key is not taken for an option.
        .args(["getent", "--", "passwd"])
        .args(question)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|err| NotAnswered::Failed {
            why: format!("cannot be run: {err}"),
        })
}

/// Waits for the answer.
fn wait(mut child: Child) -> Answer {
    let mut text = Vec::new();
    if let Some(output) = child.stdout.take() {
        let _ = output.take(MAX_ANSWER).read_to_end(&mut text);
    }
    // With SIGCHLD ignored, the kernel keeps no status.
    match child.wait().map_or(Some(0), |status| status.code()) {
        Some(0 | KEY_MISSING) => Ok(String::from_utf8_lossy(&text).into_owned()),
        Some(KILLED) | None => Err(NotAnswered::InTime),
        Some(status) => Err(NotAnswered::Failed {
            why: format!("ended with status {status}"),
        }),
    }
}
