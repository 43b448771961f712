//! State that survives the daemon, wherever it ends and whatever fails.

#[path = "../support/mod.rs"]
mod support;

mod crash;
mod faults;
mod ids;
mod state;
