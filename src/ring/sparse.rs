//! Whether the events that a ring claims to hold can be there at all.
//!
//! A file can be larger than all memory and hold nothing. To read such a hole through a mapping makes a file system in memory
//! fill it with pages, which count as this process's, so that one small file could use up what all agents write to.

use crate::find::unlocked::Holes;
use crate::ring::BATCH;
use crate::ring::layout::Layout;
use nix::sys::stat::fstat;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of what is looked at of a file in memory at a time: the smallest page that there is.
const PAGE: usize = 4096;
/// Bytes of a block, as stat(2) counts.
const BLOCK: u64 = 512;

/// Which slots of a ring were written to at some time.
#[derive(Debug)]
pub struct Written {
    layout: Layout,
    capacity: u64,
    /// `None`: not asked yet.
    holes: Option<Holes>,
    /// What is known until the file changes.
    known: Known,
}

/// What was found out, and when the file had changed last as it was.
#[derive(Debug, Default)]
struct Known {
    changed: Option<(i64, i64)>,
    /// Whether a page is no hole.
    pages: Vec<bool>,
    /// What stat(2) said that the file has.
    bytes: u64,
}

impl Written {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(layout: Layout, capacity: u64) -> Self {
        Self {
            layout,
            capacity,
            holes: None,
            known: Known::default(),
        }
    }

    /// Whether all slots of the next batch between two positions were written to. Where that cannot be told without waiting for
    /// the file's writer, or the file is too short for them, which will show, they count as written; and a page of a file in memory
    /// that holds nothing but zeros as one that never was. `changed` is when the file had changed last before this, if a hole that
    /// is made from now on shows in that, as punching and cutting do.
    #[must_use]
    pub fn covers(
        &mut self,
        file: &File,
        from: u64,
        write_pos: u64,
        changed: Option<(i64, i64)>,
    ) -> bool {
        if changed.is_none() || changed != self.known.changed {
            self.known = Known {
                changed,
                ..Known::default()
            };
        }
        let pending = write_pos.wrapping_sub(from) & (self.capacity - 1);
        match *self.holes.get_or_insert_with(|| Holes::of(file)) {
            Holes::Unknown => true,
            Holes::Blocks => self.has_blocks(file, pending),
            Holes::Pages => {
                let count = pending.min(BATCH);
                let first = count.min(self.capacity - from);
                [(from, first), (0, count - first)]
                    .into_iter()
                    .filter(|&(_, count)| count > 0)
                    .all(|(pos, count)| {
                        let (start, end) = (self.place(pos), self.place(pos + count));
                        let bytes = start.zip(end).map(|(start, end)| start..end);
                        bytes.is_none_or(|bytes| self.has_pages(file, &bytes))
                    })
            }
        }
    }

    /// Where in the file a slot begins.
    fn place(&self, pos: u64) -> Option<usize> {
        usize::try_from(self.layout.file_len(pos)?).ok()
    }

    /// Whether the file has as many bytes, wherever they are, as all slots that wait.
    fn has_blocks(&mut self, file: &File, pending: u64) -> bool {
        // What fits a page may be in the file's inode.
        let needed = self.layout.file_len(pending).unwrap_or(u64::MAX);
        if needed <= PAGE as u64 || needed <= self.known.bytes {
            return true;
        }
        let own = fstat(file).ok().map(|stat| stat.st_blocks.unsigned_abs());
        self.known.bytes = own.map_or(u64::MAX, |blocks| blocks.saturating_mul(BLOCK));
        needed <= self.known.bytes
    }

    fn has_pages(&mut self, file: &File, bytes: &Range<usize>) -> bool {
        let mut content = [0; PAGE];
        (bytes.start / PAGE..bytes.end.div_ceil(PAGE)).all(|page| {
            if self.known.pages.get(page) == Some(&true) {
                return true;
            }
            let place = page as u64 * PAGE as u64;
            let is_one = match file.read_at(&mut content, place) {
                Ok(len @ 1..) => content[..len].iter().any(|&byte| byte != 0),
                _ => true,
            };
            if is_one && self.known.changed.is_some() {
                let pages = &mut self.known.pages;
                pages.resize(pages.len().max(page + 1), false);
                pages[page] = true;
            }
            is_one
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ring of 4,096 slots in memory, and a page's worth of slots written from some bytes on.
    fn ring(written: &[u64]) -> File {
        let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
        let len = Layout::V4.file_len(4096).expect("small");
        file.set_len(len).expect("sparse");
        for &page in written {
            file.write_all_at(&[1; 4096], 4096 * page).expect("room");
        }
        file
    }

    #[test]
    fn events_in_a_hole_were_never_written() {
        // The first page ends in slot 253, and the last of 17 is that of the last two slots and a half.
        let file = ring(&[0, 1, 15, 16]);
        let written = |from, upto| Written::new(Layout::V4, 4096).covers(&file, from, upto, None);
        for (from, upto, expected) in [
            (0, 0, true),
            (3000, 3000, true),
            (0, 253, true),
            (0, 509, true),
            (0, 510, false),
            (1000, 1001, false),
            (3900, 4095, true),
            (3900, 200, true),
            (3900, 1000, false),
            (3000, 200, false),
            (4095, 0, true),
        ] {
            assert_eq!(written(from, upto), expected, "{from} to {upto}");
        }
    }

    #[test]
    fn what_had_no_hole_is_looked_at_again_when_the_file_has_changed() {
        let file = ring(&(0..17).collect::<Vec<_>>());
        let mut written = Written::new(Layout::V4, 4096);
        let mut covers = |from, upto, changed| written.covers(&file, from, upto, changed);
        let (before, after) = (Some((7, 0)), Some((7, 1)));
        assert!(covers(253, 1000, before));
        // As it cannot be without a change, so that it shows who looks.
        file.set_len(4096).expect("shorter");
        file.set_len(17 * 4096).expect("longer");
        assert!(covers(600, 1000, before), "known from the first look");
        assert!(!covers(600, 1100, before), "beyond what that saw");
        assert!(!covers(600, 1000, after));
        file.write_all_at(&[1; 17 * 4096], 0).expect("room");
        assert!(covers(600, 1000, after));
        file.set_len(4096).expect("shorter");
        file.set_len(17 * 4096).expect("longer");
        assert!(!covers(600, 1000, None));
        assert!(!covers(600, 1000, after), "what is not settled is not kept");
    }

    #[test]
    fn a_file_on_a_disk_has_as_many_blocks_as_events_wait_for() {
        let file = tempfile::tempfile().expect("a temporary file");
        if Holes::of(&file) != Holes::Blocks {
            println!("left out: temporary files are not on a file system that tells");
            return;
        }
        let len = Layout::V4.file_len(4096).expect("small");
        file.set_len(len).expect("sparse");
        let mut written = Written::new(Layout::V4, 4096);
        let mut covers = |from, upto| written.covers(&file, from, upto, Some((7, 0)));
        assert!(covers(0, 253), "a page may be there without a block");
        assert!(!covers(0, 1000) && !covers(4000, 900));
        file.write_all_at(&[1; 4 * 4096], 4096).expect("room");
        assert!(covers(253, 1253) && covers(0, 1000), "wherever they are");
        assert!(!covers(0, 1100));
        file.write_all_at(&[1; 17 * 4096], 0).expect("room");
        assert!(covers(0, 4095));
    }

    #[test]
    fn what_is_too_short_is_for_others_to_tell() {
        let file = ring(&[0]);
        file.set_len(40).expect("shorter");
        assert!(Written::new(Layout::V4, 4096).covers(&file, 100, 4000, None));
        assert!(Written::new(Layout::V1, 1 << 63).covers(&file, 1 << 62, 7, None));
    }
}
