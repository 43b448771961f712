//! What the agent says of itself: the `nixl.control` metrics.

use crate::agents::counts::{AgentCounts, Effort};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::unistd::{SysconfVar, sysconf};
use std::time::{Duration, Instant};

/// Counts and settings of the agent itself.
#[derive(Clone, Debug, Default)]
pub struct Control {
    /// Time between two drains.
    pub drain_interval: Duration,
    /// Drains of all rings.
    pub drains: u64,
    /// Time spent draining.
    pub drain_time: Duration,
    /// Ticks in which the time for drains was up before all was counted.
    pub drains_cut: u64,
    /// Ticks in which the time for looking was up before all was looked at.
    pub scans_cut: u64,
    /// Time spent looking through the directories.
    pub scan_time: Duration,
    /// Files refused, each file and reason once.
    pub files_refused: u64,
    /// Agents, by whether they live.
    pub agents: AgentCounts,
    /// What there is to be done, and was done.
    pub effort: Effort,
    /// Whether totals outlive the PMDA.
    pub is_persistent: bool,
    /// How often a configuration was taken.
    pub config_loads: u32,
    /// Why the configuration was not taken the last time; empty if it was.
    pub config_error: String,
    /// When the configuration was last read, in time since the epoch; `None`: it had a mistake.
    pub config_read: Option<Duration>,
    /// When the figures were last written to the debug log; `None`: the next tick writes them.
    pub figures_logged: Option<Instant>,
}

/// Time between two lines of figures in the debug log.
const FIGURES_EVERY: Duration = Duration::from_secs(60);

impl Control {
    /// True once a minute, and when debug messages were just switched on.
    pub fn are_figures_due(&mut self, now: Instant) -> bool {
        let is_due = self
            .figures_logged
            .is_none_or(|logged| now.saturating_duration_since(logged) >= FIGURES_EVERY);
        if is_due {
            self.figures_logged = Some(now);
        }
        is_due
    }

    /// What was done since the start and what it took, for the debug log.
    #[must_use]
    pub fn figures(&self) -> String {
        let effort = &self.effort;
        format!(
            "since the start: {} events in {} drains, which took {} ms ({} were cut off); scans of directories took {} ms \
             ({} were cut off); {} scans of /proc took {} ms; {} files attached, {} agents and {} rejected files remembered",
            effort.events,
            self.drains,
            milliseconds(self.drain_time),
            self.drains_cut,
            milliseconds(self.scan_time),
            self.scans_cut,
            effort.surveys,
            milliseconds(effort.survey_time),
            effort.rings,
            effort.known,
            effort.remembered,
        )
    }
}

/// Processor time of this process since its start, all threads, microseconds.
#[must_use]
pub fn cpu_time() -> Option<u64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let microseconds = |time: TimeVal| -> Option<u64> {
        let seconds = u64::try_from(time.tv_sec()).ok()?;
        Some(seconds * 1_000_000 + u64::try_from(time.tv_usec()).ok()?)
    };
    Some(microseconds(usage.user_time())? + microseconds(usage.system_time())?)
}

/// Bytes of memory that this process occupies, mapped files included; `None` where there is no /proc.
#[must_use]
pub fn memory() -> Option<u64> {
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    resident_pages(&std::fs::read_to_string("/proc/self/statm").ok()?)?.checked_mul(page)
}

/// Of /proc/PID/statm (proc_pid_statm(5)): size and resident, pages each, and more.
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whole microseconds, as PCP counts time here.
#[must_use]
pub fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Whole milliseconds.
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
        let (before, start) = (cpu_time().expect("a process"), Instant::now());
        while cpu_time().expect("a process") < before + 20_000 {
            std::hint::spin_loop();
        }
        // As many threads of other tests at most as there are processors, and the kernel's grain.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let elapsed = microseconds(start.elapsed()) + 10_000;
        assert!(elapsed * processors as u64 >= 20_000, "{elapsed} us");
    }

    #[test]
    fn memory_includes_touched_pages() {
        const SIZE: usize = 64 << 20;
        let touched = std::hint::black_box(vec![1u8; SIZE]);
        let held = memory().expect("/proc");
        let size = touched.len() as u64;
        // Other tests have theirs beside it, but not 4 GiB.
        assert!((size..64 * size).contains(&held), "{held} bytes");
    }

    #[test]
    fn invalid_statm_has_no_value() {
        assert_eq!(resident_pages("2044 631 563 9 0 136 0\n"), Some(631));
        for text in ["", "2044", "2044 -1", "2044 x 3", "1 99999999999999999999"] {
            assert_eq!(resident_pages(text), None, "{text:?}");
        }
    }
}
