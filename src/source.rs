//! Attached files: rings that are drained or followed, and stores that are read.

pub mod ring;
pub mod store;
