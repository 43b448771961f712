// SPDX-License-Identifier: GPL-2.0-or-later

//! Temporary directories on a tmpfs.

use tempfile::TempDir;

/// Makes a directory on a tmpfs, where rings should be. Sparse files there may have any size.
pub fn in_memory() -> TempDir {
    // The name has the id of the test run, so that qa/guard finds leftovers.
    let run = std::env::var("NIXL_QA_RUN").unwrap_or_default();
    let prefix = format!("{}nixl", run.rsplit('/').next().unwrap_or_default());
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix);
    let made = builder.tempdir_in("/dev/shm");
    made.or_else(|_| builder.tempdir()).expect("a directory")
}
