//! Instance ids only rise, and no id is given to a second name: archives may know it as the first one's.
//!
//! Within a boot an agent's record has its id, and the state file the next one. The id file (`cache_file`) is written from these.
//! It outlives the host, and tells the ids of names that no agent has yet. A disk may take its time, so that a thread of its own
//! writes the file. The thread shares nothing with the rest.

use crate::base::clock::Now;
use crate::state::record::HIGHEST_ID;
use cache_file::CacheLine;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub mod cache_file;

/// Seconds after which a name that no agent has is left out of the file: a week.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;
/// The file's times are brought up to date this often, so that a week is counted from when an agent was last seen.
const SAVE_INTERVAL: Duration = Duration::from_secs(3600);
/// The file is written no more often than this, however fast agents come and go, unless ids are to be reserved. What failed is
/// tried again after this time.
const PAUSE: Duration = Duration::from_secs(10);
/// At least so many ids are reserved.
const LEAST_AHEAD: u32 = 64;
/// What an error in writing the file means.
const UNWRITTEN: &str = "until it can be written, instance ids do not outlive the host";

/// Ids of names that no agent has yet, the next id, and their file.
#[derive(Debug, Default)]
pub struct Ids {
    path: PathBuf,
    names: HashMap<String, CacheLine>,
    /// More than any id that is known to be given.
    next: u32,
    /// More than any id that the file says was given or is reserved.
    reserved: u32,
    /// True once the file was read. It is not written before.
    is_read: bool,
    /// True if the last reading or writing failed.
    failed: bool,
    /// True if there is something that the file does not say.
    changed: bool,
    /// When the file was last written, or tried to be.
    tried: Option<Instant>,
    writing: Option<JoinHandle<io::Result<()>>>,
}

impl Ids {
    /// No ids yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }

    /// Reads the file. `known` are the lines of the agents, and `next` is more than any id that the state file says was given.
    pub fn begin(&mut self, known: &[CacheLine], next: u32) {
        self.next = next;
        self.read(known);
        if !self.is_read && next == 0 {
            // What was given is not known: hardly so many were, nor so many in the minutes since this was the case before.
            let half = HIGHEST_ID / 2;
            let minutes = u32::try_from(Now::read().seconds / 60 % u64::from(half)).unwrap_or(0);
            self.next = half + minutes;
        }
    }

    /// Reads the file, unless it was read.
    fn read(&mut self, known: &[CacheLine]) {
        if self.is_read {
            return;
        }
        // What fails once, for want of memory or of a descriptor, may not fail again.
        match cache_file::read(&self.path).or_else(|_| cache_file::read(&self.path)) {
            Ok(lines) => {
                self.learn(lines, known, Now::read().seconds);
                self.is_read = true;
            }
            Err(err) => {
                let until =
                    "until it can be read, agents may get new instance ids, and none is saved";
                self.note(Err(err), until);
            }
        }
    }

    /// Learns what the id file says at `now`, in seconds since 1970. Where it contradicts `known`, the lines of the agents, it is
    /// wrong.
    pub fn learn(&mut self, lines: Vec<CacheLine>, known: &[CacheLine], now: u64) {
        let names: HashSet<&str> = known.iter().map(|line| line.name.as_str()).collect();
        let mut ids: HashSet<u32> = known.iter().map(|line| line.id).collect();
        for mut line in lines {
            self.next = self.next.max(line.id + 1);
            let is_known =
                names.contains(line.name.as_str()) || self.names.contains_key(&line.name);
            if !is_known && ids.insert(line.id) {
                // With a later time it would be kept for good, and before other names.
                line.seen = line.seen.min(now);
                self.names.insert(line.name.clone(), line);
            }
        }
    }

    /// Returns the id of an agent's name: the one that the file has for it, or a new one. `None`: all are `taken`.
    pub fn give(&mut self, name: &str, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        match self.names.remove(name) {
            Some(line) => Some(line.id),
            None => self.draw(taken),
        }
    }

    /// Returns a number that was never given. `None`: all are `taken`, which has the numbers that agents have.
    pub fn draw(&mut self, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        if self.next <= HIGHEST_ID {
            self.next += 1;
            return Some(self.next - 1);
        }
        // Tens of millions of agents, or a damaged file: better a second name than no service.
        tracing::warn!(
            "{}: no instance id is left, or the file is damaged; those of agents that are long gone are given again",
            self.path.display()
        );
        let mut taken = taken();
        taken.extend(self.names.values().map(|line| line.id));
        (0..=HIGHEST_ID).find(|id| !taken.contains(id))
    }

    /// More than any id that was given.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The agents are others than they were.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns true if there is something to do for [`Ids::save`].
    #[must_use]
    pub fn is_due(&self) -> bool {
        if let Some(writing) = &self.writing {
            return writing.is_finished();
        }
        let pause = match self.failed {
            false if self.next > self.reserved => Duration::ZERO,
            false if !self.changed => SAVE_INTERVAL,
            _ => PAUSE,
        };
        self.tried.is_none_or(|tried| tried.elapsed() >= pause)
    }

    /// Has the file written in the background, or notes how that ended. At the end, when there is no later, waits for it. `known`
    /// are the lines of the agents, and `limit` is how many names the file may have.
    pub fn save(&mut self, known: Vec<CacheLine>, limit: usize, is_end: bool) {
        if self.writing.is_some() {
            self.written();
            if !is_end {
                return;
            }
        }
        let Some(text) = self.text(known, limit, is_end) else {
            return;
        };
        let path = self.path.clone();
        let writing = thread::Builder::new()
            .name("instance ids".into())
            .spawn(move || cache_file::write(&path, &text));
        match writing {
            Ok(writing) => self.writing = Some(writing),
            Err(err) => self.note(Err(err), UNWRITTEN),
        }
        if is_end {
            self.written();
        }
    }

    /// Returns what the file is to say. `None`: it cannot be read, and may say more than is known, or there is nothing to say.
    fn text(&mut self, known: Vec<CacheLine>, limit: usize, is_end: bool) -> Option<String> {
        self.tried = Some(Instant::now());
        self.read(&known);
        self.changed = false;
        if !self.is_read || self.next == 0 {
            return None;
        }
        let lines = self.lines(known, limit, Now::read().seconds);
        let ahead = match is_end {
            true => 0,
            // As many as there are names: what is written grows with what is given, not with its square.
            false => u32::try_from(lines.len()).unwrap_or(0).max(LEAST_AHEAD),
        };
        self.reserved = (self.next + ahead).min(HIGHEST_ID + 1);
        Some(cache_file::text(&lines, self.reserved))
    }

    /// Returns the lines for the file at `now`: those of the agents, and, up to `limit` in all, those of other names that were
    /// seen within a week, the latest first.
    #[must_use]
    pub fn lines(&self, mut known: Vec<CacheLine>, limit: usize, now: u64) -> Vec<CacheLine> {
        let others = self.names.values();
        let is_recent = |line: &&CacheLine| now.saturating_sub(line.seen) < MAX_AGE;
        let mut others: Vec<_> = others.filter(is_recent).cloned().collect();
        others.sort_unstable_by_key(|line| Reverse((line.seen, line.id)));
        others.truncate(limit.saturating_sub(known.len()));
        known.append(&mut others);
        known
    }

    /// Waits for the thread that writes the file, and notes how that ended.
    fn written(&mut self) {
        if let Some(writing) = self.writing.take() {
            let panicked = |_| Err(io::Error::other("the thread that writes it panicked"));
            self.note(writing.join().unwrap_or_else(panicked), UNWRITTEN);
        }
    }

    /// Notes whether the file could be read or written, and logs it where that is new.
    fn note(&mut self, done: io::Result<()>, until: &str) {
        let path = self.path.display();
        match &done {
            Ok(()) if self.failed => tracing::info!("{path}: instance ids are saved again"),
            Err(err) if !self.failed => tracing::warn!("{path}: {err}; {until}"),
            _ => {}
        }
        self.failed = done.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the files of these tests are read: seconds since 1970.
    const NOW: u64 = 99;

    fn lines(lines: &[(u32, u64, &str)]) -> Vec<CacheLine> {
        let lines = lines.iter().map(|&(id, seen, name)| CacheLine {
            id,
            seen,
            name: name.into(),
        });
        lines.collect()
    }

    fn beginning(next: u32) -> Ids {
        Ids {
            next,
            ..Ids::default()
        }
    }

    fn ids(file: &[(u32, u64, &str)], known: &[(u32, u64, &str)], next: u32) -> Ids {
        let mut ids = beginning(next);
        ids.learn(lines(file), &lines(known), NOW);
        ids
    }

    /// Gives an id while agents have `taken`.
    fn give(ids: &mut Ids, name: &str, taken: &[u32]) -> Option<u32> {
        ids.give(name, || taken.iter().copied().collect())
    }

    #[test]
    fn name_in_the_file_has_its_id_and_a_new_one_the_next() {
        let mut ids = ids(&[(3, 1, "a"), (9, 1, "b")], &[(5, 1, "c")], 6);
        let given = ["b", "new", "a", "newer"].map(|name| give(&mut ids, name, &[5]));
        assert_eq!(given, [9, 10, 3, 11].map(Some));
        assert_eq!(ids.next(), 12);
    }

    #[test]
    fn name_of_a_forgotten_agent_has_another_id() {
        let mut ids = ids(&[(3, 1, "a")], &[], 0);
        assert_eq!(give(&mut ids, "a", &[]), Some(3));
        assert_eq!(give(&mut ids, "a", &[]), Some(4));
        assert_eq!(ids.lines(Vec::new(), 10, NOW), []);
    }

    #[test]
    fn agents_are_right_where_the_file_contradicts_them() {
        let file = [(5, 1, "old"), (7, 1, "c"), (8, 1, "d"), (8, 1, "e")];
        let mut ids = ids(&file, &[(5, 1, "c")], 6);
        assert_eq!(give(&mut ids, "old", &[5]), Some(9), "5 is another's");
        assert_eq!(give(&mut ids, "d", &[5, 9]), Some(8));
        assert_eq!(give(&mut ids, "e", &[5, 8, 9]), Some(10), "8 is another's");
    }

    #[test]
    fn no_id_is_given_twice_by_a_file_that_is_read_late() {
        let mut ids = beginning(40);
        assert_eq!(give(&mut ids, "a", &[]), Some(40));
        let file = lines(&[(7, 1, "a"), (50, 1, "b"), (40, 1, "d")]);
        ids.learn(file, &lines(&[(40, 1, "a")]), NOW);
        assert_eq!(give(&mut ids, "b", &[40]), Some(50));
        assert_eq!(give(&mut ids, "d", &[40, 50]), Some(51), "40 is a's by now");
        assert_eq!(ids.lines(Vec::new(), 10, NOW), [], "a keeps 40");
    }

    #[test]
    fn next_id_of_the_state_file_is_right_though_the_file_is_lost() {
        assert_eq!(give(&mut ids(&[], &[(2, 1, "c")], 40), "a", &[2]), Some(40));
    }

    #[test]
    fn last_id_is_followed_by_the_lowest_free_one() {
        let mut ids = ids(&[(0, 1, "a"), (HIGHEST_ID, 1, "b")], &[(1, 1, "c")], 2);
        assert_eq!(give(&mut ids, "d", &[1]), Some(2));
        let draw = ids.draw(|| [1, 2].into());
        assert_eq!(draw, Some(3));
    }

    #[test]
    fn file_has_the_agents_and_as_many_of_the_latest_names_as_fit() {
        let file = [(0, 11, "a"), (1, 12, "b"), (7, 13, "d")];
        let known = [(0, NOW, "a")];
        let mut ids = ids(&file, &known, 1);
        let with = |limit| ids.lines(lines(&known), limit, NOW);
        assert_eq!(with(0), lines(&known));
        assert_eq!(with(2), lines(&[(0, NOW, "a"), (7, 13, "d")]));
        let all = [(0, NOW, "a"), (7, 13, "d"), (1, 12, "b")];
        assert_eq!(with(3), lines(&all));
        assert_eq!(give(&mut ids, "new", &[0]), Some(8), "1 is not given again");
    }

    #[test]
    fn file_has_no_name_that_was_not_seen_for_a_week_but_an_agent_s() {
        let file = [(1, 12, "b"), (7, 13, "d")];
        let known = [(0, 11, "a")];
        let ids = ids(&file, &known, 1);
        // b's week is over, and that of d in a second.
        let kept = ids.lines(lines(&known), 10, 12 + MAX_AGE);
        assert_eq!(kept, lines(&[(0, 11, "a"), (7, 13, "d")]));
    }

    #[test]
    fn name_that_was_seen_later_than_now_is_left_out_after_a_week() {
        let ids = ids(&[(49, 1 << 60, "other")], &[], 0);
        let kept = ids.lines(Vec::new(), 10, NOW);
        assert_eq!(kept, lines(&[(49, NOW, "other")]));
        assert_eq!(ids.lines(Vec::new(), 10, NOW + MAX_AGE), []);
    }

    #[test]
    fn as_many_ids_are_reserved_as_the_file_has_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("39.0");
        let line = |id, name| CacheLine {
            id,
            seen: Now::read().seconds,
            name,
        };
        let names: Vec<CacheLine> = (0..100).map(|id| line(id, format!("old-{id}"))).collect();
        std::fs::write(&path, cache_file::text(&names, 100)).expect("written");
        let mut ids = Ids::new(path.clone());
        ids.begin(&[], 0);
        assert_eq!(ids.give("new", HashSet::new), Some(100));
        ids.save(vec![line(100, "new".into())], 1000, false);
        ids.save(Vec::new(), 1000, false);
        let begun = || {
            let mut ids = Ids::new(path.clone());
            ids.begin(&[], 0);
            ids
        };
        assert_eq!(begun().next(), 202, "101 names, and as many reserved");
        assert!(!ids.failed && ids.reserved == 202);
        ids.save(vec![line(100, "new".into())], 1000, true);
        assert_eq!(begun().next(), 101, "nothing is reserved after the end");
    }
}
