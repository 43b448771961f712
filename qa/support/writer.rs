// SPDX-License-Identifier: GPL-2.0-or-later

//! Writer of a NIXL telemetry ring, like the agent.
//!
//! Written from the format and the behaviour of the published NIXL wheels, not from `src/`. Every constant is stated
//! again, so that a test checks both sides.
#![allow(unsafe_code)] // one view of the mapping

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

#[path = "wire.rs"] // wherever this file is a module of
mod wire;
pub use wire::{HEADER, Kind, Layout};

/// Ring of one agent, mapped for writing. Dropping it leaves the file, as NIXL does.
///
/// A smaller ring on the path of a live one truncates the file: the old writer must not push any more.
#[derive(Debug)]
pub struct RingWriter {
    map: MmapRaw,
    layout: Layout,
    capacity: u64,
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

impl RingWriter {
    /// Creates the ring. On the path of an existing one, restarts it in place: the inode stays.
    ///
    /// A capacity that is not a power of two fails as in NIXL: the file then has its size, and version 0.
    pub fn create(path: &Path, layout: Layout, capacity: u64) -> io::Result<Self> {
        let ring = Self::begin(path, layout, capacity)?;
        ring.publish()?;
        Ok(ring)
    }

    /// Begins to create the ring: both positions are 0, and it has no version until [`RingWriter::publish`].
    pub fn begin(path: &Path, layout: Layout, capacity: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o644).open(path)?;
        let size = layout.file_size(capacity);
        file.set_len(size.ok_or_else(|| invalid("larger than a file can be"))?)?;
        let map = MmapOptions::new().map_raw(&file)?;
        let ring = Self {
            map,
            layout,
            capacity,
        };
        // The order of the wheels: both versions are cleared first, and `expected_version` is set after `version`. A
        // reader can see one without the other.
        ring.word(HEADER.versions).store(0, Ordering::Relaxed);
        ring.word(HEADER.write_pos).store(0, Ordering::Relaxed);
        ring.word(HEADER.read_pos).store(0, Ordering::Relaxed);
        Ok(ring)
    }

    /// Ends what [`RingWriter::begin`] has begun.
    pub fn publish(&self) -> io::Result<()> {
        self.word(HEADER.capacity)
            .store(self.capacity, Ordering::Relaxed);
        let mask = self.capacity.wrapping_sub(1);
        self.word(HEADER.mask).store(mask, Ordering::Relaxed);
        if !self.capacity.is_power_of_two() {
            return Err(invalid("the capacity is not a power of two"));
        }
        let version = u64::from(self.layout.version());
        let both = (version << 32) | version;
        self.word(HEADER.versions).store(version, Ordering::Release); // pairs with the reader's acquire
        self.word(HEADER.versions).store(both, Ordering::Release); // pairs with the reader's acquire
        Ok(())
    }

    /// Pushes one event. Returns false if the ring is full and the event is lost.
    pub fn push(&mut self, kind: Kind, value: u64) -> bool {
        self.push_slot(kind.name(), kind.raw(), kind.category(), value)
    }

    /// Pushes an event of any type number. The named layouts call a type above 20 `event_N`.
    pub fn push_raw(&mut self, raw_type: u32, value: u64) -> bool {
        match Kind::ALL.into_iter().find(|kind| kind.raw() == raw_type) {
            Some(kind) => self.push(kind, value),
            None => self.push_slot(&format!("event_{raw_type}"), raw_type, 7, value),
        }
    }

    /// Pushes an event with any name, truncated to 31 bytes, as backends did up to NIXL 0.10.
    ///
    /// # Panics
    /// In the numbered layouts, which have no field for a name.
    pub fn push_named(&mut self, name: &str, value: u64) -> bool {
        assert!(self.layout.is_named(), "slots without names");
        self.push_slot(name, 0, 3, value)
    }

    /// Pushes the four events of a transfer. Returns how many of them fitted.
    pub fn push_transfer(&mut self, read: bool, bytes: u64, xfer_us: u64, post_us: u64) -> usize {
        let events = Self::transfer(read, bytes, xfer_us, post_us);
        let fitted = events.map(|(kind, value)| self.push(kind, value));
        fitted.into_iter().filter(|fitted| *fitted).count()
    }

    /// The four events of a transfer, in the order of every layout. NIXL pushes them when the transfer completes.
    ///
    /// Up to NIXL 1.3, events of other threads of the agent can be in between.
    pub fn transfer(read: bool, bytes: u64, xfer_us: u64, post_us: u64) -> [(Kind, u64); 4] {
        let (size, request) = match read {
            true => (Kind::RxBytes, Kind::RxRequests),
            false => (Kind::TxBytes, Kind::TxRequests),
        };
        let (post, xfer) = (Kind::XferPostTime, Kind::XferTime);
        [
            (post, post_us),
            (xfer, xfer_us),
            (size, bytes),
            (request, 1),
        ]
    }

    /// Fills the ring at no cost: advances `write_pos` over the events that are in the slots already.
    pub fn push_again(&mut self) {
        self.push_some_again(self.capacity - 1 - self.pending());
    }

    /// Advances `write_pos` over so many events that are in the slots already.
    pub fn push_some_again(&mut self, events: u64) {
        assert!(self.pending() + events < self.capacity, "no room");
        let pos = (self.write_pos() + events) & (self.capacity - 1);
        self.word(HEADER.write_pos).store(pos, Ordering::Release);
    }

    /// Empties the ring like a reader.
    pub fn forget(&mut self) {
        self.word(HEADER.read_pos)
            .store(self.write_pos(), Ordering::Relaxed);
    }

    /// Events written and not yet read.
    pub fn pending(&self) -> u64 {
        self.write_pos().wrapping_sub(self.read_pos()) & (self.capacity - 1)
    }

    /// Number of slots. One event fewer fits.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Slot of the next event to read.
    pub fn read_pos(&self) -> u64 {
        self.word(HEADER.read_pos).load(Ordering::Acquire) // pairs with the reader's release of its slots
    }

    /// Sets the read position, as another reader does.
    pub fn set_read_pos(&self, position: u64) {
        self.word(HEADER.read_pos)
            .store(position, Ordering::Release);
    }

    /// Slot of the next event to write.
    pub fn write_pos(&self) -> u64 {
        self.word(HEADER.write_pos).load(Ordering::Relaxed) // the producer is its only writer
    }

    fn push_slot(&mut self, name: &str, raw: u32, category: i32, value: u64) -> bool {
        let pos = self.write_pos() & (self.capacity - 1);
        let slot = self.layout.slot(pos, name, raw, category, value);
        let words = slot.chunks_exact(8).map(|bytes| {
            let bytes = bytes.try_into().expect("chunks of 8 bytes");
            u64::from_ne_bytes(bytes)
        });
        self.push_words(&words.collect::<Vec<_>>())
    }

    /// Pushes the words of a slot. Returns false if the ring is full.
    pub fn push_words(&mut self, slot: &[u64]) -> bool {
        let mask = self.capacity - 1;
        let pos = self.write_pos() & mask; // a test may have set any position: stay in the mapping
        let next = (pos + 1) & mask;
        if next == self.read_pos() {
            return false;
        }
        let first = HEADER.first_slot + pos * self.layout.slot_size() / 8;
        for (index, &word) in (first..).zip(slot) {
            self.word(index).store(word, Ordering::Relaxed);
        }
        // Orders the slot before the position; pairs with the reader's acquire.
        self.word(HEADER.write_pos).store(next, Ordering::Release);
        true
    }

    /// Restores the bytes of the whole ring.
    pub fn restore(&self, bytes: &[u8]) {
        for (index, bytes) in (0..).zip(bytes.chunks_exact(8)) {
            let word = u64::from_ne_bytes(bytes.try_into().expect("chunks of 8 bytes"));
            self.word(index).store(word, Ordering::Relaxed);
        }
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        assert!(at < self.map.len() / 8, "word {index} outside the ring");
        let word = self.map.as_mut_ptr().cast::<u64>().wrapping_add(at);
        // SAFETY: the assertion keeps `word` inside the mapping, which is page-aligned, lives as long as `self`, and
        // is reached through this function only, as atomic words.
        unsafe { AtomicU64::from_ptr(word) }
    }
}
