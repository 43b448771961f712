// SPDX-License-Identifier: GPL-2.0-or-later

//! Values as a sequence of 64-bit words, of which the state file consists. A struct lists its fields once, with
//! `words!`, and they are written and read in that order.

use std::slice;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Words of the state file that are not written or read yet.
pub type Rest<'a> = slice::Iter<'a, AtomicU64>;

/// A value that the state file has. `words!` implements it for a struct.
pub trait Words: Sized {
    /// The most words of a value.
    const MAX: usize;

    /// Writes the value to the next words. Words behind the last one are lost.
    fn put(&self, words: &mut Rest);

    /// Reads the value that [`Words::put`] has written. `None` if the words are no value.
    fn get(words: &mut Rest) -> Option<Self>;
}

/// Implements [`Words`] for a struct with these fields: the state file has them in this order.
macro_rules! words {
    ($type:ident: $($field:tt),+) => {
        impl $crate::base::words::Words for $type {
            const MAX: usize = 0 $(+ $crate::base::words::most(|whole: &Self| &whole.$field))+;

            fn put(&self, words: &mut $crate::base::words::Rest) {
                $($crate::base::words::Words::put(&self.$field, words);)+
            }

            fn get(words: &mut $crate::base::words::Rest) -> Option<Self> {
                Some(Self { $($field: $crate::base::words::Words::get(words)?),+ })
            }
        }
    };
}
pub(crate) use words;

/// The most words of a field, given a function that returns the field.
pub const fn most<S, T: Words>(_: fn(&S) -> &T) -> usize {
    T::MAX
}

impl Words for u64 {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        if let Some(word) = words.next() {
            word.store(*self, Relaxed);
        }
    }

    fn get(words: &mut Rest) -> Option<Self> {
        Some(words.next()?.load(Relaxed))
    }
}

impl Words for i64 {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        unsigned(*self).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        u64::get(words).map(signed)
    }
}

impl Words for u32 {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        u64::from(*self).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        u64::get(words)?.try_into().ok()
    }
}

impl Words for bool {
    const MAX: usize = 1;

    fn put(&self, words: &mut Rest) {
        u64::from(*self).put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        u64::get(words).map(|word| word != 0)
    }
}

impl<A: Words, B: Words> Words for (A, B) {
    const MAX: usize = A::MAX + B::MAX;

    fn put(&self, words: &mut Rest) {
        self.0.put(words);
        self.1.put(words);
    }

    fn get(words: &mut Rest) -> Option<Self> {
        Some((A::get(words)?, B::get(words)?))
    }
}

impl<T: Words, const N: usize> Words for [T; N] {
    const MAX: usize = N * T::MAX;

    fn put(&self, words: &mut Rest) {
        self.iter().for_each(|value| value.put(words));
    }

    fn get(words: &mut Rest) -> Option<Self> {
        let values: Option<Vec<T>> = (0..N).map(|_| T::get(words)).collect();
        values?.try_into().ok()
    }
}

/// A word that is 0 for `None`, and then the value, if there is one.
impl<T: Words> Words for Option<T> {
    const MAX: usize = 1 + T::MAX;

    fn put(&self, words: &mut Rest) {
        self.is_some().put(words);
        self.iter().for_each(|value| value.put(words));
    }

    fn get(words: &mut Rest) -> Option<Self> {
        match bool::get(words)? {
            true => T::get(words).map(Some),
            false => Some(None),
        }
    }
}

/// The little-endian word with the number `at` in these bytes. 0 if they end before it does.
#[must_use]
pub fn word_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(8 * at..).and_then(|rest| rest.first_chunk());
    u64::from_le_bytes(word.copied().unwrap_or_default())
}

/// The word with the bits of a signed number.
#[must_use]
pub fn unsigned(signed: i64) -> u64 {
    u64::from_ne_bytes(signed.to_ne_bytes())
}

/// The signed number with the bits of a word.
#[must_use]
pub fn signed(word: u64) -> i64 {
    i64::from_ne_bytes(word.to_ne_bytes())
}

#[cfg(test)]
pub(crate) mod tests;
