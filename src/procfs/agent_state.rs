// SPDX-License-Identifier: GPL-2.0-or-later

//! The values of `nixl.agent.state`.

/// State of an agent, numbered as in `nixl.agent.state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentState {
    /// It is not known whether a process has the ring or store open for writing.
    #[default]
    Unknown = 0,
    /// The agent has its ring or store open.
    Live = 1,
    /// The agent has it open, and has written no event for `idle_after`.
    Idle = 2,
    /// No process has it open, or only processes that read it.
    Exited = 3,
}

impl AgentState {
    /// Returns the state as a word.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            AgentState::Exited => "exited",
            AgentState::Unknown => "unknown",
            AgentState::Idle => "idle",
            AgentState::Live => "live",
        }
    }
}
