// SPDX-License-Identifier: GPL-2.0-or-later

//! Time limits of waits in tests.

use std::time::{Duration, Instant};

/// Limit of each wait in a test, long enough for the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition returns a value. Panics with `what` after [`PATIENCE`].
pub fn wait_for<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    soon(condition).unwrap_or_else(|| panic!("not within {PATIENCE:?}: {what}"))
}

/// Waits until a condition returns a value. Returns `None` after [`PATIENCE`].
pub fn soon<T>(mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
