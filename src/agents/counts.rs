//! How many agents there are, and what is done for them.

use super::Agents;
use crate::event::EventType;
use crate::procfs::agent_state::AgentState;
use std::time::Duration;

/// How many agents there are of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AgentCounts {
    /// [`AgentState::Live`].
    pub live: u32,
    /// [`AgentState::Idle`].
    pub idle: u32,
    /// [`AgentState::Exited`], of those that are instances.
    pub exited: u32,
    /// Rings and stores of a version that this build does not read.
    pub unsupported: u32,
    /// Rings that are refused.
    pub refused: u32,
    /// [`AgentState::Unknown`].
    pub unknown: u32,
    /// Processes that use NIXL and write nothing that is read here; `None`: not all processes can be seen.
    pub silent: Option<u32>,
    /// Errors of all agents that ever were, of all kinds.
    pub errors: u64,
    /// How often the rings of all agents that ever were, were found full.
    pub full: u64,
}

/// What the agent has to do, and has done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Events that were counted, of all types.
    pub events: u64,
    /// Batches that were taken for counted, although their ring may have been restarted since.
    pub doubtful: u64,
    /// Rings that are attached.
    pub rings: u32,
    /// Agents that are known, instances or not.
    pub known: u32,
    /// Places for agents.
    pub places: u32,
    /// Those that are taken.
    pub taken: u32,
    /// How often there was none for a file.
    pub refused_places: u64,
    /// Directories that are looked through.
    pub directories: u32,
    /// Directories that patterns match and that there is no place for.
    pub left_out: u32,
    /// Configured directories that do not exist or cannot be read.
    pub missing: u32,
    /// Files that were refused and are remembered.
    pub remembered: u32,
    /// Looks through /proc that were finished.
    pub surveys: u64,
    /// Time that all of them took.
    pub survey_time: Duration,
}

impl Agents {
    /// How many agents there are of each kind.
    #[must_use]
    pub fn counts(&self) -> AgentCounts {
        let mut counts = AgentCounts {
            errors: EventType::errors()
                .iter()
                .map(|&error| self.books.host.get(error))
                .fold(0, u64::saturating_add),
            full: self.books.forgotten_full,
            unsupported: number(self.scanner.unsupported()),
            refused: number(self.scanner.rejected()),
            silent: self.silent().map(|silent| number(silent.len())),
            ..AgentCounts::default()
        };
        for agent in self.agents.values() {
            counts.full = counts.full.saturating_add(agent.entry.full);
            if !agent.is_published() {
                continue;
            }
            match agent.entry.life {
                AgentState::Live => counts.live += 1,
                AgentState::Idle => counts.idle += 1,
                AgentState::Exited => counts.exited += 1,
                AgentState::Unknown => counts.unknown += 1,
            }
        }
        counts
    }

    /// What there is to be done, and was done since the start.
    #[must_use]
    pub fn effort(&self) -> Effort {
        let (directories, left_out, missing) = self.scanner.directories();
        Effort {
            events: self.books.counted,
            doubtful: self.books.doubtful,
            rings: number(self.agents.attached().len()),
            known: number(self.agents.len()),
            places: number(self.limits.rings),
            taken: number(self.agents.places().total()),
            refused_places: self.limits.refused,
            directories: number(directories),
            left_out,
            missing: number(missing),
            remembered: number(self.scanner.cached_rejections()),
            surveys: self.process_scans.count,
            survey_time: self.process_scans.time,
        }
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
