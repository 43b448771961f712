//! The header and the records of a state file, mapped.

use super::expired;
use super::record::{self, Entry, Name, RECORD_WORDS, SavedAgent};
use crate::shm::{FileShortened, Mapping, lock};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of the header and of a record alike: three pages.
pub(super) const RECORD_LEN: u64 = 8 * RECORD_WORDS as u64;
/// Records by which the file grows.
pub(super) const CHUNK: usize = 64;
/// "NIXLPMDA".
const MAGIC: u64 = u64::from_le_bytes(*b"NIXLPMDA");
/// Version of the format, and what it depends on. A later version may have longer entries: words are added at their end, as
/// zeros in what was written before, and none is moved.
pub(super) const FORMAT: u64 = format(record::ENTRY_WORDS as u64);
/// The words of an entry in the first version of this format.
pub(super) const FIRST_ENTRY_WORDS: u64 = 358;
/// More than this is no state file of ours: 16 times what the largest `max_agents` needs is never reached.
const MAX_LEN: u64 = 1 << 33;

/// Which record is an agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub(super) usize);

/// What a state file held at the start.
#[derive(Debug)]
pub struct StateContents {
    /// The records that are in use.
    pub records: Vec<(RecordId, SavedAgent)>,
    /// Why what was there before is not used, if there was something.
    pub rejection: Option<String>,
}

/// The header and the records of a state file that is locked.
#[derive(Debug)]
pub(super) struct Records {
    file: File,
    /// The header, then all chunks.
    map: Mapping,
    chunks: usize,
    /// The first is used first, so that the last chunks can become free as a whole.
    free: BTreeSet<RecordId>,
}

impl Records {
    /// Takes the lock, and then what the file holds. Returns `None` while another process has the lock. A file that cannot be used
    /// is written over.
    ///
    /// # Errors
    /// The file cannot be locked, read, grown or mapped.
    pub fn lock_and_read(file: File) -> io::Result<Option<(Self, StateContents)>> {
        if !lock(&file)? {
            return Ok(None);
        }
        let (boot, len) = (boot_id()?, file.metadata()?.len());
        let unusable = unusable(&file, len, boot)?;
        let mut rejection = unusable.map(|why| format!("{why}; its totals are not used"));
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
                Some("it was cut short, and agents whose records are not whole begin anew".into());
            // Those that are whole go on; without room for the rest of the chunk, those of the chunks before.
            if allocate(&file, offset(chunks)).is_err() {
                chunks = pages / CHUNK;
            }
            // What is behind them costs nothing but room.
            let _ = file.set_len(offset(chunks));
        }
        let mut records = Self {
            map: map(&file, chunks)?,
            file,
            chunks,
            free: BTreeSet::new(),
        };
        let (found, damaged) = records.read()?;
        // That of a file that was cut short is said.
        if damaged > 0 && rejection.is_none() {
            let (make, begin) = match damaged {
                1 => ("makes", "begins"),
                _ => ("make", "begin"),
            };
            rejection = Some(format!(
                "{damaged} of its records {make} no sense and {begin} anew"
            ));
        }
        // From here on entries have what this version adds to them: one before it would not know.
        records.head(|words| words[1].store(FORMAT, Relaxed))?;
        let _ = records.shrink();
        let found = StateContents {
            records: found,
            rejection,
        };
        Ok(Some((records, found)))
    }

    /// Reads all records, and frees those that are damaged and that of an agent that was being forgotten. Returns those that are in
    /// use, and how many are damaged.
    fn read(&mut self) -> Result<(Vec<(RecordId, SavedAgent)>, usize), FileShortened> {
        let (mut found, mut damaged) = (Vec::new(), 0);
        let (expired, freed) = self.head(expired::read)?;
        for id in (0..self.chunks * CHUNK).map(RecordId) {
            if freed == Some(id.0) {
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
            self.head(|words| expired::write(words, &expired, None))?;
        }
        Ok((found, damaged))
    }

    /// True if the file is as long as it was made; also where that cannot be told.
    pub fn is_whole(&self) -> bool {
        let len = self.file.metadata().map_or(u64::MAX, |meta| meta.len());
        len >= offset(self.chunks)
    }

    /// The number of records that are in use.
    pub fn used(&self) -> usize {
        self.chunks * CHUNK - self.free.len()
    }

    /// Runs something on the words of the header.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn head<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, FileShortened> {
        self.map.access(|words| run(&words[..RECORD_WORDS]))
    }

    /// Runs something on the words of a record.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn words<T>(
        &self,
        id: RecordId,
        run: impl FnOnce(&[AtomicU64]) -> T,
    ) -> Result<T, FileShortened> {
        let start = (1 + id.0) * RECORD_WORDS;
        self.map
            .access(|words| run(&words[start..start + RECORD_WORDS]))
    }

    /// Fills a free record for an agent whose names have room in one.
    ///
    /// # Errors
    /// The file cannot grow, or became shorter.
    pub fn create(&mut self, name: &Name, entry: &Entry) -> io::Result<RecordId> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let id = *self.free.first().ok_or(io::ErrorKind::StorageFull)?;
        self.words(id, |words| record::create(words, name, entry))?;
        self.free.pop_first();
        Ok(id)
    }

    /// Makes a record free.
    ///
    /// # Errors
    /// The file became shorter.
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

    /// Gives the room at the end of the file back where no record is in use; a chunk stays free, so that the file does not grow and
    /// shrink with each agent.
    ///
    /// # Errors
    /// The file cannot be mapped or made shorter. It costs nothing but room.
    pub fn shrink(&mut self) -> io::Result<()> {
        while let Some(last) = self.chunks.checked_sub(1) {
            let start = RecordId(last * CHUNK);
            if self.free.len() < 2 * CHUNK || self.free.range(start..).count() < CHUNK {
                break;
            }
            // The mapping is never longer than the file.
            self.map = map(&self.file, last)?;
            self.chunks = last;
            drop(self.free.split_off(&start));
            self.file.set_len(offset(last))?;
        }
        Ok(())
    }
}

pub(super) const fn format(entry_words: u64) -> u64 {
    (3 << 32) | ((RECORD_WORDS as u64) << 16) | entry_words
}

/// True if this version, which writes `own`, or one before it wrote a file of this format.
pub(super) fn is_readable(written: u64, own: u64) -> bool {
    (format(FIRST_ENTRY_WORDS)..=own).contains(&written)
}

/// Bytes of a file with so many chunks.
pub(super) fn offset(chunks: usize) -> u64 {
    (1 + (chunks * CHUNK) as u64) * RECORD_LEN
}

fn map(file: &File, chunks: usize) -> io::Result<Mapping> {
    Mapping::new(file, (1 + chunks * CHUNK) * RECORD_WORDS)
}

/// Makes the file at least so long: a full disk is an error here, and would be a fault at the first store to a mapping.
fn allocate(file: &File, len: u64) -> Result<(), Errno> {
    let len = libc::off_t::try_from(len).map_err(|_| Errno::EFBIG)?;
    posix_fallocate(file, 0, len)
}

/// Why a file of this length cannot be used; `None`: it can, or it is empty.
fn unusable(file: &File, len: u64, boot: [u64; 2]) -> io::Result<Option<String>> {
    if len == 0 {
        return Ok(None);
    }
    if !(RECORD_LEN..=MAX_LEN).contains(&len) {
        return Ok(Some(format!("{len} bytes are no state")));
    }
    let why = match read_header(file)? {
        [magic, ..] if magic != MAGIC => "it does not begin as a state does",
        [_, written, ..] if !is_readable(written, FORMAT) => "another version wrote it",
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

/// The id of this boot of the host (random(4)), or zeros where it has none: a state from before it describes rings that are
/// gone.
///
/// # Errors
/// It cannot be read now, so that a state cannot be told from an old one.
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
