// SPDX-License-Identifier: GPL-2.0-or-later

//! Values as a sequence of 64-bit words. The state file consists of them; they are read in the order in which they were
//! written.

/// Writes words one after the other.
#[derive(Debug)]
pub struct WordWriter<'a> {
    rest: &'a mut [u64],
}

impl<'a> WordWriter<'a> {
    /// Returns a writer that begins at the first of these words.
    pub fn new(words: &'a mut [u64]) -> Self {
        Self { rest: words }
    }

    /// Writes the next words.
    ///
    /// # Panics
    /// Fewer than `N` words are left: the length of the record is wrong.
    pub fn all<const N: usize>(&mut self, words: [u64; N]) {
        let rest = std::mem::take(&mut self.rest);
        let (target, rest) = rest.split_at_mut(N);
        target.copy_from_slice(&words);
        self.rest = rest;
    }

    /// Writes the next word.
    ///
    /// # Panics
    /// No word is left: the length of the record is wrong.
    pub fn one(&mut self, word: u64) {
        self.all([word]);
    }
}

/// Reads words one after the other.
#[derive(Debug)]
pub struct WordReader<'a> {
    rest: &'a [u64],
}

impl<'a> WordReader<'a> {
    /// Returns a reader that begins at the first of these words.
    #[must_use]
    pub fn new(words: &'a [u64]) -> Self {
        Self { rest: words }
    }

    /// Reads the next words.
    ///
    /// # Panics
    /// Fewer than `N` words are left: the length of the record is wrong.
    pub fn all<const N: usize>(&mut self) -> [u64; N] {
        let (words, rest) = self
            .rest
            .split_first_chunk()
            .expect("as many words as were written");
        self.rest = rest;
        *words
    }

    /// Reads the next word.
    ///
    /// # Panics
    /// No word is left: the length of the record is wrong.
    pub fn one(&mut self) -> u64 {
        let [word] = self.all();
        word
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
mod tests {
    use super::*;

    #[test]
    fn words_are_read_in_the_order_of_writing() {
        let mut words = [0; 4];
        let mut put = WordWriter::new(&mut words);
        put.one(1);
        put.all([2, 3]);
        put.one(4);
        let mut get = WordReader::new(&words);
        assert_eq!((get.all(), get.one(), get.all()), ([1, 2], 3, [4]));
    }
}
