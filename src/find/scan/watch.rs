//! Which directories are looked through: what the configuration names, and of what its patterns match as many as there may be.

use super::refused::Room;
use super::watched::Watched;
use super::{Found, LONGEST_REST, PASS, REST};
use crate::base::file::FileId;
use crate::config::Places;
use crate::find::directory::{self, Directory, Expansion, Step};
use crate::log;
use nix::errno::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directories that are looked through. Those that patterns match are at most `max_directories`; where there are more, a user
/// takes the place of one of the user who has most, provided that this user has at least two more.
#[derive(Debug)]
pub struct Watch {
    /// By number, in the order in which they were met first.
    all: BTreeMap<u64, Watched>,
    numbers: HashMap<PathBuf, u64>,
    /// Number of the directory that was added last.
    newest: u64,
    /// Number of directories that patterns match, by owner.
    counts: BTreeMap<u32, usize>,
    most: usize,
    /// Number of the last pass, which opens all directories again, since their paths may lead to other ones.
    pass: u64,
    passing: Option<Passing>,
    next_pass: Instant,
    /// Number of the directory that had the last turn.
    last: u64,
    /// Number of directories for which the last pass had no room.
    left_out: u32,
    /// Patterns that could not be looked through in the last pass, and why.
    closed: Vec<(String, Errno)>,
    room: Room,
}

/// A pass, which may go on in later ticks.
#[derive(Debug)]
struct Passing {
    expansion: Expansion,
    /// Time that it took until now.
    took: Duration,
    left_out: u32,
    closed: Vec<(String, Errno)>,
}

impl Watch {
    /// No directory is known before the first pass.
    pub fn new(most: usize) -> Self {
        Self {
            all: BTreeMap::new(),
            numbers: HashMap::new(),
            newest: 0,
            counts: BTreeMap::new(),
            most,
            pass: 0,
            passing: None,
            next_pass: Instant::now(),
            last: 0,
            left_out: 0,
            closed: Vec::new(),
            room: Room::default(),
        }
    }

    /// Number of rejected files in the caches.
    pub fn remembered(&self) -> usize {
        self.room.taken()
    }

    /// Takes another limit, and begins a pass and listings at the next scan.
    pub fn configure(&mut self, most: usize) {
        (self.most, self.passing) = (most, None);
        self.next_pass = Instant::now();
        self.all.values_mut().for_each(Watched::check_all);
    }

    pub fn at(&self, path: &Path) -> Option<&Watched> {
        self.all.get(self.numbers.get(path)?)
    }

    pub fn at_mut(&mut self, path: &Path) -> Option<&mut Watched> {
        self.all.get_mut(self.numbers.get(path)?)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Watched> {
        self.all.values()
    }

    /// How many there was no place for.
    pub fn left_out(&self) -> u32 {
        self.left_out
    }

    /// Number of configured directories that could not be opened in the last pass, and of patterns whose directories before the first
    /// wildcard could not.
    pub fn missing(&self) -> usize {
        let closed = self.iter().filter(|watched| watched.fd().is_none());
        closed.count() + self.closed.len()
    }

    /// Opens all directories again until `end`, if a pass is due. Returns true unless the pass is to go on at the next scan.
    pub fn pass(&mut self, places: &Places, now: Instant, end: Instant) -> bool {
        let Some(mut passing) = self.passing.take().or_else(|| self.begin_pass(places, now)) else {
            return true;
        };
        let started = Instant::now();
        loop {
            match passing.expansion.next() {
                Some(Step::Found(directory, owner)) => {
                    passing.left_out += u32::from(!self.meet(directory, owner, now));
                }
                Some(Step::Closed(pattern, errno)) => passing.closed.push((pattern, errno)),
                Some(Step::Nothing) => {}
                None => break,
            }
            if Instant::now() >= end {
                passing.took += started.elapsed();
                self.passing = Some(passing);
                return false;
            }
        }
        let took = passing.took + started.elapsed();
        self.next_pass = now + PASS.max((took * REST).min(LONGEST_REST));
        self.note_closed(passing.closed);
        self.end_pass(passing.left_out);
        true
    }

    fn begin_pass(&mut self, places: &Places, now: Instant) -> Option<Passing> {
        if now < self.next_pass {
            return None;
        }
        self.pass += 1;
        Some(Passing {
            expansion: Expansion::new(places.clone()),
            took: Duration::ZERO,
            left_out: 0,
            closed: Vec::new(),
        })
    }

    /// Looks through the directories until `end`, in turns. Returns true if all that was due is done.
    pub fn look(
        &mut self,
        now: Instant,
        end: Instant,
        attached: &HashSet<FileId>,
        found: &mut Vec<Found>,
    ) -> bool {
        let last = self.last;
        for turn in [(Excluded(last), Unbounded), (Unbounded, Included(last))] {
            for (number, watched) in self.all.range_mut(turn) {
                if !watched.look(now, end, attached, found) {
                    self.last = *number;
                    return false;
                }
            }
        }
        true
    }

    /// Logs the patterns that could be looked through before, or not for another reason.
    fn note_closed(&mut self, closed: Vec<(String, Errno)>) {
        for one in closed.iter().filter(|one| !self.closed.contains(one)) {
            let (pattern, why) = (&one.0, directory::why_not(one.1));
            tracing::warn!(
                "{pattern}: matches no directory: {why}; no agent is found there until that is changed"
            );
        }
        self.closed = closed;
    }

    /// Opens a directory. Returns false if there is no room for it.
    fn meet(&mut self, directory: Directory, owner: Option<u32>, now: Instant) -> bool {
        let path = directory.path.clone();
        let known = self.at(&path);
        // It may have been given to another user, or be another directory of the same name.
        if known.is_none_or(|known| known.directory != directory || known.owner != owner) {
            self.remove(&path);
            if !self.has_room(owner) {
                return false;
            }
            if let Some(owner) = owner {
                *self.counts.entry(owner).or_default() += 1;
            }
            let watched = Watched::new(directory, owner, self.room.clone(), now);
            self.newest += 1;
            self.all.insert(self.newest, watched);
            self.numbers.insert(path.clone(), self.newest);
        }
        let pass = self.pass;
        if let Some(watched) = self.at_mut(&path) {
            watched.reopen();
            watched.met = pass;
        }
        true
    }

    /// Whether there is a place for one more of this user's, after one was made if need be.
    fn has_room(&mut self, owner: Option<u32>) -> bool {
        let Some(owner) = owner else { return true };
        let taken: usize = self.counts.values().sum();
        if taken < self.most {
            return true;
        }
        let has = self.counts.get(&owner).copied().unwrap_or(0);
        let most = self.counts.iter().max_by_key(|(_, count)| **count);
        let Some((&greediest, _)) = most.filter(|(_, count)| **count >= has + 2) else {
            return false;
        };
        let newest = self.all.values().rfind(|one| one.owner == Some(greediest));
        let Some(path) = newest.map(|newest| newest.directory.path.clone()) else {
            return false;
        };
        let _about = log::about(Some(greediest));
        tracing::warn!(
            "{}: is looked through no more, since another user needs its place: uid {greediest} has most of the {} that patterns may match; raise max_directories",
            log::shown(&path),
            self.most
        );
        self.remove(&path);
        true
    }

    fn remove(&mut self, path: &Path) {
        let number = self.numbers.remove(path);
        let gone = number.and_then(|number| self.all.remove(&number));
        let owner = gone.and_then(|gone| gone.owner);
        if let Some(count) = owner.and_then(|owner| self.counts.get_mut(&owner)) {
            *count -= 1;
        }
        self.counts.retain(|_, count| *count > 0);
    }

    /// Removes the directories that the pass did not meet.
    fn end_pass(&mut self, left_out: u32) {
        if left_out > 0 && self.left_out == 0 {
            let _about = log::about(None);
            tracing::warn!(
                "patterns match {left_out} directories more than are looked through; raise max_directories, which is {}",
                self.most
            );
        }
        self.left_out = left_out;
        let unmet = self.iter().filter(|one| one.met != self.pass);
        let gone: Vec<PathBuf> = unmet.map(|one| one.directory.path.clone()).collect();
        gone.iter().for_each(|path| self.remove(path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DirectoryPattern;
    use std::fs;
    use std::os::unix::fs::chown;

    const LONG: Duration = Duration::from_secs(3600);

    fn places(dir: &Path, most: usize) -> Places {
        Places {
            rings: vec![DirectoryPattern {
                path: format!("{}/*/nixl", dir.display()),
                label: None,
                literal: false,
            }],
            most,
            ..Places::default()
        }
    }

    fn make(dir: &Path, name: &str, uid: u32) {
        let path = dir.join(name).join("nixl");
        fs::create_dir_all(&path).expect("made");
        // Without root all are one user's.
        let _ = chown(path, Some(uid), None);
    }

    /// A whole pass, with so much time for each step.
    fn pass(watch: &mut Watch, places: &Places, time: Duration) -> usize {
        let now = watch.next_pass;
        let steps = (1..).find(|_| watch.pass(places, now, Instant::now() + time));
        steps.expect("it comes to an end")
    }

    fn names(watch: &Watch) -> Vec<String> {
        let all = watch.iter().map(|one| {
            let parent = one.directory.path.parent().and_then(Path::file_name);
            parent.expect("a name").to_string_lossy().into_owned()
        });
        all.collect()
    }

    #[test]
    fn any_number_of_directories_is_gone_through_in_turns() {
        let dir = tempfile::tempdir().expect("a directory");
        (0..300).for_each(|number| make(dir.path(), &format!("pod-{number:03}"), 1000));
        let (places, mut watch) = (places(dir.path(), 1000), Watch::new(1000));
        // No time but for a few.
        assert!(pass(&mut watch, &places, Duration::ZERO) > 300 / 16);
        let all = names(&watch);
        assert!(all.len() == 300 && all.is_sorted(), "{all:?}");
        fs::remove_dir_all(dir.path().join("pod-007")).expect("there");
        pass(&mut watch, &places, LONG);
        assert_eq!(watch.all.len(), 299);
        let path = |name: &str| dir.path().join(name).join("nixl");
        assert!(watch.at(&path("pod-007")).is_none());
        for number in (0..300).filter(|&number| number != 7) {
            let path = path(&format!("pod-{number:03}"));
            let found = watch.at(&path).expect("it is watched");
            assert_eq!(found.directory.path, path);
        }
    }

    #[test]
    fn directories_and_bases_of_patterns_that_are_not_there_are_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut places, mut watch) = (places(dir.path(), 10), Watch::new(10));
        places.stores.push(DirectoryPattern {
            path: format!("{}/stores", dir.path().display()),
            label: None,
            literal: true,
        });
        let missing = |watch: &mut Watch, time| {
            pass(watch, &places, time);
            (watch.missing(), watch.all.len() - watch.missing())
        };
        // One is written out, and is known even while it is not there.
        pass(&mut watch, &places, LONG);
        assert_eq!((watch.missing(), watch.all.len()), (1, 1));
        for number in 0..40 {
            make(dir.path(), &format!("pod-{number:02}"), 1000);
        }
        assert_eq!(missing(&mut watch, Duration::ZERO), (1, 10));
        fs::write(dir.path().join("stores"), "not a directory").expect("written");
        assert_eq!(missing(&mut watch, LONG), (1, 10));
        fs::remove_file(dir.path().join("stores")).expect("there");
        fs::create_dir(dir.path().join("stores")).expect("made");
        assert_eq!(missing(&mut watch, LONG), (0, 11));
        fs::remove_dir_all(dir.path()).expect("there");
        pass(&mut watch, &places, LONG);
        assert_eq!((watch.missing(), watch.all.len()), (2, 1));
    }

    #[test]
    fn who_has_fewer_than_his_share_is_looked_at_and_what_is_known_stays() {
        if !nix::unistd::geteuid().is_root() {
            return println!("left out: it takes root to give a directory to others");
        }
        let dir = tempfile::tempdir().expect("a directory");
        (0..30).for_each(|number| make(dir.path(), &format!("greedy-{number:02}"), 1001));
        let (places, mut watch) = (places(dir.path(), 10), Watch::new(10));
        pass(&mut watch, &places, LONG);
        assert_eq!((watch.all.len(), watch.left_out()), (10, 20));
        // Behind all of the greedy one's, and before.
        make(dir.path(), "victim", 1000);
        make(dir.path(), "a-victim", 1000);
        for _ in 0..3 {
            pass(&mut watch, &places, LONG);
            let mut now = names(&watch);
            now.sort();
            assert_eq!(now.len(), 10);
            assert_eq!((&now[0][..], &now[9][..]), ("a-victim", "victim"));
            assert!(now[1..9].iter().all(|name| name < &"greedy-08".to_owned()));
        }
        assert_eq!(watch.left_out(), 22);
        // No more than his share.
        (0..9).for_each(|number| make(dir.path(), &format!("victim-{number}"), 1000));
        pass(&mut watch, &places, LONG);
        let now = names(&watch);
        let victims = now.iter().filter(|name| name.contains("victim"));
        assert_eq!((victims.count(), now.len()), (5, 10));
        // With more of them allowed all are there.
        watch.configure(100);
        pass(&mut watch, &places, LONG);
        assert_eq!((watch.all.len(), watch.left_out()), (41, 0));
    }

    #[test]
    fn a_directory_that_is_written_out_is_always_looked_through() {
        let dir = tempfile::tempdir().expect("a directory");
        (0..30).for_each(|number| make(dir.path(), &format!("greedy-{number:02}"), 1001));
        make(dir.path(), "own", 1001);
        let own = dir.path().join("own/nixl");
        let mut places = places(dir.path(), 10);
        places.stores.push(DirectoryPattern {
            path: own.to_str().expect("UTF-8").into(),
            label: None,
            literal: true,
        });
        let mut watch = Watch::new(10);
        pass(&mut watch, &places, LONG);
        let watched = watch.at(&own).expect("it is watched");
        let holds = watched.directory.holds;
        assert!(holds.rings && holds.stores && watched.owner.is_none());
    }

    #[test]
    fn no_number_of_names_in_one_directory_hides_another() {
        let dir = tempfile::tempdir().expect("a directory");
        make(dir.path(), "a-many", 1001);
        make(dir.path(), "victim", 1000);
        for number in 0..70_000 {
            let path = dir.path().join("a-many").join(number.to_string());
            fs::File::create(path).expect("made");
        }
        let mut places = places(dir.path(), 10);
        places.rings[0].path = format!("{}/*/nix*", dir.path().display());
        let mut watch = Watch::new(10);
        // A look at the clock for each thousand of them.
        assert!(pass(&mut watch, &places, Duration::ZERO) > 60);
        assert!(watch.at(&dir.path().join("victim/nixl")).is_some());
    }
}
