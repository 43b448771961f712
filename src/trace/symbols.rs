// SPDX-License-Identifier: GPL-2.0-or-later

//! Offsets of exported functions in an ELF file of 64 bits. The file may have any content.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

const SECTION_DYNSYM: u64 = 11;
const SEGMENT_LOAD: u64 = 1;
/// Type of a symbol that is a function, in the low four bits of `st_info`.
const FUNCTION: u64 = 2;
const SEGMENT_LEN: u64 = 56;
const SECTION_LEN: u64 = 64;
const SYMBOL_LEN: usize = 24;
/// Limits of what is read, in bytes. libnixl 1.5.1 has 60 KB of symbols, and 130 KB of their names.
const MAX_TABLE: u64 = 16 << 20;
/// Limit of segments or sections that are read. libnixl 1.5.1 has 13 and 33.
const MAX_HEADERS: u64 = 256;

/// The exported functions of a library, with their offsets in the file.
#[derive(Debug)]
pub struct Symbols(Vec<(Vec<u8>, u64)>);

/// Bytes of a file.
struct Bytes(Vec<u8>);

impl Bytes {
    fn read(file: &File, at: u64, len: u64) -> Result<Self> {
        if len > MAX_TABLE {
            return Err(Error::other(format!(
                "its symbols take {len} bytes, more than {MAX_TABLE}"
            )));
        }
        let mut bytes = vec![0; usize::try_from(len).map_err(Error::other)?];
        file.read_exact_at(&mut bytes, at)?;
        Ok(Self(bytes))
    }

    /// Returns the number of `size` bytes at an offset. Beyond the end, it is an error.
    fn number(&self, at: usize, size: usize) -> Result<u64> {
        let mut all = [0; 8];
        let end = at.checked_add(size);
        let part = end.and_then(|end| self.0.get(at..end));
        all[..size].copy_from_slice(part.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(u64::from_le_bytes(all))
    }
}

/// Returns the headers of a table, of `size` bytes each.
fn headers(file: &File, at: u64, count: u64, size: u64) -> Result<Vec<Bytes>> {
    let all = Bytes::read(file, at, count.min(MAX_HEADERS) * size)?;
    let size = usize::try_from(size).map_err(Error::other)?;
    Ok(all.0.chunks(size).map(|one| Bytes(one.to_vec())).collect())
}

impl Symbols {
    /// Reads the exported functions of a library.
    ///
    /// # Errors
    /// The file cannot be read, or is not an ELF file of 64 bits, or has more symbols than the limit.
    pub fn read(file: &File) -> Result<Self> {
        let header = Bytes::read(file, 0, 64)?;
        if !header.0.starts_with(b"\x7fELF\x02\x01") {
            return Err(Error::other("it is not an ELF file of 64 bits"));
        }
        let segments = headers(
            file,
            header.number(32, 8)?,
            header.number(56, 2)?,
            SEGMENT_LEN,
        )?;
        let sections = headers(
            file,
            header.number(40, 8)?,
            header.number(60, 2)?,
            SECTION_LEN,
        )?;
        let mut loaded = Vec::new();
        for segment in &segments {
            if segment.number(0, 4)? == SEGMENT_LOAD {
                let of = |at| segment.number(at, 8);
                loaded.push((of(16)?, of(8)?, of(32)?));
            }
        }
        let offset = |address: u64| {
            let mut offsets = loaded.iter().filter_map(|&(from, at, length)| {
                let inside = address.checked_sub(from)?;
                at.checked_add(inside).filter(|_| inside < length)
            });
            offsets.next()
        };
        let mut found = Vec::new();
        for section in &sections {
            if section.number(4, 4)? != SECTION_DYNSYM {
                continue;
            }
            let table =
                |section: &Bytes| Bytes::read(file, section.number(24, 8)?, section.number(32, 8)?);
            let names = usize::try_from(section.number(40, 4)?).map_err(Error::other)?;
            let names = sections.get(names).ok_or(ErrorKind::UnexpectedEof)?;
            let (symbols, names) = (table(section)?, table(names)?);
            for symbol in symbols.0.chunks_exact(SYMBOL_LEN) {
                let symbol = Bytes(symbol.to_vec());
                let is_function = symbol.number(4, 1)? & 0xf == FUNCTION;
                let is_defined = symbol.number(6, 2)? > 0 && symbol.number(16, 8)? > 0;
                if !is_function || !is_defined {
                    continue;
                }
                let name = usize::try_from(symbol.number(0, 4)?).map_err(Error::other)?;
                let name = names.0.get(name..).unwrap_or_default();
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                if name.starts_with(b"_Z") && name.windows(4).any(|part| part == b"nixl") {
                    found.extend(offset(symbol.number(8, 8)?).map(|at| (name.to_vec(), at)));
                }
            }
        }
        Ok(Self(found))
    }

    /// Returns the offset of the one function whose name begins so. Names of C++ are mangled, and end with the types of
    /// the last arguments, which differ between versions.
    ///
    /// # Errors
    /// No function has such a name, or several have.
    pub fn offset(&self, prefix: &str) -> Result<u64> {
        let named = { self.0.iter() }.filter(|(name, _)| name.starts_with(prefix.as_bytes()));
        let mut offsets = Vec::from_iter(named.map(|&(_, offset)| offset));
        offsets.sort_unstable();
        offsets.dedup();
        match offsets[..] {
            [offset] => Ok(offset),
            [] => Err(Error::other(format!("it exports no function {prefix}..."))),
            _ => Err(Error::other(format!(
                "it exports {} functions {prefix}...",
                offsets.len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn any_bytes_give_an_error_or_no_function() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&own[..4096]).expect("written");
        let mut random = fastrand::Rng::with_seed(75);
        for _ in 0..2000 {
            let at = random.usize(0..64);
            let value = [0, 1, 0x7f, 0xff, random.u8(..)][random.usize(0..5)];
            let write = |byte| file.write_all_at(&[byte], at as u64).expect("written");
            write(value);
            if let Ok(symbols) = Symbols::read(&file) {
                assert!(symbols.offset("_ZN12nixl").is_err());
            }
            write(own[at]);
        }
        assert!(Symbols::read(&tempfile::tempfile().expect("a file")).is_err());
    }
}
