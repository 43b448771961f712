//! Time limits of waits in tests.
#![allow(dead_code)] // each test binary uses a part of it

use std::time::{Duration, Instant};

/// For whatever a test waits for: a condition that does not come true within it is a failure, on the slowest machine too.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for a condition; panics with what was waited for if it does not come true.
pub fn wait_for<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    soon(condition).unwrap_or_else(|| panic!("waited {PATIENCE:?} in vain: {what}"))
}

/// What a condition comes to; `None`: nothing, for as long as tests wait.
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
