// SPDX-License-Identifier: GPL-2.0-or-later

//! Freed memory of this process.

/// Returns freed memory to the kernel, also from the middle of the heap. By itself glibc returns only the end of the
/// heap, and almost always something there is in use. Takes a few milliseconds per hundred megabytes.
pub fn trim_heap() {
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
