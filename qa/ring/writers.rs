// SPDX-License-Identifier: GPL-2.0-or-later

//! The writers of the tests: their rings and stores must have the bytes of those that NIXL writes.

use crate::support::kit::store_writer::{StoreWriter, TX_BYTES, Who, XFER_TIME};
use crate::support::writer::{Kind, Layout, RingWriter};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const VALUE: u64 = 0x0102_0304_0506_0708;
const BYTES: [u8; 8] = [8, 7, 6, 5, 4, 3, 2, 1];
const NAMED: &[u8; 36] = b"\x05\0\0\0agent_xfer_time\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Bytes of a ring of 4 slots after one push.
fn file(layout: Layout, push: fn(&mut RingWriter) -> bool) -> io::Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("agent");
    assert!(push(&mut RingWriter::create(&path, layout, 4)?));
    fs::read(path)
}

#[test]
fn ring_has_the_header_and_size_of_its_layout() -> io::Result<()> {
    let versions = [1, 2, 2, 3, 4];
    let sizes = [264, 232, 104, 104, 104];
    for ((layout, version), size) in Layout::ALL.into_iter().zip(versions).zip(sizes) {
        let bytes = file(layout, |ring| ring.push(Kind::TxBytes, 1))?;
        let mut header = [0; 40];
        (header[0], header[24], header[32]) = (1, 4, 3);
        (header[16], header[20]) = (version, version);
        assert_eq!(bytes.len(), size, "{layout:?}");
        assert_eq!(bytes[..40], header, "{layout:?}");
    }
    Ok(())
}

#[test]
fn slots_of_named_layouts_have_the_type_name() -> io::Result<()> {
    let v1 = file(Layout::V1, |ring| ring.push(Kind::XferTime, VALUE))?;
    let stamp = u64::from_le_bytes(v1[40..48].try_into().expect("8 bytes"));
    assert_eq!(stamp.ilog10(), 15, "microseconds since 1970: {stamp}");
    assert_eq!((&v1[48..84], &v1[88..96]), (&NAMED[..], &BYTES[..]));
    let v2 = file(Layout::V2Named, |ring| ring.push(Kind::XferTime, VALUE))?;
    assert_eq!((&v2[40..76], &v2[80..88]), (&NAMED[..], &BYTES[..]));
    let error = file(Layout::V2Named, |ring| ring.push(Kind::Canceled, 1))?;
    assert_eq!(error[40..63], *b"\x04\0\0\0NIXL_ERR_CANCELED\0\0");
    let long = file(Layout::V1, |ring| ring.push_named(&"x".repeat(40), 1))?;
    assert_eq!(long[48..54], *b"\x03\0\0\0xx");
    assert_eq!(long[81..84], *b"xx\0");
    Ok(())
}

#[test]
fn slots_of_numbered_layouts_have_the_type_number() -> io::Result<()> {
    let v2 = file(Layout::V2, |ring| ring.push(Kind::NoTelemetry, VALUE))?;
    assert_eq!(v2[40..48], [4, 0, 0, 0, 19, 0, 0, 0]);
    assert_eq!(v2[48..56], BYTES);
    for layout in [Layout::V3, Layout::V4] {
        let slot = file(layout, |ring| ring.push_raw(0x0a0b_0c0d, VALUE))?;
        assert_eq!(slot[40..44], [13, 12, 11, 10]);
        assert_eq!(slot[48..56], BYTES);
    }
    assert!(Kind::ALL.into_iter().map(Kind::raw).eq(0..21));
    Ok(())
}

#[test]
fn full_ring_rejects_events_and_restart_empties_it() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("agent");
    let mut ring = RingWriter::create(&path, Layout::V1, 4)?;
    assert_eq!(ring.push_transfer(true, 4096, 20, 10), 3);
    assert_eq!((ring.push(Kind::RxBytes, 1), ring.pending()), (false, 3));
    let inode = fs::metadata(&path)?.ino();
    let again = RingWriter::create(&path, Layout::V4, 8)?;
    let meta = fs::metadata(&path)?;
    assert_eq!((again.pending(), meta.ino(), meta.len()), (0, inode, 168));
    assert!(RingWriter::create(&path, Layout::V4, 12).is_err());
    assert_eq!(fs::read(&path)?[16..25], [0, 0, 0, 0, 0, 0, 0, 0, 12]);
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// The offsets are from stores of NIXL 1.5.1.
#[test]
fn store_has_the_bytes_of_nixl_1_5_1() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let identity = Who::named("worker").rank("7").bounds(&[10.0, 20.5]);
    let store = StoreWriter::create(dir.path(), &identity)?;
    store.add(TX_BYTES, 4096);
    for time in [10, 11, 21] {
        store.add(XFER_TIME, time);
    }
    let path = store.path().to_owned();
    drop(store);
    let bytes = fs::read(path)?;
    assert_eq!(
        (bytes.len(), &bytes[..16]),
        (6800, &b"NIXLMPS1\x01\0\0\0\x15\0\0\0"[..])
    );
    assert_eq!(
        (&bytes[48..55], &bytes[304..311]),
        (&b"worker\0"[..], &b"node-1\0"[..])
    );
    assert_eq!((&bytes[432..434], word(&bytes, 40)), (&b"7\0"[..], 2));
    assert_eq!(word(&bytes, 496 + 8), 20.5_f64.to_bits());
    assert_eq!((word(&bytes, 752), word(&bytes, 920)), (4096, 4096));
    let first = 1088 + 8 * 33 * XFER_TIME;
    assert_eq!(
        [0, 1, 2].map(|range| word(&bytes, first + 8 * range)),
        [1, 1, 1]
    );
    assert_eq!((word(&bytes, 752 + 48), word(&bytes, 6632 + 48)), (42, 42));
    Ok(())
}

#[test]
fn store_is_locked_while_its_agent_lives() -> io::Result<()> {
    let dir = tempfile::tempdir()?;
    let store = StoreWriter::create(dir.path(), &Who::named("a"))?;
    let lock = |path: &Path| {
        let file = File::open(path).expect("there");
        Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok()
    };
    let path = store.path().to_owned();
    assert!(!lock(&path));
    drop(store);
    assert!(lock(&path));
    Ok(())
}
