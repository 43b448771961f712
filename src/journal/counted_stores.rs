// SPDX-License-Identifier: GPL-2.0-or-later

//! Table of the stores that were counted and are not the present store of an agent. Their files stay, so that a scan finds them again
//! after a restart or a reload.
//!
//! The table is in the header of the state file. A store is added before the record of its agent loses the reading. A kill in between
//! leaves both: then the record decides.
//!
//! When the table is full, an entry of the user with the most entries is merged: of that user's stores, all that were last updated
//! until then are taken for counted from then on. Where all entries are such, the oldest one is dropped, and then holds for all users.

use super::record::RECORD_WORDS;
use crate::store::StoreId;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// First word of the table in the header. The word before it is [`CountedStores::dropped_until`].
const TABLE: usize = 96;
/// Words of an entry.
const WORDS: usize = StoreId::WORDS + 2;
/// Limit of entries.
const MAX_STORES: usize = 180;
const _: () = assert!(TABLE + WORDS * MAX_STORES <= RECORD_WORDS);

/// Indexes of words of an entry, behind the identity.
const UPDATED: usize = StoreId::WORDS;
/// The uid plus one, or 0 in a free slot. Written last.
const OWNER: usize = UPDATED + 1;
/// Bit of the word [`OWNER`].
const COVERS_EARLIER: u64 = 1 << 63;

/// A store that was counted: an entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedStore {
    id: StoreId,
    /// Uid of the owner of its file.
    uid: u32,
    /// Time of its last update, but not after the time when it was added: nanoseconds of CLOCK_MONOTONIC.
    updated: u64,
    /// True if all stores of the user that were last updated until `updated` are taken for counted.
    covers_earlier: bool,
}

impl CountedStore {
    /// Returns an entry for a store of a user, with the time of its last update.
    #[must_use]
    pub fn new(id: StoreId, uid: u32, updated: u64) -> Self {
        Self {
            id,
            uid,
            updated,
            covers_earlier: false,
        }
    }
}

/// The table. A slot has the same number in the state file.
#[derive(Debug)]
pub(super) struct CountedStores {
    slots: [Option<CountedStore>; MAX_STORES],
    /// Latest update of the stores of users that have no entry any more: nanoseconds of CLOCK_MONOTONIC. 0 if there are none.
    dropped_until: u64,
}

impl Default for CountedStores {
    fn default() -> Self {
        Self {
            slots: [None; MAX_STORES],
            dropped_until: 0,
        }
    }
}

impl CountedStores {
    /// Reads the table of a state file.
    pub fn read(header: &[AtomicU64]) -> Self {
        Self {
            slots: std::array::from_fn(|slot| read_entry(entry(header, slot))),
            dropped_until: header[TABLE - 1].load(Relaxed),
        }
    }

    /// Writes what a state file does not have of the table.
    pub fn write(&self, header: &[AtomicU64]) {
        header[TABLE - 1].store(self.dropped_until, Relaxed);
        let differ = |slot: &usize| self.slots[*slot] != read_entry(entry(header, *slot));
        let differ: Vec<usize> = (0..MAX_STORES).filter(differ).collect();
        // An entry that covers a store is written before another takes the slot of that store.
        for covers_earlier in [true, false] {
            for &slot in &differ {
                let counted = self.slots[slot];
                if counted.is_some_and(|counted| counted.covers_earlier) == covers_earlier {
                    write_entry(entry(header, slot), counted);
                }
            }
        }
    }

    /// True if the table has a store.
    pub fn has(&self, id: StoreId) -> bool {
        self.entries().any(|counted| counted.id == id)
    }

    /// Time until which all stores of a user are taken for counted, in nanoseconds of CLOCK_MONOTONIC. `None` if all are in the table.
    pub fn until(&self, uid: u32) -> Option<u64> {
        let mut entries = self.entries();
        let covers = entries.find(|counted| counted.covers_earlier && counted.uid == uid);
        let dropped = Some(self.dropped_until).filter(|&until| until > 0);
        covers.map(|counted| counted.updated).max(dropped)
    }

    fn entries(&self) -> impl Iterator<Item = &CountedStore> {
        self.slots.iter().flatten()
    }

    /// Adds a store, or notes its later update.
    pub fn add(&mut self, store: CountedStore) {
        let mut entries = self.slots.iter_mut().flatten();
        if let Some(counted) = entries.find(|counted| counted.id == store.id) {
            counted.updated = counted.updated.max(store.updated);
            return;
        }
        let free = loop {
            match self.slots.iter().position(Option::is_none) {
                Some(free) => break free,
                None if self.merge_oldest() => {}
                None => self.drop_oldest(),
            }
        };
        self.slots[free] = Some(store);
    }

    /// Drops the oldest entry where each user has one that covers earlier stores: from then on it covers stores of all users.
    fn drop_oldest(&mut self) {
        let updated = |slot: &&mut Option<CountedStore>| slot.map(|counted| counted.updated);
        let oldest = self.slots.iter_mut().min_by_key(updated);
        let dropped = oldest.and_then(Option::take);
        let until = dropped.map_or(0, |counted| counted.updated);
        self.dropped_until = self.dropped_until.max(until);
    }

    /// Merges the oldest entry of the user with the most entries into the entry that covers that user's earlier stores, or makes it that
    /// entry. Returns false if no other entry is left.
    fn merge_oldest(&mut self) -> bool {
        let mut counts: HashMap<u32, usize> = HashMap::new();
        for counted in self.entries().filter(|counted| !counted.covers_earlier) {
            *counts.entry(counted.uid).or_default() += 1;
        }
        let oldest = self.slots.iter().enumerate().filter_map(|(slot, counted)| {
            let CountedStore { uid, updated, .. } = counted.filter(|one| !one.covers_earlier)?;
            Some((counts.get(&uid), uid, Reverse(updated), slot))
        });
        let Some((_, uid, Reverse(updated), slot)) = oldest.max() else {
            return false;
        };
        let mut entries = self.slots.iter_mut().flatten();
        if let Some(covers) = entries.find(|one| one.covers_earlier && one.uid == uid) {
            covers.updated = covers.updated.max(updated);
            self.slots[slot] = None;
        } else if let Some(counted) = &mut self.slots[slot] {
            counted.covers_earlier = true;
        }
        true
    }
}

/// Words of an entry in the header.
fn entry(header: &[AtomicU64], slot: usize) -> &[AtomicU64] {
    &header[TABLE + WORDS * slot..][..WORDS]
}

/// Reads an entry. `None` if the slot is free.
fn read_entry(words: &[AtomicU64]) -> Option<CountedStore> {
    let owner = words[OWNER].load(Relaxed);
    let uid = (owner & !COVERS_EARLIER).checked_sub(1)?;
    let id = std::array::from_fn(|at| words[at].load(Relaxed));
    Some(CountedStore {
        id: StoreId::from_words(id),
        uid: u32::try_from(uid).ok()?,
        updated: words[UPDATED].load(Relaxed),
        covers_earlier: owner & COVERS_EARLIER != 0,
    })
}

/// Replaces an entry. A kill leaves the entry before, the new one or, if they are of two stores, none.
fn write_entry(words: &[AtomicU64], counted: Option<CountedStore>) {
    let Some(store) = counted else {
        return words[OWNER].store(0, Relaxed);
    };
    if read_entry(words).is_none_or(|before| before.id != store.id) {
        words[OWNER].store(0, Relaxed);
        // The other words must not be stored before.
        compiler_fence(Release);
        for (word, value) in words.iter().zip(store.id.to_words()) {
            word.store(value, Relaxed);
        }
    }
    words[UPDATED].store(store.updated, Relaxed);
    let flag = u64::from(store.covers_earlier) * COVERS_EARLIER;
    // Release: the next daemon, after a kill, finds the other words if it finds this one.
    words[OWNER].store((u64::from(store.uid) + 1) | flag, Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;
    use crate::journal::tests::{filled, start};

    /// A store of a user that was last updated at the time `number`.
    fn store(uid: u32, number: u64) -> CountedStore {
        let id = StoreId {
            instance: number,
            born: (-1, 2),
            ..StoreId::default()
        };
        CountedStore::new(id, uid, number)
    }

    fn header() -> Vec<AtomicU64> {
        let words = (0..RECORD_WORDS).map(|_| AtomicU64::new(0));
        words.collect()
    }

    #[test]
    fn many_stores_of_one_user_merge_none_of_another() {
        let mut stores = CountedStores::default();
        let (many, header) = (7_000, header());
        stores.add(store(2, 0));
        for number in 1..=many {
            stores.add(store(1, number));
        }
        // One is of the other user, and one covers the earlier ones.
        let first = many + 3 - MAX_STORES as u64;
        stores.write(&header);
        for stores in [stores, CountedStores::read(&header)] {
            assert!((first..=many).all(|number| stores.has(store(1, number).id)));
            assert_eq!(stores.until(1), Some(first - 1));
            assert!(stores.has(store(2, 0).id));
            assert_eq!(stores.until(2), None);
        }
    }

    #[test]
    fn stores_of_more_users_than_slots_stay_known() {
        let (mut stores, header) = (CountedStores::default(), header());
        for number in 1..=3 * MAX_STORES as u64 {
            let uid = u32::try_from(number).expect("few");
            stores.add(store(uid, number));
            stores.write(&header);
        }
        let read = CountedStores::read(&header);
        for number in 1..=3 * MAX_STORES as u64 {
            let uid = u32::try_from(number).expect("few");
            let until = read.until(uid).unwrap_or(0);
            assert!(number <= until || read.has(store(uid, number).id));
        }
        assert_eq!(read.until(0), Some(2 * MAX_STORES as u64));
    }

    #[test]
    fn merged_stores_stay_known_in_the_file() {
        let (mut stores, header) = (CountedStores::default(), header());
        for number in 1..=MAX_STORES as u64 + 5 {
            stores.add(store(1, number));
            stores.write(&header);
            let read = CountedStores::read(&header);
            let until = read.until(1).unwrap_or(0);
            let known = (1..=number).filter(|&at| at <= until || read.has(store(1, at).id));
            assert_eq!(known.count() as u64, number);
        }
    }

    #[test]
    fn table_is_restored_from_the_file() {
        let (_dir, path) = filled(3);
        let (mut journal, _) = start(&path);
        (0..7).for_each(|number| journal.add_counted_store(store(1, number)));
        drop(journal);
        let (journal, found) = start(&path);
        assert_eq!((found.records.len(), found.rejection), (3, None));
        let known = (0..9).filter(|&number| journal.is_counted_store(store(1, number).id));
        assert_eq!(known.count(), 7);
    }

    #[test]
    fn table_is_written_to_a_file_that_is_made_again() {
        let (_dir, path) = filled(1);
        let (mut journal, _) = start(&path);
        journal.add_counted_store(store(1, 5));
        std::fs::remove_file(&path).expect("there");
        assert!(journal.check());
        drop(journal);
        let (journal, _) = start(&path);
        assert!(journal.is_counted_store(store(1, 5).id));
    }

    #[test]
    fn table_without_a_file_is_in_memory() {
        let mut journal = Journal::default();
        journal.add_counted_store(store(1, 5));
        assert!(journal.is_counted_store(store(1, 5).id));
    }

    #[test]
    fn partial_entry_is_a_free_slot() {
        let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        assert_eq!(read_entry(&words), None);
        let counted = |uid, number| Some(store(uid, number));
        write_entry(&words, counted(u32::MAX, 7));
        assert_eq!(read_entry(&words), counted(u32::MAX, 7));
        // The part of another write that comes before the kill.
        words[OWNER].store(0, Relaxed);
        words[0].store(5, Relaxed);
        assert_eq!(read_entry(&words), None);
        write_entry(&words, counted(0, 8));
        assert_eq!(read_entry(&words), counted(0, 8));
        words[OWNER].store(u64::MAX, Relaxed);
        assert_eq!(read_entry(&words), None, "no process writes this");
    }
}
