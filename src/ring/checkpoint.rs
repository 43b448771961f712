// SPDX-License-Identifier: GPL-2.0-or-later

//! The checkpoint of a ring: what identifies the last counted batch, and how to find out later what became of its
//! slots.
//!
//! A batch is counted by one store to the state file, which a kill cannot divide. Only after that are its slots
//! released, by a compare-and-swap of `read_pos`. A kill may come between the two, or the swap may fail. Then the
//! checkpoint is compared with the ring, so that no event is counted twice and, as far as the ring can tell, none is
//! lost.
//!
//! Begin with [`Checkpoint::decide`], whose rows are the table in ARCHITECTURE.md. It decides from the checkpoint and
//! from [`Evidence`], which [`Checkpoint::evidence`] captures of the ring. This file changes nothing, and must not know
//! totals or the state file.
//!
//! The proofs rest on two facts about NIXL's producer:
//!
//! - A running producer never writes a slot that was not released. It writes slots in order, so before it overwrites a
//!   slot it has written every slot in between, and at the end of the ring the last ones.
//! - A producer that restarts on the same file sets both positions to 0, changes the file's change time (ftruncate(2)),
//!   and leaves the bytes of the slots until it writes them again.

use crate::base::file::{self, FileId};
use crate::base::words::words;
use crate::ring::layout::halves;
use crate::ring::protocol::{Consumer, Load, ProducerState};
use crate::ring::{Batch, Fingerprint, Ring};
use std::cmp;
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
    /// True if the slots are known to be released. Unless the producer restarted, `read_pos` cannot lie before `end`
    /// then.
    pub released: bool,
}
words!(Checkpoint: ring, from, end, fingerprint, producer, released);

/// The identity of a ring: its file, format and change time when the batch was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingIdentity {
    /// Device and inode of the file.
    pub id: FileId,
    /// Birth time of the file in seconds and nanoseconds. Zeros if the file system has none.
    pub born: (i64, i64),
    /// Change time of the file in seconds and nanoseconds. A restart of the producer always changes it, by
    /// ftruncate(2). So does the first store to each page of a mapping.
    pub changed: (i64, i64),
    /// True if the change time was before the clock of file times when it was read, so that a later change gives
    /// another time: that clock is coarse.
    pub shows_changes: bool,
    /// Word of the header with the version and its copy.
    pub versions: u64,
    /// The number of slots.
    pub capacity: u64,
}
words!(RingIdentity: id, born, changed, shows_changes, versions, capacity);

/// What became of the slots of a counted batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slots were released.
    Done,
    /// The slots were not released: `read_pos` has to move from where it is to the end of the batch.
    Release,
    /// Another reader released this many of the slots: `read_pos` has to move from where that reader left it to the end
    /// of the batch.
    Overtaken(u64),
    /// Another reader released all slots of the batch, and this many events behind it, which were never read here.
    Passed(u64),
    /// The producer restarted, or this is another file: the ring is to be drained from its `read_pos`.
    NewRing,
    /// The producer restarted, and the release moved `read_pos` of the new ring, since the old batch began at 0, where
    /// a new ring begins as well. `read_pos` has to move back to 0, and then the ring is to be drained from there.
    NewRingReleased,
}

/// Where `read_pos` is, compared with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPos {
    /// At the start of the batch.
    Start,
    /// Inside the batch, this many slots behind its start.
    Inside(u64),
    /// At the end of the batch.
    End,
    /// Outside of the batch.
    Elsewhere,
}

/// What a ring shows of a counted batch: all that [`Checkpoint::decide`] needs to know of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// True if the file, the version and the capacity are those of the batch.
    pub is_same_file: bool,
    /// Where `read_pos` is.
    pub read_pos: ReadPos,
    /// True if `read_pos` is 0, where a restart leaves it.
    pub is_read_pos_0: bool,
    /// The number of slots from the end of the batch to `read_pos`.
    pub past_end: u64,
    /// True if the end of the batch lies between `read_pos` and `write_pos`, where the pending events are.
    pub is_end_pending: bool,
    /// `write_pos`, compared with its value when the batch was copied. A lower one: the producer went round, or
    /// restarted.
    pub write_pos: cmp::Ordering,
    /// True if the header was invalid when it was loaded again: the producer is in the midst of a restart.
    pub is_restarting: bool,
    /// True if the change time of the file proves that the producer has not restarted. Then the slots are not compared,
    /// and the fields below are false.
    pub is_unchanged: bool,
    /// True if a slot of the batch has other bytes.
    pub is_batch_overwritten: bool,
    /// True if the last slot of the batch has other bytes.
    pub is_last_overwritten: bool,
    /// True if the slot that the producer was to write next still has the bytes that it had then.
    pub is_next_unwritten: bool,
    /// True if the last slots of the ring that the producer had yet to write still have the bytes that they had then.
    pub is_tail_unwritten: bool,
}

impl Evidence {
    /// True if a ring that is taken for a restarted one may be a running one: the producer may have gone round since
    /// the batch was copied, and have written the same bytes as before to the last slots of the ring.
    #[must_use]
    pub fn may_be_running(&self) -> bool {
        self.write_pos.is_lt() && !self.is_restarting
    }
}

impl Checkpoint {
    /// The checkpoint of a batch that was just read, before its slots are released.
    #[must_use]
    pub fn of(batch: &Batch, ring: RingIdentity) -> Self {
        Self {
            ring,
            from: batch.from,
            end: batch.end,
            fingerprint: batch.fingerprint,
            producer: batch.producer,
            released: false,
        }
    }

    /// True if the slots still have to be released, or it is not known whether they are. A checkpoint that is dropped
    /// in this state lets the batch be counted a second time.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        !self.released
    }

    /// Captures what the ring shows of the batch, by loads only. The proofs rest on their order:
    ///
    /// 1. The positions, then the change time in `identity`, both by the caller. A restart changes the time before it
    ///    stores positions.
    /// 2. The slots of the batch.
    /// 3. `write_pos` again, if all slots of the batch are released: a producer that overwrote one has another position
    ///    now.
    /// 4. The slots that the producer was to write next: it wrote them before it moved its position past them.
    #[must_use]
    pub fn evidence<W: Load>(
        &self,
        (read_pos, mut write_pos): (u64, u64),
        identity: &RingIdentity,
        ring: &Consumer<W>,
    ) -> Evidence {
        let between = |from, end| self.ring.between(from, end);
        let (len, moved) = (between(self.from, self.end), between(self.from, read_pos));
        let is_same_file = self.ring.is_same_file(identity);
        let is_unchanged = self.ring.is_unchanged(identity);
        // Up to 4,096 slots are hashed. The change time, if it suffices, saves that.
        let slots = (is_same_file && !is_unchanged).then_some(ring);
        // If nothing was counted yet, the fingerprint is that of the slot before `from`.
        let first = self.from.wrapping_sub(u64::from(len == 0));
        let batch = slots.map(|ring| ring.fingerprint(first, self.end));
        let mut is_restarting = false;
        if read_pos == self.end {
            W::fence(Acquire);
            match ring.positions() {
                Ok((_, now)) => write_pos = now,
                Err(_) => is_restarting = true,
            }
        }
        let then = &self.producer;
        Evidence {
            is_same_file,
            read_pos: match moved {
                _ if read_pos == self.end => ReadPos::End,
                0 => ReadPos::Start,
                _ if moved < len => ReadPos::Inside(moved),
                _ => ReadPos::Elsewhere,
            },
            is_read_pos_0: read_pos == 0,
            past_end: between(self.end, read_pos),
            is_end_pending: between(read_pos, self.end) <= between(read_pos, write_pos),
            write_pos: write_pos.cmp(&then.write_pos),
            is_restarting,
            is_unchanged,
            is_batch_overwritten: batch.is_some_and(|now| now != self.fingerprint),
            is_last_overwritten: batch.is_some_and(|now| now.last != self.fingerprint.last),
            is_next_unwritten: slots.is_some_and(|ring| ring.slot_at(then.write_pos) == then.next),
            is_tail_unwritten: slots
                .is_some_and(|ring| ring.tail_hash(then.write_pos) == then.tail_hash),
        }
    }

    /// Decides what became of the batch. The rows are those of the table in ARCHITECTURE.md: the first one that fits
    /// holds.
    #[must_use]
    pub fn decide(&self, seen: &Evidence) -> Verdict {
        use ReadPos::{End, Inside, Start};
        let is_restarted = self.shows_restart(seen);
        match seen.read_pos {
            // The batch is not of this ring.
            _ if !seen.is_same_file => Verdict::NewRing,
            // A new ring begins at 0, so a release from 0 succeeds there as well.
            End if is_restarted && self.from == 0 && self.end != 0 && !self.released => {
                Verdict::NewRingReleased
            }
            // The release left the position here.
            End => Verdict::Done,
            // The slots of the batch are gone. What the ring has now was not counted.
            _ if is_restarted => Verdict::NewRing,
            // No process has released a slot.
            Start if self.is_in_flight() => Verdict::Release,
            // Another reader has released these slots.
            Inside(foreign) if self.is_in_flight() => Verdict::Overtaken(foreign),
            // Another reader has gone past the batch.
            _ => Verdict::Passed(seen.past_end),
        }
    }

    /// True if the positions or slots show that the producer restarted since the batch was copied.
    fn shows_restart(&self, seen: &Evidence) -> bool {
        use ReadPos::{End, Inside, Start};
        match seen.read_pos {
            End if seen.is_restarting => true,
            // All slots are released. A running producer overwrites them only after it has gone round, and then it has
            // written the end of the ring.
            End if seen.write_pos.is_lt() => seen.is_tail_unwritten,
            End => seen.is_batch_overwritten,
            // A running producer does not write slots that were not released.
            Start | Inside(_) if self.is_in_flight() && !seen.is_end_pending => true,
            _ if seen.is_unchanged => false,
            // A restart sets `read_pos` to 0. Another reader hardly ever stops there.
            _ if seen.is_read_pos_0 && (self.from != 0 || self.released) => true,
            _ if seen.is_last_overwritten => true,
            // No slot was released, so none may have been overwritten.
            Start if !self.released && seen.is_batch_overwritten => true,
            // The producer that wrote the batch may have written its next slot since, and with a steady load the bytes
            // are the same as before.
            Start if !self.released => false,
            // A batch with the same bytes is not enough: the first event of a restarted agent, its memory registration,
            // often has the same bytes in the same place. A running producer that moved on has written its next slot.
            _ => seen.write_pos.is_ne() && seen.is_next_unwritten,
        }
    }

    /// True if a restart of the producer cannot be ruled out for a batch whose slots look unchanged. A new ring begins
    /// at 0, so this concerns a batch that begins at 0 in a file that was touched since. If the new producer wrote the
    /// same first events, nothing tells them apart.
    #[must_use]
    pub fn is_doubtful(&self, current: &RingIdentity) -> bool {
        self.from == 0 && !self.released && !self.ring.is_unchanged(current)
    }
}

impl RingIdentity {
    /// The identity of a mapped ring's file as it is now, with the version and capacity that it was mapped with.
    ///
    /// # Errors
    /// The error of statx(2), or `InvalidData` if the file now has the length of another layout.
    pub fn of(ring: &Ring) -> io::Result<Self> {
        let clock = file::clock();
        let meta = ring.file().metadata()?;
        if ring.fits_another_layout(meta.len()) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let changed = (meta.ctime(), meta.ctime_nsec());
        Ok(Self {
            id: FileId {
                dev: meta.dev(),
                ino: meta.ino(),
            },
            born: file::birth_time(&meta),
            changed,
            shows_changes: changed < clock,
            versions: ring.shape.versions,
            capacity: ring.capacity(),
        })
    }

    /// The number of slots from one position to another, going round the end of the ring.
    #[must_use]
    pub fn between(&self, from: u64, end: u64) -> u64 {
        end.wrapping_sub(from) & self.capacity.wrapping_sub(1)
    }

    /// True if the file has not changed from this identity to a later one. This proves that the producer has not
    /// restarted.
    #[must_use]
    pub fn is_unchanged(&self, later: &RingIdentity) -> bool {
        self.shows_changes && self.changed == later.changed
    }

    /// The version in the header of the ring.
    #[must_use]
    pub fn version(&self) -> i32 {
        halves(self.versions)[0] as i32
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
