//! One agent's record in the state file: its words, and what they mean.
//!
//! What names an agent is written once, before the record counts as used. What changes is in two entries and a generation
//! word: the entry that the generation does not name is written, then the generation is raised. A kill at any instruction
//! leaves the one entry or the other, never a mixture.

use crate::discovery::name::is_instance_name;
use crate::procfs::facts::Facts;
use crate::stats::ranges::Ranges;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

mod entry;
mod lifecycle;
pub use entry::{ENTRY_WORDS, Entry};
pub use lifecycle::Lifecycle;

/// Words of a record: three pages.
pub const RECORD_WORDS: usize = 1536;

/// Words of a record that have a meaning of their own.
const USED: usize = 0;
const GENERATION: usize = 1;
const INSTANCE_ID: usize = 2;
const LENGTHS: usize = 3;
/// The generation whose batch's slots were given back.
const RELEASED: usize = 4;
/// Length of the text at [`FACTS`].
const FACTS_LENGTH: usize = 5;
/// The uid of the owner of the agent's files, and one. Versions before 0.1.0 left 0 there, which is read as root's.
const OWNER: usize = 6;
const TEXTS: [(usize, usize); 4] = [(8, 32), (40, 40), (80, 128), (208, 32)];
const ENTRIES: [usize; 2] = [256, 256 + ENTRY_ROOM];
const ENTRY_ROOM: usize = 448;
/// What is known of the agent's process and place, as JSON.
const FACTS: usize = ENTRIES[1] + ENTRY_ROOM;
/// Ranges that 0.1.0 had numbered: how many, and the bounds of each. These words are not to be used again.
const NUMBERED: usize = RECORD_WORDS - (1 + 2 * MAX_NUMBERED);
const MAX_NUMBERED: usize = 64;
/// Marks the number of numbered ranges, and a bound that is one no more.
const NUMBERED_MARK: u64 = 0x536c_6f74_7300;
const GONE: u64 = 1 << 63;
const FACTS_ROOM: usize = NUMBERED - FACTS;
const _: () = assert!(ENTRY_WORDS <= ENTRY_ROOM && FACTS + 250 <= NUMBERED);

/// The highest instance id that an agent can have: those of its histograms are 64 times it and more, and PCP's ids have 31 bits.
pub const HIGHEST_ID: u32 = (1 << 25) - 1;

/// No generation.
const NOT_RELEASED: u64 = u64::MAX;
/// No instance id yet.
const NO_ID: u64 = u64::MAX;

/// What names an agent, and never changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The raw name, which is the file's.
    pub raw: OsString,
    /// What it is called in the instance domain.
    pub instance: String,
    /// The directory that it was found in.
    pub directory: PathBuf,
    /// Which agent of that name in that directory: empty for the one that writes the ring of that name; of those with stores,
    /// `store:NUMBER:RANK`, where several of one local rank are numbered.
    pub part: String,
    /// The uid of the owner of its files.
    pub owner: u32,
}

/// A record that is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Who it is.
    pub name: Name,
    /// Its instance id, once it had one.
    pub id: Option<u32>,
    /// What was last written.
    pub entry: Entry,
    /// What was known of its process and place.
    pub facts: Option<Facts>,
}

/// Whether a name has room in a record.
#[must_use]
pub fn fits(name: &Name) -> bool {
    texts(name)
        .iter()
        .zip(TEXTS)
        .all(|(text, (_, words))| text.len() <= 8 * words)
}

fn texts(name: &Name) -> [&[u8]; 4] {
    [
        name.raw.as_bytes(),
        name.instance.as_bytes(),
        name.directory.as_os_str().as_bytes(),
        name.part.as_bytes(),
    ]
}

/// Fills a free record; it is in use from the last store on.
pub fn create(words: &[AtomicU64], name: &Name, entry: &Entry) {
    words[USED].store(0, Relaxed);
    words[GENERATION].store(0, Relaxed);
    words[INSTANCE_ID].store(NO_ID, Relaxed);
    words[RELEASED].store(NOT_RELEASED, Relaxed);
    words[FACTS_LENGTH].store(0, Relaxed);
    words[NUMBERED].store(0, Relaxed);
    let mut lengths = 0;
    for (number, (text, (start, _))) in texts(name).iter().zip(TEXTS).enumerate() {
        lengths |= (text.len() as u64) << (16 * number);
        put_text(&words[start..], text);
    }
    words[LENGTHS].store(lengths, Relaxed);
    words[OWNER].store(u64::from(name.owner) + 1, Relaxed);
    put(&words[ENTRIES[0]..], entry);
    words[USED].store(1, Release);
}

fn put_text(words: &[AtomicU64], text: &[u8]) {
    for (word, bytes) in words.iter().zip(text.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
}

/// Notes what is known of an agent's process and place, if anything is: what it is labelled with right after the next start. A
/// kill in the midst of it leaves none.
pub fn set_facts(words: &[AtomicU64], facts: Option<&Facts>) {
    words[FACTS_LENGTH].store(0, Release);
    let Some(facts) = facts else {
        return;
    };
    let text = serde_json::to_vec(facts).unwrap_or_default();
    if text.len() <= 8 * FACTS_ROOM {
        // Not before it is known that there is none.
        fence(Release);
        put_text(&words[FACTS..], &text);
        words[FACTS_LENGTH].store(text.len() as u64, Release);
    }
}

/// Makes a record free.
pub fn free(words: &[AtomicU64]) {
    words[USED].store(0, Release);
}

/// Notes the instance id.
pub fn set_id(words: &[AtomicU64], id: u32) {
    words[INSTANCE_ID].store(u64::from(id), Relaxed);
}

/// The first word of the entry that a generation names.
fn entry_of(generation: u64) -> usize {
    ENTRIES[usize::from(generation % 2 == 1)]
}

/// Replaces the entry, in one step.
pub fn replace(words: &[AtomicU64], entry: &Entry) {
    let generation = words[GENERATION].load(Relaxed).wrapping_add(1);
    put(&words[entry_of(generation)..], entry);
    // Not before the entry is whole: the next start of the daemon reads what this one, killed, had stored until then.
    words[GENERATION].store(generation, Release);
}

/// Notes that the slots of the entry's batch were given back. A kill before this leaves that to be found out.
pub fn set_released(words: &[AtomicU64]) {
    let generation = words[GENERATION].load(Relaxed);
    words[RELEASED].store(generation, Release);
}

fn put(words: &[AtomicU64], entry: &Entry) {
    for (word, value) in words.iter().zip(entry::to_words(entry)) {
        word.store(value, Relaxed);
    }
}

/// Reads a record: `None` if it is free.
///
/// # Errors
/// It is in use but makes no sense.
pub fn read(words: &[AtomicU64]) -> Result<Option<Saved>, Damaged> {
    match words[USED].load(Acquire) {
        0 => Ok(None),
        1 => {
            let raw = RawRecord(std::array::from_fn(|at| words[at].load(Relaxed)));
            Saved::try_from(&raw).map(Some)
        }
        _ => Err(Damaged),
    }
}

/// The words of a record as they were found. Nothing in them is trusted before they have become a [`Saved`].
struct RawRecord([u64; RECORD_WORDS]);

impl RawRecord {
    /// A text at these words; `None`: it is longer than they are.
    fn text(&self, words: Range<usize>, len: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(len).ok()?;
        let bytes = self.0[words].iter().flat_map(|word| word.to_ne_bytes());
        let text: Vec<u8> = bytes.take(len).collect();
        (text.len() == len).then_some(text)
    }

    /// A name in its field, which has no room for a NUL byte.
    fn name(&self, number: usize) -> Option<Vec<u8>> {
        let (start, room) = TEXTS[number];
        let len = (self.0[LENGTHS] >> (16 * number)) & 0xffff;
        let text = self.text(start..start + room, len)?;
        (!text.contains(&0)).then_some(text)
    }

    /// True if a record of 0.1.0 has ranges of times that are numbered otherwise than from 0 on: they were changed once.
    fn is_renumbered(&self, ranges: &Ranges) -> bool {
        let count = self.0[NUMBERED] ^ NUMBERED_MARK;
        // An even earlier version had facts there.
        let count = usize::try_from(count).ok();
        let Some(count) = count.filter(|count| (1..=MAX_NUMBERED).contains(count)) else {
            return false;
        };
        let mut bounds = self.0[NUMBERED + 1..][..2 * count].iter();
        count != ranges.count() || bounds.any(|bound| bound & GONE != 0)
    }
}

impl TryFrom<&RawRecord> for Name {
    type Error = Damaged;

    fn try_from(raw: &RawRecord) -> Result<Self, Damaged> {
        let text = |number| raw.name(number).ok_or(Damaged);
        let utf8 = |number| String::from_utf8(text(number)?).map_err(|_| Damaged);
        let owner = raw.0[OWNER].saturating_sub(1);
        let name = Name {
            raw: OsString::from_vec(text(0)?),
            instance: utf8(1)?,
            directory: OsString::from_vec(text(2)?).into(),
            part: utf8(3)?,
            owner: u32::try_from(owner).map_err(|_| Damaged)?,
        };
        let is_empty = name.raw.is_empty() || name.directory.as_os_str().is_empty();
        match is_empty || !is_instance_name(&name.instance) {
            true => Err(Damaged),
            false => Ok(name),
        }
    }
}

impl TryFrom<&RawRecord> for Saved {
    type Error = Damaged;

    fn try_from(raw: &RawRecord) -> Result<Self, Damaged> {
        // Where it makes no sense, the file of instance ids may know it by the agent's name.
        let id = u32::try_from(raw.0[INSTANCE_ID]);
        let id = id.ok().filter(|&id| id <= HIGHEST_ID);
        let generation = raw.0[GENERATION];
        let words = &raw.0[entry_of(generation)..];
        let words = words.first_chunk().ok_or(Damaged)?;
        let mut entry = entry::from_words(words);
        if entry::is_without_base(words) && !raw.is_renumbered(entry.account.ranges()) {
            entry.account.bucket_base = id;
        }
        if let Some(commit) = &mut entry.commit {
            // Its positions go into the ring when its slots are given back.
            let capacity = commit.ring.capacity;
            let mut positions = [commit.from, commit.upto, commit.ahead.write_pos].into_iter();
            if !capacity.is_power_of_two() || positions.any(|pos| pos >= capacity) {
                return Err(Damaged);
            }
            commit.released |= raw.0[RELEASED] == generation;
        }
        let facts = raw.text(FACTS..NUMBERED, raw.0[FACTS_LENGTH]);
        Ok(Self {
            name: Name::try_from(raw)?,
            id,
            entry,
            facts: facts.and_then(|text| serde_json::from_slice(&text).ok()),
        })
    }
}

/// A record that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::procfs::facts::{command, gpu};
    use crate::ring::commit::Commit;
    use crate::stats::histogram::Bounds;

    fn record() -> Vec<AtomicU64> {
        (0..RECORD_WORDS).map(|_| AtomicU64::new(0xdead)).collect()
    }

    fn name() -> Name {
        Name {
            raw: OsString::from_vec(b"worker \xff".to_vec()),
            instance: "worker%20%FF@gpu".into(),
            directory: "/dev/shm/nixl".into(),
            part: "store:1:7".into(),
            owner: u32::MAX,
        }
    }

    /// An entry in which no two words are alike.
    fn entry(first: u64) -> Entry {
        let mut words = [0; ENTRY_WORDS];
        words
            .iter_mut()
            .zip(first..)
            .for_each(|(word, value)| *word = value);
        let mut entry = entry::from_words(&words);
        let commit = entry.commit.get_or_insert_default();
        commit.ring.capacity = 1024 << (first / 100);
        (commit.from, commit.upto, commit.ahead.write_pos) = (first + 1, first + 2, first + 3);
        commit.released = false;
        entry
    }

    fn known(facts: &[(&str, &str)]) -> Facts {
        let mut known = Facts::default();
        for &(name, value) in facts {
            known.set(name, Some(value));
        }
        known
    }

    #[test]
    fn what_is_written_is_read() {
        let words = record();
        create(&words, &name(), &Entry::default());
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!((saved.name, saved.id, saved.facts), (name(), None, None));
        assert_eq!(saved.entry, Entry::default());
        for first in [100, 200, 300] {
            replace(&words, &entry(first));
            let saved = read(&words).expect("whole").expect("in use");
            assert_eq!(saved.entry, entry(first));
        }
        let released = |words: &[AtomicU64]| {
            let saved = read(words).expect("whole").expect("in use");
            saved.entry.commit.map(|commit| commit.released)
        };
        set_released(&words);
        assert_eq!(released(&words), Some(true));
        replace(&words, &entry(400));
        assert_eq!(released(&words), Some(false), "that was another batch");
        set_id(&words, 7);
        let user = |user: &str| known(&[("user", user)]);
        let facts = user("nobody");
        set_facts(&words, Some(&facts));
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!((saved.id, saved.facts), (Some(7), Some(facts.clone())));
        // The longest that hosts have.
        let longest = [
            ("user", 256),
            ("local_rank", 63),
            ("agent_instance", 20),
            ("nixl_hostname", 127),
            ("container_id", 64),
            ("pod_uid", 36),
            ("pod", 253),
            ("namespace", 63),
            ("engine", 7),
            ("gpu", gpu::MAX_LIST),
            ("slurm_job_id", 10),
            ("rank", command::MAX_RANK),
            ("role", 7),
            ("port", 5),
            ("command", command::MAX_SHOWN),
        ];
        let mut most = Facts::default();
        for (name, len) in longest {
            most.set(name, Some("x".repeat(len)));
        }
        set_facts(&words, Some(&most));
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.facts, Some(most));
        let much = user(&"x".repeat(5000));
        for (none, why) in [(Some(&much), "it has no room"), (None, "nothing is known")] {
            set_facts(&words, Some(&facts));
            set_facts(&words, none);
            let saved = read(&words).expect("whole").expect("in use");
            assert_eq!(saved.facts, None, "{why}");
        }
        free(&words);
        assert_eq!(read(&words), Ok(None));
    }

    #[test]
    fn words_of_the_state_file_stay_in_place() {
        assert_eq!((ENTRIES, FACTS, NUMBERED), ([256, 704], 1152, 1407));
        let mut words = [0; ENTRY_WORDS];
        *words.get_mut(424).expect("the base of the buckets") = 9;
        assert_eq!(entry::from_words(&words).account.bucket_base, Some(7));
    }

    #[test]
    fn facts_of_the_version_before_are_read() {
        let words = record();
        create(&words, &name(), &Entry::default());
        let text =
            br#"{"user":"root","local_rank":"3","agent_instance":null,"engine":"Vllm","gpu":null}"#;
        put_text(&words[FACTS..], text);
        words[FACTS_LENGTH].store(text.len() as u64, Release);
        let expected = [("user", "root"), ("local_rank", "3"), ("engine", "vllm")];
        let saved = read(&words).expect("whole").expect("in use");
        assert_eq!(saved.facts, Some(known(&expected)));
    }

    #[test]
    fn histograms_of_an_earlier_version_keep_their_ids_unless_renumbered() {
        let times = Bounds::from_config(&[10, 100]).expect("good bounds");
        let numbered = |bounds: &[f64]| -> Vec<AtomicU64> {
            let words = record();
            let mut entry = Entry::default();
            entry.account.set_bounds(&times);
            create(&words, &name(), &entry);
            set_id(&words, 7);
            words[ENTRIES[0] + ENTRY_WORDS - 1].store(0, Relaxed);
            words[NUMBERED].store(NUMBERED_MARK | (bounds.len() as u64 / 2), Relaxed);
            for (word, bound) in words[NUMBERED + 1..].iter().zip(bounds) {
                word.store(bound.to_bits(), Relaxed);
            }
            words
        };
        let base = |words: &[AtomicU64]| {
            let saved = read(words).expect("whole").expect("in use");
            assert_eq!(*saved.entry.account.ranges(), Ranges::of(&times));
            saved.entry.account.bucket_base
        };
        let first = [0.0, 10.0, 10.0, 100.0, 100.0, f64::INFINITY];
        assert_eq!(base(&numbered(&first)), Some(7));
        assert_eq!(base(&numbered(&[])), Some(7), "nobody has seen its ids");
        let more = [&first[..], &[0.0, 50.0]].concat();
        assert_eq!(base(&numbered(&more)), None);
        let words = numbered(&first);
        words[NUMBERED + 2].fetch_or(GONE, Relaxed);
        assert_eq!(base(&words), None);
        // What this version writes says it itself.
        for given in [None, Some(9)] {
            let mut entry = read(&words).expect("whole").expect("in use").entry;
            entry.account.bucket_base = given;
            replace(&words, &entry);
            assert_eq!(base(&words), given);
        }
    }

    #[test]
    fn an_entry_that_is_half_written_does_not_count() {
        let words = record();
        create(&words, &name(), &entry(100));
        for first in [200, 300] {
            let before = read(&words).expect("whole");
            let generation = words[GENERATION].load(Relaxed);
            let inactive = ENTRIES[usize::from(generation % 2 == 0)];
            for word in &words[inactive..inactive + ENTRY_ROOM] {
                word.store(0xbad, Relaxed);
                assert_eq!(read(&words).expect("whole"), before);
            }
            replace(&words, &entry(first));
        }
    }

    #[test]
    fn what_cannot_have_been_written_is_damaged() {
        let rubbish = record();
        assert_eq!(read(&rubbish), Err(Damaged));
        for (word, value) in [
            (OWNER, 1 << 33),
            (LENGTHS, 0),
            (LENGTHS, u64::MAX),
            (40, 0xffff),
        ] {
            let words = record();
            create(&words, &name(), &entry(1));
            words[word].store(value, Relaxed);
            assert_eq!(read(&words), Err(Damaged), "{word}");
        }
    }

    #[test]
    fn an_id_that_cannot_have_been_given_is_none_and_all_else_stays() {
        for id in [1 << 25, 1 << 31, 1 << 32, u64::MAX - 1] {
            let words = record();
            create(&words, &name(), &entry(1));
            words[INSTANCE_ID].store(id, Relaxed);
            let saved = read(&words).expect("whole").expect("in use");
            assert_eq!((saved.id, saved.entry), (None, entry(1)));
            set_id(&words, HIGHEST_ID);
            let saved = read(&words).expect("whole").expect("in use");
            assert_eq!(saved.id, Some(HIGHEST_ID));
        }
    }

    #[test]
    fn a_name_that_pcp_would_mistake_is_damaged() {
        for instance in ["agent 1", "agent\n", "[agent", "a/b", "\u{a0}"] {
            let words = record();
            let name = Name {
                instance: instance.into(),
                ..name()
            };
            create(&words, &name, &Entry::default());
            assert_eq!(read(&words), Err(Damaged), "{instance:?}");
        }
    }

    #[test]
    fn counts_of_any_size_stay_at_the_most() {
        let words = record();
        let mut entry = Entry {
            resets: u64::MAX,
            foreign_reads: u64::MAX,
            ..entry(100)
        };
        create(&words, &name(), &entry);
        entry = read(&words).expect("whole").expect("in use").entry;
        entry.add_reset();
        entry.add_foreign_reads(3);
        assert_eq!((entry.resets, entry.foreign_reads), (u64::MAX, u64::MAX));
    }

    #[test]
    fn positions_that_no_ring_has_are_damaged() {
        let spoil = |change: &dyn Fn(&mut Commit)| {
            let mut entry = entry(100);
            if let Some(commit) = &mut entry.commit {
                change(commit);
            }
            let words = record();
            create(&words, &name(), &entry);
            assert_eq!(read(&words), Err(Damaged), "{:?}", entry.commit);
        };
        spoil(&|commit| commit.from = commit.ring.capacity);
        spoil(&|commit| commit.upto = commit.ring.capacity);
        spoil(&|commit| commit.ahead.write_pos = u64::MAX);
        spoil(&|commit| commit.ring.capacity -= 1);
        spoil(&|commit| commit.ring.capacity = 0);
    }

    #[test]
    fn the_longest_names_of_files_have_room() {
        let longest = Name {
            raw: OsString::from_vec(vec![b'x'; 255]),
            instance: "y".repeat(200 + 1 + 64),
            directory: PathBuf::from(format!("/{}", "z".repeat(1023))),
            // 63 bytes that are no UTF-8, each of which is shown as three.
            part: format!("store:{}:{}", usize::MAX, "\u{fffd}".repeat(63)),
            owner: 0,
        };
        assert!(fits(&longest));
        let words = record();
        create(&words, &longest, &Entry::default());
        assert_eq!(
            read(&words).expect("whole").map(|saved| saved.name),
            Some(longest.clone())
        );
        let directory = longest.directory.join("z");
        assert!(!fits(&Name {
            directory,
            ..longest
        }));
    }
}
