//! Who writes a ring or a store: whether a process has it, which one that is, and what is known of it.

pub mod agent_state;
pub mod ancestors;
pub mod facts;
pub mod liveness;
pub mod process;
pub mod process_scan;
pub mod scan_threads;
