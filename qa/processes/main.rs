//! Processes: the labels and states of the agents in them, and those without telemetry.

#[path = "../support/mod.rs"]
mod support;

mod facts;
mod labels;
mod silent;
mod states;
