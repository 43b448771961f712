// SPDX-License-Identifier: GPL-2.0-or-later

//! Result of a fetch in the memory layout of pmapi.h: a result, its value sets and their values.
//!
//! pmdaFetch(3) walks the instance domain twice for each metric, and allocates memory for each 64-bit value. [`Answer`]
//! writes all values into two buffers that the next fetch uses again: a fetch of 20 metrics of 1,000 agents takes 0.73
//! of the time of an agent in C that calls pmdaFetch (docs/speed.md).

use super::sys;
use crate::metrics::Value;
use std::mem::{offset_of, size_of};

/// Size of a word of the buffers, in bytes.
const WORD_BYTES: usize = size_of::<u64>();
/// Words before `numpmid` and `vset` in a result.
const COUNT_AT: usize = offset_of!(sys::nixl_pmda_result, numpmid) / WORD_BYTES;
const SETS_AT: usize = offset_of!(sys::nixl_pmda_result, vset) / WORD_BYTES;
/// Words before `vlist` in a value set, and words of one value: the instance, then the value or a pointer to it.
const VALUES_AT: usize = offset_of!(sys::pmValueSet, vlist) / WORD_BYTES;
const VALUE_WORDS: usize = size_of::<sys::pmValue>() / WORD_BYTES;

/// Longest text, in bytes. The length of a value block has 24 bits and includes a header of four bytes and the NUL.
const MAX_TEXT_LEN: usize = (1 << 24) - 1 - 5;
/// Capacity, in words, that a buffer always keeps for the next fetch (1 MiB).
const RETAINED_WORDS: usize = 1 << 17;
/// A buffer is freed if its capacity is more than this many times its content.
const MAX_UNUSED_FACTOR: usize = 4;

const _: () = {
    // Pointers are words and word-aligned. A shorter field is at the start of its word.
    assert!(size_of::<*const u8>() == WORD_BYTES);
    assert!(offset_of!(sys::nixl_pmda_result, numpmid) == COUNT_AT * WORD_BYTES);
    assert!(offset_of!(sys::nixl_pmda_result, vset) == SETS_AT * WORD_BYTES);
    assert!(offset_of!(sys::pmValueSet, pmid) == 0 && offset_of!(sys::pmValueSet, numval) == 4);
    assert!(offset_of!(sys::pmValueSet, valfmt) == WORD_BYTES && VALUES_AT == 2);
    assert!(offset_of!(sys::pmValueSet, vlist) == VALUES_AT * WORD_BYTES);
    assert!(offset_of!(sys::pmValue, inst) == 0 && offset_of!(sys::pmValue, value) == WORD_BYTES);
    assert!(size_of::<sys::pmValue>() == VALUE_WORDS * WORD_BYTES && VALUE_WORDS == 2);
    assert!(offset_of!(sys::pmValueBlock, vbuf) == 4);
};

/// Builder of one fetch result. Call [`Answer::begin`], then write one value set per metric, then [`Answer::finish`].
#[derive(Debug, Default)]
pub struct Answer {
    /// The result and its value sets. Until [`Answer::finish`], a pointer is a number of words from the start of this
    /// buffer or of `blocks`.
    words: Vec<u64>,
    /// Value blocks: 64-bit values and texts. Each block is word-aligned.
    blocks: Vec<u64>,
    /// Number of value sets that were begun.
    sets_begun: usize,
}

/// Puts two 32-bit numbers into one word, in memory order.
fn pack(first: u32, second: u32) -> u64 {
    let mut bytes = [0; WORD_BYTES];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Returns the two 32-bit numbers of a word, in memory order.
fn unpack(word: u64) -> (u32, u32) {
    let bytes = word.to_ne_bytes();
    let part =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (part(0), part(4))
}

impl Answer {
    /// Clears the buffers for a result with `metrics` value sets. Each set must be begun before [`Answer::finish`].
    pub fn begin(&mut self, metrics: usize) {
        self.words.clear();
        self.blocks.clear();
        self.sets_begun = 0;
        self.words.resize(SETS_AT + metrics, 0);
        self.words[COUNT_AT] = pack(u32::try_from(metrics).unwrap_or(0), 0);
    }

    /// Begins the value set of a metric.
    pub fn begin_set(&mut self, pmid: u32) {
        self.words[SETS_AT + self.sets_begun] = self.words.len() as u64;
        self.sets_begun += 1;
        self.words
            .extend([pack(pmid, 0), pack(sys::PM_VAL_INSITU.unsigned_abs(), 0)]);
    }

    /// Puts an error (PM_ERR_*) into the current value set in place of values.
    pub fn set_error(&mut self, error: i32) {
        self.set_value_count(u32::from_ne_bytes(error.to_ne_bytes()));
    }

    /// Adds a value to the current value set. All values of a set must have one type.
    pub fn push(&mut self, instance: u32, value: Value) {
        let value = match value {
            Value::U32(value) => pack(value, 0),
            Value::U64(value) => self.push_number(sys::PM_TYPE_U64, value),
            Value::F64(value) => self.push_number(sys::PM_TYPE_DOUBLE, value.to_bits()),
            Value::Text(text) => self.push_text(&text),
        };
        self.words.extend([pack(instance, 0), value]);
    }

    /// Ends the current value set: writes its number of values.
    pub fn end_set(&mut self) {
        let values = (self.words.len() - self.set_start() - VALUES_AT) / VALUE_WORDS;
        self.set_value_count(u32::try_from(values).unwrap_or(0));
    }

    /// Adds a value block as it is.
    pub fn push_block(&mut self, instance: u32, block: &[u8]) {
        let at = self.next_block();
        let words = block.chunks(WORD_BYTES).map(|chunk| {
            let mut bytes = [0; WORD_BYTES];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from_ne_bytes(bytes)
        });
        self.blocks.extend(words);
        self.words.extend([pack(instance, 0), at]);
    }

    /// Returns the word at which the current value set starts.
    fn set_start(&self) -> usize {
        to_usize(self.words[SETS_AT + self.sets_begun - 1])
    }

    fn set_value_count(&mut self, values: u32) {
        let start = self.set_start();
        let (pmid, _) = unpack(self.words[start]);
        self.words[start] = pack(pmid, values);
    }

    /// Marks the current value set as one with pointers to blocks. Returns the word at which the next block starts.
    fn next_block(&mut self) -> u64 {
        let start = self.set_start();
        self.words[start + 1] = pack(sys::PM_VAL_DPTR.unsigned_abs(), 0);
        self.blocks.len() as u64
    }

    /// Adds a block with a 64-bit number. Returns the word at which it starts.
    fn push_number(&mut self, value_type: i32, value: u64) -> u64 {
        let at = self.next_block();
        let (first, second) = unpack(value);
        self.blocks.extend([
            pack(block_header(value_type, WORD_BYTES), first),
            pack(second, 0),
        ]);
        at
    }

    /// Adds a block with a NUL-terminated text. Returns the word at which it starts. The text ends at its first NUL,
    /// and is truncated to [`MAX_TEXT_LEN`].
    fn push_text(&mut self, text: &str) -> u64 {
        let at = self.next_block();
        let text = text.split('\0').next().unwrap_or_default().as_bytes();
        let text = &text[..text.len().min(MAX_TEXT_LEN)];
        let header = block_header(sys::PM_TYPE_STRING, text.len() + 1).to_ne_bytes();
        let mut bytes = header.into_iter().chain(text.iter().copied());
        // The division rounds down and 1 is added, so at least one NUL follows the text.
        for _ in 0..(header.len() + text.len()) / WORD_BYTES + 1 {
            let word = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            self.blocks.push(u64::from_ne_bytes(word));
        }
        at
    }

    /// Frees a buffer that is much larger than its content, and discards the result. A fetch of all values of thousands
    /// of agents may be the only one.
    pub fn shrink(&mut self) {
        for words in [&mut self.words, &mut self.blocks] {
            if words.capacity() > RETAINED_WORDS.max(MAX_UNUSED_FACTOR * words.len()) {
                *words = Vec::new();
            }
        }
    }

    /// Replaces offsets by pointers and returns the result. It is valid until the next [`Answer::begin`] or
    /// [`Answer::shrink`].
    ///
    /// # Panics
    /// If a metric has no value set.
    pub fn finish(&mut self) -> *mut sys::nixl_pmda_result {
        let (sets, _) = unpack(self.words[COUNT_AT]);
        assert_eq!(
            std::mem::take(&mut self.sets_begun),
            to_usize(u64::from(sets))
        );
        let blocks = self.blocks.as_mut_ptr().expose_provenance() as u64;
        let words = self.words.as_mut_ptr();
        let base = words.expose_provenance() as u64;
        for set in SETS_AT..SETS_AT + to_usize(u64::from(sets)) {
            let start = to_usize(self.words[set]);
            self.words[set] = base + (start * WORD_BYTES) as u64;
            let (_, values) = unpack(self.words[start]);
            let (format, _) = unpack(self.words[start + 1]);
            if format == sys::PM_VAL_DPTR.unsigned_abs() {
                for value in 0..to_usize(u64::from(values)) {
                    let value = &mut self.words[start + VALUES_AT + value * VALUE_WORDS + 1];
                    *value = blocks + *value * WORD_BYTES as u64;
                }
            }
        }
        words.cast()
    }
}

/// Converts a word to an index.
fn to_usize(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}

/// Returns the first four bytes of a value block: its type (8 bits) and its length in bytes, these four included (24
/// bits). The bit field that bindgen makes is written bit by bit, which is slow.
pub(super) fn block_header(value_type: i32, bytes: usize) -> u32 {
    let length = u32::try_from(4 + bytes).unwrap_or(0);
    (value_type.unsigned_abs() << 24) | length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_header_matches_the_bit_field_of_libpcp() {
        for (value_type, bytes) in [
            (sys::PM_TYPE_U64, 8),
            (sys::PM_TYPE_STRING, 1),
            (sys::PM_TYPE_DOUBLE, 70_000),
        ] {
            let expected = sys::pmValueBlock::new_bitfield_1(
                u32::try_from(bytes + 4).expect("small"),
                value_type.unsigned_abs(),
            );
            assert_eq!(
                u64::from(block_header(value_type, bytes)),
                expected.get(0, 32)
            );
        }
    }

    /// PMID, number of values or error, and values by instance.
    type Set = (u32, i32, Vec<(u32, Vec<u8>)>);

    /// Decodes the words of an answer.
    fn read(answer: &mut Answer) -> Vec<Set> {
        let (sets, _) = unpack(answer.words[COUNT_AT]);
        let starts: Vec<usize> = (0..to_usize(u64::from(sets)))
            .map(|set| to_usize(answer.words[SETS_AT + set]))
            .collect();
        let read = starts.into_iter().map(|start| {
            let (pmid, values) = unpack(answer.words[start]);
            let values = i32::from_ne_bytes(values.to_ne_bytes());
            let (format, _) = unpack(answer.words[start + 1]);
            let listed = (0..usize::try_from(values).unwrap_or(0)).map(|value| {
                let value = start + VALUES_AT + value * VALUE_WORDS;
                let (instance, _) = unpack(answer.words[value]);
                let value = answer.words[value + 1];
                if format == 0 {
                    return (instance, unpack(value).0.to_ne_bytes().to_vec());
                }
                let blocks = answer.blocks[to_usize(value)..].iter();
                let bytes: Vec<u8> = blocks.flat_map(|word| word.to_ne_bytes()).collect();
                let header = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                (
                    instance,
                    bytes[4..to_usize(u64::from(header & 0xff_ffff))].to_vec(),
                )
            });
            (pmid, values, listed.collect())
        });
        read.collect()
    }

    #[test]
    fn value_set_encodes_each_type() {
        let mut answer = Answer::default();
        // The second pass uses the memory of the first again.
        for _ in 0..2 {
            answer.begin(6);
            answer.begin_set(1);
            answer.push(7, Value::U32(70));
            answer.push(8, Value::U32(u32::MAX));
            answer.end_set();
            answer.begin_set(2);
            answer.set_error(sys::PM_ERR_PMID);
            answer.begin_set(3);
            answer.push(7, Value::U64(1 << 40));
            answer.push(9, Value::U64(3));
            answer.end_set();
            answer.begin_set(4);
            answer.end_set();
            answer.begin_set(5);
            for text in ["", "abc", "abcd", "eleven char", "cut\0off"] {
                answer.push(u32::MAX, Value::Text(text.to_owned()));
            }
            answer.end_set();
            answer.begin_set(6);
            answer.push(1, Value::F64(0.5));
            answer.end_set();
            let texts = ["\0", "abc\0", "abcd\0", "eleven char\0", "cut\0"];
            let expected = vec![
                (
                    1,
                    2,
                    vec![(7, 70_u32.to_ne_bytes().to_vec()), (8, vec![255; 4])],
                ),
                (2, sys::PM_ERR_PMID, vec![]),
                (
                    3,
                    2,
                    vec![
                        (7, (1_u64 << 40).to_ne_bytes().to_vec()),
                        (9, 3_u64.to_ne_bytes().to_vec()),
                    ],
                ),
                (4, 0, vec![]),
                (5, 5, texts.map(|text| (u32::MAX, text.into())).into()),
                (6, 1, vec![(1, 0.5_f64.to_ne_bytes().to_vec())]),
            ];
            assert_eq!(read(&mut answer), expected);
            assert!(!answer.finish().is_null());
        }
    }

    #[test]
    fn buffer_is_freed_after_a_much_smaller_answer() {
        let mut answer = Answer::default();
        let mut fill = |values: u32| {
            answer.begin(1);
            answer.begin_set(1);
            (0..values).for_each(|at| answer.push(at, Value::U64(1)));
            answer.end_set();
            let result = answer.finish();
            answer.shrink();
            (result, answer.words.capacity() + answer.blocks.capacity())
        };
        let many = 2 * u32::try_from(RETAINED_WORDS).expect("small");
        let first = fill(many);
        assert_eq!(fill(many), first);
        assert_eq!(fill(many / 2), first);
        let (_, left) = fill(1);
        assert_eq!(left, 0);
        let few = fill(1);
        assert_eq!(fill(1), few);
    }
}
