// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use std::fmt::Debug;

/// Returns the words of a value.
pub fn to_words<T: Words>(value: &T) -> Vec<u64> {
    let words: Vec<AtomicU64> = (0..T::MAX).map(|_| AtomicU64::new(0xdead)).collect();
    let mut rest = words.iter();
    value.put(&mut rest);
    let used = &words[..T::MAX - rest.len()];
    used.iter().map(|word| word.load(Relaxed)).collect()
}

/// Asserts that a value is read as it was written, and returns the number of its words.
pub fn assert_round_trip<T: Words + PartialEq + Debug>(value: &T) -> usize {
    let words = to_words(value);
    assert_eq!(from_words(&words).as_ref(), Some(value));
    let shorter = &words[..words.len() - 1];
    assert_eq!(from_words::<T>(shorter), None, "all words are read");
    words.len()
}

/// Reads a value from these words.
pub fn from_words<T: Words>(words: &[u64]) -> Option<T> {
    let words: Vec<AtomicU64> = words.iter().copied().map(AtomicU64::new).collect();
    T::get(&mut words.iter())
}

#[derive(Debug, Default, PartialEq)]
struct Whole {
    part: [Option<(u32, i64)>; 2],
    flag: bool,
    number: u64,
}
words!(Whole: flag, part, number);

#[test]
fn value_is_read_as_it_was_written() {
    let part = [Some((u32::MAX, i64::MIN)), None];
    let (flag, number) = (true, u64::MAX);
    assert_eq!(Whole::MAX, 8);
    assert_eq!(assert_round_trip(&Whole { part, flag, number }), 6);
    assert_eq!(assert_round_trip(&Whole::default()), 4);
}

#[test]
fn words_that_are_no_value_are_none() {
    assert_eq!(from_words::<u32>(&[1 << 32]), None);
    assert_eq!(from_words::<[u64; 2]>(&[1]), None, "a word is missing");
    assert_eq!(
        from_words(&[0, 0, 0, 7]),
        Some(Whole {
            number: 7,
            ..Whole::default()
        })
    );
}
