// SPDX-License-Identifier: GPL-2.0-or-later

//! The check that the events that a ring claims to hold can have been written at all.
//!
//! A sparse file can be larger than all memory. Reading a hole through a mapping makes tmpfs allocate pages for it.

use crate::ring::layout::Layout;
use crate::shm::nonblocking;
use nix::sys::stat::fstat;
use std::fs::File;

/// Bytes of the smallest page. A file of one page may be stored in its inode, which has no blocks.
const PAGE: u64 = 4096;
/// Bytes of a block in `st_blocks` (stat(2)).
const BLOCK: u64 = 512;

/// True if the file has at least as many allocated blocks as `pending` events take, or if its file system does not
/// count them.
#[must_use]
pub fn has_blocks_for(file: &File, layout: Layout, pending: u64) -> bool {
    let needed = layout.file_len(pending).unwrap_or(u64::MAX);
    if needed <= PAGE {
        return true;
    }
    // stat(2) does not wait for the inode lock, as lseek(2) with SEEK_HOLE does.
    let allocated = fstat(file).map_or(u64::MAX, |stat| {
        stat.st_blocks.unsigned_abs().saturating_mul(BLOCK)
    });
    needed <= allocated || !nonblocking::counts_blocks(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn pending_events_need_allocated_blocks() {
        for file in [
            tempfile::tempfile().expect("a temporary file"),
            tempfile::tempfile_in("/dev/shm").expect("a file in memory"),
        ] {
            if !nonblocking::counts_blocks(&file) {
                println!("left out: the file system of temporary files does not count blocks");
                continue;
            }
            let len = Layout::V4.file_len(4096).expect("small");
            file.set_len(len).expect("sparse");
            let has_blocks_for = |pending| super::has_blocks_for(&file, Layout::V4, pending);
            assert!(has_blocks_for(253), "one page may be in the inode");
            assert!(!has_blocks_for(1000));
            file.write_all_at(&[1; 4 * 4096], 4096).expect("space");
            assert!(
                has_blocks_for(1000),
                "the position of the blocks does not matter"
            );
            assert!(!has_blocks_for(1100));
            file.write_all_at(&[1; 17 * 4096], 0).expect("space");
            assert!(has_blocks_for(4095));
        }
    }
}
