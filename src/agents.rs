// SPDX-License-Identifier: GPL-2.0-or-later

//! NIXL agents: what is known of each, and all of them by key and by name.
//!
//! `collector` finds the files, attaches them to agents, and says which agent is drained next. Begin with [`Agent`].

mod agent;
mod eviction;
mod poll;
mod registry;
pub mod role_times;
pub use agent::{Agent, Outcome};
pub use registry::AgentKey;
pub(crate) use registry::Registry;

/// A change of the instance domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The agent became an instance.
    Published(AgentKey),
    /// The agent ceased to be an instance. It may have expired.
    Withdrawn {
        /// The agent.
        key: AgentKey,
        /// Its instance id, if it had one.
        id: Option<u32>,
    },
    /// The agent of this instance name expired. An agent that gets the name later is another one.
    Expired(String),
}
