//! Table of the stores that were counted and are not the present store of an agent. Their files stay, so that a scan finds them again
//! after a restart or a reload.
//!
//! A store is added before the record of its agent loses the reading. A kill in between leaves both: then the record decides.
//!
//! In the state file the table is in list records (`record::is_list`). Each has slots for entries. The last word of an entry makes
//! it valid.

use super::record::RECORD_WORDS;
use super::records::Records;
use crate::shm::FileShortened;
use crate::store::StoreId;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// Limit of entries.
const MAX_STORES: usize = 4096;
/// Words of an entry, and of a list record before its first entry.
const WORDS: usize = 8;
/// Entries of a list record.
const SLOTS: usize = RECORD_WORDS / WORDS - 1;
/// Indexes of words of an entry, behind the identity: its sequence number, and the uid plus one, or 0 in a free slot.
const SEQUENCE: usize = StoreId::WORDS;
const OWNER: usize = WORDS - 1;
const _: () = assert!(SEQUENCE < OWNER);

/// An entry of the table.
#[derive(Debug)]
struct Counted {
    /// Uid of the owner of the store.
    uid: u32,
    /// Later entries have higher numbers.
    sequence: u64,
    /// Slot in the list records. `None`: the entry is not in the state file.
    slot: Option<usize>,
}

/// The table, and where its entries are in the state file.
#[derive(Debug, Default)]
pub(super) struct CountedStores {
    by_id: HashMap<StoreId, Counted>,
    /// The stores of each user by their sequence numbers.
    by_user: BTreeMap<u32, BTreeMap<u64, StoreId>>,
    next_sequence: u64,
    /// Number of list records that were read.
    lists: usize,
    /// Slots of these list records without an entry.
    free: Vec<usize>,
}

impl CountedStores {
    /// True if the table has a store.
    pub fn has(&self, id: StoreId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// True if all entries are in the state file.
    pub fn is_written(&self) -> bool {
        self.by_id.values().all(|counted| counted.slot.is_some())
    }

    /// Adds a store. If the table is full, drops the oldest entry of the user with the most entries.
    pub fn add(&mut self, uid: u32, id: StoreId) {
        let before = self.remove(id);
        let before = before.or_else(|| self.remove(self.next_to_drop()?));
        self.free.extend(before.and_then(|before| before.slot));
        self.insert(id, uid, self.next_sequence, None);
    }

    fn insert(&mut self, id: StoreId, uid: u32, sequence: u64, slot: Option<usize>) {
        self.next_sequence = self.next_sequence.max(sequence.saturating_add(1));
        let of_user = self.by_user.entry(uid).or_default();
        of_user.insert(sequence, id);
        let counted = Counted {
            uid,
            sequence,
            slot,
        };
        self.by_id.insert(id, counted);
    }

    fn remove(&mut self, id: StoreId) -> Option<Counted> {
        let counted = self.by_id.remove(&id)?;
        let of_user = self.by_user.get_mut(&counted.uid)?;
        of_user.remove(&counted.sequence);
        if of_user.is_empty() {
            self.by_user.remove(&counted.uid);
        }
        Some(counted)
    }

    fn next_to_drop(&self) -> Option<StoreId> {
        let of_most = self.by_user.values().max_by_key(|of_user| of_user.len());
        let (_, &oldest) = of_most?.first_key_value()?;
        (self.by_id.len() >= MAX_STORES).then_some(oldest)
    }

    /// Notes that the state file is not used any more.
    pub fn detach(&mut self) {
        (self.lists, self.free) = (0, Vec::new());
        let all = self.by_id.values_mut();
        all.for_each(|counted| counted.slot = None);
    }

    /// Reads the entries of the state file that were not read yet, and writes those that it does not have, as far as there is space.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn write(&mut self, records: &mut Records) -> Result<(), FileShortened> {
        self.read(records)?;
        let all = self.by_id.iter();
        let missing = all.filter(|(_, counted)| counted.slot.is_none());
        let missing: Vec<StoreId> = missing.map(|(&id, _)| id).collect();
        for id in missing {
            if self.free.is_empty() && records.create_list().is_ok() {
                self.read(records)?;
            }
            let Some((slot, counted)) = self.free.pop().zip(self.by_id.get_mut(&id)) else {
                return Ok(());
            };
            let write = |words: &[AtomicU64]| write_entry(entry(words, slot % SLOTS), id, counted);
            records.words(records.lists()[slot / SLOTS], write)?;
            counted.slot = Some(slot);
        }
        Ok(())
    }

    fn read(&mut self, records: &Records) -> Result<(), FileShortened> {
        for &list in &records.lists()[self.lists..] {
            for at in 0..SLOTS {
                let slot = self.lists * SLOTS + at;
                match records.words(list, |words| read_entry(entry(words, at)))? {
                    Some((id, uid, sequence)) if !self.has(id) => {
                        self.insert(id, uid, sequence, Some(slot));
                    }
                    // A list record that was being moved at a kill is there twice.
                    _ => self.free.push(slot),
                }
            }
            self.lists += 1;
        }
        Ok(())
    }
}

/// Words of an entry of a list record.
fn entry(list: &[AtomicU64], at: usize) -> &[AtomicU64] {
    &list[WORDS * (1 + at)..][..WORDS]
}

/// Reads an entry. `None` if the slot is free.
fn read_entry(words: &[AtomicU64]) -> Option<(StoreId, u32, u64)> {
    let uid = words[OWNER].load(Relaxed).checked_sub(1)?;
    let id = std::array::from_fn(|at| words[at].load(Relaxed));
    let sequence = words[SEQUENCE].load(Relaxed);
    Some((StoreId::from_words(id), u32::try_from(uid).ok()?, sequence))
}

/// Replaces an entry. A kill leaves the entry before, none or the new one.
fn write_entry(words: &[AtomicU64], id: StoreId, counted: &Counted) {
    words[OWNER].store(0, Release);
    // The other words must not be stored before. A release store does not hold back stores that come after it.
    compiler_fence(Release);
    for (word, value) in words.iter().zip(id.to_words()) {
        word.store(value, Relaxed);
    }
    words[SEQUENCE].store(counted.sequence, Relaxed);
    // Release: the next daemon, after a kill, finds the other words if it finds this one.
    words[OWNER].store(u64::from(counted.uid) + 1, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::journal::records::{CHUNK, offset};
    use crate::journal::tests::{file, filled, start};
    use std::os::unix::fs::FileExt;

    fn store(instance: u64) -> StoreId {
        StoreId {
            instance,
            born: (-1, 2),
            ..StoreId::default()
        }
    }

    /// Adds stores of one user.
    fn add(journal: &mut Journal, numbers: impl Iterator<Item = u64>) {
        numbers.for_each(|number| journal.add_counted_store(1, store(number)));
    }

    fn known(journal: &Journal, numbers: impl Iterator<Item = u64>) -> usize {
        let known = numbers.filter(|&number| journal.is_counted_store(store(number)));
        known.count()
    }

    #[test]
    fn many_stores_of_one_user_drop_none_of_another() {
        let mut stores = CountedStores::default();
        let many = 70_000;
        stores.add(2, store(many));
        for number in 0..many {
            stores.add(1, store(number));
            assert!(stores.by_id.len() <= MAX_STORES);
        }
        let first = many + 1 - MAX_STORES as u64;
        assert!((first..=many).all(|number| stores.has(store(number))));
        assert!(!stores.has(store(first - 1)), "the oldest are dropped");
    }

    #[test]
    fn table_is_restored_from_the_file_and_keeps_its_order() {
        let (_dir, path) = filled(3);
        let all = MAX_STORES as u64;
        let (mut journal, _) = start(&path);
        // Some are added a second time, and are the latest then.
        add(&mut journal, (0..all).chain(0..3));
        assert!(journal.is_persistent(3));
        drop(journal);
        let (mut journal, found) = start(&path);
        assert_eq!((found.records.len(), found.rejection), (3, None));
        assert_eq!(known(&journal, 0..all), MAX_STORES);
        add(&mut journal, all..all + 2);
        assert!(journal.is_persistent(3), "slots are used again");
        drop(journal);
        let (journal, _) = start(&path);
        assert_eq!(known(&journal, 0..all + 2), MAX_STORES);
        assert_eq!(known(&journal, 3..5), 0, "the oldest are dropped");
    }

    #[test]
    fn table_is_written_to_a_file_that_is_made_again() {
        let (_dir, path) = filled(1);
        let (mut journal, _) = start(&path);
        add(&mut journal, 0..300);
        std::fs::remove_file(&path).expect("there");
        assert!(journal.check() && journal.is_persistent(0));
        drop(journal);
        let (mut journal, _) = start(&path);
        assert_eq!(known(&journal, 0..300), 300);
        assert!(journal.knows_counted_stores());
    }

    #[test]
    fn table_without_a_file_is_in_memory() {
        let mut journal = Journal::default();
        add(&mut journal, 0..2);
        assert_eq!(known(&journal, 0..3), 2);
        assert!(journal.knows_counted_stores() && !journal.is_persistent(0));
    }

    #[test]
    fn lists_move_down_so_that_the_file_shrinks() {
        let (_dir, path) = filled(5 * CHUNK);
        let (mut journal, found) = start(&path);
        add(&mut journal, 0..2 * SLOTS as u64);
        let len = || path.metadata().expect("there").len();
        assert_eq!(len(), offset(6));
        for (id, saved) in &found.records {
            journal.expire(Some(*id), &saved.entry);
        }
        assert_eq!(len(), offset(2), "one free chunk stays");
        assert!(journal.is_persistent(0));
        drop(journal);
        let (journal, found) = start(&path);
        assert_eq!((found.records.len(), found.rejection), (0, None));
        assert_eq!(known(&journal, 0..2 * SLOTS as u64), 2 * SLOTS);
    }

    #[test]
    fn list_that_a_kill_left_twice_is_read_once() {
        let (_dir, path) = filled(1);
        let (mut journal, _) = start(&path);
        add(&mut journal, 0..7);
        let twice = journal.run(|records| {
            let load = |words: &[AtomicU64]| {
                let words = words.iter().map(|word| word.load(Relaxed));
                words.collect::<Vec<_>>()
            };
            let words = records.words(records.lists()[0], load)?;
            records.create_list().expect("room");
            records.words(records.lists()[1], |copy| {
                let words = copy.iter().zip(words);
                words.for_each(|(copy, word)| copy.store(word, Relaxed));
            })
        });
        assert!(twice.is_some());
        drop(journal);
        let (mut journal, found) = start(&path);
        assert_eq!(found.records.len(), 1);
        add(&mut journal, 7..SLOTS as u64 + 7);
        assert!(journal.is_persistent(1));
        drop(journal);
        assert_eq!(known(&start(&path).0, 0..1000), SLOTS + 7);
    }

    #[test]
    fn partial_entry_is_a_free_slot() {
        let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(read_entry(&words), None);
        let mut counted = Counted {
            uid: u32::MAX,
            sequence: 9,
            slot: None,
        };
        write_entry(&words, store(7), &counted);
        assert_eq!(read_entry(&words), Some((store(7), u32::MAX, 9)));
        // The part of another write that comes before the kill.
        counted.uid = 0;
        words[OWNER].store(0, Relaxed);
        words[0].store(5, Relaxed);
        assert_eq!(read_entry(&words), None);
        write_entry(&words, store(8), &counted);
        assert_eq!(read_entry(&words), Some((store(8), 0, 9)));
        words[OWNER].store(u64::MAX, Relaxed);
        assert_eq!(read_entry(&words), None, "no process writes this");
    }

    #[test]
    fn file_of_an_earlier_version_has_no_table() {
        let (_dir, path) = filled(1);
        let put = file(&path).write_all_at(&[0; 8], 8 * 4);
        put.expect("written");
        for knows in [false, true] {
            let (mut journal, _) = start(&path);
            assert_eq!(journal.knows_counted_stores(), knows);
            journal.set_knows_counted_stores();
        }
    }
}
