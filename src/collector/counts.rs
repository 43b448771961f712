// SPDX-License-Identifier: GPL-2.0-or-later

//! Numbers of agents by state, and the activity of the collector.

use super::Collector;
use crate::procfs::agent_state::AgentState;
use crate::procfs::process::Usage;
use std::time::Duration;

/// Numbers of agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// [`AgentState::Live`].
    pub live: u32,
    /// [`AgentState::Idle`].
    pub idle: u32,
    /// [`AgentState::Exited`] and still an instance.
    pub exited: u32,
    /// [`AgentState::Unknown`].
    pub unknown: u32,
    /// Processes with a NIXL backend loaded that write to no attached file. `None`: not all processes are visible.
    pub silent: Option<u32>,
    /// Errors of all types, over all agents including expired ones.
    pub errors: u64,
    /// Overflows, over all agents including expired ones.
    pub full: u64,
    /// Memory that is registered now, in bytes, over all instances that run.
    pub registered: u64,
}

/// What the daemon handles now, and what it has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Counted events of all types.
    pub events: u64,
    /// Batches that were taken for counted although the producer may have restarted.
    pub doubtful_batches: u64,
    /// Attached files.
    pub attached_files: u32,
    /// Known agents, instances or not.
    pub agents: u32,
    /// Places for agents.
    pub places: u32,
    /// Places that are taken.
    pub places_taken: u32,
    /// Rejections of files for lack of a place, or because of too many new names.
    pub place_rejections: u64,
    /// Directories that are scanned.
    pub directories: u32,
    /// Directories that patterns match and that are not scanned.
    pub directories_left_out: u32,
    /// Configured directories that do not exist or cannot be read.
    pub missing_directories: u32,
    /// Rings and stores of a version that this build does not read.
    pub unsupported_files: u32,
    /// Rejected rings and stores.
    pub rejected_files: u32,
    /// Rejections of files. Each file counts once per reason.
    pub file_rejections: u64,
    /// Cached rejections.
    pub cached_rejections: u32,
    /// Completed process scans.
    pub process_scans: u64,
    /// Time that process scans took.
    pub process_scan_time: Duration,
    /// True if the observer runs and answers. `None`: none is configured.
    pub observes: Option<bool>,
    /// What the observer and its workers use, as of the last scan.
    pub observer_usage: Usage,
}

impl Collector {
    /// Counts the agents by state.
    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        let mut counts = AgentCounts {
            errors: self.shared.host.errors(),
            full: self.shared.expired_overflows,
            silent: self.silent().map(|silent| number(silent.len())),
            ..AgentCounts::default()
        };
        for agent in self.agents.values() {
            counts.full = counts.full.saturating_add(agent.entry.overflows);
            if !agent.is_published() {
                continue;
            }
            let registered = agent.registered().unwrap_or(0);
            counts.registered = counts.registered.saturating_add(registered);
            match agent.entry.agent_state {
                AgentState::Live => counts.live += 1,
                AgentState::Idle => counts.idle += 1,
                AgentState::Exited => counts.exited += 1,
                AgentState::Unknown => counts.unknown += 1,
            }
        }
        counts
    }

    /// Returns what the daemon handles now, and what it has done since the start.
    #[must_use]
    pub fn activity(&self) -> Activity {
        let (directories, left_out, missing) = self.scanner.directories();
        Activity {
            events: self.shared.counted_events,
            doubtful_batches: self.shared.doubtful_batches,
            attached_files: number(self.agents.attached().len()),
            agents: number(self.agents.len()),
            places: number(self.limits.places),
            places_taken: number(self.agents.places().total()),
            place_rejections: self.limits.rejections,
            directories: number(directories),
            directories_left_out: number(left_out + self.scanner.served()),
            missing_directories: number(missing),
            unsupported_files: number(self.scanner.unsupported()),
            rejected_files: number(self.scanner.rejected()),
            file_rejections: self.scanner.rejections(),
            cached_rejections: number(self.scanner.cached_rejections()),
            process_scans: self.process_scans.count,
            process_scan_time: self.process_scans.time,
            observes: { self.shared.config.proc_facts }.then(|| self.observer_answers()),
            observer_usage: self.observer_usage,
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
