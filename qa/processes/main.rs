//! Processes: labels and states of their agents, and processes without telemetry.

#[path = "../support/mod.rs"]
mod support;

mod facts;
mod labels;
mod silent;
mod states;
