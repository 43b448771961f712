//! Kills of pmcd, and of the daemons that pmcd leaves behind.

use super::{Pmcd, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Numbers that look random and are the same in each run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number from 0 on.
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

    /// Waits for less than so long, to the microsecond.
    pub fn wait(&mut self, limit: Duration) {
        let limit = u64::try_from(limit.as_micros()).expect("short");
        std::thread::sleep(Duration::from_micros(self.below(limit)));
    }
}

/// Sends SIGKILL to a process that runs.
pub fn kill_process(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
    kill(pid, Signal::SIGKILL).expect("it runs");
}

/// Sends SIGKILL to a child, and waits until nothing of it is left.
pub fn kill_child(child: &mut Child) {
    child.kill().expect("it runs");
    child.wait().expect("our child");
}

/// The processes that run in a directory or below it: what a pmcd or dbpmda there started, its orphans too.
fn processes_in(dir: &Path) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place.starts_with(dir))
    })
    .collect()
}

/// Waits until nothing runs in a directory any more.
pub fn wait_for_orphans(dir: &Path) {
    wait_for("what pmcd started ends without it", || {
        processes_in(dir).is_empty().then_some(())
    });
}

impl Pmcd {
    /// Kills pmcd. The agent is on its own then: it drains a last time, and ends.
    pub fn kill(&mut self) {
        kill_child(&mut self.child);
    }

    /// Becomes a new pmcd in the place of one that was killed; does not wait until it answers.
    pub fn start_anew(&mut self) {
        self.child = Command::new(self.dir.join("start"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("qa/private-pmcd has written it");
    }
}
