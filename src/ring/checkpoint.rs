//! The checkpoint of a ring: what identifies the last counted batch, and how to find out later what became of its slots.
//!
//! A batch is counted by one store to the state file, which a kill cannot divide. Only after that are its slots released, by a
//! compare-and-swap of `read_pos`. A kill may come between the two, or the swap may fail. [`Checkpoint::verdict`] then compares
//! the checkpoint with the ring, so that no event is counted twice and, as far as the ring can tell, none is lost.
//!
//! Begin with [`Checkpoint::verdict`]. ARCHITECTURE.md has its rows as a table. It is a function of the checkpoint and of a
//! [`RingView`], that is, of what the ring looks like now: it changes nothing, and must not know totals or the state file.
//!
//! The proofs rest on two facts about NIXL's producer:
//!
//! - A running producer never writes a slot that was not released. It writes slots in order, so before it overwrites a slot it
//!   has written every slot in between, and at the end of the ring the last ones.
//! - A producer that restarts on the same file sets both positions to 0, changes the file's change time (ftruncate(2)), and
//!   leaves the bytes of the slots until it writes them again.

use crate::base::file::{self, FILE_TIME_GRANULARITY, FileId, is_younger_than};
use crate::ring::protocol::{Consumer, Load, ProducerState};
use crate::ring::{Batch, Fingerprint, Ring};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering::Acquire;

/// The last batch of a ring that was counted, and what identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The ring that the batch came from.
    pub ring: RingIdentity,
    /// Position of the first event of the batch.
    pub from: u64,
    /// Position behind the last event. Equal to `from` if nothing of this ring was counted yet.
    pub end: u64,
    /// Hash of the batch's slots, and the words of the last one.
    pub fingerprint: Fingerprint,
    /// The producer's position and the slots that it had yet to write, when the batch was copied.
    pub producer: ProducerState,
    /// True if the ring was followed: another process releases the slots.
    pub followed: bool,
    /// True if the slots are known to be released. Unless the producer restarted, `read_pos` cannot lie before `end` then.
    pub released: bool,
}

/// The identity of a ring: its file, format and change time when the batch was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingIdentity {
    /// Device and inode of the file.
    pub id: FileId,
    /// Birth time of the file in seconds and nanoseconds. Zeros if the file system has none.
    pub born: (i64, i64),
    /// Change time of the file in seconds and nanoseconds. A restart of the producer always changes it, by ftruncate(2). So does
    /// the first store to each page of a mapping.
    pub changed: (i64, i64),
    /// True if the change time was old enough, when it was read, that a later change gives another time: the clock of file times
    /// is coarse.
    pub shows_changes: bool,
    /// Word of the header with the version and its copy.
    pub versions: u64,
    /// The number of slots.
    pub capacity: u64,
}

/// What became of the slots of a counted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slots were released.
    Done,
    /// The slots were not released: `read_pos` has to move from where it is to the end of the batch.
    Release,
    /// Another reader released this many of the slots: `read_pos` has to move from where that reader left it to the end of the
    /// batch.
    Overtaken(u64),
    /// Another reader released all slots of the batch, and this many events behind it, which were never read here.
    Passed(u64),
    /// The producer restarted, or this is another file: the ring is to be drained from its `read_pos`.
    NewRing,
    /// The producer restarted, and the release moved `read_pos` of the new ring, since the old batch began at 0, where a new ring
    /// begins as well. `read_pos` has to move back to 0, and then the ring is to be drained from there.
    NewRingReleased,
}

/// The ring as it is now, for [`Checkpoint::verdict`].
#[derive(Debug)]
pub struct RingView<'a, W> {
    /// The identity of the file that is attached now.
    pub identity: &'a RingIdentity,
    /// Position of the consumer.
    pub read_pos: u64,
    /// Position of the producer.
    pub write_pos: u64,
    /// Reads the slots.
    pub ring: Consumer<'a, W>,
}

impl Checkpoint {
    /// The checkpoint of a batch that was just read, before its slots are released.
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

    /// True if the slots still have to be released, or it is not known whether they are. A checkpoint that is dropped in this
    /// state lets the batch be counted a second time.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        !self.released && !self.followed
    }

    /// Decides from the present state of the ring what became of the batch.
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
            // A compare-and-swap from 0 may have succeeded on a new ring, which begins at 0 as well.
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
            // The other reader may be behind the position up to which events were counted here, or ahead of it.
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

    /// True if the file has not changed since the batch was copied. This proves that the producer has not restarted.
    fn is_unchanged(&self, current: &RingIdentity) -> bool {
        self.ring.shows_changes && self.ring.changed == current.changed
    }

    /// True if a restart of the producer cannot be ruled out for a batch whose slots look unchanged. A new ring begins at 0, so
    /// this concerns a batch that begins at 0 in a file that was touched since. If the new producer wrote the same first events,
    /// nothing tells them apart. In a ring that another process drained `read_pos` shows no restart, so there this concerns any
    /// batch.
    #[must_use]
    pub fn is_doubtful(&self, current: &RingIdentity) -> bool {
        (self.from == 0 || self.followed) && !self.released && !self.is_unchanged(current)
    }

    /// True if the producer is at another position and its next slot has the old bytes: it did not write that slot, so it
    /// restarted.
    fn went_back<W: Load>(&self, view: &RingView<W>) -> bool {
        !self.is_unchanged(view.identity)
            && view.write_pos != self.producer.write_pos
            && view.ring.slot_at(self.producer.write_pos) == self.producer.next
    }

    /// True if the producer of a followed ring restarted since the batch was copied. A running producer leaves the slots that it
    /// has written unchanged until it goes round, and before that it writes all slots up to the end of the ring. That its next
    /// slot is unchanged does not prove a restart by itself: with a steady load the same bytes may have been written again.
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
        let mask = current.capacity.wrapping_sub(1);
        let between = |from: u64, end: u64| end.wrapping_sub(from) & mask;
        // A producer that went round may have overwritten the batch since, up to its last slot.
        if between(self.from, self.end) + between(self.end, write_pos) > mask {
            return ring.slot_at(self.end.wrapping_sub(1) & mask) != self.fingerprint.last;
        }
        // If nothing was counted yet, the fingerprint is that of the slot before `from`.
        let empty = self.from == self.end;
        let from = self.from.wrapping_sub(u64::from(empty)) & mask;
        ring.fingerprint(from, self.end) != self.fingerprint
    }

    /// True if the swap from 0 succeeded on a new ring, so that it released slots that were never read. In the old ring the
    /// batch's slots stay unchanged until the producer has gone round, and before that it writes the slots at the end of the
    /// ring.
    fn was_released_in_new_ring<W: Load>(&self, view: &RingView<W>) -> bool {
        let fingerprint = view.ring.fingerprint(self.from, self.end);
        // The position is loaded again, after the slots: a producer that went round and overwrote the batch then shows a position
        // before its old one.
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

    /// True if the producer that wrote the batch is still the producer of the ring.
    fn is_same_ring<W: Load>(&self, view: &RingView<W>, len: u64, moved: u64) -> bool {
        let mask = view.identity.capacity.wrapping_sub(1);
        // A running producer does not write slots that were not released.
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
        // A restart sets `read_pos` to 0. Another reader hardly ever stops there.
        if view.read_pos == 0 && !self.followed && (self.from != 0 || self.released) {
            return false;
        }
        let same_bytes = if moved == 0 && !self.released {
            view.ring.fingerprint(self.from, self.end) == self.fingerprint
        } else {
            let last = self.end.wrapping_sub(1) & mask;
            view.ring.slot_at(last) == self.fingerprint.last
        };
        // A matching batch is not enough: the first event of a restarted agent, its memory registration, often has the same bytes
        // in the same place. But if no slot of the batch was released, the slot behind it tells nothing. The producer that wrote
        // the batch may have written it since, and with a steady load the bytes are the same as before.
        let went_back = match self.followed {
            true => self.is_restarted(&view.ring, view.identity, view.write_pos),
            false => (moved > 0 || self.released) && self.went_back(view),
        };
        same_bytes && !went_back
    }
}

impl RingIdentity {
    /// The identity of a mapped ring's file as it is now, with the version and capacity that it was mapped with.
    ///
    /// # Errors
    /// The error of statx(2), or `InvalidData` if the file now has the length of another layout.
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

    /// True if both are the same file with a ring of the same version and capacity.
    #[must_use]
    pub fn is_same_file(&self, other: &RingIdentity) -> bool {
        (self.id, self.born, self.versions, self.capacity)
            == (other.id, other.born, other.versions, other.capacity)
    }
}

#[cfg(test)]
pub(crate) mod tests;
