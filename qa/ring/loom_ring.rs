// SPDX-License-Identifier: GPL-2.0-or-later

//! Producer and consumer of a ring in all orders that the memory model allows, by loom. The consumer is the real one
//! (`src/ring/protocol.rs`) on loom's words in place of a mapping; the producer does what NIXL does.
//!
//! Limits: the number of preemptions in `explore`, a ring of four slots, and no loads that see later stores, which loom
//! does not model. Stores of a restart are assumed to become visible in their order, as on x86; in any order, the model
//! finds invalid batches. A restart of a ring with `read_pos` 0 is not modelled: the identity of the file shows it
//! (`src/source/ring/counting.rs`).
//!
//! The tests also weaken each ordering and check that the model then fails.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use pmdanixl::event::{Event, EventType, Events};
use pmdanixl::ring::layout::{Layout, header};
use pmdanixl::ring::protocol::{Batch, Consumer, Load, Shape, Word};
use std::ops::Range;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// Weakened part of the protocol.
const NOTHING: u8 = 0;
/// The consumer has no fences between its loads of positions and those of slots.
const CONSUMER_FENCE: u8 = 1;
/// The consumer releases slots by a relaxed compare-and-swap.
const CONSUMER_RELEASE: u8 = 2;
/// The consumer releases slots by a plain store.
const CONSUMER_SWAP: u8 = 3;
/// The producer stores its position relaxed.
const PRODUCER_RELEASE: u8 = 4;

/// Word of the ring, with one ordering weakened.
struct Cell<const WEAK: u8>(AtomicU64);

impl<const WEAK: u8> Load for Cell<WEAK> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn fence(order: Ordering) {
        if WEAK != CONSUMER_FENCE {
            fence(order);
        }
    }
}

impl<const WEAK: u8> Word for Cell<WEAK> {
    fn swap_from(&self, current: u64, new: u64, order: Ordering) -> Result<u64, u64> {
        match WEAK {
            CONSUMER_RELEASE => self.0.compare_exchange(current, new, Relaxed, Relaxed),
            CONSUMER_SWAP => {
                self.0.store(new, order);
                Ok(current)
            }
            _ => self.0.compare_exchange(current, new, order, Relaxed),
        }
    }
}

/// A v4 ring in memory.
struct Ring<const WEAK: u8> {
    words: Vec<Cell<WEAK>>,
    /// One cell for each slot: the consumer accesses those of its batch, and the producer that of its slot. Loom
    /// reports an access that is not ordered after the other.
    turns: Vec<UnsafeCell<()>>,
    capacity: u64,
}

/// Version 4, twice.
const BOTH_VERSIONS: u64 = (4 << 32) | 4;

impl<const WEAK: u8> Ring<WEAK> {
    fn new(capacity: u64) -> Self {
        let word = |at| {
            Cell(AtomicU64::new(match at {
                header::VERSIONS => BOTH_VERSIONS,
                header::CAPACITY => capacity,
                header::MASK => capacity - 1,
                _ => 0,
            }))
        };
        let slots = usize::try_from(capacity).expect("small");
        Self {
            words: (0..header::WORDS + 2 * slots).map(word).collect(),
            turns: (0..slots).map(|_| UnsafeCell::new(())).collect(),
            capacity,
        }
    }

    /// Pushes an event as NIXL does. Returns false if the ring is full and the event is lost.
    fn push(&self, number: u32) -> bool {
        let write_pos = self.words[header::WRITE_POS].0.load(Relaxed);
        let next = (write_pos + 1) & (self.capacity - 1);
        if next == self.words[header::READ_POS].0.load(Acquire) {
            return false;
        }
        let slot = usize::try_from(write_pos).expect("small");
        self.turns[slot].with_mut(|_| ());
        let first = header::WORDS + 2 * slot;
        self.words[first].0.store(kind(number) as u64, Relaxed);
        self.words[first + 1].0.store(value(number), Relaxed);
        let order = match WEAK {
            PRODUCER_RELEASE => Relaxed,
            _ => Release,
        };
        self.words[header::WRITE_POS].0.store(next, order);
        true
    }

    /// Re-initialises the header as NIXL does when an agent starts on the file of another. The stores become visible in
    /// their order, as on x86. NIXL guarantees that only for the versions at the end.
    fn restart(&self) {
        let store = |word: usize, value| self.words[word].0.store(value, Release);
        store(header::VERSIONS, 0);
        store(header::WRITE_POS, 0);
        // A store in NIXL. Only for a swap does loom order it after a compare-and-swap that has read the value before.
        self.words[header::READ_POS].0.swap(0, Release);
        // Capacity and mask do not change.
        store(header::VERSIONS, BOTH_VERSIONS);
        // A thread that starts after this pushes the first event.
        fence(Release);
    }

    fn consumer(&self) -> Consumer<'_, Cell<WEAK>> {
        let shape = Shape {
            layout: Layout::V4,
            capacity: self.capacity,
            versions: BOTH_VERSIONS,
        };
        Consumer::new(&self.words, shape)
    }

    fn len(&self, batch: &Batch) -> u32 {
        let len = batch.end.wrapping_sub(batch.from) & (self.capacity - 1);
        u32::try_from(len).expect("small")
    }

    /// Notes that the slots of a batch were read.
    fn touch(&self, batch: &Batch) {
        let mut pos = batch.from;
        while pos != batch.end {
            self.turns[usize::try_from(pos).expect("small")].with(|_| ());
            pos = (pos + 1) & (self.capacity - 1);
        }
    }
}

/// Event with a unique value, and with a type other than those of its neighbours.
fn value(number: u32) -> u64 {
    10_u64.pow(number)
}

fn kind(number: u32) -> EventType {
    match number % 2 {
        0 => EventType::TxBytes,
        _ => EventType::RxBytes,
    }
}

/// Asserts that a batch has exactly these events.
fn assert_events(taken: &[Event], events: Range<u32>) {
    let event = |number| Event::new(Some(kind(number)), value(number));
    assert_eq!(taken, events.map(event).collect::<Vec<_>>());
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    // Limit of preemptions, unless LOOM_MAX_PREEMPTIONS is set.
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(model);
}

/// A producer and a consumer on a ring that is full at first. The second new event then gets a slot that the consumer
/// has read.
fn a_producer_and_a_consumer<const WEAK: u8>() {
    explore(|| {
        let ring = Arc::new(Ring::<WEAK>::new(4));
        assert!((0..3).all(|number| ring.push(number)));
        let producer = {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || {
                let mut pushed = 3;
                for _ in 0..2 {
                    pushed += u32::from(ring.push(pushed));
                }
                pushed
            })
        };
        let mut counted = 0;
        let mut drain = || {
            let mut events = Events::default();
            let batch = ring.consumer().read_batch(u64::MAX, &mut events);
            let batch = batch.expect("no restart");
            let end = counted + ring.len(&batch);
            assert_events(events.list(), counted..end);
            ring.touch(&batch);
            assert_eq!(ring.consumer().release(batch.from, batch.end), Ok(()));
            counted = end;
        };
        drain();
        drain();
        let pushed = producer.join().expect("no panic");
        drain();
        assert_eq!(counted, pushed);
    });
}

/// Pending events of the first agent, and events of the agent that restarts in place.
const OLD: Range<u32> = 2..5;
const NEW: Range<u32> = 10..11;

/// A producer restart during a drain. The old events are counted once, or not at all if the restart is first. The new
/// events are counted once, and the consumer recognises the restart.
fn a_restart_while_the_ring_is_drained<const WEAK: u8>() {
    explore(|| {
        let ring = Arc::new(Ring::<WEAK>::new(4));
        // Not from slot 0 on: there, only the identity of the file shows a restart (see src/source/ring/counting.rs).
        assert!(ring.push(0) && ring.push(1));
        assert_eq!(ring.consumer().release(0, 2), Ok(()));
        assert!(OLD.clone().all(|number| ring.push(number)));
        let producer = {
            let ring = Arc::clone(&ring);
            loom::thread::spawn(move || {
                ring.restart();
                assert!(NEW.clone().all(|number| ring.push(number)));
            })
        };
        // Position of the consumer until it sees a restart.
        let (mut left_off, mut new) = (Some(2), NEW.start);
        let mut drain = || {
            let mut events = Events::default();
            let Ok(batch) = ring.consumer().read_batch(u64::MAX, &mut events) else {
                left_off = None;
                return;
            };
            if left_off.is_some_and(|left_off| batch.from != left_off) {
                left_off = None;
                return;
            }
            // The commit comes before the release.
            let len = ring.len(&batch);
            match left_off {
                Some(2) => assert_events(events.list(), OLD),
                Some(_) => assert_eq!(len, 0, "no event after the old ones: {batch:?}"),
                None => {
                    assert_events(events.list(), new..new + len);
                    new += len;
                }
            }
            let released = ring.consumer().release(batch.from, batch.end);
            if left_off.is_some() {
                left_off = released.is_ok().then_some(batch.end);
            } else {
                assert_eq!(released, Ok(()), "only one restart");
            }
        };
        drain();
        producer.join().expect("no panic");
        drain();
        drain();
        assert_eq!((left_off, new), (None, NEW.end));
    });
}

/// Asserts that the model fails with this message: the weakened ordering is needed, and the model finds its absence.
fn assert_needed(model: fn(), how: &str) {
    let found = std::panic::catch_unwind(model).expect_err("the model fails");
    let found = match found.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => (*other.downcast::<&str>().expect("a message")).to_owned(),
    };
    assert!(found.contains(how), "{found}");
}

/// Message if the counted events are not the pushed ones.
const WRONG: &str = "assertion `left == right` failed";
/// Message if a slot is written while the consumer reads it.
const RACE: &str = "Concurrent read and write accesses";

#[test]
fn each_event_is_read_whole_and_counted_once() {
    a_producer_and_a_consumer::<NOTHING>();
}

#[test]
fn restart_is_recognised_and_counted_right() {
    a_restart_while_the_ring_is_drained::<NOTHING>();
}

#[test]
fn model_without_the_consumers_acquire_fails() {
    assert_needed(a_producer_and_a_consumer::<CONSUMER_FENCE>, WRONG);
}

#[test]
fn model_without_the_producers_release_fails() {
    assert_needed(a_producer_and_a_consumer::<PRODUCER_RELEASE>, WRONG);
}

#[test]
fn model_without_the_consumers_release_fails() {
    assert_needed(a_producer_and_a_consumer::<CONSUMER_RELEASE>, RACE);
}

#[test]
fn model_with_a_store_for_the_compare_and_swap_fails() {
    assert_needed(a_restart_while_the_ring_is_drained::<CONSUMER_SWAP>, WRONG);
}

#[test]
fn model_without_the_consumers_fence_fails() {
    assert_needed(a_restart_while_the_ring_is_drained::<CONSUMER_FENCE>, WRONG);
}
