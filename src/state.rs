//! The state file: each agent's totals, so that they outlive the daemon but not the host (it lies in `$PCP_RUN_DIR`).
//!
//! A header, with what is kept of forgotten agents (`retired`), then a record for each agent ([`crate::state::record`]), all of
//! the same length. Whoever holds the lock on the file is the one pmdanixl of this host that drains rings.

use self::record::{Entry, Name, RECORD_WORDS, Saved};
use crate::producer::facts::Facts;
use crate::shm::{Broken, Mapping, lock};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

mod file;
pub mod journal;
pub mod ledger;
pub mod record;
mod retired;
pub use file::StateFile;
pub use retired::{Retired, config_read};

/// Bytes of the header and of a record alike: three pages.
const RECORD_LEN: u64 = 8 * RECORD_WORDS as u64;
/// Records by which the file grows.
const CHUNK: usize = 64;
/// "NIXLPMDA".
const MAGIC: u64 = u64::from_le_bytes(*b"NIXLPMDA");
/// Version of the format, and what it depends on. A later version may have longer entries: words are added at their end, as
/// zeros to whoever reads what was written before, and none is moved.
const FORMAT: u64 = format(record::ENTRY_WORDS as u64);
/// The words of an entry in the first version of this format.
const FIRST_ENTRY_WORDS: u64 = 358;
/// More than this is no state file of ours: 16 times what the largest `max_agents` needs is never reached.
const MAX_LEN: u64 = 1 << 33;

/// Which record is an agent's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(usize);

/// The file, locked and mapped.
#[derive(Debug)]
pub struct State {
    file: File,
    head: Mapping,
    chunks: Vec<Mapping>,
    /// The first is used first, so that the last chunks can become free as a whole.
    free: BTreeSet<RecordId>,
}

/// A state that was found, and its records.
#[derive(Debug)]
pub struct Found {
    /// The state.
    pub state: State,
    /// What it remembers.
    pub records: Vec<(RecordId, Saved)>,
    /// Why what was there before is not used, if there was something.
    pub set_aside: Option<String>,
}

impl State {
    /// Takes the lock, and then what the file holds; `None` while another process has the lock. What cannot be used is kept
    /// beside it, and the state begins anew.
    ///
    /// # Errors
    /// The file cannot be locked, read, grown or mapped.
    pub fn take(opened: &StateFile, boot: [u64; 2]) -> io::Result<Option<Found>> {
        let file = opened.file.try_clone()?;
        if !lock(&file)? {
            return Ok(None);
        }
        let len = file.metadata()?.len();
        let header = read_header(&file, len)?;
        let expected = [MAGIC, FORMAT, boot[0], boot[1]];
        let why = match header {
            _ if len == 0 => None,
            _ if !(RECORD_LEN..=MAX_LEN).contains(&len) => {
                Some(format!("{len} bytes are no state"))
            }
            [magic, ..] if magic != MAGIC => Some("it does not begin as a state does".into()),
            [_, written, ..] if !is_readable(written, FORMAT) => {
                Some("another version wrote it".into())
            }
            [_, _, at_boot @ ..] if at_boot != boot => {
                Some("it is from before the last boot".into())
            }
            _ => None,
        };
        let mut set_aside = None;
        if let Some(why) = why {
            // Where that cannot be, the daemon works as well.
            let kept = match opened.keep_aside() {
                Ok(()) => "; it is kept as *.bad",
                Err(_) => "",
            };
            set_aside = Some(format!("{why}; all totals begin anew{kept}"));
        }
        if len == 0 || set_aside.is_some() {
            file.set_len(0)?;
            begin(&file, expected)?;
        }
        let mut state = Self {
            head: Mapping::at(&file, 0, RECORD_WORDS)?,
            file,
            chunks: Vec::new(),
            free: BTreeSet::new(),
        };
        let (mut records, mut damaged) = (Vec::new(), 0);
        let (_, freed) = state.head(retired::read)?;
        // Where the file could not grow by all of a chunk, the rest is cut off; it has no records.
        let len = state.file.metadata()?.len();
        let pages = len / RECORD_LEN - 1;
        let mut chunks = usize::try_from(pages).map_err(io::Error::other)? / CHUNK;
        if is_used(&state.file, offset(chunks), len)? {
            let kept = match opened.keep_aside() {
                Ok(()) => "; it is kept as *.bad",
                Err(_) => "",
            };
            set_aside = Some(format!(
                "it was cut short, and agents whose records are not whole begin anew{kept}"
            ));
            // Those that are whole go on.
            if allocate(&state.file, offset(chunks), CHUNK as u64 * RECORD_LEN).is_ok() {
                chunks += 1;
            }
        }
        state.file.set_len(offset(chunks))?;
        for chunk in 0..chunks {
            state.map(chunk)?;
            for at in chunk * CHUNK..(chunk + 1) * CHUNK {
                let id = RecordId(at);
                if freed == Some(at) {
                    state.words(id, record::free)?;
                }
                match state.words(id, record::read)? {
                    Ok(Some(saved)) => records.push((id, saved)),
                    Ok(None) => drop(state.free.insert(id)),
                    Err(record::Damaged) => {
                        damaged += 1;
                        state.words(id, record::free)?;
                        state.free.insert(id);
                    }
                }
            }
        }
        // That of one that was cut short is said.
        if damaged > 0 && set_aside.is_none() {
            let (make, begin) = match damaged {
                1 => ("makes", "begins"),
                _ => ("make", "begin"),
            };
            set_aside = Some(format!(
                "{damaged} of its records {make} no sense and {begin} anew"
            ));
        }
        if freed.is_some() {
            state.head(|words| retired::write(words, &retired::read(words).0, None))?;
        }
        // From here on entries have what this version adds to them: one before it would not know.
        state.head(|words| words[1].store(FORMAT, Relaxed))?;
        state.shrink()?;
        Ok(Some(Found {
            state,
            records,
            set_aside,
        }))
    }

    /// Whether the file is as long as it was made; also where that cannot be told.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let len = self.file.metadata().map_or(u64::MAX, |meta| meta.len());
        len >= offset(self.chunks.len())
    }

    /// The sums of agents that are forgotten.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn retired(&self) -> Result<Retired, Broken> {
        self.head(|words| retired::read(words).0)
    }

    /// Replaces them.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_retired(&self, sums: &Retired) -> Result<(), Broken> {
        self.head(|words| retired::write(words, sums, None))
    }

    /// More than any instance id that was given; 0 where that was never noted.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn next_id(&self) -> Result<u32, Broken> {
        self.head(retired::next_id)
    }

    /// Notes it.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_next_id(&self, next: u32) -> Result<(), Broken> {
        self.head(|words| retired::set_next_id(words, next))
    }

    /// Notes when the configuration was last read, in time since the epoch.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_config_read(&self, when: Duration) -> Result<(), Broken> {
        self.head(|words| retired::set_config_read(words, when))
    }

    /// A record for a new agent; `None`: its names have no room in one.
    ///
    /// # Errors
    /// The file cannot grow, or became shorter.
    pub fn create(&mut self, name: &Name, entry: &Entry) -> io::Result<Option<RecordId>> {
        if !record::fits(name) {
            return Ok(None);
        }
        if self.free.is_empty() {
            self.grow()?;
        }
        let Some(&id) = self.free.first() else {
            return Ok(None);
        };
        self.words(id, |words| record::create(words, name, entry))?;
        self.free.pop_first();
        Ok(Some(id))
    }

    /// Replaces what changes of an agent, in one step.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn replace(&self, id: RecordId, entry: &Entry) -> Result<(), Broken> {
        self.words(id, |words| record::replace(words, entry))
    }

    /// What is kept of an agent; `None`: that is damaged, or the file became shorter.
    #[must_use]
    pub fn entry(&self, id: RecordId) -> Option<Entry> {
        let saved = self.words(id, record::read).ok()?.ok()??;
        Some(saved.entry)
    }

    /// Notes that the slots of the last batch were given back.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_released(&self, id: RecordId) -> Result<(), Broken> {
        self.words(id, record::set_released)
    }

    /// Notes an agent's instance id.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_id(&self, id: RecordId, instance: u32) -> Result<(), Broken> {
        self.words(id, |words| record::set_id(words, instance))
    }

    /// Notes whose an agent's files are, which was not known.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_owner(&self, id: RecordId, uid: u32) -> Result<(), Broken> {
        self.words(id, |words| record::set_owner(words, Some(uid)))
    }

    /// Notes what is known of an agent's process and place, if anything is.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn set_facts(&self, id: RecordId, facts: Option<&Facts>) -> Result<(), Broken> {
        self.words(id, |words| record::set_facts(words, facts))
    }

    /// Forgets an agent, and its record if it has one, but for what it has counted.
    ///
    /// # Errors
    /// The file became shorter.
    pub fn retire(&mut self, id: Option<RecordId>, entry: &Entry) -> Result<(), Broken> {
        let mut sums = self.retired()?;
        sums.add(entry);
        let freed = id.map(|id| id.0);
        self.head(|words| retired::write(words, &sums, freed))?;
        if let Some(id) = id {
            self.words(id, record::free)?;
            self.free.insert(id);
            self.head(|words| retired::write(words, &sums, None))?;
            // That it stays as long as it was, if it cannot be made shorter, costs nothing but room.
            let _ = self.shrink();
        }
        Ok(())
    }

    fn head<T>(&self, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, Broken> {
        self.head.access(run)
    }

    fn words<T>(&self, id: RecordId, run: impl FnOnce(&[AtomicU64]) -> T) -> Result<T, Broken> {
        let start = id.0 % CHUNK * RECORD_WORDS;
        self.chunks[id.0 / CHUNK].access(|words| run(&words[start..start + RECORD_WORDS]))
    }

    fn grow(&mut self) -> io::Result<()> {
        let chunk = self.chunks.len();
        // A full disk is an error here, and would be a fault at the first store to a mapping.
        allocate(&self.file, offset(chunk), CHUNK as u64 * RECORD_LEN)?;
        self.map(chunk)?;
        let first = chunk * CHUNK;
        self.free.extend((first..first + CHUNK).map(RecordId));
        Ok(())
    }

    /// Gives the room at the end of the file back where nothing stands; as much again stays, so that it does not grow and shrink
    /// with each agent.
    fn shrink(&mut self) -> io::Result<()> {
        while let Some(last) = self.chunks.len().checked_sub(1) {
            let start = RecordId(last * CHUNK);
            if self.free.len() < 2 * CHUNK || self.free.range(start..).count() < CHUNK {
                break;
            }
            drop(self.free.split_off(&start));
            // Nobody is to find the file shorter than it is mapped.
            self.chunks.pop();
            self.file.set_len(offset(last))?;
        }
        Ok(())
    }

    fn map(&mut self, chunk: usize) -> io::Result<()> {
        let mapping = Mapping::at(&self.file, offset(chunk), CHUNK * RECORD_WORDS)?;
        self.chunks.push(mapping);
        Ok(())
    }
}

const fn format(entry_words: u64) -> u64 {
    (3 << 32) | ((RECORD_WORDS as u64) << 16) | entry_words
}

/// Whether one that writes `own`, or one before it, wrote that.
fn is_readable(written: u64, own: u64) -> bool {
    (format(FIRST_ENTRY_WORDS)..=own).contains(&written)
}

fn offset(chunk: usize) -> u64 {
    (1 + (chunk * CHUNK) as u64) * RECORD_LEN
}

/// Writes the header of an empty state.
fn begin(file: &File, header: [u64; 4]) -> io::Result<()> {
    allocate(file, 0, RECORD_LEN)?;
    let bytes: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, 0)
}

/// Makes room for bytes of the file; zeros, where there was none.
fn allocate(file: &File, from: u64, len: u64) -> Result<(), Errno> {
    let of = |bytes: u64| libc::off_t::try_from(bytes).map_err(|_| Errno::EFBIG);
    posix_fallocate(file, of(from)?, of(len)?)
}

/// Whether anything but zeros stands in this part of the file.
fn is_used(file: &File, from: u64, upto: u64) -> io::Result<bool> {
    let len = usize::try_from(upto - from).map_err(io::Error::other)?;
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, from)?;
    Ok(bytes.iter().any(|&byte| byte != 0))
}

fn read_header(file: &File, len: u64) -> io::Result<[u64; 4]> {
    let mut header = [0; 4];
    if len >= RECORD_LEN {
        for (word, at) in header.iter_mut().zip((0..).step_by(8)) {
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, at)?;
            *word = u64::from_ne_bytes(bytes);
        }
    }
    Ok(header)
}

/// What this boot of the host is called (random(4)), or zeros where that has no name: a state from before it describes rings
/// that are gone.
///
/// # Errors
/// It cannot be read now, so that a state cannot be told from an old one.
pub fn boot_id() -> io::Result<[u64; 2]> {
    let text = match fs::read_to_string("/proc/sys/kernel/random/boot_id") {
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok([0, 0]),
        text => text?,
    };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |at: usize| {
        let half = digits.get(at..at + 16).unwrap_or_default();
        u64::from_str_radix(half, 16).map_err(io::Error::other)
    };
    Ok([half(0)?, half(16)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventType, Events, Totals};
    use std::path::{Path, PathBuf};

    const BOOT: [u64; 2] = [1, 2];

    fn take(path: &Path, boot: [u64; 2]) -> Found {
        let file = StateFile::open(path).expect("a file");
        State::take(&file, boot)
            .expect("a state")
            .expect("nobody else has it")
    }

    fn name(number: usize) -> Name {
        Name {
            raw: format!("agent {number}").into(),
            instance: format!("agent%20{number}"),
            directory: "/dev/shm".into(),
            part: String::new(),
            owner: Some(1000),
        }
    }

    /// Of an agent that is forgotten.
    fn sums(value: u64) -> Retired {
        let mut sums = Retired::default();
        sums.add(&entry(value));
        sums
    }

    fn totals(value: u64) -> Totals {
        let sent = Event::new(Some(EventType::TxBytes), value);
        Events::of(&[sent]).totals().clone()
    }

    fn entry(value: u64) -> Entry {
        let mut entry = Entry::default();
        entry.account.totals = totals(value);
        entry
    }

    /// A state with agents 0 to `count`, agent N with N + 1000 bytes.
    fn filled(count: usize) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl/state");
        let mut state = take(&path, BOOT).state;
        for number in 0..count {
            let id = state.create(&name(number), &Entry::default());
            let id = id.expect("room").expect("short names");
            state
                .replace(id, &entry(1000 + number as u64))
                .expect("whole");
            state
                .set_id(id, 7 + u32::try_from(number).expect("small"))
                .expect("whole");
        }
        (dir, path)
    }

    #[test]
    fn entries_that_were_shorter_are_read_and_longer_ones_are_not() {
        let own = format(FIRST_ENTRY_WORDS + 42);
        for (words, readable) in [(0, true), (1, true), (42, true), (43, false)] {
            let written = format(FIRST_ENTRY_WORDS + words);
            assert_eq!(is_readable(written, own), readable, "{words}");
        }
        assert!(!is_readable(format(FIRST_ENTRY_WORDS - 1), own));
        assert!(!is_readable(own + (1 << 32), own), "another major version");
    }

    #[test]
    fn what_was_kept_is_found_also_when_the_file_has_grown() {
        let count = 2 * CHUNK + 3;
        let (_dir, path) = filled(count);
        let found = take(&path, BOOT);
        assert_eq!(found.set_aside, None);
        assert_eq!(found.records.len(), count);
        for (number, (_, saved)) in found.records.iter().enumerate() {
            assert_eq!(saved.name, name(number));
            assert_eq!(saved.id, Some(7 + u32::try_from(number).expect("small")));
            assert_eq!(saved.entry, entry(1000 + number as u64));
        }
    }

    #[test]
    fn a_record_that_was_given_up_is_used_again() {
        let (_dir, path) = filled(CHUNK);
        let Found {
            mut state, records, ..
        } = take(&path, BOOT);
        let gone = &records[5].1.entry;
        state.retire(Some(records[5].0), gone).expect("whole");
        let again = state.create(&name(99), &entry(5)).expect("room");
        assert_eq!(again, Some(records[5].0), "the file does not grow for it");
        drop(state);
        let found = take(&path, BOOT);
        assert_eq!(found.state.retired(), Ok(sums(1005)));
        let names = found.records;
        assert!(names.iter().any(|(_, saved)| saved.name == name(99)));
        assert!(!names.iter().any(|(_, saved)| saved.name == name(5)));
    }

    #[test]
    fn what_many_agents_took_is_given_back_and_nobody_who_stays_is_lost() {
        let count = 5 * CHUNK;
        let (_dir, path) = filled(count);
        let len = || path.metadata().expect("there").len();
        assert_eq!(len(), offset(5));
        let Found {
            mut state, records, ..
        } = take(&path, BOOT);
        // One in the third chunk stays, so that nothing before it can go.
        let stays = 2 * CHUNK + 7;
        let mut sums = Retired::default();
        for (number, (id, saved)) in records.iter().enumerate() {
            if number != stays {
                sums.add(&saved.entry);
                state.retire(Some(*id), &saved.entry).expect("whole");
                assert!(state.is_whole());
            }
        }
        assert_eq!(len(), offset(3));
        // Those that come next have the first records, and the file grows again when these are used up.
        for number in 0..3 * CHUNK {
            let id = state.create(&name(count + number), &entry(1));
            assert!(id.expect("room").is_some());
        }
        assert_eq!(len(), offset(4));
        drop(state);
        let found = take(&path, BOOT);
        assert_eq!(
            (found.set_aside, found.records.len()),
            (None, 3 * CHUNK + 1)
        );
        assert_eq!(found.state.retired(), Ok(sums), "what they counted stays");
        let mut kept = found.records.iter().map(|(_, saved)| saved);
        assert!(kept.any(|saved| saved.name == name(stays) && saved.entry == entry(1000 + stays as u64)));
    }

    #[test]
    fn room_for_a_chunk_of_agents_stays_when_all_are_gone() {
        let (_dir, path) = filled(2 * CHUNK);
        let Found {
            mut state, records, ..
        } = take(&path, BOOT);
        for (id, saved) in &records {
            state.retire(Some(*id), &saved.entry).expect("whole");
        }
        assert_eq!(path.metadata().expect("there").len(), offset(1));
    }

    #[test]
    fn damaged_records_are_reported_once_and_begin_anew() {
        for (count, report) in [
            (1, "1 of its records makes no sense and begins anew"),
            (2, "2 of its records make no sense and begin anew"),
        ] {
            let (_dir, path) = filled(3);
            let found = take(&path, BOOT);
            let mut damaged = entry(1);
            damaged.commit.get_or_insert_default().ring.capacity = 3;
            for (id, _) in &found.records[..count] {
                found.state.replace(*id, &damaged).expect("whole");
            }
            drop(found);
            let found = take(&path, BOOT);
            assert_eq!(found.set_aside.as_deref(), Some(report));
            assert_eq!(found.records.len(), 3 - count);
            drop(found);
            assert_eq!(take(&path, BOOT).set_aside, None);
        }
    }

    #[test]
    fn whole_records_of_a_file_that_was_cut_short_go_on() {
        let (_dir, path) = filled(CHUNK + 5);
        let file = fs::OpenOptions::new().write(true).open(&path);
        file.expect("there")
            .set_len(offset(1) + 3 * RECORD_LEN + 8)
            .expect("cut short");
        let found = take(&path, BOOT);
        assert!(found.set_aside.is_some_and(|why| why.contains("cut short")));
        assert_eq!(found.records.len(), CHUNK + 3);
    }

    #[test]
    fn next_id_is_read_from_the_file() {
        let (_dir, path) = filled(1);
        let state = take(&path, BOOT).state;
        state.set_next_id(7).expect("whole");
        drop(state);
        assert_eq!(take(&path, BOOT).state.next_id(), Ok(7));
    }

    #[test]
    fn an_agent_that_was_being_forgotten_at_a_kill_is_added_once() {
        let (_dir, path) = filled(2);
        let found = take(&path, BOOT);
        // As far as a kill let it come.
        let sums = sums(1000);
        let head = |words: &[AtomicU64]| retired::write(words, &sums, Some(found.records[0].0.0));
        found.state.head(head).expect("whole");
        drop(found);
        for _ in 0..2 {
            let found = take(&path, BOOT);
            assert_eq!(found.records.len(), 1);
            assert_eq!(found.records[0].1.name, name(1));
            assert_eq!(found.state.retired(), Ok(sums.clone()));
        }
        // The record is free for another, which is not taken for the one that was forgotten.
        let mut state = take(&path, BOOT).state;
        state.create(&name(5), &entry(5)).expect("room");
        drop(state);
        assert_eq!(take(&path, BOOT).records.len(), 2);
    }

    #[test]
    fn the_lock_keeps_a_second_one_away_until_the_first_is_gone() {
        let (_dir, path) = filled(1);
        let first = take(&path, BOOT);
        let file = StateFile::open(&path).expect("a file");
        assert!(State::take(&file, BOOT).expect("readable").is_none());
        drop(first);
        let second = State::take(&file, BOOT).expect("readable");
        assert_eq!(second.map(|found| found.records.len()), Some(1));
    }

    #[test]
    fn what_cannot_be_used_is_kept_beside_a_state_that_begins_anew() {
        let spoil = |change: &dyn Fn(&File)| {
            let (_dir, path) = filled(3);
            change(&StateFile::open(&path).expect("a file").file);
            let before = fs::read(&path).expect("there");
            let found = take(&path, BOOT);
            let bad = fs::read(path.with_extension("bad")).unwrap_or_default();
            assert_eq!((found.records.len(), bad == before), (0, true));
            drop(found);
            assert_eq!(take(&path, BOOT).set_aside, None, "once is enough");
        };
        spoil(&|file| file.set_len(100).expect("shorter"));
        spoil(&|file| file.write_all_at(b"rubbish", 0).expect("written"));
        spoil(&|file| file.write_all_at(&[9], 12).expect("written"));
        spoil(&|file| file.write_all_at(&[9], 16).expect("written"));
        spoil(&|file| file.write_all_at(&[0; 4096], 0).expect("written"));
    }

    #[test]
    fn a_chunk_that_there_was_no_room_for_costs_none_of_the_others() {
        let (_dir, path) = filled(CHUNK);
        let StateFile { file, .. } = StateFile::open(&path).expect("a file");
        file.set_len(offset(1) + 5 * RECORD_LEN + 7)
            .expect("longer");
        let found = take(&path, BOOT);
        assert_eq!((found.records.len(), found.set_aside), (CHUNK, None));
        assert_eq!(file.metadata().expect("open").len(), offset(1));
    }

    #[test]
    fn what_is_kept_aside_leads_nobody_astray() {
        let (dir, path) = filled(1);
        let precious = dir.path().join("precious");
        fs::write(&precious, "precious").expect("written");
        std::os::unix::fs::symlink(&precious, path.with_extension("bad")).expect("made");
        let file = StateFile::open(&path).expect("a file");
        file.file.write_all_at(b"rubbish", 0).expect("written");
        // Its directory is replaced under its name meanwhile.
        fs::rename(dir.path().join("nixl"), dir.path().join("away")).expect("there");
        fs::create_dir(dir.path().join("nixl")).expect("made");
        std::os::unix::fs::symlink(&precious, dir.path().join("nixl/state.bad")).expect("made");
        let found = State::take(&file, BOOT)
            .expect("a state")
            .expect("nobody else has it");
        assert!(found.set_aside.is_some());
        assert_eq!(fs::read(&precious).expect("there"), b"precious");
        let kept = fs::read(dir.path().join("away/state.bad")).expect("kept");
        assert!(kept.starts_with(b"rubbish"));
    }

    #[test]
    fn a_damaged_record_costs_that_record() {
        let (_dir, path) = filled(3);
        let StateFile { file, .. } = StateFile::open(&path).expect("a file");
        file.write_all_at(&[0xff; 8], 2 * RECORD_LEN)
            .expect("written");
        let found = take(&path, BOOT);
        let names: Vec<&Name> = found.records.iter().map(|(_, saved)| &saved.name).collect();
        assert_eq!(names, [&name(0), &name(2)]);
        assert_eq!(
            found.set_aside,
            Some("1 of its records makes no sense and begins anew".into())
        );
    }

    #[test]
    fn this_boot_has_an_id() {
        let id = boot_id().expect("/proc");
        assert_eq!(boot_id().expect("/proc"), id);
        assert_ne!(id, [0, 0]);
    }

    #[test]
    fn what_an_earlier_version_wrote_is_read_and_what_a_later_one_did_is_not() {
        assert!(is_readable(FORMAT, FORMAT));
        let later = format(record::ENTRY_WORDS as u64 + 1);
        assert!(
            ![later, format(FIRST_ENTRY_WORDS - 1), FORMAT + (1 << 32)]
                .map(|written| is_readable(written, FORMAT))
                .contains(&true)
        );
        // An entry that was written without the last words has zeros there.
        let (_dir, path) = filled(3);
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("there");
        file.write_all_at(&format(FIRST_ENTRY_WORDS).to_ne_bytes(), 8)
            .expect("written");
        let found = take(&path, BOOT);
        assert_eq!((found.records.len(), found.set_aside), (3, None));
        let header = read_header(&File::open(&path).expect("there"), RECORD_LEN).expect("read");
        assert_eq!(header[1], FORMAT);
    }
}
