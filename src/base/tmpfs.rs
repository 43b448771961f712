// SPDX-License-Identifier: GPL-2.0-or-later

//! Space of file systems in memory (tmpfs). If a mapped file gets no page there, the kernel kills the application with
//! SIGBUS.

use nix::sys::statfs::{Statfs, TMPFS_MAGIC, fstatfs};
use std::fmt::{self, Display, Formatter};
use std::os::fd::AsFd;

/// Space of a tmpfs that has a size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size limit in bytes.
    pub size: u64,
    /// Free space in bytes.
    pub free: u64,
}

impl Space {
    /// Returns the space of the tmpfs that has an open file or directory. `None`: another file system, or no limit.
    ///
    /// It may block: on NFS and FUSE, fstatfs(2) waits for the server.
    #[must_use]
    pub fn of_tmpfs(file: impl AsFd) -> Option<Self> {
        let found = fstatfs(file).ok()?;
        (found.filesystem_type() == TMPFS_MAGIC).then(|| Self::of(&found))?
    }

    /// Returns `None` for a tmpfs without a limit, which has 0 blocks (tmpfs(5), `size`).
    fn of(found: &Statfs) -> Option<Self> {
        let block = u64::try_from(found.block_size()).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(block);
        (found.blocks() > 0).then(|| Self {
            size: bytes(found.blocks()),
            free: bytes(found.blocks_available()),
        })
    }

    /// True if more than this percentage of the space is used.
    #[must_use]
    pub fn is_over(self, percent: u8) -> bool {
        let used = u128::from(self.size.saturating_sub(self.free));
        used * 100 > u128::from(self.size) * u128::from(percent)
    }
}

impl Display for Space {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes are free", self.free, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_on_another_file_system_has_no_space() {
        let file = std::fs::File::open("/proc/self/stat").expect("mounted");
        assert_eq!(Space::of_tmpfs(&file), None);
    }

    #[test]
    fn space_with_more_than_90_percent_used_is_over_90() {
        for (size, free, expected) in [
            (8192, 8192, false),
            (1000, 101, false),
            (1000, 100, false),
            (1000, 99, true),
            (8192, 0, true),
            (u64::MAX, 0, true),
            (0, 0, false),
        ] {
            let space = Space { size, free };
            assert_eq!(space.is_over(90), expected, "{space}");
        }
    }
}
