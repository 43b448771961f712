// SPDX-License-Identifier: GPL-2.0-or-later

//! Values of the `nixl.control` metrics, and the statistics line of the debug log.

use crate::collector::counts::{Activity, AgentCounts};
use crate::journal::ConfigTimes;
use crate::procfs::process::Usage;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::time::Duration;

/// Counts and settings of the daemon.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// Time between two ticks.
    pub drain_interval: Duration,
    /// Number of drains.
    pub drains: u64,
    /// Time spent draining.
    pub drain_time: Duration,
    /// Drains that stopped at their time limit with events left.
    pub drains_cut: u64,
    /// Ticks in which the scan stopped at its time limit.
    pub scans_cut: u64,
    /// Time spent scanning directories.
    pub scan_time: Duration,
    /// Numbers of agents by state.
    pub agents: AgentCounts,
    /// Numbers of files and agents, and the work done for them.
    pub activity: Activity,
    /// True if totals survive the daemon in the state file.
    pub is_persistent: bool,
    /// Number of configurations that were applied.
    pub config_loads: u32,
    /// Reason why the last configuration was rejected. Empty if it was applied.
    pub config_error: String,
    /// When the configuration was last read, and when one was last rejected.
    pub config_times: ConfigTimes,
    /// What is known of the tracer.
    pub trace: TraceCounts,
}

/// What is known of the tracer.
#[derive(Clone, Copy, Debug, Default)]
pub struct TraceCounts {
    /// Libraries with probes. `None`: nothing is traced.
    pub libraries: Option<u32>,
    /// Tracers that were started. `None`: the configuration needs none.
    pub starts: Option<u64>,
    /// Handles and pairs that found no room. `None`: nothing is traced.
    pub lost: Option<u64>,
}

impl Control {
    /// Returns the statistics line for the debug log: the work since the start and its time.
    #[must_use]
    pub fn figures(&self) -> String {
        let activity = &self.activity;
        format!(
            "since the start: {} events in {} drains, which took {} ms ({} reached their time limit); scans of directories \
             took {} ms ({} reached their time limit); {} scans of /proc took {} ms; {} files attached, {} agents and {} \
             rejected files remembered",
            activity.events,
            self.drains,
            milliseconds(self.drain_time),
            self.drains_cut,
            milliseconds(self.scan_time),
            self.scans_cut,
            activity.process_scans,
            milliseconds(activity.process_scan_time),
            activity.attached_files,
            activity.agents,
            activity.cached_rejections,
        )
    }
}

/// Returns the CPU time of this process since its start, all threads, in microseconds.
fn own_cpu_time() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let time = usage.user_time() + usage.system_time();
    u64::try_from(time.num_microseconds()).ok()
}

impl Control {
    /// Returns the CPU time of the daemon since its start, of its observer and of the workers, in microseconds.
    #[must_use]
    pub fn cpu_time(&self) -> Option<u64> {
        own_cpu_time()?.checked_add(self.activity.observer_usage.cpu)
    }

    /// Returns the resident memory of the daemon, its observer and the workers in bytes, mapped files included.
    #[must_use]
    pub fn memory(&self) -> Option<u64> {
        let own = Usage::of(std::process::id()).memory;
        let all = own.checked_add(self.activity.observer_usage.memory)?;
        (own > 0).then_some(all)
    }
}

/// Converts a duration to whole milliseconds.
#[must_use]
pub fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn cpu_time_grows_with_work() {
        let (before, start) = (own_cpu_time().expect("a process"), Instant::now());
        while own_cpu_time().expect("a process") < before + 20_000 {
            std::hint::spin_loop();
        }
        // Other tests run in threads of this process: at most one per CPU. 10 ms are for the granularity of the
        // kernel.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let elapsed = start.elapsed().as_micros() + 10_000;
        assert!(elapsed * processors as u128 >= 20_000, "{elapsed} us");
    }

    #[test]
    fn memory_includes_touched_pages() {
        const SIZE: usize = 64 << 20;
        let touched = std::hint::black_box(vec![1u8; SIZE]);
        let held = Control::default().memory().expect("/proc");
        let size = touched.len() as u64;
        // Other tests use memory of this process too, but less than 4 GiB.
        assert!((size..64 * size).contains(&held), "{held} bytes");
    }
}
