// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: the state file. With any content, it can be read and used, and a second read gives equal records.

use super::{Input, assert_instance_name, assert_one_line};
use pmdanixl::entry::{Entry, Lifecycle, Name};
use pmdanixl::event::{Event, EventType};
use pmdanixl::journal::record::RECORD_WORDS;
use pmdanixl::journal::{Journal, StateContents};
use pmdanixl::shm::guard_against_sigbus;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The input is the number of agents of a good state file, and then changes of it: page, word and value. With 255, the
/// rest of the input is the file.
pub fn run(input: &[u8]) {
    guard_against_sigbus().expect("a handler");
    let mut input = Input(input);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nixl/state");
    let agents = input.u8();
    let (journal, _) = take(&path);
    if agents == 255 {
        drop(journal);
        fs::write(&path, input.0).expect("room");
    } else {
        fill(journal, agents % 8);
        spoil(&path, &mut input);
    }

    let (journal, found) = take(&path);
    if let Some(why) = &found.rejection {
        assert_one_line(why);
        // The complete records of a truncated file are used.
        assert!(found.records.is_empty() || !why.contains("its totals are not used"));
    }
    for (_, saved) in &found.records {
        let Name {
            raw,
            instance,
            directory,
            part: _,
            owner: _,
        } = &saved.name;
        assert!(!raw.is_empty() && !raw.as_bytes().contains(&0));
        assert!(!directory.as_os_str().is_empty());
        assert_instance_name(instance);
        if let Some(checkpoint) = &saved.entry.checkpoint {
            // Valid positions of a ring.
            assert!(checkpoint.ring.capacity.is_power_of_two());
            let positions = [
                checkpoint.from,
                checkpoint.end,
                checkpoint.producer.write_pos,
            ];
            assert!(positions.iter().all(|&pos| pos < checkpoint.ring.capacity));
        }
    }

    // Invalid values have been corrected.
    let records = found.records;
    drop(journal);
    let (mut journal, again) = take(&path);
    assert_eq!((again.rejection, &again.records), (None, &records));

    // The records can be used.
    let mut expected = Vec::new();
    for (number, (id, mut saved)) in records.into_iter().enumerate() {
        if number % 3 == 2 {
            journal.expire(Some(id), &saved.entry);
            continue;
        }
        saved
            .entry
            .stats
            .totals
            .count(Event::new(Some(EventType::TxBytes), 1));
        journal.commit(Some(id), &saved.entry);
        if let Some(checkpoint) = &mut saved.entry.checkpoint {
            journal.note_released(Some(id));
            checkpoint.released = true;
        }
        saved.id = Some(7);
        journal.set_id(Some(id), 7);
        expected.push((id, saved));
    }
    let id = journal.create(&name(99), &entry(99)).expect("room");
    drop(journal);
    let mut again = take(&path).1.records;
    let new = again.iter().position(|(other, _)| *other == id);
    let (_, new) = again.remove(new.expect("the new one"));
    assert_eq!((new.name, new.id, new.entry), (name(99), None, entry(99)));
    assert_eq!(again, expected);
}

pub fn take(path: &Path) -> (Journal, StateContents) {
    let mut journal = Journal::open(path);
    let found = journal.start().expect("usable with any content");
    (journal, found.expect("an unlocked file"))
}

fn name(number: u8) -> Name {
    Name {
        raw: format!("agent {number}").into(),
        instance: format!("agent%20{number}"),
        directory: "/dev/shm".into(),
        part: String::new(),
        owner: 1,
    }
}

fn entry(value: u8) -> Entry {
    let mut entry = Entry::default();
    let event = Event::new(Some(EventType::TxBytes), value.into());
    entry.stats.totals.count(event);
    if value % 2 == 0 {
        entry.lifecycle = Lifecycle::Active;
    }
    entry
}

fn fill(mut journal: Journal, agents: u8) {
    for number in 0..agents {
        let id = journal.create(&name(number), &Entry::default());
        assert!(id.is_some());
        for value in 0..=number {
            journal.commit(id, &entry(value));
        }
    }
}

/// Overwrites words of the file, or changes its length, as the input says.
pub fn spoil(path: &Path, input: &mut Input) {
    let file = OpenOptions::new().write(true).open(path).expect("ours");
    while !input.is_empty() {
        let (page, word, value) = (u64::from(input.u8()), u64::from(input.u16()), input.u64());
        if page == 255 {
            file.set_len(value % (1 << 20)).expect("room");
            continue;
        }
        let record = RECORD_WORDS as u64;
        let at = 8 * (page % 16 * record + word % record);
        file.write_all_at(&value.to_ne_bytes(), at).expect("room");
    }
}
