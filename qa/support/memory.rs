//! Directories in memory.
#![allow(dead_code)] // each test binary uses a part of it

use tempfile::TempDir;

/// A directory on a file system in memory, as rings are to lie in; files there may be as large as files can be.
pub fn in_memory() -> TempDir {
    // Named after the run of the tests, so that what is left of it there is found (qa/guard).
    let run = std::env::var("NIXL_QA_RUN").unwrap_or_default();
    let prefix = format!("{}nixl", run.rsplit('/').next().unwrap_or_default());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    let made = builder.tempdir_in("/dev/shm");
    made.or_else(|_| builder.tempdir()).expect("a directory")
}
