// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;

fn good(layout: Layout, capacity: u64) -> (Header, u64) {
    let version = layout.version();
    let header = Header {
        write_pos: 0,
        read_pos: 0,
        version,
        expected_version: version,
        capacity,
        mask: capacity - 1,
    };
    (header, layout.file_len(capacity).expect("a small file"))
}

#[test]
fn layout_is_determined_by_version_and_size() {
    for layout in Layout::ALL {
        for capacity in [1, 2, 4096, 1 << 20] {
            let (header, size) = good(layout, capacity);
            assert_eq!(header.check(size), Ok(layout));
            assert_eq!(
                header.check(size + 8),
                Err(Rejection::Length {
                    version: layout.version(),
                    capacity,
                    size: size + 8
                })
            );
        }
    }
}

#[test]
fn file_len_of_default_rings_is_that_of_nixl() {
    let sizes = Layout::ALL.map(|layout| layout.file_len(4096));
    assert_eq!(
        sizes,
        [
            Some(229_416),
            Some(196_648),
            Some(65_576),
            Some(65_576),
            Some(65_576)
        ]
    );
    let fits = Layout::fits_any;
    assert!(fits(229_416) && fits(65_576) && fits(56));
    assert!(!fits(65_592) && !fits(66_048) && !fits(40) && !fits(0));
}

#[test]
fn each_wrong_field_has_its_own_rejection() {
    let (header, size) = good(Layout::V4, 8);
    let rejection = |change: fn(&mut Header)| {
        let mut wrong = header;
        change(&mut wrong);
        wrong.check(size).expect_err("a wrong header")
    };
    assert_eq!(
        rejection(|h| h.version = 0),
        Rejection::Uninitialised { full: None }
    );
    assert_eq!(
        rejection(|h| h.expected_version = 0),
        Rejection::Uninitialised { full: None }
    );
    let blank = Header::from_words(&[0; header::WORDS]);
    // NIXL leaves rings of 1,000 slots. UCX leaves files of whole pages in /dev/shm.
    for layout in Layout::ALL {
        let size = layout.file_len(1000).expect("small");
        assert_eq!(
            blank.check(size),
            Err(Rejection::Uninitialised { full: None })
        );
    }
    for size in [4096, 5 * 4096, 519 * 4096, 100] {
        assert_eq!(blank.check(size), Err(Rejection::Blank { size }));
    }
    assert_eq!(
        rejection(|h| h.version = 3),
        Rejection::Versions {
            version: 3,
            expected_version: 4
        }
    );
    assert_eq!(
        rejection(|h| (h.version, h.expected_version) = (6, 6)),
        Rejection::Unsupported {
            version: 6,
            newest: 4
        }
    );
    assert_eq!(
        rejection(|h| (h.version, h.expected_version) = (-1, -1)),
        Rejection::Version { version: -1 }
    );
    assert_eq!(
        rejection(|h| (h.version, h.expected_version) = (256, 256)),
        Rejection::Version { version: 256 }
    );
    // All words are sevens, as in an unrelated file.
    let sevens = Header::from_words(&[(7 << 32) | 7; header::WORDS]);
    assert_eq!(sevens.check(size), Err(Rejection::Version { version: 7 }));
    assert_eq!(
        rejection(|h| h.capacity = 1000),
        Rejection::Capacity { capacity: 1000 }
    );
    assert_eq!(
        rejection(|h| h.capacity = 0),
        Rejection::Capacity { capacity: 0 }
    );
    assert_eq!(
        rejection(|h| h.capacity = 1 << 63),
        Rejection::Length {
            version: 4,
            capacity: 1 << 63,
            size: 168
        }
    );
    assert_eq!(
        rejection(|h| h.mask = 0),
        Rejection::Mask {
            mask: 0,
            capacity: 8
        }
    );
    assert_eq!(
        rejection(|h| h.write_pos = 8),
        Rejection::Positions {
            read_pos: 0,
            write_pos: 8,
            capacity: 8
        }
    );
    assert_eq!(
        rejection(|h| h.read_pos = u64::MAX),
        Rejection::Positions {
            read_pos: u64::MAX,
            write_pos: 0,
            capacity: 8
        }
    );
}

#[test]
fn bytes_and_words_give_the_same_header() {
    let mut bytes = [0; header::BYTES];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(at).expect("below 40");
    }
    let header = Header::from_bytes(&bytes);
    assert_eq!(header.write_pos, 0x0706_0504_0302_0100);
    assert_eq!(
        (header.version, header.expected_version),
        (0x1312_1110, 0x1716_1514)
    );
    assert_eq!(header.mask, 0x2726_2524_2322_2120);
}

#[test]
fn later_versions_are_unsupported_with_either_header() {
    let rejection = |version: u64, capacity, mask| {
        let mut words = [0; header::WORDS];
        words[header::VERSIONS] = (version << 32) | version;
        (words[capacity], words[mask]) = (4096, 4095);
        Header::from_words(&words).check(40 + 16 * 4096)
    };
    for version in [5, 6] {
        let later = Err(Rejection::Unsupported {
            version: i32::try_from(version).expect("small"),
            newest: 4,
        });
        assert_eq!(rejection(version, header::CAPACITY, header::MASK), later);
        // The pull request nixl#2018 has the capacity in word 1 and the mask in word 3.
        assert_eq!(rejection(version, 1, 3), later);
        let neither = rejection(version, 0, 4);
        assert!(matches!(neither, Err(Rejection::Version { .. })));
    }
    // A released version with these words has a position outside of it.
    assert!(rejection(4, 1, 3).is_err());
}

#[test]
fn type_20_is_unknown_before_version_4() {
    assert_eq!(
        Layout::V4.decode(&[20, 7]),
        Event::new(Some(EventType::EventsDropped), 7)
    );
    assert_eq!(Layout::V3.decode(&[20, 7]), Event::new(None, 7));
    assert_eq!(Layout::V2.decode(&[20 << 32, 7]), Event::new(None, 7));
    assert_eq!(Layout::V4.decode(&[21, 7]), Event::new(None, 7));
}

#[test]
fn padding_is_ignored_in_the_event_type() {
    assert_eq!(
        Layout::V3.decode(&[0xdead_beef_0000_0006, 9]),
        Event::new(Some(EventType::XferTime), 9)
    );
    assert_eq!(
        Layout::V4.decode(&[0xffff_ffff_0000_0000, 9]),
        Event::new(Some(EventType::TxBytes), 9)
    );
}

#[test]
fn names_end_at_nul_or_at_32_bytes() {
    let slot = |name: &[u8]| {
        let mut bytes = [0xaa; 40];
        bytes[4..4 + name.len()].copy_from_slice(name);
        let mut words: Vec<u64> = bytes
            .chunks(8)
            .map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes")))
            .collect();
        words.push(5);
        words
    };
    assert_eq!(
        Layout::V2Named.decode(&slot(b"agent_tx_bytes\0")),
        Event::new(Some(EventType::TxBytes), 5)
    );
    assert_eq!(
        Layout::V2Named.decode(&slot(b"agent_tx_bytes")),
        Event::new(None, 5)
    );
    assert_eq!(
        Layout::V2Named.decode(&slot(&[b'x'; 32])),
        Event::new(None, 5)
    );
    let mut v1 = vec![123_456];
    v1.extend(slot(b"NIXL_ERR_BACKEND\0"));
    assert_eq!(
        Layout::V1.decode(&v1),
        Event::new(Some(EventType::Backend), 5)
    );
}

#[test]
fn value_above_the_maximum_has_no_known_type() {
    let tx_bytes = [EventType::TxBytes as u64, MAX_VALUE];
    assert_eq!(
        Layout::V4.decode(&tx_bytes),
        Event::new(Some(EventType::TxBytes), MAX_VALUE)
    );
    let absurd = [EventType::TxBytes as u64, MAX_VALUE + 1];
    let decoded = Layout::V4.decode(&absurd);
    assert_eq!(decoded, Event::new(None, MAX_VALUE + 1));
    // Another layout has a name where this one has a value.
    let name = u64::from_le_bytes(*b"agent_tx");
    assert_eq!(Layout::V3.decode(&[0, name]).kind, None);
}
