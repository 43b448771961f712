// SPDX-License-Identifier: GPL-2.0-or-later

//! One agent's record in the state file: where it has what.
//!
//! The names of an agent are written before the record counts as used, and stay. What changes is in two entries, of
//! which `commit` makes one valid.
//!
//! Begin with [`replace`], which is the commit, and [`read`]. `crate::entry` has the words of an entry.

use super::commit::TwoEntries;
use crate::base::words::Words;
use crate::entry::{Entry, HIGHEST_ID, Name};
use crate::procfs::facts::Facts;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// Words of a record: three pages.
pub const RECORD_WORDS: usize = 1536;

/// Indexes of the words in a record.
const USED: usize = 0;
const INSTANCE_ID: usize = 2;
/// Length in bytes of the text at [`NAMES`].
const NAMES_LENGTH: usize = 3;
/// The generation whose batch's slots were released.
const RELEASED_GENERATION: usize = 4;
/// Length in bytes of the text at [`FACTS`].
const FACTS_LENGTH: usize = 5;
/// Uid of the owner of the agent's files.
const OWNER: usize = 6;
/// The names of the agent, see [`Name::to_text`].
const NAMES: usize = 8;
const ENTRY: TwoEntries = TwoEntries {
    generation: 1,
    entries: [256, 256 + ENTRY_SPACE],
};
const ENTRY_SPACE: usize = 448;
/// Labels and process facts of the agent, as JSON.
const FACTS: usize = ENTRY.entries[1] + ENTRY_SPACE;
const FACTS_SPACE: usize = RECORD_WORDS - FACTS;
const _: () = assert!(Entry::MAX <= ENTRY_SPACE && 250 <= FACTS_SPACE);

/// No generation was released.
const NOT_RELEASED: u64 = u64::MAX;
/// The agent has no instance id yet.
const NO_ID: u64 = u64::MAX;

/// The contents of a record that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedAgent {
    /// The names of the agent.
    pub name: Name,
    /// Its instance id. `None` if it never had one.
    pub id: Option<u32>,
    /// The entry that was committed last.
    pub entry: Entry,
    /// Its labels and process facts, if they were known.
    pub facts: Option<Facts>,
}

/// True if the names fit into a record.
#[must_use]
pub fn fits(name: &Name) -> bool {
    name.to_text().len() <= 8 * (ENTRY.entries[0] - NAMES)
}

/// Fills a free record. It is in use from the last store on.
pub fn create(words: &[AtomicU64], name: &Name, entry: &Entry) {
    words[USED].store(0, Relaxed);
    words[ENTRY.generation].store(0, Relaxed);
    words[INSTANCE_ID].store(NO_ID, Relaxed);
    words[RELEASED_GENERATION].store(NOT_RELEASED, Relaxed);
    words[FACTS_LENGTH].store(0, Relaxed);
    let names = name.to_text();
    put_text(&words[NAMES..ENTRY.entries[0]], &names);
    words[NAMES_LENGTH].store(names.len() as u64, Relaxed);
    words[OWNER].store(u64::from(name.owner), Relaxed);
    entry.put(&mut words[ENTRY.entries[0]..].iter());
    words[USED].store(1, Release);
}

fn put_text(words: &[AtomicU64], text: &[u8]) {
    for (word, bytes) in words.iter().zip(text.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
}

/// Writes the labels and process facts, which label the agent right after the next start, or removes them. A kill in
/// between leaves none.
pub fn set_facts(words: &[AtomicU64], facts: Option<&Facts>) {
    words[FACTS_LENGTH].store(0, Release);
    let Some(facts) = facts else {
        return;
    };
    let text = serde_json::to_vec(facts).unwrap_or_default();
    if text.len() <= 8 * FACTS_SPACE {
        // The text must not be stored before the length is 0. A release store does not hold back stores that come after
        // it.
        compiler_fence(Release);
        put_text(&words[FACTS..], &text);
        words[FACTS_LENGTH].store(text.len() as u64, Release);
    }
}

/// Marks a record as free.
pub fn free(words: &[AtomicU64]) {
    words[USED].store(0, Release);
}

/// Writes the instance id.
pub fn set_id(words: &[AtomicU64], id: u32) {
    words[INSTANCE_ID].store(u64::from(id), Relaxed);
}

/// Replaces the entry with one store to the generation: this is the commit.
pub fn replace(words: &[AtomicU64], entry: &Entry) {
    ENTRY.replace(words, entry);
}

/// Notes that the slots of the entry's batch were released. After a kill before this, the next daemon has to find that
/// out.
pub fn set_released(words: &[AtomicU64]) {
    let generation = ENTRY.generation(words);
    words[RELEASED_GENERATION].store(generation, Release);
}

/// Reads a record. `None` if it is free.
///
/// # Errors
/// The record is in use, but its contents are not valid.
pub fn read(words: &[AtomicU64]) -> Result<Option<SavedAgent>, Damaged> {
    match words[USED].load(Acquire) {
        0 => Ok(None),
        1 => agent(words).map(Some).ok_or(Damaged),
        _ => Err(Damaged),
    }
}

/// The contents of a record in use. `None` if they are not valid.
fn agent(words: &[AtomicU64]) -> Option<SavedAgent> {
    let word = |at: usize| words[at].load(Relaxed);
    // Without a valid id, the file of instance ids may have one for the agent's name.
    let id = u32::try_from(word(INSTANCE_ID));
    let id = id.ok().filter(|&id| id <= HIGHEST_ID);
    let is_released = word(RELEASED_GENERATION) == ENTRY.generation(words);
    let entry: Entry = ENTRY.read(words)?;
    let names = text(&words[NAMES..ENTRY.entries[0]], word(NAMES_LENGTH))?;
    let facts = text(&words[FACTS..], word(FACTS_LENGTH));
    Some(SavedAgent {
        name: Name::from_text(&names, word(OWNER).try_into().ok()?)?,
        id,
        entry: entry.restored(is_released)?,
        facts: facts.and_then(|text| serde_json::from_slice(&text).ok()),
    })
}

/// The text in these words. `None` if `len` is more than they hold.
fn text(words: &[AtomicU64], len: u64) -> Option<Vec<u8>> {
    let bytes = words
        .iter()
        .flat_map(|word| word.load(Relaxed).to_ne_bytes());
    let text: Vec<u8> = bytes.take(len.try_into().ok()?).collect();
    (text.len() as u64 == len).then_some(text)
}

/// A record whose contents are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

#[cfg(test)]
mod tests;
