//! Processor time of a process.

use std::fs;
use std::time::{Duration, Instant};

/// Processor time of all its threads so far.
fn spent(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs");
    // A thread may end meanwhile; what looks through /proc has little to do by itself.
    let times = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let time = text.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(time))
    });
    times.sum()
}

/// The share of a processor that a process takes for so long, in percent.
pub fn share(pid: u32, time: Duration) -> f64 {
    let (start, before) = (Instant::now(), spent(pid));
    std::thread::sleep(time);
    let spent = spent(pid).saturating_sub(before);
    100.0 * spent.as_secs_f64() / start.elapsed().as_secs_f64()
}
