// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::sync::atomic::AtomicU64;

/// The bytes of a store of an agent with these bounds, as NIXL writes it.
pub(crate) fn store(agent: &str, rank: &str, bounds: &[f64]) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    let mut put =
        |at: usize, word: u64| bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    put(MAGIC_AT, MAGIC);
    put(SCHEMA_AND_SLOTS, (21 << 32) | 1);
    put(PID, 4242);
    put(UPDATED, 5);
    put(INSTANCE, 3);
    put(BOUND_COUNT, bounds.len() as u64);
    for (at, bound) in bounds.iter().enumerate() {
        put(BOUNDS + at, bound.to_bits());
    }
    for at in COUNTERS..WORDS {
        put(at, at as u64);
    }
    for (at, text) in [(AGENT, agent), (HOST, "node-1"), (RANK, rank)] {
        bytes[8 * at..8 * at + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}

fn parse(bytes: &[u8]) -> Result<Description, Rejection> {
    Description::parse(bytes.try_into().expect("a whole store"), LEN as u64)
}

#[test]
fn store_describes_its_agent() {
    let said = parse(&store("worker 0", "7", &[0.5, 10.0])).expect("a store");
    let expected = Description {
        agent: "worker 0".into(),
        pid: 4242,
        instance: 3,
        host: "node-1".into(),
        rank: "7".into(),
        bounds: BucketBounds::new(&[0.5, 10.0]).expect("good"),
    };
    assert_eq!(said, expected);
    let longest = "x".repeat(255);
    assert_eq!(
        parse(&store(&longest, "", &[1.0])).expect("a store").agent,
        *longest
    );
}

#[test]
fn values_are_read_from_the_offsets_of_nixl() {
    let bytes = store("a", "", &[1.0]);
    let words: Vec<AtomicU64> = bytes
        .chunks_exact(8)
        .map(|word| AtomicU64::new(u64::from_le_bytes(word.try_into().expect("a word"))))
        .collect();
    let values = read_values(&words);
    // Offsets in the format are 752, 920 and 1088 bytes. Each word there holds its own index.
    assert_eq!(
        (values.updated, values.counters[0], values.counters[20]),
        (5, 94, 114)
    );
    let [xfer_time, post_time] = values.histograms;
    assert_eq!(
        (xfer_time[0], xfer_time[32]),
        (136 + 6 * 33, 136 + 6 * 33 + 32)
    );
    assert_eq!(post_time[0], 136 + 7 * 33);
    assert_eq!(read_head(&words), head(4242));
    words[UPDATED].store(6, Relaxed);
    assert_eq!(read_head(&words), head(4242));
    words[PID].store(6, Relaxed);
    assert_eq!(read_head(&words), head(6));
}

#[test]
fn impossible_store_is_rejected_with_its_numbers() {
    let good = store("a", "", &[1.0, 2.0]);
    let spoilt = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        parse(&bytes).expect_err("spoilt").to_string()
    };
    assert!(
        spoilt(0, b'X').contains("0x3153504d4c584958"),
        "{}",
        spoilt(0, b'X')
    );
    assert!(spoilt(8, 2).contains("schema 2"));
    assert!(spoilt(12, 37).contains("37 slots"));
    assert!(spoilt(40, 33).contains("more than 32"));
    assert!(spoilt(40, 0).contains("bounds"));
    assert!(spoilt(48, 0).contains("agent name"));
    let endless = |from: usize, len: usize| {
        let mut bytes = good.clone();
        bytes[from..from + len].fill(b'x');
        parse(&bytes).expect_err("endless").to_string()
    };
    assert!(endless(48, 256).contains("agent name"));
    assert!(endless(304, 128).contains("host name"));
    assert!(endless(432, 64).contains("local rank"));
    for bounds in [
        [2.0, 1.0],
        [1.0, f64::NAN],
        [1.0, f64::INFINITY],
        [-1.0, 1.0],
    ] {
        assert!(parse(&store("a", "", &bounds)).is_err(), "{bounds:?}");
    }
}

#[test]
fn owner_lock_is_an_empty_file_of_that_name() {
    for (name, size, expected) in [
        ("nixl-owner.127.0.0.1:19090.lock", 0, true),
        ("nixl-owner.[::1]:9090.lock", 0, true),
        ("nixl-owner.127.0.0.1:19090.lock", 168, false),
        ("nixl-owner.lock2", 0, false),
        ("nixl.1.2.3.mmap", 0, false),
        ("owner.1.lock", 0, false),
    ] {
        assert_eq!(is_owner_lock(OsStr::new(name), size), expected, "{name}");
    }
}

#[test]
fn store_name_is_that_of_a_finished_store() {
    let is = |name: &str| is_store_name(OsStr::new(name));
    assert!(is("nixl.4242.1795272511722547987.0.mmap") && is("nixl.1.2.3.mmap"));
    for name in [
        "nixl.4242.1795272511722547987.0.mmap.staging",
        "nixl-owner.127.0.0.1:19090.lock",
        "nixl.4242.17.mmap",
        "nixl.x.17.0.mmap",
        "nixl..17.0.mmap",
        "nixl.123456789012345678901.17.0.mmap",
        "nixl.1.2.3.4.mmap",
        "Nixl.1.2.3.mmap",
        "",
    ] {
        assert!(!is(name), "{name}");
    }
}

#[test]
fn rejection_of_bounds_names_the_wrong_bound() {
    let wrong = |bounds: &[f64]| {
        let rejection = parse(&store("a", "0", bounds)).expect_err("no store");
        rejection.to_string()
    };
    for (bounds, expected) in [
        (
            &[][..],
            "the store has no histogram bounds, or more than 32; ",
        ),
        (
            &[10.0, 5.0, 20.0],
            "5 as bound 2 of 3, which has to be a number above 10; ",
        ),
        (
            &[1.0, 1.0],
            "1 as bound 2 of 2, which has to be a number above 1; ",
        ),
        (&[1.0, f64::NAN], "NaN as bound 2 of 2, "),
        (
            &[f64::INFINITY],
            "inf as bound 1 of 1, which has to be a number not below 0; ",
        ),
        (&[-0.0], "-0 as bound 1 of 1, "),
    ] {
        let said = wrong(bounds);
        assert!(said.contains(expected), "{said}");
        assert!(said.ends_with("remove it, its agent makes another at its next start"));
    }
    let mut many = store("a", "0", &[1.0]);
    many[8 * BOUND_COUNT] = 33;
    let said = parse(&many).expect_err("no store").to_string();
    assert!(
        said.contains("no histogram bounds, or more than 32; "),
        "{said}"
    );
}
