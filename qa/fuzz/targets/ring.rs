// SPDX-License-Identifier: GPL-2.0-or-later

//! A ring file: its header is checked, it is mapped, and what is taken from it is compared with what stands in the
//! file, which changes between the steps.

use super::writer::{HEADER, Kind, Layout};
use super::{Input, assert_one_line, layout_of_number};
use pmdanixl::error::RingFault;
use pmdanixl::event::{Event, EventType, Events, Totals};
use pmdanixl::ring::layout::{Header, header};
use pmdanixl::ring::protocol::Consumer;
use pmdanixl::ring::{Batch, Ring};
use pmdanixl::shm::{ReadWord, guard_against_sigbus};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The longest file.
const MAX_LEN: u64 = 1 << 16;

/// The input is how the file is made, what is done with it, and its bytes.
pub fn run(input: &[u8]) {
    guard_against_sigbus().expect("a handler");
    let mut input = Input(input);
    let (shape, count) = (input.u8(), usize::from(input.u8() % 32));
    let steps = input.bytes(count * STEP);
    let Some(mut world) = World::new(shape, &mut input) else {
        return;
    };
    for step in steps.chunks(STEP) {
        world.step(&mut Input(step));
    }
    world.drain(u64::MAX);
}

/// Bytes of a step: what is done, with which word or how many events, and a value.
const STEP: usize = 10;

struct World {
    file: File,
    layout: Layout,
    capacity: u64,
    ring: Ring,
}

impl World {
    /// A file of the input's bytes as they are (`shape` 255), or with the header of a ring in front of them. `None`: it
    /// is no ring.
    fn new(shape: u8, input: &mut Input) -> Option<Self> {
        let file = tempfile::tempfile().expect("a file");
        if shape == 255 {
            file.write_all_at(input.0, 0).expect("room");
        } else {
            let layout = layout_of_number(shape);
            let capacity = 1 << (shape / 5 % 8);
            let (write_pos, read_pos) = (u64::from(input.u8()), u64::from(input.u8()));
            let version = u64::from(layout.version());
            let header = [
                (HEADER.write_pos, write_pos % capacity),
                (HEADER.read_pos, read_pos % capacity),
                (HEADER.versions, (version << 32) | version),
                (HEADER.capacity, capacity),
                (HEADER.mask, capacity - 1),
            ];
            file.write_all_at(input.0, 8 * HEADER.first_slot)
                .expect("room");
            file.set_len(layout.file_size(capacity).expect("small"))
                .expect("room");
            for (word, value) in header {
                file.write_all_at(&value.to_le_bytes(), 8 * word)
                    .expect("room");
            }
        }
        let size = file.metadata().expect("open").len();
        let mut bytes = [0; header::BYTES];
        let read = file.read_at(&mut bytes, 0).expect("open");
        if read < 40 {
            return None;
        }
        let header = Header::from_bytes(&bytes);
        let found = header.check(size);
        let expected = layout_of(&file, size);
        assert_eq!(found.is_ok(), expected.is_some(), "{found:?} {expected:?}");
        let (found, layout) = match (found, expected) {
            (Ok(found), Some(layout)) => (found, layout),
            (rejection, _) => {
                assert_one_line(&rejection.expect_err("no ring").to_string());
                return None;
            }
        };
        assert!(header.pending() < header.capacity);
        let ring = Ring::map(
            file.try_clone().expect("a descriptor"),
            &header,
            found,
            false,
        )
        .expect("mapped");
        Some(Self {
            file,
            layout,
            capacity: header.capacity,
            ring,
        })
    }

    fn step(&mut self, step: &mut Input) {
        let (what, number, value) = (step.u8() % 10, u64::from(step.u8()), step.u64());
        match what {
            0 => drop(self.take(value)),
            1 => drop(self.take(number)),
            2 => self.drain(1 + number),
            3 => self.push(number, value),
            4 => self.look(value, value >> 32),
            5 => self.release(value >> 32, value & 0xffff_ffff),
            6 => self.put(number % HEADER.first_slot, value),
            7 => self.put(
                HEADER.first_slot + (value >> 32) % (MAX_LEN / 8),
                number * (value & 0xffff_ffff),
            ),
            // Nothing, or at least the header: what is stored behind the end of a file is in no file.
            8 => {
                let len = value % MAX_LEN;
                let len = if len < 8 * HEADER.first_slot { 0 } else { len };
                self.file.set_len(len).expect("room");
            }
            // Started anew, as NIXL does it.
            _ => {
                for word in [HEADER.write_pos, HEADER.read_pos, HEADER.versions] {
                    self.put(word, 0);
                }
                let version = u64::from(self.layout.version());
                self.put(HEADER.capacity, self.capacity);
                self.put(HEADER.versions, version);
                self.put(HEADER.versions, (version << 32) | version);
            }
        }
    }

    /// Reads from the ring.
    fn read<T>(
        &self,
        run: impl FnOnce(Consumer<ReadWord>) -> Result<T, RingFault>,
    ) -> Result<T, RingFault> {
        self.ring.read(run)?
    }

    /// Takes a batch, and compares it with the file.
    fn take(&self, limit: u64) -> Option<Batch> {
        let mut events = Events::default();
        let batch = match self.read(|ring| ring.read_batch(limit, &mut events)) {
            Ok(batch) => batch,
            Err(fault) => {
                self.assert_faulty(fault);
                return None;
            }
        };
        assert_eq!(batch.from, self.word(HEADER.read_pos));
        self.compare(&batch, &events, limit);
        Some(batch)
    }

    fn compare(&self, batch: &Batch, events: &Events, limit: u64) {
        let mask = self.capacity - 1;
        let len = batch.end.wrapping_sub(batch.from) & mask;
        assert!(batch.from < self.capacity && batch.end < self.capacity);
        assert_eq!(batch.producer.write_pos, self.word(HEADER.write_pos));
        let pending = batch.producer.write_pos.wrapping_sub(batch.from) & mask;
        assert_eq!(
            len,
            pending.min(limit),
            "no more than capacity - 1, and no less than waits"
        );
        assert_eq!(events.list().len() as u64, len);
        assert_eq!(*events.totals(), self.totals(batch.from, len));
        // What a batch says of slots is what the ring says of them, since nobody has written since.
        let (from, end, pos) = (batch.from, batch.end, batch.producer.write_pos);
        let look = |ring: Consumer<ReadWord>| {
            (
                ring.fingerprint(from, end),
                ring.slot_at(pos),
                ring.tail_hash(pos),
            )
        };
        let expected = (
            batch.fingerprint,
            batch.producer.next,
            batch.producer.tail_hash,
        );
        assert_eq!(self.ring.read(look), Ok(expected));
    }

    /// Takes and releases until nothing waits.
    fn drain(&self, limit: u64) {
        let mut events = 0;
        while let Some(batch) = self.take(limit) {
            if batch.from == batch.end {
                break;
            }
            events += batch.end.wrapping_sub(batch.from) & (self.capacity - 1);
            assert!(events < self.capacity, "a ring holds capacity - 1 events");
            self.release(batch.from, batch.end);
        }
    }

    /// Moves `read_pos` if it is at `from`, and changes nothing else.
    fn release(&self, from: u64, end: u64) {
        let (before, read_pos) = (self.bytes(), HEADER.read_pos);
        match self.ring.release(from, end) {
            Ok(Ok(())) => {
                assert_eq!(
                    (self.word(read_pos), field(&before, 8 * read_pos)),
                    (end, from)
                );
            }
            Ok(Err(found)) => assert_eq!(found, field(&before, 8 * read_pos)),
            Err(fault) => return assert_eq!(fault, RingFault::Truncated),
        }
        let after = self.bytes();
        assert!(before.len() == after.len());
        let at = usize::try_from(8 * read_pos).expect("small");
        assert!(before.get(..at) == after.get(..at) && before.get(at + 8..) == after.get(at + 8..));
    }

    /// What looks at slots takes any position, and sees the same as long as nobody writes.
    fn look(&self, from: u64, end: u64) {
        let look = || {
            let look = |ring: Consumer<ReadWord>| {
                (
                    ring.fingerprint(from, end),
                    ring.slot_at(from),
                    ring.tail_hash(from),
                )
            };
            self.ring.read(look)
        };
        let (found, again) = (look(), look());
        // The first look may have found that the file was cut off.
        assert!(again == Err(RingFault::Truncated) || found == again);
    }

    /// Pushes an event as NIXL does.
    fn push(&self, kind: u64, value: u64) {
        let kind = Kind::ALL[usize::try_from(kind % 21).expect("small")];
        let mask = self.capacity - 1;
        let (pos, read_pos) = (
            self.word(HEADER.write_pos) & mask,
            self.word(HEADER.read_pos),
        );
        if (pos + 1) & mask == read_pos {
            return;
        }
        let slot = self
            .layout
            .slot(pos, kind.name(), kind.raw(), kind.category(), value);
        let at = 8 * HEADER.first_slot + pos * self.layout.slot_size();
        self.write(&slot, at);
        self.put(HEADER.write_pos, (pos + 1) & mask);
    }

    /// Why nothing was taken: the header says so, or the file is or was shorter than the ring.
    fn assert_faulty(&self, fault: RingFault) {
        assert_one_line(&fault.to_string());
        let outside = self.word(HEADER.write_pos) >= self.capacity
            || self.word(HEADER.read_pos) >= self.capacity;
        let version = u64::from(self.layout.version());
        let versions = (version << 32) | version;
        let other =
            self.word(HEADER.versions) != versions || self.word(HEADER.capacity) != self.capacity;
        match fault {
            RingFault::Truncated => {}
            RingFault::Reformatted => assert!(other),
            RingFault::Positions { .. } => assert!(outside),
            RingFault::Restarted => panic!("nobody writes meanwhile"),
            RingFault::Sparse | RingFault::StatFailed => {
                panic!("a source looks at its file, a ring does not")
            }
        }
    }

    fn totals(&self, from: u64, len: u64) -> Totals {
        let (bytes, mut totals) = (self.bytes(), Totals::default());
        for pos in from..from + len {
            let size = self.layout.slot_size();
            let at = 8 * HEADER.first_slot + (pos & (self.capacity - 1)) * size;
            let slot: Vec<u8> = (at..at + size).map(|at| byte(&bytes, at)).collect();
            let (event, value) = decode(self.layout, &slot);
            totals.count(Event::new(event, value));
        }
        totals
    }

    fn bytes(&self) -> Vec<u8> {
        let len = self.file.metadata().expect("open").len();
        let mut bytes = vec![0; usize::try_from(len).expect("short")];
        self.file.read_exact_at(&mut bytes, 0).expect("so long");
        bytes
    }

    fn word(&self, word: u64) -> u64 {
        field(&self.bytes(), 8 * word)
    }

    fn put(&self, word: u64, value: u64) {
        self.write(&value.to_le_bytes(), 8 * word);
    }

    /// Writes into the file, unless that was cut off.
    fn write(&self, bytes: &[u8], at: u64) {
        if !self.bytes().is_empty() {
            self.file.write_all_at(bytes, at).expect("room");
        }
    }
}

fn byte(bytes: &[u8], at: u64) -> u8 {
    let at = usize::try_from(at).expect("short");
    // Behind the end of a file its last page holds zeros.
    bytes.get(at).copied().unwrap_or(0)
}

fn field(bytes: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| byte(bytes, at + index as u64)))
}

/// Which ring a file is, stated from the format.
fn layout_of(file: &File, size: u64) -> Option<Layout> {
    let mut bytes = [0; 40];
    let read = file.read_at(&mut bytes, 0).expect("open");
    let word = |word: u64| field(&bytes[..read], 8 * word);
    let layouts = Layout::ALL.into_iter();
    let layout = { layouts }.find(|layout| {
        let version = u64::from(layout.version());
        let slots = u128::from(word(HEADER.capacity)) * u128::from(layout.slot_size());
        let len = slots + 8 * u128::from(HEADER.first_slot);
        word(HEADER.versions) == (version << 32) | version && len == u128::from(size)
    })?;
    let capacity = word(HEADER.capacity);
    let good = capacity.is_power_of_two() && word(HEADER.mask) == capacity - 1;
    let within = |place| word(place) < capacity;
    (good && within(HEADER.write_pos) && within(HEADER.read_pos)).then_some(layout)
}

/// An event, stated from the format: where the type, or the name and the value are.
fn decode(layout: Layout, slot: &[u8]) -> (Option<EventType>, u64) {
    let (name, value) = match layout {
        Layout::V1 => (12, 48),
        Layout::V2Named => (4, 40),
        Layout::V2 => (4, 8),
        Layout::V3 | Layout::V4 => (0, 8),
    };
    let kind = if layout.is_named() {
        let text = &slot[name..name + 32];
        let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
        // Named layouts have no type for dropped events.
        let mut kinds = Kind::ALL[..20].iter();
        kinds.position(|kind| kind.name().as_bytes() == text)
    } else {
        let known = match layout {
            Layout::V1 | Layout::V2Named | Layout::V2 | Layout::V3 => 20,
            Layout::V4 => 21,
        };
        let raw = u32::from_le_bytes(std::array::from_fn(|index| slot[name + index]));
        usize::try_from(raw).ok().filter(|&raw| raw < known)
    };
    let value = field(slot, value);
    // What cannot be is not believed.
    let kind = kind.filter(|_| value < 1 << 56);
    (kind.map(|kind| EventType::ALL[kind]), value)
}
