//! What is kept of the last batch of a ring, and what became of it when the position is not where it was left.
//!
//! A batch is first counted, in one step that a kill cannot divide, and only then are its slots given back, by a
//! compare-and-swap of `read_pos`. Where that fails, or the daemon was killed in between, [`Commit::judge`] decides, so that
//! nothing is counted twice and nothing is lost.

use crate::base::file::{self, FILE_TIME_GRANULARITY, FileId, is_younger_than};
use crate::ring::protocol::{Ahead, Consumer, Load};
use crate::ring::{Batch, Print, Ring};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Acquire;

/// The last batch that was counted, and the ring that it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The ring.
    pub ring: Identity,
    /// Position of its first event.
    pub from: u64,
    /// Position behind its last event.
    pub upto: u64,
    /// What its slots looked like.
    pub print: Print,
    /// Where the producer was when they were copied, and what it had yet to write.
    pub ahead: Ahead,
    /// Whether the ring was only looked at, so that its slots were another's to give back.
    pub observed: bool,
    /// Whether its slots are known to have been given back: then `read_pos` cannot be behind them.
    pub released: bool,
}

/// Which ring it is, as it was when its slots were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The file.
    pub id: FileId,
    /// When the file was made: seconds and nanoseconds; zeros where the file system does not say.
    pub born: (i64, i64),
    /// When the file last changed. A restart of the producer always changes it, by ftruncate(2), and so does the first store
    /// to each page of a mapping.
    pub changed: (i64, i64),
    /// Whether that was long enough ago, when it was looked at, for a later change to show: the clock is coarse.
    pub settled: bool,
    /// Version, as the header has it.
    pub versions: u64,
    /// Slots.
    pub capacity: u64,
}

/// What became of the slots of a batch that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They were given back.
    Done,
    /// They were not: `read_pos` is to be moved on from where it is.
    Release,
    /// Another reader took this many of them as well: `read_pos` is to be moved on from where that one left it.
    Overtaken(u64),
    /// Another reader took all of them, and this many events that were never seen here.
    Passed(u64),
    /// The producer was started anew: this is another ring, to be drained from its `read_pos`.
    NewRing,
    /// The same, and the slots were given back in the new ring: its `read_pos`, which was 0 as in the old one, is to be put
    /// there again.
    NewRingReleased,
}

/// What a ring looks like now.
#[derive(Debug)]
pub struct Sight<'a, W> {
    /// Which ring it is.
    pub identity: &'a Identity,
    /// Its `read_pos`.
    pub read_pos: u64,
    /// Its `write_pos`.
    pub write_pos: u64,
    /// Its words.
    pub ring: Consumer<'a, W>,
}

impl Commit {
    /// A batch whose slots were not given back yet, or are another's to give back.
    #[must_use]
    pub fn of(batch: &Batch, ring: Identity, observed: bool) -> Self {
        Self {
            ring,
            from: batch.from,
            upto: batch.upto,
            print: batch.print,
            ahead: batch.ahead,
            observed,
            released: false,
        }
    }

    /// Whether it is still to be found out, or seen to, that its slots are given back: forgotten before that, it would be counted
    /// once more.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        !self.released && !self.observed
    }

    /// Says what became of the batch, from where the ring is now.
    #[must_use]
    pub fn judge<W: Load>(&self, now: &Sight<W>) -> Fate {
        let mask = now.identity.capacity.wrapping_sub(1);
        let between = |from: u64, upto: u64| upto.wrapping_sub(from) & mask;
        if !self.ring.is_same_file(now.identity) {
            return Fate::NewRing;
        }
        let (len, moved) = (
            between(self.from, self.upto),
            between(self.from, now.read_pos),
        );
        if now.read_pos == self.upto {
            // A swap from 0 may have met a new ring, which began at 0 as well.
            return if self.from == 0 && !self.released && len > 0 && self.met_new_ring(now) {
                Fate::NewRingReleased
            } else {
                Fate::Done
            };
        }
        if !self.is_same_ring(now, len, moved) {
            return Fate::NewRing;
        }
        if self.observed {
            // The one that drained it may have been behind what was seen here, or ahead.
            let behind = between(now.read_pos, self.upto);
            return if behind <= between(now.read_pos, now.write_pos) {
                Fate::Release
            } else {
                Fate::Passed(between(self.upto, now.read_pos))
            };
        }
        match moved {
            _ if self.released => Fate::Passed(between(self.upto, now.read_pos)),
            0 => Fate::Release,
            _ if moved < len => Fate::Overtaken(moved),
            _ => Fate::Passed(between(self.upto, now.read_pos)),
        }
    }

    /// Whether nothing happened to the file since, which proves that the producer is the same.
    fn is_unchanged(&self, now: &Identity) -> bool {
        self.ring.settled && self.ring.changed == now.changed
    }

    /// Whether a producer that was started anew since, with the same first events, cannot be told from the one before: a batch that
    /// begins where a new ring does, in a file that was touched.
    #[must_use]
    pub fn is_doubtful(&self, now: &Identity) -> bool {
        self.from == 0 && !self.released && !self.is_unchanged(now)
    }

    /// Whether the producer stands elsewhere without having written the slot that was its next: then it was started anew.
    fn went_back<W: Load>(&self, now: &Sight<W>) -> bool {
        !self.is_unchanged(now.identity)
            && now.write_pos != self.ahead.write_pos
            && now.ring.slot_at(self.ahead.write_pos) == self.ahead.next
    }

    /// Whether a ring that is only followed was set up anew since this was seen of it. What a producer has written is as it was
    /// as long as it does not go round, and to do that it writes all that lay before it. That it has not written the slot that
    /// was its next is no proof by itself: where sums are steady, that is the same bytes as in the round before.
    #[must_use]
    pub fn is_of_another<W: Load>(
        &self,
        ring: &Consumer<W>,
        now: &Identity,
        write_pos: u64,
    ) -> bool {
        if self.is_unchanged(now) {
            return false;
        }
        if write_pos < self.ahead.write_pos {
            return ring.slot_at(self.ahead.write_pos) == self.ahead.next
                && ring.beyond(self.ahead.write_pos) == self.ahead.beyond;
        }
        // Of a ring of which nothing was counted yet, the last slot.
        let empty = self.from == self.upto;
        let from = self.from.wrapping_sub(u64::from(empty)) & now.capacity.wrapping_sub(1);
        ring.print(from, self.upto) != self.print
    }

    /// Whether the slots were given back, from 0 on, by a new ring. In the old one they are as they were until the producer
    /// has gone round, and to do that it writes those beyond.
    fn met_new_ring<W: Load>(&self, now: &Sight<W>) -> bool {
        let print = now.ring.print(self.from, self.upto);
        // Once more, and only now: a producer that went round and over the batch shows a position behind it.
        W::fence(Acquire);
        let Ok((_, write_pos)) = now.ring.positions() else {
            return true; // in the midst of a restart
        };
        let betrayed = if write_pos < self.ahead.write_pos {
            now.ring.beyond(self.ahead.write_pos) == self.ahead.beyond
        } else {
            print != self.print
        };
        betrayed && !self.is_unchanged(now.identity)
    }

    /// Whether the producer is the one that wrote the batch.
    fn is_same_ring<W: Load>(&self, now: &Sight<W>, len: u64, moved: u64) -> bool {
        let mask = now.identity.capacity.wrapping_sub(1);
        // Slots that were not given back cannot have been written to.
        let kept = if self.released || self.observed {
            0
        } else {
            len.saturating_sub(moved)
        };
        let ahead = now.write_pos.wrapping_sub(self.upto) & mask;
        if kept > 0 && ahead > mask - kept {
            return false;
        }
        if self.is_unchanged(now.identity) {
            return true;
        }
        // Where a restart puts it; another reader is hardly ever there.
        if now.read_pos == 0 && !self.observed && (self.from != 0 || self.released) {
            return false;
        }
        let same_bytes = if moved == 0 && !self.released {
            now.ring.print(self.from, self.upto) == self.print
        } else {
            let last = self.upto.wrapping_sub(1) & mask;
            now.ring.slot_at(last) == self.print.last
        };
        // A restarted agent's first event is often the same bytes in the same place (its memory registration).
        // What is written behind a batch that nobody has taken is the same bytes as before where sums are steady, and it was
        // written by whoever wrote the batch: it tells nothing.
        let went_back = match self.observed {
            true => self.is_of_another(&now.ring, now.identity, now.write_pos),
            false => (moved > 0 || self.released) && self.went_back(now),
        };
        same_bytes && !went_back
    }
}

impl Identity {
    /// What a ring's file is now, with a ring of this version and size in it.
    ///
    /// # Errors
    /// What statx(2) says; `InvalidData` for a file that holds another layout by now.
    pub fn of(ring: &Ring) -> io::Result<Self> {
        let meta = ring.file().metadata()?;
        if ring.is_taken_for_another(meta.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            id: FileId {
                dev: meta.dev(),
                ino: meta.ino(),
            },
            born: file::birth_time(&meta),
            changed: (meta.ctime(), meta.ctime_nsec()),
            settled: !is_younger_than((meta.ctime(), meta.ctime_nsec()), FILE_TIME_GRANULARITY),
            versions: ring.shape.versions,
            capacity: ring.capacity(),
        })
    }

    /// Whether it is the same file with a ring of the same size and version.
    #[must_use]
    pub fn is_same_file(&self, other: &Identity) -> bool {
        (self.id, self.born, self.versions, self.capacity)
            == (other.id, other.born, other.versions, other.capacity)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ring::layout::{CAPACITY, Header, Layout, VERSIONS, WRITE_POS};
    use crate::shm::ReadWord;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    fn write_word(file: &File, word: usize, value: u64) {
        let at = 8 * u64::try_from(word).expect("small");
        file.write_all_at(&value.to_le_bytes(), at)
            .expect("written");
    }

    /// A v4 ring of 16 slots with these words in the slots from 0 on, and the commit of its batch `from..upto`.
    pub(crate) struct Table {
        file: File,
        pub(crate) ring: Ring,
        pub(crate) commit: Commit,
    }

    impl Table {
        pub(crate) fn new(from: u64, upto: u64) -> Self {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len(Layout::V4.file_len(16).expect("small"))
                .expect("room");
            let header = Header {
                write_pos: 0,
                read_pos: 0,
                version: 4,
                expected_version: 4,
                capacity: 16,
                mask: 15,
            };
            let ring = Ring::map(
                file.try_clone().expect("a descriptor"),
                &header,
                Layout::V4,
                false,
            )
            .expect("mapped");
            for (word, value) in [(VERSIONS, (4 << 32) | 4), (CAPACITY, 16)] {
                write_word(&file, word, value);
            }
            let mut table = Self {
                file,
                ring,
                commit: Commit::default(),
            };
            (0..16).for_each(|pos| table.put(pos, 100 + pos));
            let identity = Identity {
                versions: (4 << 32) | 4,
                capacity: 16,
                changed: (7, 7),
                settled: true,
                ..Identity::default()
            };
            table.commit = Commit {
                ring: identity,
                from,
                upto,
                print: table.read(|ring| ring.print(from, upto)),
                ahead: table.read(|ring| Ahead {
                    write_pos: upto,
                    next: ring.slot_at(upto),
                    beyond: ring.beyond(upto),
                }),
                observed: false,
                released: false,
            };
            table
        }

        fn read<T>(&self, run: impl FnOnce(Consumer<ReadWord>) -> T) -> T {
            self.ring.read(run).expect("whole")
        }

        /// Writes a slot's value.
        fn put(&mut self, pos: u64, value: u64) {
            self.file
                .write_all_at(&value.to_le_bytes(), 40 + 16 * pos + 8)
                .expect("written");
        }

        fn judge(&self, identity: Identity, read_pos: u64, write_pos: u64) -> Fate {
            self.moves_on(write_pos);
            self.judge_late(identity, read_pos, write_pos)
        }

        fn judge_late(&self, identity: Identity, read_pos: u64, write_pos: u64) -> Fate {
            self.read(|ring| {
                self.commit.judge(&Sight {
                    identity: &identity,
                    read_pos,
                    write_pos,
                    ring,
                })
            })
        }

        /// The producer writes the slot that was its next.
        fn goes_on(mut self) -> Self {
            self.put(self.commit.upto, 1);
            self
        }

        /// Where the producer is when its position is looked at once more.
        pub(crate) fn moves_on(&self, write_pos: u64) {
            write_word(&self.file, WRITE_POS, write_pos);
        }

        /// The same ring, whose file was touched.
        fn touched(&self) -> Identity {
            Identity {
                changed: (8, 8),
                ..self.commit.ring
            }
        }
    }

    #[test]
    fn an_unchanged_file_is_the_same_ring_and_the_position_tells_the_fate() {
        let table = Table::new(4, 10);
        let same = table.commit.ring;
        assert_eq!(table.judge(same, 10, 12), Fate::Done);
        assert_eq!(table.judge(same, 4, 12), Fate::Release);
        assert_eq!(table.judge(same, 7, 12), Fate::Overtaken(3));
        assert_eq!(table.judge(same, 12, 12), Fate::Passed(2));
        assert_eq!(table.judge(same, 2, 2), Fate::Passed(8));
        assert_eq!(table.judge(same, 0, 0), Fate::Passed(6));
    }

    #[test]
    fn another_file_version_or_size_is_a_new_ring_wherever_its_position_is() {
        let table = Table::new(4, 10);
        let same = table.commit.ring;
        let other = |change: fn(&mut Identity)| {
            let mut other = same;
            change(&mut other);
            [4, 10, 0].map(|read_pos| table.judge(other, read_pos, 10))
        };
        assert_eq!(other(|ring| ring.id.ino = 1), [Fate::NewRing; 3]);
        assert_eq!(other(|ring| ring.born = (1, 0)), [Fate::NewRing; 3]);
        assert_eq!(
            other(|ring| ring.versions = (3 << 32) | 3),
            [Fate::NewRing; 3]
        );
        assert_eq!(other(|ring| ring.capacity = 8), [Fate::NewRing; 3]);
    }

    #[test]
    fn a_touched_file_whose_slots_are_as_they_were_is_the_same_ring() {
        let table = Table::new(4, 10).goes_on();
        let touched = table.touched();
        assert_eq!(table.judge(touched, 10, 3), Fate::Done);
        // The producer may have filled the ring up to what it was not given back.
        assert_eq!(table.judge(touched, 4, 3), Fate::Release);
        assert_eq!(table.judge(touched, 7, 6), Fate::Overtaken(3));
        assert_eq!(table.judge(touched, 12, 12), Fate::Passed(2));
    }

    #[test]
    fn a_slot_that_was_overwritten_before_it_was_given_back_betrays_a_restart() {
        let mut table = Table::new(4, 10).goes_on();
        let touched = table.touched();
        table.put(5, 1);
        assert_eq!(table.judge(touched, 4, 12), Fate::NewRing);
        // Given back by another reader, it may be overwritten.
        assert_eq!(table.judge(touched, 7, 12), Fate::Overtaken(3));
        table.put(9, 1);
        assert_eq!(table.judge(touched, 7, 12), Fate::NewRing);
        assert_eq!(table.judge(touched, 10, 12), Fate::Done);
    }

    #[test]
    fn a_producer_that_stands_within_the_batch_was_restarted() {
        let table = Table::new(4, 10).goes_on();
        let touched = table.touched();
        for write_pos in 4..10 {
            assert_eq!(
                table.judge(touched, 4, write_pos),
                Fate::NewRing,
                "{write_pos}"
            );
        }
        assert_eq!(table.judge(touched, 7, 7), Fate::NewRing);
        assert_eq!(table.judge(touched, 7, 6), Fate::Overtaken(3));
    }

    #[test]
    fn the_same_bytes_at_the_start_of_a_ring_are_taken_for_counted_with_a_doubt_if_it_was_touched()
    {
        let table = Table::new(0, 2);
        for (ring, is_doubtful) in [(table.commit.ring, false), (table.touched(), true)] {
            // Rather lost than counted twice.
            assert_eq!(table.judge(ring, 0, 2), Fate::Release);
            assert_eq!(table.commit.is_doubtful(&ring), is_doubtful);
        }
        let table = Table::new(4, 10);
        assert!(!table.commit.is_doubtful(&table.touched()));
    }

    #[test]
    fn a_position_behind_slots_that_were_given_back_betrays_a_restart() {
        let mut table = Table::new(0, 2).goes_on();
        table.commit.released = true;
        // The same bytes in the same place, and nothing to tell the writers apart.
        let touched = table.touched();
        assert_eq!(table.judge(touched, 0, 2), Fate::NewRing);
        assert_eq!(table.judge(touched, 2, 2), Fate::Done);
        assert_eq!(table.judge(touched, 5, 5), Fate::Passed(3));
        assert_eq!(table.judge(table.commit.ring, 0, 5), Fate::Passed(14));
    }

    #[test]
    fn a_swap_from_0_that_met_a_new_ring_is_taken_back() {
        let mut table = Table::new(0, 5);
        let same = table.commit.ring;
        let touched = table.touched();
        assert_eq!(table.judge(touched, 5, 5), Fate::Done);
        // The new producer has not come as far as the old one, whose next slot it left alone.
        assert_eq!(table.judge(touched, 5, 0), Fate::NewRingReleased);
        assert_eq!(table.judge(touched, 5, 3), Fate::NewRingReleased);
        assert_eq!(table.judge(same, 5, 3), Fate::Done);
        table.commit.released = true;
        assert_eq!(table.judge(touched, 5, 3), Fate::Done);
        // It has come further, over the batch.
        table.commit.released = false;
        table.put(2, 9);
        assert_eq!(table.judge(touched, 5, 5), Fate::NewRingReleased);
        assert_eq!(table.judge(touched, 5, 9), Fate::NewRingReleased);
        // A producer that has gone round has written it.
        table.commit.released = false;
        let table = table.goes_on();
        assert_eq!(table.judge(touched, 5, 3), Fate::Done);
    }

    #[test]
    fn a_producer_that_writes_the_bytes_of_its_last_round_is_the_same() {
        for from in [0, 4] {
            let table = Table::new(from, 10);
            // Sums of a steady load: what is written at 10 is what stood there.
            let touched = table.touched();
            assert_eq!(table.judge(touched, from, 12), Fate::Release, "{from}");
        }
    }

    #[test]
    fn a_producer_that_goes_round_and_over_the_batch_during_the_look_is_the_same() {
        let mut table = Table::new(0, 15);
        let touched = table.touched();
        // It waited for room: from 15, where it was seen, it has gone on to 3 before the slots were compared.
        for (pos, value) in [(15, 1), (0, 2), (1, 3), (2, 4)] {
            table.put(pos, value);
        }
        table.moves_on(3);
        assert_eq!(table.judge_late(touched, 15, 15), Fate::Done);
        // That it is still where it was is proof of a restart.
        table.moves_on(15);
        assert_eq!(table.judge_late(touched, 15, 15), Fate::NewRingReleased);
    }

    #[test]
    fn followed_ring_is_a_new_one_if_its_producer_went_back() {
        let mut table = Table::new(4, 10);
        table.commit.observed = true;
        let (same, touched) = (table.commit.ring, table.touched());
        // Nothing was written at 10 and beyond, where the producer was to go on.
        assert_eq!(table.judge(touched, 0, 3), Fate::NewRing);
        assert_eq!(table.judge(touched, 4, 12), Fate::Release);
        // The other reader has released the batch, so that the producer may be anywhere.
        assert_eq!(table.judge(same, 4, 5), Fate::Passed(10));
        let mut table = table.goes_on();
        assert_eq!(table.judge(touched, 4, 3), Fate::Release, "it went round");
        table.put(5, 1);
        assert_eq!(table.judge(touched, 7, 12), Fate::NewRing);
    }

    #[test]
    fn released_slots_may_be_written_again() {
        let mut table = Table::new(4, 10);
        table.commit.released = true;
        assert_eq!(table.judge(table.commit.ring, 5, 6), Fate::Passed(11));
    }

    #[test]
    fn batch_is_in_flight_unless_released_or_another_readers() {
        let in_flight = |observed, released| {
            let commit = Commit {
                observed,
                released,
                ..Commit::default()
            };
            commit.is_in_flight()
        };
        assert!(in_flight(false, false));
        assert!(!in_flight(false, true));
        assert!(!in_flight(true, false));
    }

    #[test]
    fn a_change_time_that_was_too_young_proves_nothing() {
        let mut table = Table::new(4, 10);
        table.commit.ring.settled = false;
        assert_eq!(table.judge(table.commit.ring, 0, 0), Fate::NewRing);
    }

    #[test]
    fn a_batch_that_wraps_is_judged_alike() {
        let table = Table::new(14, 3).goes_on();
        let same = table.commit.ring;
        assert_eq!(table.judge(same, 14, 5), Fate::Release);
        assert_eq!(table.judge(same, 0, 5), Fate::Overtaken(2));
        assert_eq!(table.judge(same, 5, 5), Fate::Passed(2));
        assert_eq!(table.judge(table.touched(), 14, 13), Fate::Release);
        assert_eq!(table.judge(table.touched(), 14, 14), Fate::NewRing);
    }
}
