// SPDX-License-Identifier: GPL-2.0-or-later

//! Kills of processes, of pmcd, and of the daemons that a killed pmcd leaves behind.

use super::{Pmcd, output, text, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Pseudo-random numbers that are equal in each run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Number from 0 to below the argument.
    pub fn below(&mut self, limit: u64) -> u64 {
        let state = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = state.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }

    pub fn one_of<T: Copy, const N: usize>(&mut self, choice: [T; N]) -> T {
        choice[usize::try_from(self.below(N as u64)).expect("a few")]
    }

    /// Sleeps for a random time below the argument, with a resolution of microseconds.
    pub fn wait(&mut self, limit: Duration) {
        let limit = u64::try_from(limit.as_micros()).expect("short");
        std::thread::sleep(Duration::from_micros(self.below(limit)));
    }
}

/// Sends SIGKILL to a process.
pub fn kill_process(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, Signal::SIGKILL).expect("it runs");
}

/// Kills the daemon so that it is missing for a while: pmcd starts it again at the next request, but only once a
/// minute.
pub fn kill_for_a_minute(pmcd: &Pmcd) {
    kill_process(pmcd.pmda_pid());
    wait_for("pmcd has started it again", || {
        let answer = output(pmcd.tool("pminfo").args(["-f", "nixl.control.version"]));
        text(&answer).contains("value ").then_some(())
    });
    kill_process(pmcd.pmda_pid());
}

/// Stops processes while the action runs. If it panics, they stay stopped, and their owners kill them.
pub fn while_stopped(pids: &[u32], action: impl FnOnce()) {
    let all = |signal| {
        for pid in pids {
            let pid = Pid::from_raw(i32::try_from(*pid).expect("a pid"));
            kill(pid, signal).expect("it runs");
        }
    };
    all(Signal::SIGSTOP);
    action();
    all(Signal::SIGCONT);
}

/// Sends SIGKILL to a child, and reaps it.
pub fn kill_child(child: &mut Child) {
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

/// Processes with a working directory in or below `dir`: those that a pmcd or dbpmda there has started, orphans too.
fn processes_in(dir: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place.starts_with(dir))
    })
    .collect()
}

/// Waits until no process runs in or below a directory.
pub fn wait_for_orphans(dir: &Path) {
    wait_for("the orphans of pmcd end", || {
        processes_in(dir).is_empty().then_some(())
    });
}

impl Pmcd {
    /// Kills pmcd. The orphaned daemon then drains a last time, and ends.
    pub fn kill(&mut self) {
        kill_child(&mut self.child);
    }

    /// Starts pmcd again after a kill. Does not wait until it answers.
    pub fn start_anew(&mut self) {
        self.child = Command::new(self.dir.join("start"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("qa/private-pmcd has written it");
    }
}
