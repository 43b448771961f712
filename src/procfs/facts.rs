// SPDX-License-Identifier: GPL-2.0-or-later

//! Facts from which the labels of an agent are made: container, pod, engine, batch job and others. No fact is guessed.
//!
//! The facts of a file ([`Facts::of_file`]) are known as soon as it is found. The facts of the process that writes it
//! ([`Facts::of_process`]) come from the process scan, because reading a command line or an environment may block.

pub mod cgroup;
pub mod command;
pub mod engine;
pub mod engine_by_name;
pub mod environ;
pub mod gpu;
pub mod kubelet;
pub mod labels;
pub mod pods;
pub mod process;
pub mod server;
pub mod telemetry;

pub use labels::Facts;
