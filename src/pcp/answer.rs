//! The answer to a fetch, as libpcp_pmda hands it to pmcd: a result, its value sets, and their values (pmapi.h).
//!
//! pmdaFetch(3) walks through the instance domain twice for each metric and asks for each value by its instance; for each
//! value of 64 bits it asks for memory, and gives it back. Here all is written in one go, to memory that the next answer uses
//! again.

use super::sys;
use crate::metrics::Value;
use std::mem::{offset_of, size_of};

/// Bytes of the words that it is made of.
const WORD_BYTES: usize = size_of::<u64>();
/// Where a result counts its value sets, and where it points to them.
const COUNT_AT: usize = offset_of!(sys::nixl_pmda_result, numpmid) / WORD_BYTES;
const SETS_AT: usize = offset_of!(sys::nixl_pmda_result, vset) / WORD_BYTES;
/// Where the values of a set begin, and how long each is: the instance, then the value or a pointer to it.
const VALUES_AT: usize = offset_of!(sys::pmValueSet, vlist) / WORD_BYTES;
const VALUE_WORDS: usize = size_of::<sys::pmValue>() / WORD_BYTES;

/// The longest text: the length of a block has 24 bits, and counts a head of four bytes and a NUL.
const MAX_TEXT_LEN: usize = (1 << 24) - 1 - 5;
/// What an answer leaves behind for the next one, in words, however little it took itself.
const RETAINED_WORDS: usize = 1 << 17;
/// Memory of which an answer has left so much more unused than used is given back.
const MAX_UNUSED_FACTOR: usize = 4;

const _: () = {
    // Pointers are words, and begin where words do; what is shorter stands at the start of its word.
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

/// An answer that is being written.
#[derive(Debug, Default)]
pub struct Answer {
    /// The result and its value sets. Where there will be pointers, until the end it is said how many words from the start of
    /// these, or of the blocks, they will point to.
    words: Vec<u64>,
    /// What does not fit into a value set: each block begins with a word.
    blocks: Vec<u64>,
    /// Value sets that were begun.
    sets_begun: usize,
}

/// Two numbers of 32 bits in the order in which they stand in memory.
fn pack(first: u32, second: u32) -> u64 {
    let mut bytes = [0; WORD_BYTES];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// The numbers of a pair.
fn unpack(word: u64) -> (u32, u32) {
    let bytes = word.to_ne_bytes();
    let part =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    (part(0), part(4))
}

impl Answer {
    /// Begins anew, for so many metrics: each of them needs a value set then.
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

    /// Instead of values, the set has an error (PM_ERR_*).
    pub fn set_error(&mut self, error: i32) {
        self.set_value_count(u32::from_ne_bytes(error.to_ne_bytes()));
    }

    /// Adds a value. All values of a set are of one type.
    pub fn push(&mut self, instance: u32, value: Value) {
        let value = match value {
            Value::U32(value) => pack(value, 0),
            Value::U64(value) => self.push_number(sys::PM_TYPE_U64, value),
            Value::F64(value) => self.push_number(sys::PM_TYPE_DOUBLE, value.to_bits()),
            Value::Text(text) => self.push_text(&text),
        };
        self.words.extend([pack(instance, 0), value]);
    }

    /// Ends the value set that was begun last.
    pub fn end_set(&mut self) {
        let values = (self.words.len() - self.set_start() - VALUES_AT) / VALUE_WORDS;
        self.set_value_count(u32::try_from(values).unwrap_or(0));
    }

    /// Where the value set that was begun last starts.
    fn set_start(&self) -> usize {
        to_usize(self.words[SETS_AT + self.sets_begun - 1])
    }

    fn set_value_count(&mut self, values: u32) {
        let start = self.set_start();
        let (pmid, _) = unpack(self.words[start]);
        self.words[start] = pack(pmid, values);
    }

    /// The values of this set are in blocks; where the next one will be.
    fn next_block(&mut self) -> u64 {
        let start = self.set_start();
        self.words[start + 1] = pack(sys::PM_VAL_DPTR.unsigned_abs(), 0);
        self.blocks.len() as u64
    }

    /// A block with a number of 64 bits; where it is.
    fn push_number(&mut self, value_type: i32, value: u64) -> u64 {
        let at = self.next_block();
        let (first, second) = unpack(value);
        self.blocks.extend([
            pack(block_header(value_type, WORD_BYTES), first),
            pack(second, 0),
        ]);
        at
    }

    /// A block with a text that ends in NUL; where it is. Texts come from places that hold no NUL; one that does ends there, and
    /// one that is longer than a block can be is cut.
    fn push_text(&mut self, text: &str) -> u64 {
        let at = self.next_block();
        let text = text.split('\0').next().unwrap_or_default().as_bytes();
        let text = &text[..text.len().min(MAX_TEXT_LEN)];
        let header = block_header(sys::PM_TYPE_STRING, text.len() + 1).to_ne_bytes();
        let mut bytes = header.into_iter().chain(text.iter().copied());
        // With at least one NUL behind it.
        for _ in 0..(header.len() + text.len()) / WORD_BYTES + 1 {
            let word = std::array::from_fn(|_| bytes.next().unwrap_or(0));
            self.blocks.push(u64::from_ne_bytes(word));
        }
        at
    }

    /// Gives memory back that this answer did not need: one of all values of thousands of agents is followed by others like it, or
    /// by none. The answer is gone.
    pub fn shrink(&mut self) {
        for words in [&mut self.words, &mut self.blocks] {
            if words.capacity() > RETAINED_WORDS.max(MAX_UNUSED_FACTOR * words.len()) {
                *words = Vec::new();
            }
        }
    }

    /// The answer, which stays where it is until the next one is begun.
    ///
    /// # Panics
    /// A metric has no value set.
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

/// A place in memory, from a word.
fn to_usize(word: u64) -> usize {
    usize::try_from(word).unwrap_or(usize::MAX)
}

/// The first four bytes of a block: its type, and its length with these. By hand, since what bindgen makes of a bit field goes
/// bit by bit.
fn block_header(value_type: i32, bytes: usize) -> u32 {
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

    /// PMID, number of values or error, values by instance.
    type Set = (u32, i32, Vec<(u32, Vec<u8>)>);

    /// What is in an answer, as its words say.
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
        // The second time in memory that was used before.
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
