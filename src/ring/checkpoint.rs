//! What is kept of the last batch of a ring, and what became of it when the position is not where it was left.
//!
//! A batch is first counted, in one step that a kill cannot divide, and only then are its slots given back, by a
//! compare-and-swap of `read_pos`. Where that fails, or the daemon was killed in between, [`Checkpoint::verdict`] decides, so that
//! nothing is counted twice and nothing is lost.

use crate::base::file::{self, FILE_TIME_GRANULARITY, FileId, is_younger_than};
use crate::ring::protocol::{Consumer, Load, ProducerState};
use crate::ring::{Batch, Fingerprint, Ring};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Acquire;

/// The last batch that was counted, and the ring that it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The ring.
    pub ring: RingIdentity,
    /// Position of its first event.
    pub from: u64,
    /// Position behind its last event.
    pub end: u64,
    /// What its slots looked like.
    pub fingerprint: Fingerprint,
    /// Where the producer was when they were copied, and what it had yet to write.
    pub producer: ProducerState,
    /// Whether the ring was only looked at, so that its slots were another's to give back.
    pub followed: bool,
    /// Whether its slots are known to have been given back: then `read_pos` cannot be behind them.
    pub released: bool,
}

/// Which ring it is, as it was when its slots were copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingIdentity {
    /// The file.
    pub id: FileId,
    /// When the file was made: seconds and nanoseconds; zeros where the file system does not say.
    pub born: (i64, i64),
    /// When the file last changed. A restart of the producer always changes it, by ftruncate(2), and so does the first store
    /// to each page of a mapping.
    pub changed: (i64, i64),
    /// Whether that was long enough ago, when it was looked at, for a later change to show: the clock is coarse.
    pub shows_changes: bool,
    /// Version, as the header has it.
    pub versions: u64,
    /// Slots.
    pub capacity: u64,
}

/// What became of the slots of a batch that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
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
pub struct RingView<'a, W> {
    /// Which ring it is.
    pub identity: &'a RingIdentity,
    /// Its `read_pos`.
    pub read_pos: u64,
    /// Its `write_pos`.
    pub write_pos: u64,
    /// Its words.
    pub ring: Consumer<'a, W>,
}

impl Checkpoint {
    /// A batch whose slots were not given back yet, or are another's to give back.
    #[must_use]
    pub fn of(batch: &Batch, ring: RingIdentity, followed: bool) -> Self {
        Self {
            ring,
            from: batch.from,
            end: batch.end,
            fingerprint: batch.fingerprint,
            producer: batch.producer,
            followed,
            released: false,
        }
    }

    /// Whether it is still to be found out, or seen to, that its slots are given back: forgotten before that, it would be counted
    /// once more.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        !self.released && !self.followed
    }

    /// Says what became of the batch, from where the ring is now.
    #[must_use]
    pub fn verdict<W: Load>(&self, view: &RingView<W>) -> Verdict {
        let mask = view.identity.capacity.wrapping_sub(1);
        let between = |from: u64, end: u64| end.wrapping_sub(from) & mask;
        if !self.ring.is_same_file(view.identity) {
            return Verdict::NewRing;
        }
        let (len, moved) = (
            between(self.from, self.end),
            between(self.from, view.read_pos),
        );
        if view.read_pos == self.end {
            // A swap from 0 may have met a new ring, which began at 0 as well.
            return if self.from == 0
                && !self.released
                && len > 0
                && self.was_released_in_new_ring(view)
            {
                Verdict::NewRingReleased
            } else {
                Verdict::Done
            };
        }
        if !self.is_same_ring(view, len, moved) {
            return Verdict::NewRing;
        }
        if self.followed {
            // The one that drained it may have been behind what was seen here, or ahead.
            let behind = between(view.read_pos, self.end);
            return if behind <= between(view.read_pos, view.write_pos) {
                Verdict::Release
            } else {
                Verdict::Passed(between(self.end, view.read_pos))
            };
        }
        match moved {
            _ if self.released => Verdict::Passed(between(self.end, view.read_pos)),
            0 => Verdict::Release,
            _ if moved < len => Verdict::Overtaken(moved),
            _ => Verdict::Passed(between(self.end, view.read_pos)),
        }
    }

    /// Whether nothing happened to the file since, which proves that the producer is the same.
    fn is_unchanged(&self, current: &RingIdentity) -> bool {
        self.ring.shows_changes && self.ring.changed == current.changed
    }

    /// Whether a producer that was started anew since, with the same first events, cannot be told from the one before: a batch that
    /// begins where a new ring does, in a file that was touched. In a ring that another reader drained `read_pos` tells nothing of
    /// a restart, so that this is so of any batch.
    #[must_use]
    pub fn is_doubtful(&self, current: &RingIdentity) -> bool {
        (self.from == 0 || self.followed) && !self.released && !self.is_unchanged(current)
    }

    /// Whether the producer stands elsewhere without having written the slot that was its next: then it was started anew.
    fn went_back<W: Load>(&self, view: &RingView<W>) -> bool {
        !self.is_unchanged(view.identity)
            && view.write_pos != self.producer.write_pos
            && view.ring.slot_at(self.producer.write_pos) == self.producer.next
    }

    /// Whether a ring that is only followed was set up anew since this was seen of it. What a producer has written is as it was
    /// as long as it does not go round, and to do that it writes all that lay before it. That it has not written the slot that
    /// was its next is no proof by itself: where sums are steady, that is the same bytes as in the round before.
    #[must_use]
    pub fn is_restarted<W: Load>(
        &self,
        ring: &Consumer<W>,
        current: &RingIdentity,
        write_pos: u64,
    ) -> bool {
        if self.is_unchanged(current) {
            return false;
        }
        if write_pos < self.producer.write_pos {
            return ring.slot_at(self.producer.write_pos) == self.producer.next
                && ring.tail_hash(self.producer.write_pos) == self.producer.tail_hash;
        }
        // Of a ring of which nothing was counted yet, the last slot.
        let empty = self.from == self.end;
        let from = self.from.wrapping_sub(u64::from(empty)) & current.capacity.wrapping_sub(1);
        ring.fingerprint(from, self.end) != self.fingerprint
    }

    /// Whether the slots were given back, from 0 on, by a new ring. In the old one they are as they were until the producer
    /// has gone round, and to do that it writes those beyond.
    fn was_released_in_new_ring<W: Load>(&self, view: &RingView<W>) -> bool {
        let fingerprint = view.ring.fingerprint(self.from, self.end);
        // Once more, and only now: a producer that went round and over the batch shows a position behind it.
        W::fence(Acquire);
        let Ok((_, write_pos)) = view.ring.positions() else {
            return true; // in the midst of a restart
        };
        let is_new_ring = if write_pos < self.producer.write_pos {
            view.ring.tail_hash(self.producer.write_pos) == self.producer.tail_hash
        } else {
            fingerprint != self.fingerprint
        };
        is_new_ring && !self.is_unchanged(view.identity)
    }

    /// Whether the producer is the one that wrote the batch.
    fn is_same_ring<W: Load>(&self, view: &RingView<W>, len: u64, moved: u64) -> bool {
        let mask = view.identity.capacity.wrapping_sub(1);
        // Slots that were not given back cannot have been written to.
        let unreleased = if self.released || self.followed {
            0
        } else {
            len.saturating_sub(moved)
        };
        let written_after = view.write_pos.wrapping_sub(self.end) & mask;
        if unreleased > 0 && written_after > mask - unreleased {
            return false;
        }
        if self.is_unchanged(view.identity) {
            return true;
        }
        // Where a restart puts it; another reader is hardly ever there.
        if view.read_pos == 0 && !self.followed && (self.from != 0 || self.released) {
            return false;
        }
        let same_bytes = if moved == 0 && !self.released {
            view.ring.fingerprint(self.from, self.end) == self.fingerprint
        } else {
            let last = self.end.wrapping_sub(1) & mask;
            view.ring.slot_at(last) == self.fingerprint.last
        };
        // A restarted agent's first event is often the same bytes in the same place (its memory registration).
        // What is written behind a batch that nobody has taken is the same bytes as before where sums are steady, and it was
        // written by whoever wrote the batch: it tells nothing.
        let went_back = match self.followed {
            true => self.is_restarted(&view.ring, view.identity, view.write_pos),
            false => (moved > 0 || self.released) && self.went_back(view),
        };
        same_bytes && !went_back
    }
}

impl RingIdentity {
    /// What a ring's file is view, with a ring of this version and size in it.
    ///
    /// # Errors
    /// What statx(2) says; `InvalidData` for a file that holds another layout by view.
    pub fn of(ring: &Ring) -> io::Result<Self> {
        let meta = ring.file().metadata()?;
        if ring.fits_another_layout(meta.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self {
            id: FileId {
                dev: meta.dev(),
                ino: meta.ino(),
            },
            born: file::birth_time(&meta),
            changed: (meta.ctime(), meta.ctime_nsec()),
            shows_changes: !is_younger_than(
                (meta.ctime(), meta.ctime_nsec()),
                FILE_TIME_GRANULARITY,
            ),
            versions: ring.shape.versions,
            capacity: ring.capacity(),
        })
    }

    /// Whether it is the same file with a ring of the same size and version.
    #[must_use]
    pub fn is_same_file(&self, other: &RingIdentity) -> bool {
        (self.id, self.born, self.versions, self.capacity)
            == (other.id, other.born, other.versions, other.capacity)
    }
}

#[cfg(test)]
pub(crate) mod tests;
