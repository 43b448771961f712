// SPDX-License-Identifier: GPL-2.0-or-later

//! Offsets of exported functions in an ELF file of 64 bits.

use std::fs;
use std::io::{Error, Result};
use std::path::Path;

const SECTION_DYNSYM: u32 = 11;
const SEGMENT_LOAD: u32 = 1;

/// The exported symbols of a library.
#[derive(Debug)]
pub struct Symbols(Vec<(String, u64)>);

fn number(bytes: &[u8], at: usize, size: usize) -> Result<u64> {
    let mut all = [0; 8];
    let part = at
        .checked_add(size)
        .and_then(|end| bytes.get(at..end))
        .ok_or_else(|| Error::other("a short ELF file"))?;
    all[..size].copy_from_slice(part);
    Ok(u64::from_le_bytes(all))
}

fn place(bytes: &[u8], at: usize, size: usize) -> Result<usize> {
    usize::try_from(number(bytes, at, size)?).map_err(Error::other)
}

impl Symbols {
    /// Reads the symbols of a library.
    pub fn read(library: &Path) -> Result<Self> {
        let file = fs::read(library)?;
        if !file.starts_with(b"\x7fELF\x02\x01") {
            return Err(Error::other("not an ELF file of 64 bits"));
        }
        let (segments, sections) = (place(&file, 32, 8)?, place(&file, 40, 8)?);
        let mut loaded = Vec::new();
        for index in 0..place(&file, 56, 2)? {
            let at = segments + index * 56;
            if number(&file, at, 4)? == u64::from(SEGMENT_LOAD) {
                loaded.push((
                    number(&file, at + 16, 8)?,
                    number(&file, at + 8, 8)?,
                    number(&file, at + 32, 8)?,
                ));
            }
        }
        let mut found = Vec::new();
        for index in 0..place(&file, 60, 2)? {
            let at = sections + index * 64;
            if number(&file, at + 4, 4)? != u64::from(SECTION_DYNSYM) {
                continue;
            }
            let (start, size) = (place(&file, at + 24, 8)?, place(&file, at + 32, 8)?);
            let names = place(&file, sections + place(&file, at + 40, 4)? * 64 + 24, 8)?;
            for symbol in (start..start + size).step_by(24) {
                let address = number(&file, symbol + 8, 8)?;
                let offset = loaded
                    .iter()
                    .find_map(|&(virtual_start, file_start, length)| {
                        address
                            .checked_sub(virtual_start)
                            .filter(|&inside| inside < length)
                            .map(|inside| file_start + inside)
                    });
                let name = file
                    .get(names + place(&file, symbol, 4)?..)
                    .unwrap_or_default();
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                if let (Some(offset), 1..) = (offset, number(&file, symbol + 6, 2)?) {
                    found.push((String::from_utf8_lossy(name).into_owned(), offset));
                }
            }
        }
        Ok(Self(found))
    }

    /// Returns the offset of the one function whose name begins so. Names of C++ are mangled, and end with the types of
    /// the last arguments, which differ between versions.
    pub fn offset(&self, prefix: &str) -> Result<u64> {
        let mut offsets: Vec<u64> = self
            .0
            .iter()
            .filter(|(name, _)| name.starts_with(prefix))
            .map(|&(_, offset)| offset)
            .collect();
        offsets.sort_unstable();
        offsets.dedup();
        match offsets[..] {
            [offset] => Ok(offset),
            _ => Err(Error::other(format!(
                "{} functions begin with {prefix}",
                offsets.len()
            ))),
        }
    }
}
