//! NIXL agents: what is known of each, and all of them by key and by name.
//!
//! This module knows neither directories nor the order of a tick: `collector` attaches files to agents and drains them. Begin with
//! [`Agent`].

mod agent;
mod eviction;
mod poll;
mod registry;
pub use agent::{Agent, Outcome};
pub(crate) use eviction::Evictable;
pub use registry::AgentKey;
pub(crate) use registry::Registry;

/// The instance domain changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An agent is an instance from now on.
    Appeared(AgentKey),
    /// An agent is no instance any more; it may be forgotten.
    Left {
        /// The agent.
        key: AgentKey,
        /// Its instance id, if it had one.
        id: Option<u32>,
    },
    /// The agent of this instance name is not remembered any more: one that comes under it is another.
    Forgotten(String),
}
