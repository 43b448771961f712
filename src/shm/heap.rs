//! Memory of this process that nobody uses any more.

/// Gives what was freed back to the host, also from between what is still used: by itself the C library gives back only what lies
/// at the end of its heap, where something almost always does. Takes a few milliseconds for each hundred megabytes.
pub fn trim_heap() {
    // SAFETY: malloc_trim(3) may be called at any time, by any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}
