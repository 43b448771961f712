//! Looks through the telemetry directories and says which rings are new and which files are refused.

use crate::base::file::{self, COARSE, FileFacts, FileId, is_younger_than};
use crate::config::{Places, Terms};
use crate::error::Refusal;
use crate::find::directory::{Directory, Holds};
use crate::find::discover;
use crate::ring::candidate::Candidate;
use crate::store;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use watch::Watch;

mod refused;
mod watch;
mod watched;

/// The directories are opened and listed this often, even if their modification times stand still: a file that was not finished,
/// or that an agent of the same name takes over, leaves them as they are.
const PASS: Duration = Duration::from_secs(2);
/// Where that takes long, it is left alone this many times as long, but not longer than an agent may be late.
const REST: u32 = 20;
const LONGEST_REST: Duration = Duration::from_secs(5);
/// How long a file whose header is empty may still belong to an agent that is starting.
const STARTING: Duration = Duration::from_secs(10);

/// A file that is worth a look: it has no agent yet, and was not refused as it is now.
#[derive(Debug)]
pub struct Found {
    /// Where it was found.
    pub directory: Directory,
    /// The file's name, which is the agent's if it is a ring.
    pub name: OsString,
    /// What stat(2) says of it.
    pub facts: FileFacts,
    /// When it said so.
    pub when: Instant,
}

/// A file that is an agent's, open.
#[derive(Debug)]
pub enum Opened {
    /// A ring.
    Ring(Candidate),
    /// A store.
    Store(Box<store::Candidate>),
}

/// Opens a file in a directory and checks that it is one of what is looked for there.
///
/// # Errors
/// Why it is left alone.
pub fn open(
    directory: &OwnedFd,
    name: &OsStr,
    facts: &FileFacts,
    holds: Holds,
    terms: &Terms,
) -> Result<Opened, Refusal> {
    let is_store = holds.stores && (!holds.rings || store::is_store_name(name));
    if is_store {
        let candidate = super::store::open(directory, name, facts, terms)?;
        Ok(Opened::Store(Box::new(candidate)))
    } else {
        discover::open(directory, name, facts, terms).map(Opened::Ring)
    }
}

/// All directories and what is known of the files in them.
#[derive(Debug)]
pub struct Scanner {
    places: Places,
    terms: Terms,
    watch: Watch,
    done: bool,
    refusals: u64,
}

impl Scanner {
    /// Starts with nothing known; the first [`Scanner::scan`] looks everywhere.
    #[must_use]
    pub fn new(places: Places, terms: Terms) -> Self {
        Self {
            watch: Watch::new(places.most),
            places,
            terms,
            done: true,
            refusals: 0,
        }
    }

    /// Takes another configuration.
    pub fn configure(&mut self, places: Places, terms: Terms) {
        (self.places, self.terms) = (places, terms);
        self.watch.configure(self.places.most);
    }

    /// Refusals since the start, each file and reason once.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    /// Files that are rings which this build could read, and refused.
    #[must_use]
    pub fn refused(&self) -> usize {
        let watched = self.watch.iter();
        watched.map(|watched| watched.refused.rings()).sum()
    }

    /// Number of rings and stores of a version that this build does not read.
    #[must_use]
    pub fn unsupported(&self) -> usize {
        let watched = self.watch.iter();
        watched.map(|watched| watched.refused.unsupported()).sum()
    }

    /// One of the directories, open.
    #[must_use]
    pub fn directory(&self, path: &Path) -> Option<&OwnedFd> {
        self.watch.at(path)?.fd()
    }

    /// Opens a file that was found and checks that it is a ring, or a store; where it is refused, that is noted. `found` is
    /// brought up to date if that was a while ago and its agent may have been about to give it its size.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn open(&mut self, found: &mut Found) -> Result<Opened, Refusal> {
        let fd = self.directory(&found.directory.path);
        let fd = fd.ok_or(Refusal::Replaced)?;
        let ago = found.when.elapsed();
        if ago >= COARSE && is_younger_than(found.facts.changed, COARSE + ago) {
            found.facts = file::facts(fd, &found.name).map_err(|_| Refusal::Replaced)?;
        }
        let holds = found.directory.holds;
        let opened = open(fd, &found.name, &found.facts, holds, &self.terms);
        if let Err(refusal) = &opened {
            let path = &found.directory.path;
            self.set_aside(path, &found.name, &found.facts, refusal.clone());
        }
        opened
    }

    /// Looks at a file again at the next [`Scanner::scan`]: its ring is not what it was.
    pub fn look_again(&mut self, directory: &Path, name: &OsStr) {
        if let Some(watched) = self.watch.at_mut(directory) {
            watched.look_at(name);
        }
    }

    /// Notes why a file has no agent. Unless the refusal may pass, it is not found again before it changes.
    pub fn set_aside(
        &mut self,
        directory: &Path,
        name: &OsStr,
        facts: &FileFacts,
        refusal: Refusal,
    ) {
        let new = self
            .watch
            .at_mut(directory)
            .is_some_and(|watched| watched.refuse(name, facts, &refusal));
        self.refusals += u64::from(new);
    }

    /// Forgets why a file was refused: it has an agent now.
    pub fn taken(&mut self, directory: &Path, id: FileId) {
        if let Some(watched) = self.watch.at_mut(directory) {
            watched.refused.remove(id);
        }
    }

    /// How many files that were refused are remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.watch.remembered()
    }

    /// Number of directories that are open, of those for which there is no place, and of those that are missing.
    #[must_use]
    pub fn directories(&self) -> (usize, u32, usize) {
        let open = self.watch.iter().filter(|watched| watched.fd().is_some());
        (open.count(), self.watch.left_out(), self.watch.missing())
    }

    /// Whether the last look came to its end in time.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Looks through what is due until `end`, and goes on from there the next time. `attached` are the rings that have an agent.
    pub fn scan(&mut self, now: Instant, end: Instant, attached: &HashSet<FileId>) -> Vec<Found> {
        // The other half is for what is in the directories.
        let passed = self.watch.pass(&self.places, now, halfway(end));
        let mut found = Vec::new();
        let looked = self.watch.look(now, end, attached, &mut found);
        self.done = passed && looked;
        found
    }
}

/// Half of the time that is left until then.
fn halfway(end: Instant) -> Instant {
    let now = Instant::now();
    now + end.saturating_duration_since(now) / 2
}

/// Whether a refusal is for a file without its size, or without a header, that an agent may be about to write.
#[must_use]
pub fn is_starting(facts: &FileFacts, refusal: &Refusal) -> bool {
    match refusal {
        // Also of a size that no ring of today has: a later NIXL may be starting.
        Refusal::Uninitialised { .. } | Refusal::Blank { .. } => {
            is_younger_than(facts.changed, STARTING)
        }
        // It gets its size right after it was made.
        Refusal::Size { size: 0 } => is_younger_than(facts.changed, 2 * COARSE),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPattern;

    fn scanner(dir: &Path) -> Scanner {
        let path = dir.to_str().expect("UTF-8").to_owned();
        Scanner::new(
            Places {
                rings: vec![DirectoryPattern {
                    path,
                    label: None,
                    literal: true,
                }],
                ..Places::default()
            },
            Terms::default(),
        )
    }

    /// An empty ring of one slot, v4.
    fn ring_of_one() -> Vec<u8> {
        let words = [0, 0, (4 << 32) | 4, 1, 0, 0, 0_u64];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn scan(scanner: &mut Scanner, now: Instant) -> Vec<Found> {
        scanner.scan(now, Instant::now() + PASS, &HashSet::new())
    }

    /// Opens what is found in looks that are `PASS` and more apart: how many files, and how many rings.
    fn open_all(scanner: &mut Scanner, look: u32) -> (usize, usize) {
        let found = scan(scanner, Instant::now() + PASS * look * 10);
        let count = found.len();
        let rings = found
            .into_iter()
            .filter_map(|mut found| scanner.open(&mut found).ok());
        (count, rings.count())
    }

    #[test]
    fn a_refused_file_is_counted_once_and_not_found_again_until_it_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("notes"), "no ring").expect("written");
        let mut scanner = scanner(dir.path());
        assert_eq!(open_all(&mut scanner, 1), (1, 0));
        // A file that changed a moment ago may change again without a trace.
        let settled = (2..1000).find(|&look| {
            std::thread::sleep(COARSE / 4);
            open_all(&mut scanner, look) == (0, 0)
        });
        assert!(settled.is_some());
        assert_eq!(scanner.refusals(), 1);
        std::fs::write(dir.path().join("notes"), "no ring, but longer").expect("written");
        assert_eq!(open_all(&mut scanner, 1001), (1, 0));
    }

    #[test]
    fn a_file_that_changes_its_numbers_is_no_new_refusal() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scanner = scanner(dir.path());
        for look in 1..6 {
            std::fs::write(dir.path().join("odd"), vec![1; 8 * look + 1]).expect("written");
            assert_eq!(
                open_all(&mut scanner, u32::try_from(look).expect("small")),
                (1, 0)
            );
        }
        assert_eq!(scanner.refusals(), 1);
    }

    #[test]
    fn an_empty_header_is_looked_at_again_while_its_agent_may_be_starting_and_then_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("zeros"), [0; 168]).expect("written");
        let mut scanner = scanner(dir.path());
        assert_eq!(open_all(&mut scanner, 1), (1, 0));
        // Nothing in the directory changes when the header comes, so that it is looked at in each tick.
        let soon = Instant::now() + PASS * 10 + PASS / 2;
        let found = scan(&mut scanner, soon);
        assert_eq!((found.len(), scanner.refusals()), (1, 0));
        let watched = scanner.watch.at_mut(dir.path()).expect("it is there");
        // As it is after ten seconds.
        let mut facts = found[0].facts;
        facts.changed = (1, 0);
        for look in 0..3 {
            assert_eq!(watched.refused.knows(&facts, 1), look > 0);
            let new = watched.refuse(
                "zeros".as_ref(),
                &facts,
                &Refusal::Uninitialised { full: None },
            );
            assert_eq!(new, look == 0);
        }
    }

    #[test]
    fn lock_of_nixls_is_neither_found_nor_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("nixl-owner.[::1]:9090.lock"), "").expect("written");
        let mut scanner = scanner(dir.path());
        assert_eq!(open_all(&mut scanner, 1), (0, 0));
        assert_eq!(scanner.refusals(), 0);
    }

    #[test]
    fn a_file_that_alternates_between_two_reasons_is_refused_twice() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scanner = scanner(dir.path());
        for look in 1..8 {
            let bytes = if look % 2 == 0 { 169 } else { 1000 };
            std::fs::write(dir.path().join("odd"), vec![7; bytes]).expect("written");
            open_all(&mut scanner, look);
        }
        assert_eq!(scanner.refusals(), 2);
    }

    #[test]
    fn times_to_come_are_young() {
        assert!(is_younger_than((i64::MAX / 4, 0), STARTING));
        assert!(!is_younger_than((0, 0), STARTING) && !is_younger_than((-1, 0), STARTING));
    }

    #[test]
    fn a_directory_of_any_size_is_looked_through_in_turns_and_nothing_in_it_is_met_twice() {
        let dir = tempfile::tempdir().expect("a directory");
        for file in 0..2000 {
            std::fs::write(dir.path().join(format!("file-{file}")), "no ring").expect("written");
        }
        let mut scanner = scanner(dir.path());
        let (mut turns, mut met) = (0, HashSet::new());
        let mut now = Instant::now();
        while met.len() < 2000 {
            // No time but for one chunk.
            let found = scanner.scan(now, Instant::now(), &HashSet::new());
            assert!(found.len() <= 256, "{}", found.len());
            for mut found in found {
                assert!(scanner.open(&mut found).is_err());
                assert!(met.insert(found.name.clone()), "{found:?}");
            }
            turns += 1;
            assert!(turns < 10_000);
            now += Duration::from_millis(1);
        }
        assert!(turns >= 2000 / 256, "{turns}");
        assert_eq!(scanner.refusals(), 2000);
    }

    #[test]
    fn files_that_seem_to_be_starting_keep_no_other_from_being_found() {
        let dir = tempfile::tempdir().expect("a directory");
        for file in 0..300 {
            std::fs::write(dir.path().join(format!("zeros-{file}")), [0; 168]).expect("written");
        }
        let mut scanner = scanner(dir.path());
        let now = Instant::now();
        for mut found in scan(&mut scanner, now) {
            assert!(scanner.open(&mut found).is_err());
        }
        std::fs::write(dir.path().join("new"), "no ring").expect("written");
        // No time but for one of them at a look.
        let is_new = |found: &Found| found.name == "new";
        let met = (1..50).find(|&look| {
            let now = now + PASS * 10 * look;
            let found = scanner.scan(now, Instant::now(), &HashSet::new());
            found.iter().any(is_new)
        });
        assert!(met.is_some());
    }

    #[test]
    fn a_refused_file_that_becomes_a_ring_in_place_is_found_among_many() {
        let dir = tempfile::tempdir().expect("a directory");
        for file in 0..200 {
            std::fs::write(dir.path().join(format!("file-{file}")), "no ring").expect("written");
        }
        let mut scanner = scanner(dir.path());
        let settled = (1..1000).find(|&look| {
            std::thread::sleep(COARSE / 4);
            open_all(&mut scanner, look) == (0, 0)
        });
        let first = settled.expect("all are known");
        let listed = std::fs::metadata(dir.path()).expect("there").modified();
        std::fs::write(dir.path().join("file-77"), ring_of_one()).expect("written");
        let now = std::fs::metadata(dir.path()).expect("there").modified();
        assert_eq!(listed.expect("a time"), now.expect("a time"));
        // A listing checks all of them after ten minutes at the latest.
        let found = (first + 1..first + 32).any(|look| open_all(&mut scanner, look).0 > 0);
        assert!(found);
    }

    #[test]
    fn a_file_that_gets_its_size_after_it_was_found_is_judged_by_that() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("agent");
        std::fs::write(&path, "").expect("written");
        let mut scanner = scanner(dir.path());
        let now = Instant::now();
        let mut found = scan(&mut scanner, now);
        std::fs::write(&path, ring_of_one()).expect("written");
        std::thread::sleep(COARSE);
        assert!(scanner.open(&mut found[0]).is_ok());
        // One that has no size yet is looked at in each tick, as one without a header is.
        std::fs::write(dir.path().join("second"), "").expect("written");
        let mut found = scan(&mut scanner, now + PASS);
        found.iter_mut().for_each(|found| drop(scanner.open(found)));
        std::fs::write(dir.path().join("second"), ring_of_one()).expect("written");
        let found = scan(&mut scanner, now + PASS + PASS / 40);
        assert!(found.iter().any(|found| found.name == "second"));
    }

    #[test]
    fn a_file_that_may_be_a_ring_and_is_made_anew_under_its_name_is_met_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("agent");
        let old = FileFacts::new(&{
            std::fs::write(&path, [1; 168]).expect("written");
            nix::sys::stat::stat(&path).expect("there")
        });
        let mut refused = refused::RefusedFiles::default();
        let mut aged = old;
        aged.changed = (1, 0);
        for (refusal, skips) in [
            (Refusal::Size { size: 7 }, true),
            (Refusal::Version { version: 77 }, true),
            (Refusal::Blank { size: 4096 }, true),
            (Refusal::Exited, false),
            (
                Refusal::Unsupported {
                    version: 5,
                    newest: 4,
                },
                false,
            ),
            (Refusal::Uninitialised { full: None }, false),
        ] {
            refused.refuse(&path, "agent".as_ref(), &aged, &refusal, 1);
            assert_eq!(refused.skips(aged.id, "agent".as_ref(), 2), skips);
            assert!(!refused.skips(aged.id, "other".as_ref(), 2));
        }
    }
}
