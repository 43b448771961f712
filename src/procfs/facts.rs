//! The facts behind the labels of an agent's instance, as users of containers, pods, engines and batch systems know them. Each
//! is there or not; none is guessed.
//!
//! Those of the file ([`Facts::of_file`]) are known as soon as it is found. Those of the process that writes it
//! ([`Facts::of_process`]) are found by the process scan: to read a command line or an environment waits for the memory of
//! another user's process.

pub mod cgroup;
pub mod command;
pub mod engine;
pub mod environ;
pub mod gpu;
pub mod kubelet;
pub mod labels;
pub mod names;
pub mod pods;
pub mod process;
pub mod server;
pub mod telemetry;

pub use labels::Facts;
