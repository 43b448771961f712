// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::base::words::tests::{from_words, to_words};
use crate::entry::Lifecycle;
use crate::event::EventType;
use crate::procfs::facts::{command, gpu, labels};
use crate::ring::checkpoint::Checkpoint;
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::store_values::StoreValues;
use crate::store::{StoreId, StoreReading};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

fn record() -> Vec<AtomicU64> {
    (0..RECORD_WORDS).map(|_| AtomicU64::new(0xdead)).collect()
}

fn name() -> Name {
    Name {
        raw: OsString::from_vec(b"worker \xff".to_vec()),
        instance: "worker%20%FF@gpu".into(),
        directory: "/dev/shm/nixl".into(),
        part: "store:1:7".into(),
        owner: u32::MAX,
    }
}

/// An entry with all words that it can have. Most of them differ.
fn entry(first: u64) -> Entry {
    let mut entry = Entry {
        lifecycle: Lifecycle::Exited { since: 9 },
        checkpoint: Some(Checkpoint::default()),
        store: Some(StoreReading::none(StoreId::default())),
        ..Entry::default()
    };
    entry.stats.last_error = Some((EventType::Backend, 0));
    entry.stats.bucket_base = Some(7);
    entry.stats.pairing.start(8);
    let (none, bounds) = (StoreValues::NONE, BucketBounds::default());
    entry.stats.apply_delta(&none, &none, &bounds, None);
    let words = to_words(&entry).into_iter().zip(first..);
    let words = Vec::from_iter(words.map(|(word, other)| if word == 0 { other } else { word }));
    assert_eq!(words.len(), Entry::MAX);
    let mut entry: Entry = from_words(&words).expect("possible words");
    let checkpoint = entry.checkpoint.get_or_insert_default();
    checkpoint.ring.capacity = 1024 << (first / 100);
    (
        checkpoint.from,
        checkpoint.end,
        checkpoint.producer.write_pos,
    ) = (first + 1, first + 2, first + 3);
    checkpoint.released = false;
    entry
}

fn known(facts: &[(&str, &str)]) -> Facts {
    let mut known = Facts::default();
    for &(name, value) in facts {
        known.set(name, Some(value));
    }
    known
}

#[test]
fn record_is_read_as_it_was_written() {
    let words = record();
    create(&words, &name(), &Entry::default());
    let saved = read(&words).expect("whole").expect("in use");
    assert_eq!((saved.name, saved.id, saved.facts), (name(), None, None));
    assert_eq!(saved.entry, Entry::default());
    for first in [100, 200, 300] {
        replace(&words, &entry(first));
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.entry, entry(first));
    }
    let released = |words: &[AtomicU64]| {
        let saved = read(words).expect("whole").expect("in use");
        saved.entry.checkpoint.map(|checkpoint| checkpoint.released)
    };
    set_released(&words);
    assert_eq!(released(&words), Some(true));
    replace(&words, &entry(400));
    assert_eq!(released(&words), Some(false), "that was another batch");
    set_id(&words, 7);
    let user = |user: &str| known(&[("user", user)]);
    let facts = user("nobody");
    set_facts(&words, Some(&facts));
    let saved = read(&words).expect("whole").expect("in use");
    assert_eq!((saved.id, saved.facts), (Some(7), Some(facts.clone())));
    // The longest values that hosts have.
    let longest = [
        ("user", 256),
        ("local_rank", 63),
        ("agent_instance", 20),
        ("nixl_hostname", 127),
        ("container_id", 64),
        ("pod_uid", 36),
        ("pod", 253),
        ("namespace", 63),
        ("engine", 7),
        (labels::GPU_LIST, gpu::MAX_LIST),
        ("slurm_job_id", 10),
        ("rank", command::MAX_RANK),
        ("role", 7),
        ("port", 5),
        ("command", command::MAX_SHOWN),
    ];
    let mut most = Facts::default();
    for (name, len) in longest {
        most.set(name, Some("x".repeat(len)));
    }
    set_facts(&words, Some(&most));
    let saved = read(&words).expect("whole").expect("in use");
    assert_eq!(saved.facts, Some(most));
    let much = user(&"x".repeat(5000));
    for (none, why) in [(Some(&much), "it does not fit"), (None, "nothing is known")] {
        set_facts(&words, Some(&facts));
        set_facts(&words, none);
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.facts, None, "{why}");
    }
    free(&words);
    assert_eq!(read(&words), Ok(None));
}

#[test]
fn each_lifecycle_is_read_as_it_was_written() {
    let words = record();
    create(&words, &name(), &Entry::default());
    for lifecycle in [
        Lifecycle::Dormant,
        Lifecycle::AwaitingLabels { deadline: 7 },
        Lifecycle::Active,
        Lifecycle::Exited { since: 8 },
    ] {
        let mut entry = entry(100);
        entry.lifecycle = lifecycle;
        replace(&words, &entry);
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.entry.lifecycle, lifecycle);
    }
}

#[test]
fn partial_entry_does_not_count() {
    let words = record();
    create(&words, &name(), &entry(100));
    for first in [200, 300] {
        let before = read(&words).expect("whole");
        let inactive = ENTRY.first(ENTRY.generation(&words) + 1);
        for word in &words[inactive..inactive + ENTRY_SPACE] {
            word.store(0xbad, Relaxed);
            assert_eq!(read(&words).expect("whole"), before);
        }
        replace(&words, &entry(first));
    }
}

#[test]
fn impossible_words_are_a_damaged_record() {
    let rubbish = record();
    assert_eq!(read(&rubbish), Err(Damaged));
    for (word, value) in [
        (OWNER, 1 << 33),
        (NAMES_LENGTH, 0),
        (NAMES_LENGTH, u64::MAX),
        (NAMES, 0xffff),
    ] {
        let words = record();
        create(&words, &name(), &entry(1));
        words[word].store(value, Relaxed);
        assert_eq!(read(&words), Err(Damaged), "{word}");
    }
}

#[test]
fn impossible_bucket_base_is_none() {
    for (base, read_base) in [(HIGHEST_ID, Some(HIGHEST_ID)), (HIGHEST_ID + 1, None)] {
        let mut entry = entry(1);
        entry.stats.bucket_base = Some(base);
        let words = record();
        create(&words, &name(), &entry);
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.entry.stats.bucket_base, read_base);
    }
}

#[test]
fn impossible_id_is_none_and_the_rest_is_read() {
    for id in [1 << 25, 1 << 31, 1 << 32, u64::MAX - 1] {
        let words = record();
        create(&words, &name(), &entry(1));
        words[INSTANCE_ID].store(id, Relaxed);
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!((saved.id, saved.entry), (None, entry(1)));
        set_id(&words, HIGHEST_ID);
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.id, Some(HIGHEST_ID));
    }
}

#[test]
fn instance_name_that_pcp_cannot_have_is_damaged() {
    for instance in ["agent 1", "agent\n", "[agent", "a/b", "\u{a0}"] {
        let words = record();
        let name = Name {
            instance: instance.into(),
            ..name()
        };
        create(&words, &name, &Entry::default());
        assert_eq!(read(&words), Err(Damaged), "{instance:?}");
    }
}

#[test]
fn counts_saturate() {
    let words = record();
    let mut entry = Entry {
        resets: u64::MAX,
        foreign_reads: u64::MAX,
        ..entry(100)
    };
    create(&words, &name(), &entry);
    entry = read(&words).expect("whole").expect("in use").entry;
    entry.add_reset();
    entry.add_foreign_reads(3);
    assert_eq!((entry.resets, entry.foreign_reads), (u64::MAX, u64::MAX));
}

#[test]
fn impossible_positions_are_a_damaged_record() {
    let spoil = |change: &dyn Fn(&mut Checkpoint)| {
        let mut entry = entry(100);
        if let Some(checkpoint) = &mut entry.checkpoint {
            change(checkpoint);
        }
        let words = record();
        create(&words, &name(), &entry);
        assert_eq!(read(&words), Err(Damaged), "{:?}", entry.checkpoint);
    };
    spoil(&|checkpoint| checkpoint.from = checkpoint.ring.capacity);
    spoil(&|checkpoint| checkpoint.end = checkpoint.ring.capacity);
    spoil(&|checkpoint| checkpoint.producer.write_pos = u64::MAX);
    spoil(&|checkpoint| checkpoint.ring.capacity -= 1);
    spoil(&|checkpoint| checkpoint.ring.capacity = 0);
}

#[test]
fn longest_names_fit_into_a_record() {
    let longest = Name {
        raw: OsString::from_vec(vec![b'x'; 255]),
        instance: "y".repeat(200 + 1 + 64),
        directory: PathBuf::from(format!("/{}", "z".repeat(1023))),
        // 63 bytes that are not UTF-8: each is shown as three bytes.
        part: format!("store:{}:{}", usize::MAX, "\u{fffd}".repeat(63)),
        owner: 0,
    };
    assert!(fits(&longest));
    let words = record();
    create(&words, &longest, &Entry::default());
    assert_eq!(
        read(&words).expect("whole").map(|saved| saved.name),
        Some(longest.clone())
    );
    let directory = longest.directory.join("z".repeat(255));
    assert!(!fits(&Name {
        directory,
        ..longest
    }));
}
