// SPDX-License-Identifier: GPL-2.0-or-later

//! Memory allocations of a tick: none while the agents stay the same.
#![allow(unsafe_code)] // an allocator is unsafe by its signature; this one hands all on to the system's

#[path = "../bench/rings.rs"]
mod rings;

use crate::support::writer;
use rings::{Host, Layout};
use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

/// Allocator that counts the allocations of a thread.
struct Counting;

thread_local! {
    static WATCHED: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static FIRST: RefCell<Option<Backtrace>> = const { RefCell::new(None) };
}

impl Counting {
    fn count() {
        // A thread that ends has no thread-local data any more.
        let watched = WATCHED.try_with(|watched| watched.replace(false));
        if watched != Ok(true) {
            return;
        }
        if COUNT.replace(COUNT.get() + 1) == 0 {
            FIRST.set(Some(Backtrace::force_capture()));
        }
        WATCHED.set(true);
    }
}

// SAFETY: every call goes to the system's allocator with equal arguments, and its result is returned unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        Self::count();
        // SAFETY: the caller guarantees what the system's allocator requires.
        unsafe { System.alloc(size) }
    }

    unsafe fn realloc(&self, old: *mut u8, size: Size, new: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as above; every pointer from here comes from the system's allocator.
        unsafe { System.realloc(old, size, new) }
    }

    unsafe fn dealloc(&self, old: *mut u8, size: Size) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of allocations during `work`, and the backtrace of the first one.
fn allocations(work: impl FnOnce()) -> (u64, String) {
    COUNT.set(0);
    WATCHED.set(true);
    work();
    WATCHED.set(false);
    let first = FIRST.take().map(|first| first.to_string());
    (COUNT.get(), first.unwrap_or_default())
}

/// Runs ticks of busy or silent agents.
fn steady(layout: Layout, capacity: u64, agents: usize) {
    let mut host = Host::new(layout, capacity, agents);
    // The first ticks grow the buffers.
    for _ in 0..3 {
        host.refill();
        host.tick();
    }
    for busy in [true, false] {
        for tick in 0..100 {
            if busy {
                host.refill();
            }
            let (count, first) = allocations(|| host.tick());
            assert_eq!(count, 0, "{layout:?}, busy: {busy}, tick {tick}: {first}");
        }
    }
}

#[test]
fn tick_with_the_same_agents_allocates_no_memory() {
    for layout in Layout::ALL {
        steady(layout, 64, 100);
    }
}

#[test]
fn tick_with_full_rings_allocates_no_memory() {
    steady(Layout::V4, 1 << 16, 2);
}

#[test]
fn allocation_counter_counts_an_allocation() {
    let (count, first) = allocations(|| drop(std::hint::black_box(vec![1_u8])));
    assert_eq!(count, 1);
    assert!(
        first.contains("allocation_counter_counts_an_allocation"),
        "{first}"
    );
}
