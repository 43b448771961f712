//! Whether an agent lives.

/// What `nixl.agent.state` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AgentState {
    /// It is not known who has its ring or store.
    #[default]
    Unknown = 0,
    /// It has its ring or store.
    Live = 1,
    /// It has it, and says nothing.
    Idle = 2,
    /// Nobody has it, or only who reads it.
    Exited = 3,
}

impl AgentState {
    /// In a word.
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
