// SPDX-License-Identifier: GPL-2.0-or-later

//! The mapped state file: its header and its records.
//!
//! Begin with `Records::lock_and_read`, which a start of the daemon calls. The words of a record are the business of
//! `record`.

use super::header;
use super::record::{self, RECORD_WORDS, SavedAgent};
use crate::base::words::Words;
use crate::entry::{Entry, Name};
use crate::shm::{FileShortened, Mapping, lock};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;

/// Bytes of the header, and of each record: three pages.
pub(super) const RECORD_LEN: u64 = 8 * RECORD_WORDS as u64;
/// Number of records by which the file grows.
pub(super) const CHUNK: usize = 64;
/// First word of the file.
const MAGIC: u64 = u64::from_le_bytes(*b"NIXLPMDA");
/// Version of the format, and the lengths that it depends on. A file of another format is not read: it would not
/// outlive the boot anyway.
pub(super) const FORMAT: u64 = (8 << 32) | ((RECORD_WORDS as u64) << 16) | Entry::MAX as u64;
/// Longest file that is accepted: 16 times what the largest `max_agents` needs.
const MAX_LEN: u64 = 1 << 33;

/// Number of a record in the state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub(super) usize);

/// What the state file held at the start.
#[derive(Debug)]
pub struct StateContents {
    /// The records that are in use.
    pub records: Vec<(RecordId, SavedAgent)>,
    /// Why the earlier contents, or a part, were rejected. `None` if all were read, or if there were none.
    pub rejection: Option<String>,
}

/// The header and the records of a locked state file.
#[derive(Debug)]
pub(super) struct Records {
    file: File,
    /// Maps the header and all chunks.
    map: Mapping,
    chunks: usize,
    /// Free records. The first one is used first, so that the last chunks become free as a whole.
    free: BTreeSet<RecordId>,
}

impl Records {
    /// Locks the file and reads its contents. Returns `None` while another process has the lock. A file that cannot be
    /// used is overwritten.
    ///
    /// # Errors
    /// The file cannot be locked, read, grown or mapped.
    pub fn lock_and_read(file: File) -> io::Result<Option<(Self, StateContents)>> {
        if !lock(&file)? {
            return Ok(None);
        }
        let (boot, len) = (boot_id()?, file.metadata()?.len());
        let unusable = unusable(&file, len, boot)?;
        let mut rejection = unusable
            .map(|why| format!("{why}; its totals are not used, and counters begin at zero"));
        if len == 0 || rejection.is_some() {
            file.set_len(0)?;
            allocate(&file, RECORD_LEN)?;
            let header = [MAGIC, FORMAT, boot[0], boot[1]].map(u64::to_ne_bytes);
            file.write_all_at(header.as_flattened(), 0)?;
        }
        let len = file.metadata()?.len();
        let pages = usize::try_from(len / RECORD_LEN - 1).map_err(io::Error::other)?;
        let mut chunks = pages.div_ceil(CHUNK);
        if len != offset(chunks) {
            rejection =
                Some("it was truncated; agents with incomplete records begin at zero".into());
            // Whole records are kept. Without space for the rest of the chunk, only those of the chunks before are.
            if allocate(&file, offset(chunks)).is_err() {
                chunks = pages / CHUNK;
            }
            // A longer file costs only space.
            let _ = file.set_len(offset(chunks));
        }
        let mut records = Self {
            map: map(&file, chunks)?,
            file,
            chunks,
            free: BTreeSet::new(),
        };
        let (found, damaged) = records.read()?;
        // If the file was cut short, that is what is reported.
        if damaged > 0 && rejection.is_none() {
            rejection = Some(format!(
                "damaged records: {damaged}; their agents begin at zero"
            ));
        }
        let _ = records.shrink();
        let found = StateContents {
            records: found,
            rejection,
        };
        Ok(Some((records, found)))
    }

    /// Reads all records. Frees those that are damaged, and the one whose agent was being expired at a kill. Returns
    /// the records in use and the number of damaged ones.
    fn read(&mut self) -> Result<(Vec<(RecordId, SavedAgent)>, usize), FileShortened> {
        let (mut found, mut damaged) = (Vec::new(), 0);
        let (expired, freed) = self.head(header::expired)?;
        for id in (0..self.chunks * CHUNK).map(RecordId) {
            if freed == Some(id.0 as u64) {
                self.words(id, record::free)?;
            }
            match self.words(id, record::read)? {
                Ok(Some(saved)) => found.push((id, saved)),
                Ok(None) => drop(self.free.insert(id)),
                Err(record::Damaged) => {
                    damaged += 1;
                    self.words(id, record::free)?;
                    self.free.insert(id);
                }
            }
        }
        if freed.is_some() {
            self.head(|words| header::set_expired(words, &expired, None))?;
        }
        Ok((found, damaged))
    }

    /// True if the file is at least as long as it was made, or if its length is not known.
    pub fn is_whole(&self) -> bool {
        let len = self.file.metadata().map_or(u64::MAX, |meta| meta.len());
        len >= offset(self.chunks)
    }

    /// The number of records in use.
    pub fn used(&self) -> usize {
        self.chunks * CHUNK - self.free.len()
    }

    /// Runs a closure on the words of the header, and returns its result.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn head<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FileShortened> {
        self.map.access(|words| run(&words[..RECORD_WORDS]))
    }

    /// Runs a closure on the words of a record, and returns its result.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn words<T>(
        &self,
        id: RecordId,
        run: impl FnOnce(&[AtomicU64]) -> T,
    ) -> Result<T, FileShortened> {
        let start = (1 + id.0) * RECORD_WORDS;
        self.map
            .access(|words| run(&words[start..start + RECORD_WORDS]))
    }

    /// Fills a free record for an agent whose names fit into one. Returns the number of the record.
    ///
    /// # Errors
    /// The file cannot grow, or was shortened.
    pub fn create(&mut self, name: &Name, entry: &Entry) -> io::Result<RecordId> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let id = *self.free.first().ok_or(io::ErrorKind::StorageFull)?;
        self.words(id, |words| record::create(words, name, entry))?;
        self.free.pop_first();
        Ok(id)
    }

    /// Frees a record.
    ///
    /// # Errors
    /// The file was shortened.
    pub fn free(&mut self, id: RecordId) -> Result<(), FileShortened> {
        self.words(id, record::free)?;
        self.free.insert(id);
        Ok(())
    }

    fn grow(&mut self) -> io::Result<()> {
        let first = self.chunks * CHUNK;
        allocate(&self.file, offset(self.chunks + 1))?;
        self.map = map(&self.file, self.chunks + 1)?;
        self.chunks += 1;
        self.free.extend((first..first + CHUNK).map(RecordId));
        Ok(())
    }

    /// Shortens the file by the chunks at its end that have no record in use. One free chunk stays, so that the file
    /// does not grow and shrink with each agent.
    ///
    /// # Errors
    /// The file cannot be mapped or shortened, which costs only space.
    pub fn shrink(&mut self) -> io::Result<()> {
        while let Some(last) = self.chunks.checked_sub(1) {
            let start = RecordId(last * CHUNK);
            if self.free.len() < 2 * CHUNK || self.free.range(start..).count() < CHUNK {
                break;
            }
            // First the mapping, then the file: a mapping must not be longer than its file.
            self.map = map(&self.file, last)?;
            self.chunks = last;
            drop(self.free.split_off(&start));
            self.file.set_len(offset(last))?;
        }
        Ok(())
    }
}

/// Bytes of a file with this number of chunks.
pub(super) fn offset(chunks: usize) -> u64 {
    (1 + (chunks * CHUNK) as u64) * RECORD_LEN
}

fn map(file: &File, chunks: usize) -> io::Result<Mapping> {
    Mapping::new(file, (1 + chunks * CHUNK) * RECORD_WORDS)
}

/// Makes the file at least this long. A full disk is an error here; later it would be SIGBUS at the first store to the
/// mapping.
fn allocate(file: &File, len: u64) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| Errno::EFBIG)?;
    posix_fallocate(file, 0, len)
}

/// Why a file of this length cannot be used. `None` if it can, or if it is empty.
fn unusable(file: &File, len: u64, boot: [u64; 2]) -> io::Result<Option<String>> {
    if len == 0 {
        return Ok(None);
    }
    if !(RECORD_LEN..=MAX_LEN).contains(&len) {
        return Ok(Some(format!("{len} bytes are not a state file")));
    }
    let why = match read_header(file)? {
        [magic, ..] if magic != MAGIC => "it does not begin like a state file",
        [_, written, ..] if written != FORMAT => "another version wrote it",
        [_, _, at_boot @ ..] if at_boot != boot => "it is from before the last boot",
        _ => return Ok(None),
    };
    Ok(Some(why.into()))
}

pub(super) fn read_header(file: &File) -> io::Result<[u64; 4]> {
    let mut bytes = [[0; 8]; 4];
    file.read_exact_at(bytes.as_flattened_mut(), 0)?;
    Ok(bytes.map(u64::from_ne_bytes))
}

/// The id of this boot of the host (random(4)), or zeros if there is none. A state file of an earlier boot describes
/// rings that are gone.
///
/// # Errors
/// The id cannot be read now, so that an old state file cannot be recognised.
pub fn boot_id() -> io::Result<[u64; 2]> {
    let text = match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok([0, 0]),
        text => text?,
    };
    let digits = text.replace('-', "");
    let half = |at: usize| {
        let half = digits.get(at..at + 16).unwrap_or_default();
        u64::from_str_radix(half, 16).map_err(io::Error::other)
    };
    Ok([half(0)?, half(16)?])
}
