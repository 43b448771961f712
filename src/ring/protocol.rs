// SPDX-License-Identifier: GPL-2.0-or-later

//! The protocol between producer and consumer on the words of a ring: the consumer's loads, and its one store.
//!
//! The code is generic over the type of a word, so that `qa/ring/loom_ring.rs` can run the same lines in every order
//! that the memory model allows. Begin with [`Consumer::read_batch`] and [`Consumer::release`]. This file must not know
//! files or mappings.

use super::fingerprint::{self, Fingerprint, FingerprintBuilder, Slot};
use crate::base::words::words;
use crate::error::RingFault;
use crate::event::{Event, Events, Totals};
use crate::ring::layout::{Layout, header};
use crate::shm::ReadWord;
use std::ops::Range;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

/// A word of memory that is shared with the producer and can be loaded.
pub trait Load {
    /// Loads the word, as [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;

    /// Orders loads, as [`fence`].
    fn fence(order: Ordering);
}

/// A word that the consumer may change.
pub trait Word: Load {
    /// Replaces `current` by `new`, as [`AtomicU64::compare_exchange`]. The ordering is relaxed if it fails.
    ///
    /// # Errors
    /// The value that is there instead of `current`.
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

/// A batch: events that were read from a ring and whose slots are not released yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Position of the first event.
    pub from: u64,
    /// Position behind the last event.
    pub end: u64,
    /// Fingerprint of the slots, which recognises them later.
    pub fingerprint: Fingerprint,
    /// The producer's position and next slots when the batch was copied.
    pub producer: ProducerState,
}

/// The state of a producer: its position, and the slots that it has yet to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerState {
    /// Position of the next slot that it writes.
    pub write_pos: u64,
    /// The words of that slot before they are written.
    pub next: Slot,
    /// Hash of the last slots of the ring, which it writes before it goes round, see [`Consumer::tail_hash`].
    pub tail_hash: u64,
}
words!(ProducerState: write_pos, next, tail_hash);

/// Most attempts to read the state of a producer that is writing. The last attempt counts as it is.
const MAX_TRIES: u32 = 256;

/// The properties of a ring that its consumer relies on. They do not change while it is mapped.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Layout of the slots.
    pub layout: Layout,
    /// The number of slots, a power of two.
    pub capacity: u64,
    /// Word of the header with the version and its copy.
    pub versions: u64,
}

/// The consumer's side of a ring in memory.
#[derive(Debug)]
pub struct Consumer<'a, W> {
    words: &'a [W],
    shape: Shape,
}

impl<'a, W: Load> Consumer<'a, W> {
    /// A consumer of the ring in these words. Their number is that of the header and all slots.
    pub fn new(words: &'a [W], shape: Shape) -> Self {
        Self { words, shape }
    }

    /// Copies at most `limit` pending events from `read_pos` on to `events`, whose earlier contents are removed. The
    /// slots are not released.
    ///
    /// # Errors
    /// The ring no longer has this shape, or the producer restarted meanwhile. Nothing of the batch may be counted
    /// then.
    pub fn read_batch(&self, limit: u64, events: &mut Events) -> Result<Batch, RingFault> {
        events.clear();
        let mask = self.mask();
        let (from, _) = self.positions()?;
        let producer = self.producer_state()?;
        let pending = (producer.write_pos.wrapping_sub(from) & mask).min(limit);
        let end = (from + pending) & mask;
        // One call for each layout, so that the decoder is a constant: most of the time of a drain is spent here.
        let fingerprint = match self.shape.layout {
            Layout::V1 => self.copy::<7>(from, end, events, |slot| Layout::V1.decode_raw(slot)),
            Layout::V2Named => {
                self.copy::<6>(from, end, events, |slot| Layout::V2Named.decode_raw(slot))
            }
            Layout::V2 => self.copy::<2>(from, end, events, |slot| Layout::V2.decode_raw(slot)),
            Layout::V3 => self.copy::<2>(from, end, events, |slot| Layout::V3.decode_raw(slot)),
            Layout::V4 => self.copy::<2>(from, end, events, |slot| Layout::V4.decode_raw(slot)),
        };
        // The slots are loaded before the positions are loaded again.
        W::fence(Acquire);
        let (read_pos, write_pos) = self.positions()?;
        if read_pos != from || write_pos.wrapping_sub(from) & mask < pending {
            return Err(RingFault::Restarted);
        }
        Ok(Batch {
            from,
            end,
            fingerprint,
            producer,
        })
    }

    /// Copies the events between two positions, from slots of N words.
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

    /// The slots from one position to before another, as two runs: the second one is empty unless they go round the end
    /// of the ring.
    fn runs(&self, from: u64, end: u64) -> [Range<u64>; 2] {
        match end < from {
            true => [from..self.shape.capacity, 0..end],
            false => [from..end, end..end],
        }
    }

    /// Reads the position of the producer, and the slots that it has yet to write.
    ///
    /// # Errors
    /// The ring no longer has this shape.
    pub fn producer_state(&self) -> Result<ProducerState, RingFault> {
        let (_, mut write_pos) = self.positions()?;
        let mut tries = MAX_TRIES;
        loop {
            let next = self.slot(write_pos);
            // The slot is loaded before the position is loaded again.
            W::fence(Acquire);
            let (_, still) = self.positions()?;
            let tail_hash = self.tail_hash(write_pos);
            W::fence(Acquire);
            let (_, now) = self.positions()?;
            // If the producer moved into these slots, they are read again: otherwise what it has just written would be
            // taken for what it found there. The producer cannot go on for long before the ring is full.
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

    /// The fingerprint of the slots between two positions as they are now.
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

    /// Hash of the last 64 slots of the ring, without those before `pos`. A producer that goes round from `pos` writes
    /// all of these slots, and writes them last.
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

    /// Position of the first slot that [`Consumer::tail_hash`] hashes.
    fn tail_start(&self, pos: u64) -> u64 {
        pos.max(self.shape.capacity.saturating_sub(64))
    }

    /// The words of the slot at a position as they are now.
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

    /// The words of the slots from one position to before another, with `len` words in each slot.
    fn slots(&self, first: u64, end: u64, len: usize) -> &'a [W] {
        let at = |pos: u64| {
            let pos =
                usize::try_from(pos).expect("a position within the capacity, which was mapped");
            header::WORDS + pos * len
        };
        &self.words[at(first)..at(end)]
    }

    /// Loads `read_pos` and `write_pos`, and checks them with version and capacity.
    ///
    /// # Errors
    /// The ring no longer has this shape, or a position lies outside of it.
    pub fn positions(&self) -> Result<(u64, u64), RingFault> {
        let (words, capacity) = (self.words, self.shape.capacity);
        let write_pos = words[header::WRITE_POS].load(Relaxed);
        // Pairs with the producer's release store of write_pos: the slots are loaded after it. On read-only memory only
        // relaxed loads are defined (std::sync::atomic), so a fence follows a relaxed load.
        W::fence(Acquire);
        let read_pos = words[header::READ_POS].load(Relaxed);
        if words[header::VERSIONS].load(Relaxed) != self.shape.versions
            || words[header::CAPACITY].load(Relaxed) != capacity
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
    /// Moves `read_pos` from `from` to `end`, which releases the slots between to the producer.
    ///
    /// A compare-and-swap. If the producer restarted meanwhile, both positions are 0, and a plain store would make the
    /// new ring look full of old events.
    ///
    /// # Errors
    /// The `read_pos` that is there instead, since another reader or a restart moved it. Nothing was changed.
    pub fn release(&self, from: u64, end: u64) -> Result<(), u64> {
        // Release: after the loads of the slots. Pairs with the producer's acquire load of read_pos.
        let read_pos = &self.words[header::READ_POS];
        read_pos.swap_from(from, end, Release).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A word whose value changes with each load if `moves` is true.
    #[derive(Default)]
    struct Moving {
        value: Cell<u64>,
        moves: bool,
        loads: Cell<u32>,
    }

    impl Load for Moving {
        fn load(&self, _: Ordering) -> u64 {
            self.loads.set(self.loads.get() + 1);
            assert!(
                self.loads.get() < 100 * MAX_TRIES,
                "the word is loaded without end"
            );
            let value = self.value.get();
            if self.moves {
                self.value.set((value + 1) % 16);
            }
            value
        }

        fn fence(_: Ordering) {}
    }

    #[test]
    fn producer_state_is_read_again_while_the_position_moves() {
        let shape = Shape {
            layout: Layout::V4,
            capacity: 16,
            versions: (4 << 32) | 4,
        };
        let len = header::WORDS + 16 * Layout::V4.slot_words();
        let loads_of_the_position = |moves| {
            let mut words: Vec<_> = (0..len).map(|_| Moving::default()).collect();
            words[header::VERSIONS].value.set(shape.versions);
            words[header::CAPACITY].value.set(shape.capacity);
            words[header::WRITE_POS].moves = moves;
            let state = Consumer::new(&words, shape).producer_state();
            assert!(state.is_ok());
            words[header::WRITE_POS].loads.get()
        };
        assert_eq!(loads_of_the_position(false), 3);
        assert!(loads_of_the_position(true) > MAX_TRIES, "but not for ever");
    }
}
