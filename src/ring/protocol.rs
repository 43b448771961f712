//! What consumer and producer owe each other, on the words of a ring: the consumer's loads, and its one store.
//!
//! It is written for any kind of word, so that `qa/ring/loom_ring.rs` can run these very lines in every order that the memory model
//! allows.

use super::fingerprint::{self, Fingerprint, FingerprintBuilder, Slot};
use crate::error::RingFault;
use crate::event::{Event, Events, Totals};
use crate::ring::layout::{CAPACITY, HEADER_WORDS, Layout, READ_POS, VERSIONS, WRITE_POS};
use crate::shm::ReadWord;
use std::ops::Range;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// A word of memory that is shared with the producer, to be looked at.
pub trait Load {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;

    /// As [`fence`].
    fn fence(order: Ordering);
}

/// One that the consumer may move.
pub trait Word: Load {
    /// As [`AtomicU64::compare_exchange`], relaxed where it fails.
    ///
    /// # Errors
    /// What stands there instead of `current`.
    fn swap_from(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64>;
}

impl Load for ReadWord {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        ReadWord::load(self, order)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

impl Load for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn swap_from(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        self.compare_exchange(current, new, order, Relaxed)
    }
}

/// Events that were read from a ring and whose slots are not released yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Position of the first event.
    pub from: u64,
    /// Position behind the last event.
    pub end: u64,
    /// By which the slots can be recognised.
    pub fingerprint: Fingerprint,
    /// Where the producer was, and what it had yet to write.
    pub producer: ProducerState,
}

/// Where a producer is, and what it has yet to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerState {
    /// Its position.
    pub write_pos: u64,
    /// What stands in the slot that it writes next.
    pub next: Slot,
    /// A hash of slots that it writes before it goes round, see [`Consumer::tail_hash`].
    pub tail_hash: u64,
}

/// How often a producer at work is looked at before what was seen is taken as it is.
const MAX_TRIES: u32 = 256;

/// What a ring is like, as far as its consumer goes by it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// What its slots look like.
    pub layout: Layout,
    /// How many there are: a power of two.
    pub capacity: u64,
    /// The version, twice, as the header has it.
    pub versions: u64,
}

/// The consumer's side of a ring in memory.
#[derive(Debug)]
pub struct Consumer<'a, W> {
    words: &'a [W],
    shape: Shape,
}

impl<'a, W: Load> Consumer<'a, W> {
    /// The consumer of a ring in these words, as many as its header and slots have.
    pub fn new(words: &'a [W], shape: Shape) -> Self {
        Self { words, shape }
    }

    /// Copies the events that are there to `events`, at most `limit` of them and in place of what was in it, without
    /// releasing their slots.
    ///
    /// # Errors
    /// The ring is no longer of this shape, or was restarted meanwhile; nothing of the batch counts then.
    pub fn read_batch(&self, limit: u64, events: &mut Events) -> Result<Batch, RingFault> {
        let (from, _) = self.positions()?;
        let batch = self.follow(from, limit, events)?;
        match self.positions()? {
            (read_pos, _) if read_pos == from => Ok(batch),
            _ => Err(RingFault::Restarted),
        }
    }

    /// The same from a position of one's own, for one who follows a ring that another drains.
    ///
    /// # Errors
    /// As [`Consumer::read_batch`].
    pub fn follow(&self, from: u64, limit: u64, events: &mut Events) -> Result<Batch, RingFault> {
        events.clear();
        let mask = self.mask();
        let from = from & mask;
        let producer = self.producer_state()?;
        let pending = (producer.write_pos.wrapping_sub(from) & mask).min(limit);
        let end = (from + pending) & mask;
        // For each layout, with its decoder as a constant: this is where the time goes.
        let fingerprint = match self.shape.layout {
            Layout::V1 => self.copy::<7>(from, end, events, |slot| Layout::V1.decode_raw(slot)),
            Layout::V2Named => {
                self.copy::<6>(from, end, events, |slot| Layout::V2Named.decode_raw(slot))
            }
            Layout::V2 => self.copy::<2>(from, end, events, |slot| Layout::V2.decode_raw(slot)),
            Layout::V3 => self.copy::<2>(from, end, events, |slot| Layout::V3.decode_raw(slot)),
            Layout::V4 => self.copy::<2>(from, end, events, |slot| Layout::V4.decode_raw(slot)),
        };
        // The slots are loaded before the positions are looked at once more.
        W::fence(Acquire);
        let (_, write_pos) = self.positions()?;
        if write_pos.wrapping_sub(from) & mask < pending {
            return Err(RingFault::Restarted);
        }
        Ok(Batch {
            from,
            end,
            fingerprint,
            producer,
        })
    }

    /// Copies the events between two positions, in slots of N words.
    fn copy<const N: usize>(
        &self,
        from: u64,
        end: u64,
        events: &mut Events,
        read: impl Fn(&[u64; N]) -> Event,
    ) -> Fingerprint {
        let (mut builder, mut last) = (FingerprintBuilder::default(), [0; N]);
        let load = |words: &[W]| std::array::from_fn(|at| words[at].load(Relaxed));
        for run in self.runs(from, end) {
            for (range, is_hashed) in fingerprint::parts(run) {
                let words = self.slots(range.start, range.end, N);
                if is_hashed {
                    events.extend::<N, _>(words, |slot| {
                        last = load(slot);
                        builder.add(last);
                        read(&last)
                    });
                } else {
                    events.extend::<N, _>(words, |slot| read(&load(slot)));
                }
            }
        }
        builder.finish(&last, events.totals())
    }

    /// From one position to before another: two runs where that goes round.
    fn runs(&self, from: u64, end: u64) -> [Range<u64>; 2] {
        match end < from {
            true => [from..self.shape.capacity, 0..end],
            false => [from..end, end..end],
        }
    }

    /// Where the producer is, and what it has yet to write.
    ///
    /// # Errors
    /// The ring is no longer of this shape.
    pub fn producer_state(&self) -> Result<ProducerState, RingFault> {
        let (_, mut write_pos) = self.positions()?;
        let mut tries = MAX_TRIES;
        loop {
            let next = self.slot(write_pos);
            // The slot is loaded before the position is looked at once more.
            W::fence(Acquire);
            let (_, still) = self.positions()?;
            let tail_hash = self.tail_hash(write_pos);
            W::fence(Acquire);
            let (_, now) = self.positions()?;
            // A producer at work is looked at again: what it wrote during the look would be taken for what it found there.
            // It cannot go on for long before the ring is full.
            let untouched =
                write_pos == still && (write_pos..=self.tail_start(write_pos)).contains(&now);
            tries -= 1;
            if untouched || tries == 0 {
                return Ok(ProducerState {
                    write_pos,
                    next,
                    tail_hash,
                });
            }
            write_pos = now;
        }
    }

    /// What the slots between two positions look like now.
    pub fn fingerprint(&self, from: u64, end: u64) -> Fingerprint {
        let mask = self.mask();
        let (mut builder, mut last) = (FingerprintBuilder::default(), Slot::default());
        let mut totals = Totals::default();
        let layout = self.shape.layout;
        for run in self.runs(from & mask, end & mask) {
            for (range, is_hashed) in fingerprint::parts(run) {
                for pos in range {
                    last = self.slot(pos);
                    let slot = &last[..layout.slot_words()];
                    if is_hashed {
                        builder.add(slot.iter().copied());
                    }
                    totals.count(layout.decode(slot));
                }
            }
        }
        builder.finish(&last, &totals)
    }

    /// A hash of the last 64 slots of the ring, of those only that are not before a position: a producer that goes round from
    /// there writes all of these, and they are the last that it writes.
    pub fn tail_hash(&self, pos: u64) -> u64 {
        let (mut builder, len) = (
            FingerprintBuilder::default(),
            self.shape.layout.slot_words(),
        );
        let first = self.tail_start(pos).min(self.shape.capacity);
        let slots = self.slots(first, self.shape.capacity, len);
        for words in slots.chunks_exact(len) {
            builder.add(words.iter().map(|word| word.load(Relaxed)));
        }
        builder.hash()
    }

    /// The first of these slots.
    fn tail_start(&self, pos: u64) -> u64 {
        pos.max(self.shape.capacity.saturating_sub(64))
    }

    /// What stands in the slot at a position now.
    pub fn slot_at(&self, pos: u64) -> Slot {
        self.slot(pos & self.mask())
    }

    fn slot(&self, pos: u64) -> Slot {
        let mut slot = Slot::default();
        let words = self.slots(pos, pos + 1, self.shape.layout.slot_words());
        for (copy, word) in slot.iter_mut().zip(words) {
            *copy = word.load(Relaxed);
        }
        slot
    }

    /// The words of the slots from one position to before another, `len` words each.
    fn slots(&self, first: u64, end: u64, len: usize) -> &'a [W] {
        let at = |pos: u64| {
            let pos =
                usize::try_from(pos).expect("a position within the capacity, which was mapped");
            HEADER_WORDS + pos * len
        };
        &self.words[at(first)..at(end)]
    }

    /// Where the consumer and the producer are, `read_pos` and `write_pos`, if version and capacity are still ours and the
    /// positions lie within it.
    ///
    /// # Errors
    /// The ring is no longer of this shape.
    pub fn positions(&self) -> Result<(u64, u64), RingFault> {
        let (words, capacity) = (self.words, self.shape.capacity);
        let write_pos = words[WRITE_POS].load(Relaxed);
        // Pairs with the producer's release store of it, and so comes before the loads of the slots. No stronger load is defined
        // where a mapping is read-only (std::sync::atomic).
        W::fence(Acquire);
        let read_pos = words[READ_POS].load(Relaxed);
        if words[VERSIONS].load(Relaxed) != self.shape.versions
            || words[CAPACITY].load(Relaxed) != capacity
        {
            return Err(RingFault::Reformatted);
        }
        if write_pos >= capacity || read_pos >= capacity {
            return Err(RingFault::Positions {
                read_pos,
                write_pos,
                capacity,
            });
        }
        Ok((read_pos, write_pos))
    }

    fn mask(&self) -> u64 {
        self.shape.capacity - 1
    }
}

impl<W: Word> Consumer<'_, W> {
    /// Moves `read_pos`, and so gives the slots between to the producer.
    ///
    /// A compare-and-swap, since a plain store would turn a ring that was restarted meanwhile (both positions 0) into one
    /// that looks full of old events.
    ///
    /// # Errors
    /// Where it is instead: another reader or a restart moved it, and nothing was changed.
    pub fn release(&self, from: u64, end: u64) -> Result<(), u64> {
        // Release: after the loads of the slots. Pairs with the producer's acquire load of read_pos.
        self.words[READ_POS].swap_from(from, end, Release).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A word that changes with each load, if it moves.
    #[derive(Default)]
    struct Moving {
        value: Cell<u64>,
        moves: bool,
        loads: Cell<u32>,
    }

    impl Load for Moving {
        fn load(&self, _: Ordering) -> u64 {
            self.loads.set(self.loads.get() + 1);
            assert!(self.loads.get() < 100 * MAX_TRIES, "it is loaded for ever");
            let value = self.value.get();
            if self.moves {
                self.value.set((value + 1) % 16);
            }
            value
        }

        fn fence(_: Ordering) {}
    }

    #[test]
    fn producer_state_ends_though_the_position_moves_for_ever() {
        let shape = Shape {
            layout: Layout::V4,
            capacity: 16,
            versions: (4 << 32) | 4,
        };
        let len = HEADER_WORDS + 16 * Layout::V4.slot_words();
        let mut words: Vec<_> = (0..len).map(|_| Moving::default()).collect();
        words[VERSIONS].value.set(shape.versions);
        words[CAPACITY].value.set(shape.capacity);
        words[WRITE_POS].moves = true;
        assert!(Consumer::new(&words, shape).producer_state().is_ok());
    }
}
