// SPDX-License-Identifier: GPL-2.0-or-later

//! CPU time of processes.

use super::runs::Runs;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

/// CPU time of all threads of a process so far, also of ended ones.
fn spent(pid: u32) -> Duration {
    let pid = Pid::from_raw(pid.try_into().expect("a pid"));
    let time = clock_getcpuclockid(pid).and_then(clock_gettime);
    time.expect("it runs").into()
}

/// Share of a CPU that a process uses, in percent: so many runs of equal length, which take some time in all.
pub fn share(pid: u32, runs: usize, time: Duration) -> Runs {
    share_of_all(&[pid], runs, time)
}

/// Share of a CPU that processes use together, in percent, as [`share`].
pub fn share_of_all(pids: &[u32], runs: usize, time: Duration) -> Runs {
    let sum = || pids.iter().copied().map(spent).sum::<Duration>();
    let time = time.div_f64(runs as f64);
    Runs::of(runs, || {
        let (start, before) = (Instant::now(), sum());
        std::thread::sleep(time);
        let spent = sum().saturating_sub(before);
        100.0 * spent.as_secs_f64() / start.elapsed().as_secs_f64()
    })
}
