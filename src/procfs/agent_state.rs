// SPDX-License-Identifier: GPL-2.0-or-later

//! The values of `nixl.agent.state`.

use crate::base::words::{Rest, Words};

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

/// The state file has only whether all processes have exited. A ring that is not found after a restart of the daemon
/// may still be written to.
impl Words for AgentState {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        (*self == Self::Exited).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        Some(match bool::get(words)? {
            true => Self::Exited,
            false => Self::Unknown,
        })
    }
}
