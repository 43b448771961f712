// SPDX-License-Identifier: GPL-2.0-or-later

//! One agent's record in the state file: its words and their meaning.
//!
//! The names of an agent are written before the record counts as used, and stay. What changes is in two entries, and a
//! generation names the valid one. To change it, the other entry is written, then the generation is raised. A kill at
//! any instruction leaves either the old entry or the new one valid, never a mixture.
//!
//! No process reads a record while another process writes it. The next daemon reads what this one had stored when it
//! was killed. That is every store up to one instruction, whatever the order in which the processor made them visible.
//! So only the compiler must keep the stores in order. Stores of two calls stay in order by the compiler fences of
//! [`Mapping::access`](crate::shm::Mapping::access).
//!
//! Begin with [`replace`], which is the commit, and [`read`]. `crate::entry` has the words of an entry.

use crate::base::words::Words;
use crate::discovery::name::is_instance_name;
use crate::entry::{Entry, HIGHEST_ID, Name};
use crate::procfs::facts::Facts;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, compiler_fence};

/// Words of a record: three pages.
pub const RECORD_WORDS: usize = 1536;

/// Indexes of the words in a record.
const USED: usize = 0;
const GENERATION: usize = 1;
const INSTANCE_ID: usize = 2;
const LENGTHS: usize = 3;
/// The generation whose batch's slots were released.
const RELEASED_GENERATION: usize = 4;
/// Length in bytes of the text at [`FACTS`].
const FACTS_LENGTH: usize = 5;
/// Uid of the owner of the agent's files.
const OWNER: usize = 6;
const TEXTS: [(usize, usize); 4] = [(8, 32), (40, 40), (80, 128), (208, 32)];
const ENTRIES: [usize; 2] = [256, 256 + ENTRY_SPACE];
const ENTRY_SPACE: usize = 448;
/// Labels and process facts of the agent, as JSON.
const FACTS: usize = ENTRIES[1] + ENTRY_SPACE;
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
    texts(name)
        .iter()
        .zip(TEXTS)
        .all(|(text, (_, words))| text.len() <= 8 * words)
}

fn texts(name: &Name) -> [&[u8]; 4] {
    [
        name.raw.as_bytes(),
        name.instance.as_bytes(),
        name.directory.as_os_str().as_bytes(),
        name.part.as_bytes(),
    ]
}

/// Fills a free record. It is in use from the last store on.
pub fn create(words: &[AtomicU64], name: &Name, entry: &Entry) {
    words[USED].store(0, Relaxed);
    words[GENERATION].store(0, Relaxed);
    words[INSTANCE_ID].store(NO_ID, Relaxed);
    words[RELEASED_GENERATION].store(NOT_RELEASED, Relaxed);
    words[FACTS_LENGTH].store(0, Relaxed);
    let mut lengths = 0;
    for (number, (text, (start, _))) in texts(name).iter().zip(TEXTS).enumerate() {
        lengths |= (text.len() as u64) << (16 * number);
        put_text(&words[start..], text);
    }
    words[LENGTHS].store(lengths, Relaxed);
    words[OWNER].store(u64::from(name.owner), Relaxed);
    entry.put(&mut words[ENTRIES[0]..].iter());
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

/// Index of the first word of the entry that a generation names.
fn entry_of(generation: u64) -> usize {
    ENTRIES[usize::from(generation % 2 == 1)]
}

/// Replaces the entry with one store to the generation: this is the commit.
pub fn replace(words: &[AtomicU64], entry: &Entry) {
    let generation = words[GENERATION].load(Relaxed).wrapping_add(1);
    entry.put(&mut words[entry_of(generation)..].iter());
    // Release: the entry is whole before the generation names it. After a kill the next daemon reads what this one had
    // stored.
    words[GENERATION].store(generation, Release);
}

/// Notes that the slots of the entry's batch were released. After a kill before this, the next daemon has to find that
/// out.
pub fn set_released(words: &[AtomicU64]) {
    let generation = words[GENERATION].load(Relaxed);
    words[RELEASED_GENERATION].store(generation, Release);
}

/// Reads a record. `None` if it is free.
///
/// # Errors
/// The record is in use, but its contents are not valid.
pub fn read(words: &[AtomicU64]) -> Result<Option<SavedAgent>, Damaged> {
    match words[USED].load(Acquire) {
        0 => Ok(None),
        1 => RawRecord(words).agent().map(Some),
        _ => Err(Damaged),
    }
}

/// The words of a record as they are in the file. They are untrusted until they are a [`SavedAgent`].
struct RawRecord<'a>(&'a [AtomicU64]);

impl RawRecord<'_> {
    fn word(&self, at: usize) -> u64 {
        self.0[at].load(Relaxed)
    }

    /// The text in these words. `None` if `len` is more than they hold.
    fn text(&self, words: Range<usize>, len: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(len).ok()?;
        let bytes = words.flat_map(|at| self.word(at).to_ne_bytes());
        let text: Vec<u8> = bytes.take(len).collect();
        (text.len() == len).then_some(text)
    }

    /// The text of a name field. `None` if it has a NUL byte or does not fit.
    fn name(&self, number: usize) -> Option<Vec<u8>> {
        let (start, words) = TEXTS[number];
        let len = (self.word(LENGTHS) >> (16 * number)) & 0xffff;
        let text = self.text(start..start + words, len)?;
        (!text.contains(&0)).then_some(text)
    }

    /// The names of the agent.
    fn names(&self) -> Result<Name, Damaged> {
        let text = |number| self.name(number).ok_or(Damaged);
        let utf8 = |number| String::from_utf8(text(number)?).map_err(|_| Damaged);
        let name = Name {
            raw: OsString::from_vec(text(0)?),
            instance: utf8(1)?,
            directory: OsString::from_vec(text(2)?).into(),
            part: utf8(3)?,
            owner: u32::try_from(self.word(OWNER)).map_err(|_| Damaged)?,
        };
        let is_empty = name.raw.is_empty() || name.directory.as_os_str().is_empty();
        match !is_empty && is_instance_name(&name.instance) {
            true => Ok(name),
            false => Err(Damaged),
        }
    }

    /// The contents of the record, which is in use.
    fn agent(&self) -> Result<SavedAgent, Damaged> {
        // Without a valid id, the file of instance ids may have one for the agent's name.
        let id = u32::try_from(self.word(INSTANCE_ID));
        let id = id.ok().filter(|&id| id <= HIGHEST_ID);
        let generation = self.word(GENERATION);
        let is_released = self.word(RELEASED_GENERATION) == generation;
        let entry = Entry::get(&mut self.0[entry_of(generation)..].iter());
        let entry = entry.and_then(|entry| entry.restored(is_released));
        let facts = self.text(FACTS..RECORD_WORDS, self.word(FACTS_LENGTH));
        Ok(SavedAgent {
            name: self.names()?,
            id,
            entry: entry.ok_or(Damaged)?,
            facts: facts.and_then(|text| serde_json::from_slice(&text).ok()),
        })
    }
}

/// A record whose contents are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

#[cfg(test)]
mod tests;
