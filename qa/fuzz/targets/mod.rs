// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz targets, one in each file: `run` gives an input to the real code, and panics if the result is wrong.
//!
//! `make fuzz` runs the fuzzer. `qa/run fuzz_corpus` runs every input in `qa/fuzz/corpus`.

pub mod cache_file;
pub mod config;
mod daemon;
pub mod facts;
pub mod maps;
pub mod name;
pub mod options;
pub mod pcp_conf;
pub mod restart;
pub mod ring;
pub mod state;
pub mod store;

#[path = "../../support/writer.rs"]
#[allow(dead_code, clippy::duplicate_mod)] // a part of it is used here; the test kit has it, too
mod writer;

use writer::Layout;

/// An input that is consumed from its front. After its end, it has zeros.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Consumes the next bytes, or fewer at the end.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes(N);
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// The layout that a number of an input selects. The corpus has these numbers.
pub fn layout_of_number(number: u8) -> Layout {
    Layout::ALL[usize::from(number % 5)]
}

/// Asserts that a message is one line without control characters.
pub fn assert_one_line(message: &str) {
    assert!(
        !message.is_empty() && !message.contains(char::is_control),
        "{message:?}"
    );
}

/// Asserts that PCP can use an instance name: without spaces, which end a name, and on one line.
pub fn assert_instance_name(name: &str) {
    let odd = |c: char| c.is_control() || c.is_whitespace() || "\"'\\/".contains(c);
    assert!(
        !name.is_empty() && !name.starts_with('[') && !name.contains(odd),
        "{name:?}"
    );
}
