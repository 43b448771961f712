//! Agents, through the test kit: when they are instances, what counts for them, and their limits.

#[path = "../support/mod.rs"]
mod support;

mod agents;
mod figures;
mod quiet;
mod removal;
mod shares;

#[cfg(feature = "pcp")]
mod churn;
#[cfg(feature = "pcp")]
mod replay;
#[cfg(feature = "pcp")]
mod soak;
