// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::event::{Event, EventType, Events, Totals};

use crate::journal::records::{CHUNK, FORMAT, RECORD_LEN, offset, read_header};
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

pub(super) fn start(path: &Path) -> (Journal, StateContents) {
    let mut journal = Journal::open(path);
    let found = journal.start().expect("a state");
    (journal, found.expect("no other process has it"))
}

#[test]
fn second_journal_waits_for_the_file_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nixl/state");
    let (mut first, _) = start(&path);
    let mut second = Journal::open(&path);
    assert!(second.start().expect("it is there").is_none());
    fs::remove_file(&path).expect("there");
    assert!(first.check(), "the file is re-created");
    assert!(second.start().expect("it is there").is_none());
    drop(first);
    assert!(second.start().expect("it is there").is_some());
    assert!(
        second
            .file
            .as_ref()
            .is_some_and(|file| file::is_at(file, &path))
    );
}

/// Opens the state file as another program would.
pub(super) fn file(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).open(path).expect("there")
}

fn name(number: usize) -> Name {
    Name {
        raw: format!("agent {number}").into(),
        instance: format!("agent%20{number}"),
        directory: "/dev/shm".into(),
        part: String::new(),
        owner: 1000,
    }
}

/// Sums of an expired agent.
fn sums(value: u64) -> ExpiredTotals {
    let mut sums = ExpiredTotals::default();
    sums.add(&entry(value));
    sums
}

fn totals(value: u64) -> Totals {
    let sent = Event::new(Some(EventType::TxBytes), value);
    Events::of(&[sent]).totals().clone()
}

fn entry(value: u64) -> Entry {
    let mut entry = Entry::default();
    entry.stats.totals = totals(value);
    entry
}

/// A state file with agents 0 to `count` - 1, of which agent N has N + 1000 bytes.
pub(super) fn filled(count: usize) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nixl/state");
    let (mut journal, _) = start(&path);
    for number in 0..count {
        let id = journal.create(&name(number), &Entry::default());
        assert!(id.is_some());
        journal.commit(id, &entry(1000 + number as u64));
        journal.set_id(id, 7 + u32::try_from(number).expect("small"));
    }
    assert!(journal.is_persistent(count));
    (dir, path)
}

#[test]
fn records_are_restored_from_a_file_that_grew() {
    let count = 2 * CHUNK + 3;
    let (_dir, path) = filled(count);
    let (_, found) = start(&path);
    assert_eq!(found.rejection, None);
    assert_eq!(found.records.len(), count);
    for (number, (_, saved)) in found.records.iter().enumerate() {
        assert_eq!(saved.name, name(number));
        assert_eq!(saved.id, Some(7 + u32::try_from(number).expect("small")));
        assert_eq!(saved.entry, entry(1000 + number as u64));
    }
}

#[test]
fn freed_record_is_used_again() {
    let (_dir, path) = filled(CHUNK);
    let (mut journal, StateContents { records, .. }) = start(&path);
    let gone = &records[5].1.entry;
    journal.expire(Some(records[5].0), gone);
    let again = journal.create(&name(99), &entry(5));
    assert_eq!(again, Some(records[5].0), "the file does not grow for it");
    drop(journal);
    let (mut journal, found) = start(&path);
    assert_eq!(journal.expired(), Some(sums(1005)));
    let names = found.records;
    assert!(names.iter().any(|(_, saved)| saved.name == name(99)));
    assert!(!names.iter().any(|(_, saved)| saved.name == name(5)));
}

#[test]
fn file_shrinks_after_many_agents_and_keeps_the_rest() {
    let count = 5 * CHUNK;
    let (_dir, path) = filled(count);
    let len = || path.metadata().expect("there").len();
    assert_eq!(len(), offset(5));
    let (mut journal, StateContents { records, .. }) = start(&path);
    // One record in the third chunk stays in use, so that the chunks before it cannot be removed.
    let stays = 2 * CHUNK + 7;
    let mut sums = ExpiredTotals::default();
    for (number, (id, saved)) in records.iter().enumerate() {
        if number != stays {
            sums.add(&saved.entry);
            journal.expire(Some(*id), &saved.entry);
            assert!(!journal.check(), "the file is whole");
        }
    }
    assert_eq!(len(), offset(3));
    // New agents get the first records. The file grows again when these are used up.
    for number in 0..3 * CHUNK {
        let id = journal.create(&name(count + number), &entry(1));
        assert!(id.is_some());
    }
    assert_eq!(len(), offset(4));
    drop(journal);
    let (mut journal, found) = start(&path);
    assert_eq!(
        (found.rejection, found.records.len()),
        (None, 3 * CHUNK + 1)
    );
    assert_eq!(
        journal.expired(),
        Some(sums),
        "totals of expired agents stay"
    );
    let mut kept = found.records.iter().map(|(_, saved)| saved);
    assert!(
        kept.any(|saved| saved.name == name(stays) && saved.entry == entry(1000 + stays as u64))
    );
}

#[test]
fn file_keeps_one_chunk_without_agents() {
    let (_dir, path) = filled(2 * CHUNK);
    let (mut journal, StateContents { records, .. }) = start(&path);
    for (id, saved) in &records {
        journal.expire(Some(*id), &saved.entry);
    }
    assert_eq!(path.metadata().expect("there").len(), offset(1));
}

#[test]
fn damaged_records_are_reported_once_and_freed() {
    for (count, report) in [
        (1, "damaged records: 1; their agents begin at zero"),
        (2, "damaged records: 2; their agents begin at zero"),
    ] {
        let (_dir, path) = filled(3);
        let (mut journal, found) = start(&path);
        let mut damaged = entry(1);
        damaged.checkpoint.get_or_insert_default().ring.capacity = 3;
        for (id, _) in &found.records[..count] {
            journal.commit(Some(*id), &damaged);
        }
        drop(journal);
        let (journal, found) = start(&path);
        assert_eq!(found.rejection.as_deref(), Some(report));
        assert_eq!(found.records.len(), 3 - count);
        drop(journal);
        assert_eq!(start(&path).1.rejection, None);
    }
}

#[test]
fn whole_records_of_a_truncated_file_are_kept() {
    let (_dir, path) = filled(CHUNK + 5);
    file(&path)
        .set_len(offset(1) + 3 * RECORD_LEN + 8)
        .expect("truncated");
    let (_, found) = start(&path);
    assert!(found.rejection.is_some_and(|why| why.contains("truncated")));
    assert_eq!(found.records.len(), CHUNK + 3);
}

#[test]
fn next_id_is_read_from_the_file() {
    let (_dir, path) = filled(1);
    let (mut journal, _) = start(&path);
    journal.set_next_id(7);
    drop(journal);
    assert_eq!(start(&path).0.next_id(), 7);
}

#[test]
fn sums_and_labels_are_read_from_the_file() {
    let (_dir, path) = filled(1);
    let (mut journal, found) = start(&path);
    let mut facts = Facts::default();
    facts.set("engine", Some("vllm"));
    journal.set_facts(Some(found.records[0].0), Some(&facts));
    journal.set_expired(&sums(9));
    drop(journal);
    let (mut journal, found) = start(&path);
    assert_eq!(found.records[0].1.facts, Some(facts));
    assert_eq!(journal.expired(), Some(sums(9)));
}

#[test]
fn agent_killed_while_expiring_is_added_once() {
    let (_dir, path) = filled(2);
    let (mut journal, found) = start(&path);
    // The part of an expiry that comes before the kill.
    let sums = sums(1000);
    let head =
        |words: &[AtomicU64]| header::set_expired(words, &sums, Some(found.records[0].0.0 as u64));
    journal.run(|records| records.head(head)).expect("whole");
    drop(journal);
    for _ in 0..2 {
        let (mut journal, found) = start(&path);
        assert_eq!(found.records.len(), 1);
        assert_eq!(found.records[0].1.name, name(1));
        assert_eq!(journal.expired(), Some(sums.clone()));
    }
    // The record is free for another agent, which must not be taken for the expired one.
    let (mut journal, _) = start(&path);
    journal.create(&name(5), &entry(5)).expect("space");
    drop(journal);
    assert_eq!(start(&path).1.records.len(), 2);
}

#[test]
fn second_journal_waits_until_the_first_has_ended() {
    let (_dir, path) = filled(1);
    let first = start(&path);
    let mut second = Journal::open(&path);
    assert!(second.start().expect("readable").is_none());
    drop(first);
    let found = second.start().expect("readable");
    assert_eq!(found.map(|found| found.records.len()), Some(1));
}

#[test]
fn unusable_file_is_overwritten() {
    let spoil = |change: &dyn Fn(&File)| {
        let (_dir, path) = filled(3);
        change(&file(&path));
        let (journal, found) = start(&path);
        let why = found.rejection.unwrap_or_default();
        assert!(found.records.is_empty() && why.contains("; its totals are not used"));
        drop(journal);
        assert_eq!(start(&path).1.rejection, None, "reported once only");
    };
    spoil(&|file| file.set_len(100).expect("shorter"));
    spoil(&|file| file.write_all_at(b"rubbish", 0).expect("written"));
    spoil(&|file| file.write_all_at(&[9], 12).expect("written"));
    spoil(&|file| file.write_all_at(&[9], 16).expect("written"));
    spoil(&|file| file.write_all_at(&[0; 4096], 0).expect("written"));
}

#[test]
fn damaged_record_does_not_affect_others() {
    let (_dir, path) = filled(3);
    let file = file(&path);
    file.write_all_at(&[0xff; 8], 2 * RECORD_LEN)
        .expect("written");
    let (_, found) = start(&path);
    let names: Vec<&Name> = found.records.iter().map(|(_, saved)| &saved.name).collect();
    assert_eq!(names, [&name(0), &name(2)]);
    assert_eq!(
        found.rejection,
        Some("damaged records: 1; their agents begin at zero".into())
    );
}

#[test]
fn this_boot_has_an_id() {
    let id = boot_id().expect("/proc");
    assert_eq!(boot_id().expect("/proc"), id);
    assert_ne!(id, [0, 0]);
}

#[test]
fn file_of_another_format_begins_at_zero() {
    for written in [FORMAT - 1, FORMAT + 1, FORMAT + (1 << 32)] {
        let (_dir, path) = filled(3);
        let file = file(&path);
        file.write_all_at(&written.to_ne_bytes(), 8)
            .expect("written");
        let (_, found) = start(&path);
        let why = found.rejection.expect("a reason");
        assert!(why.starts_with("another version wrote it"), "{why}");
        assert_eq!(found.records.len(), 0);
        let header = read_header(&file).expect("read");
        assert_eq!(header[1], FORMAT);
    }
}

#[test]
fn lost_state_file_is_recreated_empty() {
    let (dir, path) = filled(3);
    let (mut journal, _) = start(&path);
    assert!(!journal.check() && journal.is_persistent(3));
    // Truncated in place.
    file(&path).set_len(RECORD_LEN).expect("shorter");
    assert!(journal.check() && journal.is_persistent(0));
    let id = journal.create(&name(1), &entry(5));
    assert!(id.is_some());
    fs::remove_dir_all(dir.path().join("nixl")).expect("removed");
    fs::write(dir.path().join("nixl"), "").expect("in the way");
    assert!(!journal.check() && !journal.is_persistent(1));
    assert!(!journal.check(), "the other file is still in the way");
    journal.commit(id, &entry(6));
    fs::remove_file(dir.path().join("nixl")).expect("removed");
    assert!(journal.check() && journal.is_persistent(0));
    drop(journal);
    assert_eq!(start(&path).1.records.len(), 0);
}

/// Runs a closure. Returns its result, and what it logs.
fn logged<T>(run: impl FnOnce() -> T) -> (T, String) {
    let lines = Arc::new(Mutex::new(String::new()));
    let added = Arc::clone(&lines);
    let add = move |event: &str| *added.lock().expect("no panic") += &format!("{event}\n");
    let done = crate::log::tests::with_events(add, run);
    let lines = lines.lock().expect("no panic").clone();
    (done, lines)
}

#[test]
fn file_with_wrong_rights_is_unused_until_corrected() {
    let (_dir, path) = filled(3);
    let (mut journal, _) = start(&path);
    let directory = path.parent().expect("it has one");
    for (place, bad, good) in [(&*path, 0o666, 0o600), (directory, 0o777, 0o755)] {
        let set_mode = |mode| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(place, mode).expect("ours");
        };
        assert!(journal.records.is_some());
        set_mode(bad);
        let (is_made, log) = logged(|| journal.check());
        assert!(!is_made && journal.records.is_none());
        let said = ["Level(Error)", path.to_str().expect("UTF-8"), "chmod go-w"];
        assert!(said.iter().all(|said| log.contains(said)), "{log}");
        let rejected = Journal::open(&path).start();
        let rejected = rejected.expect_err("the next daemon begins at zero");
        assert!(log.contains(&rejected.to_string()), "{log}");
        assert_eq!(logged(|| journal.check()), (false, String::new()));
        set_mode(good);
        assert!(journal.check() && journal.is_persistent(0));
    }
}

#[test]
fn file_that_was_unusable_at_the_start_is_left_and_logged_once() {
    let (_dir, path) = filled(3);
    let directory = path.parent().expect("it has one");
    let set_mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(directory, mode).expect("ours");
    };
    set_mode(0o777);
    let mut journal = Journal::open(&path);
    journal.start().expect_err("others may write to it");
    assert_eq!(logged(|| journal.check()), (false, String::new()));
    set_mode(0o755);
    let (is_made, log) = logged(|| journal.check());
    assert!(
        !is_made && log.contains("it has totals of an earlier run"),
        "{log}"
    );
    assert_eq!(logged(|| journal.check()), (false, String::new()));
    drop(journal);
    assert_eq!(start(&path).1.records.len(), 3);
}

#[test]
fn overwritten_foreign_file_is_logged() {
    let (dir, path) = filled(3);
    let (mut journal, _) = start(&path);
    fs::write(dir.path().join("rubbish"), "rubbish").expect("written");
    fs::rename(dir.path().join("rubbish"), &path).expect("replaced");
    let (is_made, log) = logged(|| journal.check());
    assert!(is_made && journal.is_persistent(0));
    assert!(log.contains("7 bytes are not a state file"), "{log}");
}

#[test]
fn state_file_of_another_daemon_is_left_alone() {
    let (dir, path) = filled(3);
    let (mut journal, _) = start(&path);
    let (_other, with_records) = filled(1);
    fs::rename(&with_records, &path).expect("replaced");
    for _ in 0..2 {
        assert!(!journal.check() && !journal.is_persistent(0));
    }
    drop(journal);
    assert_eq!(start(&path).1.records.len(), 1, "its records are unchanged");
    drop(dir);
}
