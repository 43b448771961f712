//! Whether the events that a ring claims to hold can be there at all.
//!
//! A file can be larger than all memory and hold nothing. To read such a hole through a mapping makes a file system in memory
//! fill it with pages, which count as this process's, so that one small file could use up what all agents write to.

use crate::ring::BATCH;
use crate::ring::layout::Layout;
use nix::unistd::{Whence, lseek};
use std::fs::File;
use std::ops::Range;

/// Which slots of a ring were written to at some time.
#[derive(Debug)]
pub struct Written {
    layout: Layout,
    capacity: u64,
    /// Bytes of the file in which there is no hole, and when it had changed last as they were looked at. To look for a hole takes
    /// as long as the file is, so that it is not done for each batch.
    whole: Option<((i64, i64), Range<i64>)>,
}

impl Written {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(layout: Layout, capacity: u64) -> Self {
        Self {
            layout,
            capacity,
            whole: None,
        }
    }

    /// Whether all slots of the next batch between two positions were written to. Where the file system does not tell, or the
    /// file is too short for them, which will show, they count as written. `changed` is when the file had changed last before
    /// this, if a hole that is made from now on shows in that, as punching and cutting do.
    #[must_use]
    pub fn covers(
        &mut self,
        file: &File,
        from: u64,
        write_pos: u64,
        changed: Option<(i64, i64)>,
    ) -> bool {
        let count = (write_pos.wrapping_sub(from) & (self.capacity - 1)).min(BATCH);
        let first = count.min(self.capacity - from);
        [(from, first), (0, count - first)]
            .into_iter()
            .filter(|&(_, count)| count > 0)
            .all(|(pos, count)| {
                let (start, end) = (self.place(pos), self.place(pos + count));
                let bytes = start.zip(end).map(|(start, end)| start..end);
                bytes.is_none_or(|bytes| self.is_whole(file, &bytes, changed))
            })
    }

    /// Where in the file a slot begins.
    fn place(&self, pos: u64) -> Option<i64> {
        i64::try_from(self.layout.file_len(pos)?).ok()
    }

    fn is_whole(&mut self, file: &File, bytes: &Range<i64>, changed: Option<(i64, i64)>) -> bool {
        let known = self.whole.as_ref();
        let is_known = known.is_some_and(|(when, whole)| {
            changed == Some(*when) && whole.start <= bytes.start && bytes.end <= whole.end
        });
        if is_known {
            return true;
        }
        let Ok(hole) = lseek(file, bytes.start, Whence::SeekHole) else {
            return true;
        };
        self.whole = changed.map(|when| (when, bytes.start..hole));
        bytes.end <= hole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A ring of 4,096 slots, and a page's worth of slots written from some bytes on.
    fn ring(written: &[u64]) -> File {
        let file = tempfile::tempfile().expect("a temporary file");
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
        assert!(covers(253, 600, before));
        // As it cannot be without a change, so that it shows who looks.
        file.set_len(4096).expect("shorter");
        file.set_len(17 * 4096).expect("longer");
        assert!(covers(600, 1000, before), "known from the first look");
        assert!(!covers(0, 300, before), "before where that began");
        assert!(!covers(600, 1000, before), "a look forgets the one before");
        file.write_all_at(&[1; 17 * 4096], 0).expect("room");
        assert!(covers(0, 300, before));
        file.set_len(4096).expect("shorter");
        file.set_len(17 * 4096).expect("longer");
        assert!(covers(600, 1000, before));
        assert!(!covers(600, 1000, after));
        assert!(!covers(600, 1000, None));
    }

    #[test]
    fn what_is_too_short_is_for_others_to_tell() {
        let file = ring(&[0]);
        file.set_len(40).expect("shorter");
        assert!(Written::new(Layout::V4, 4096).covers(&file, 100, 4000, None));
        assert!(Written::new(Layout::V1, 1 << 63).covers(&file, 1 << 62, 7, None));
    }
}
