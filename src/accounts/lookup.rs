// SPDX-License-Identifier: GPL-2.0-or-later

//! Questions to the name services, by getent(1), which timeout(1) kills if it does not answer in time.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Limit of an answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// Exit status of getent(1) if a key does not exist.
const KEY_MISSING: i32 = 2;

/// Asks for users by their ids, and waits for the answer for `time`. Returns lines of passwd(5), one for each that
/// exists; `None` if there was no answer in time, or getent(1) failed.
#[must_use]
pub fn look_up(uids: &[u32], time: Duration) -> Option<String> {
    let child = Command::new("timeout")
        // In the foreground, both stay in the process group of a worker, and end with it.
        .args(["--foreground", "--signal=KILL"])
        .arg(format!("{:.3}", time.as_secs_f64()))
        // After `--` a key is not taken for an option.
        .args(["getent", "--", "passwd"])
        .args(uids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.ok()?;
    let mut text = Vec::new();
    if let Some(output) = child.stdout.take() {
        let _ = output.take(MAX_ANSWER).read_to_end(&mut text);
    }
    let status = child.wait().ok()?.code()?;
    [0, KEY_MISSING]
        .contains(&status)
        .then(|| String::from_utf8_lossy(&text).into_owned())
}
