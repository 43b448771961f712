// SPDX-License-Identifier: GPL-2.0-or-later

//! The commit: one store makes an entry of the state file valid.
//!
//! A generation says which of two entries is valid. To change what is stored, the other entry is written, then the
//! generation is raised. A kill at any instruction leaves either the old entry or the new one valid, never a mixture.
//!
//! No process reads an entry while another process writes it. The next daemon reads what this one had stored when it
//! was killed. That is every store up to one instruction, whatever the order in which the CPU made them visible.
//! So only the compiler must keep the stores in order. Stores of two calls stay in order by the compiler fences of
//! [`Mapping::access`](crate::shm::Mapping::access).

use crate::base::words::Words;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Indexes of the words of two entries and of the generation that says which one is valid.
pub(super) struct TwoEntries {
    pub generation: usize,
    pub entries: [usize; 2],
}

impl TwoEntries {
    /// The generation of the valid entry.
    pub fn generation(&self, words: &[AtomicU64]) -> u64 {
        words[self.generation].load(Acquire)
    }

    /// Replaces the valid entry with one store to the generation: this is the commit.
    pub fn replace(&self, words: &[AtomicU64], entry: &impl Words) {
        let generation = words[self.generation].load(Relaxed).wrapping_add(1);
        entry.put(&mut words[self.first(generation)..].iter());
        // Release: the entry is whole before the generation names it. After a kill the next daemon reads what this one
        // had stored.
        words[self.generation].store(generation, Release);
    }

    /// Reads the valid entry. `None` if it is not one.
    pub fn read<T: Words>(&self, words: &[AtomicU64]) -> Option<T> {
        T::get(&mut words[self.first(self.generation(words))..].iter())
    }

    /// Index of the first word of the entry that a generation names.
    pub fn first(&self, generation: u64) -> usize {
        self.entries[usize::from(generation % 2 == 1)]
    }
}
