// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::event::{EventType, Events, Totals};
use crate::ring::layout::header;
use std::os::unix::fs::FileExt;

/// Bytes of a v4 ring whose first slots have events with these bytes sent.
pub(crate) fn bytes_of_ring(capacity: u64, sent: &[u64]) -> Vec<u8> {
    let mut words = vec![sent.len() as u64, 0, (4 << 32) | 4, capacity, capacity - 1];
    words.extend(sent.iter().flat_map(|&value| [0, value]));
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let len = Layout::V4.file_len(capacity).expect("small");
    bytes.resize(usize::try_from(len).expect("small"), 0);
    bytes
}

/// A mapped v4 ring of 8 slots in its own file, and the file for writing with pwrite(2).
fn ring() -> (File, Ring) {
    ring_of(8)
}

fn copy(file: &File) -> File {
    file.try_clone().expect("a descriptor")
}

pub(crate) fn ring_of(capacity: u64) -> (File, Ring) {
    let file = tempfile::tempfile().expect("a temporary file");
    let header = Header {
        write_pos: 0,
        read_pos: 0,
        version: 4,
        expected_version: 4,
        capacity,
        mask: capacity - 1,
    };
    file.set_len(Layout::V4.file_len(capacity).expect("small"))
        .expect("space");
    put(&file, header::VERSIONS, (4 << 32) | 4);
    put(&file, header::CAPACITY, capacity);
    let ring = Ring::map(copy(&file), &header, Layout::V4, false).expect("mapped");
    (file, ring)
}

fn try_read(ring: &Ring, limit: u64, events: &mut Events) -> Result<Batch, RingFault> {
    ring.read(|ring| ring.read_batch(limit, events))?
}

/// Reads a batch. Returns it with its totals.
fn read_batch(ring: &Ring, limit: u64) -> (Batch, Totals) {
    let mut events = Events::default();
    let batch = try_read(ring, limit, &mut events).expect("a good ring");
    (batch, events.totals().clone())
}

fn fingerprint(ring: &Ring, from: u64, end: u64) -> Fingerprint {
    ring.read(|ring| ring.fingerprint(from, end))
        .expect("whole")
}

fn tail_hash(ring: &Ring, pos: u64) -> u64 {
    ring.read(|ring| ring.tail_hash(pos)).expect("whole")
}

pub(crate) fn put(file: &File, word: usize, value: u64) {
    file.write_all_at(&value.to_le_bytes(), 8 * word as u64)
        .expect("written");
}

fn put_event(file: &File, pos: usize, event: EventType, value: u64) {
    put(file, header::WORDS + 2 * pos, event as u64 | (0xbad << 32));
    put(file, header::WORDS + 2 * pos + 1, value);
}

#[test]
fn batch_goes_round_the_end_of_the_ring() {
    let (file, ring) = ring();
    put(&file, header::READ_POS, 6);
    for pos in [6, 7, 0] {
        put_event(&file, pos, EventType::RxBytes, 10 + pos as u64);
    }
    put(&file, header::WRITE_POS, 1);
    let (batch, totals) = read_batch(&ring, 100);
    assert_eq!((batch.from, batch.end), (6, 1));
    assert_eq!(totals.get(EventType::RxBytes), 16 + 17 + 10);
    assert_eq!(ring.positions(), Ok((6, 1)), "a read releases nothing");
    assert_eq!(ring.release(6, 1), Ok(Ok(())));
    assert_eq!(ring.positions(), Ok((1, 1)));
    let (empty, totals) = read_batch(&ring, 100);
    assert_eq!((empty.from, empty.end, totals), (1, 1, Totals::default()));
}

#[test]
fn full_ring_is_read_in_batches_of_the_limit() {
    let (file, ring) = ring();
    (0..8).for_each(|pos| put_event(&file, pos, EventType::TxRequests, 1));
    put(&file, header::READ_POS, 3);
    put(&file, header::WRITE_POS, 2);
    let mut counts = Vec::new();
    while ring.positions() != Ok((2, 2)) {
        let (batch, totals) = read_batch(&ring, 3);
        counts.push(totals.get(EventType::TxRequests));
        assert_eq!(ring.release(batch.from, batch.end), Ok(Ok(())));
    }
    assert_eq!(counts, [3, 3, 1]);
}

#[test]
fn release_after_a_restart_leaves_the_new_ring_unchanged() {
    let (file, ring) = ring();
    put(&file, header::READ_POS, 2);
    put(&file, header::WRITE_POS, 5);
    let batch = try_read(&ring, 100, &mut Events::default()).expect("a good ring");
    put(&file, header::READ_POS, 0);
    put(&file, header::WRITE_POS, 0);
    assert_eq!(ring.release(batch.from, batch.end), Ok(Err(0)));
    assert_eq!(
        ring.positions(),
        Ok((0, 0)),
        "the new ring keeps its positions"
    );
}

#[test]
fn changed_header_is_an_error_before_slots_are_read() {
    let (file, ring) = ring();
    put(&file, header::VERSIONS, (3 << 32) | 3);
    assert_eq!(
        try_read(&ring, 100, &mut Events::default()),
        Err(RingFault::Reformatted)
    );
    put(&file, header::VERSIONS, (4 << 32) | 4);
    put(&file, header::CAPACITY, 1 << 40);
    assert_eq!(
        try_read(&ring, 100, &mut Events::default()),
        Err(RingFault::Reformatted)
    );
    put(&file, header::CAPACITY, 8);
    put(&file, header::WRITE_POS, 8);
    assert_eq!(
        try_read(&ring, 100, &mut Events::default()),
        Err(RingFault::Positions {
            read_pos: 0,
            write_pos: 8,
            capacity: 8
        })
    );
}

#[test]
fn layouts_of_version_2_differ_by_the_length_of_the_file() {
    let header = Header {
        write_pos: 0,
        read_pos: 0,
        version: 2,
        expected_version: 2,
        capacity: 8,
        mask: 7,
    };
    let lengths = [Layout::V2, Layout::V2Named].map(|layout| {
        let len = layout.file_len(8).expect("small");
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(len).expect("space");
        let ring = Ring::map(copy(&file), &header, layout, false).expect("mapped");
        (len, ring)
    });
    let [(short, v2), (long, named)] = lengths;
    assert!(v2.fits_another_layout(long) && named.fits_another_layout(short));
    assert!(!v2.fits_another_layout(short) && !named.fits_another_layout(long));
    assert!(!v2.fits_another_layout(short - 1));
}

#[test]
fn fingerprint_differs_if_any_slot_was_overwritten() {
    let (file, ring) = ring_of(512);
    (0..512).for_each(|pos| put_event(&file, pos, EventType::TxBytes, 1 + pos as u64));
    for (from, end) in [(0, 300), (300, 200), (500, 100), (40, 50)] {
        let found = fingerprint(&ring, from, end);
        let mut pos = from;
        while pos != end {
            let at = usize::try_from(pos).expect("small");
            put_event(&file, at, EventType::TxBytes, 0);
            assert_ne!(
                fingerprint(&ring, from, end),
                found,
                "{from} to {end}, {pos}"
            );
            put_event(&file, at, EventType::RxBytes, 1 + pos);
            assert_ne!(
                fingerprint(&ring, from, end),
                found,
                "{from} to {end}, {pos}"
            );
            put_event(&file, at, EventType::TxBytes, 1 + pos);
            pos = (pos + 1) % 512;
        }
        assert_eq!(fingerprint(&ring, from, end), found, "restored");
    }
}

#[test]
fn fingerprint_depends_on_the_order_of_the_first_slots() {
    let (file, ring) = ring_of(512);
    (0..512).for_each(|pos| put_event(&file, pos, EventType::TxBytes, 1 + pos as u64));
    for (from, end, first) in [(0, 300, 0), (100, 300, 100), (500, 100, 0), (500, 100, 500)] {
        let found = fingerprint(&ring, from, end);
        for pos in first..(first + 11) {
            let mut values = [1 + pos as u64, 2 + pos as u64];
            for is_reversed in [true, false] {
                values.reverse();
                put_event(&file, pos, EventType::TxBytes, values[0]);
                put_event(&file, pos + 1, EventType::TxBytes, values[1]);
                assert_eq!(fingerprint(&ring, from, end) != found, is_reversed, "{pos}");
            }
        }
    }
}

#[test]
fn tail_hash_changes_only_with_the_last_64_slots() {
    let (file, ring) = ring_of(256);
    let before = tail_hash(&ring, 10);
    (10..192).for_each(|pos| put_event(&file, pos, EventType::TxBytes, 1));
    assert_eq!(
        tail_hash(&ring, 10),
        before,
        "a producer at work is not there yet"
    );
    put_event(&file, 192, EventType::TxBytes, 1);
    let later = tail_hash(&ring, 10);
    assert_ne!(later, before);
    put_event(&file, 255, EventType::TxBytes, 1);
    assert_ne!(tail_hash(&ring, 10), later);
}

#[test]
fn truncated_ring_is_a_fault_and_does_not_end_the_process() {
    crate::shm::guard_against_sigbus().expect("a handler");
    let (file, ring) = ring();
    put(&file, header::WRITE_POS, 3);
    file.set_len(0).expect("shorter");
    assert_eq!(ring.positions(), Err(RingFault::Truncated));
    assert_eq!(
        try_read(&ring, 100, &mut Events::default()),
        Err(RingFault::Truncated)
    );
}

#[test]
fn mapping_needs_a_writable_file_and_a_possible_capacity() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ring");
    std::fs::write(&path, [0; 168]).expect("written");
    let header = Header {
        write_pos: 0,
        read_pos: 0,
        version: 4,
        expected_version: 4,
        capacity: 8,
        mask: 7,
    };
    assert!(
        Ring::map(
            File::open(&path).expect("there"),
            &header,
            Layout::V4,
            false
        )
        .is_err()
    );
    let huge = Header {
        capacity: 1 << 63,
        ..header
    };
    // Open for writing as well, so that only its size is wrong.
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("there");
    assert!(Ring::map(copy(&file), &header, Layout::V4, false).is_ok());
    assert!(Ring::map(copy(&file), &huge, Layout::V4, false).is_err());
}
