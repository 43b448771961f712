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
const MIN_SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// At least so many ids are reserved.
const MIN_RESERVED: u32 = 64;
/// What an error in writing the file means.
const WRITE_FAILED: &str = "until it can be written, instance ids do not outlive the host";

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
    has_failed: bool,
    /// True if there is something that the file does not say.
    is_changed: bool,
    /// When the file was last written, or tried to be.
    last_attempt: Option<Instant>,
    writer: Option<JoinHandle<io::Result<()>>>,
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
    pub fn load(&mut self, agent_lines: &[CacheLine], next: u32) {
        self.next = next;
        self.read(agent_lines);
        if !self.is_read && next == 0 {
            // What was given is not known: hardly so many were, nor so many in the minutes since this was the case before.
            let half = HIGHEST_ID / 2;
            let minutes = u32::try_from(Now::read().seconds / 60 % u64::from(half)).unwrap_or(0);
            self.next = half + minutes;
        }
    }

    /// Reads the file, unless it was read.
    fn read(&mut self, agent_lines: &[CacheLine]) {
        if self.is_read {
            return;
        }
        // What fails once, for want of memory or of a descriptor, may not fail again.
        match cache_file::read(&self.path).or_else(|_| cache_file::read(&self.path)) {
            Ok(lines) => {
                self.merge(lines, agent_lines, Now::read().seconds);
                self.is_read = true;
            }
            Err(err) => {
                let until =
                    "until it can be read, agents may get new instance ids, and none is saved";
                self.log_result(Err(err), until);
            }
        }
    }

    /// Learns what the id file says at `now`, in seconds since 1970. Where it contradicts `known`, the lines of the agents, it is
    /// wrong.
    pub fn merge(&mut self, lines: Vec<CacheLine>, agent_lines: &[CacheLine], now: u64) {
        let names: HashSet<&str> = agent_lines.iter().map(|line| line.name.as_str()).collect();
        let mut ids: HashSet<u32> = agent_lines.iter().map(|line| line.id).collect();
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
    pub fn assign(&mut self, name: &str, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        match self.names.remove(name) {
            Some(line) => Some(line.id),
            None => self.allocate(taken),
        }
    }

    /// Returns a number that was never given. `None`: all are `taken`, which has the numbers that agents have.
    pub fn allocate(&mut self, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
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
    pub fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// Returns true if there is something to do for [`Ids::save`].
    #[must_use]
    pub fn is_due(&self) -> bool {
        if let Some(writer) = &self.writer {
            return writer.is_finished();
        }
        let interval = match self.has_failed {
            false if self.next > self.reserved => Duration::ZERO,
            false if !self.is_changed => SAVE_INTERVAL,
            _ => MIN_SAVE_INTERVAL,
        };
        self.last_attempt
            .is_none_or(|last_attempt| last_attempt.elapsed() >= interval)
    }

    /// Has the file written in the background, or notes how that ended. At the end, when there is no later, waits for it. `known`
    /// are the lines of the agents, and `limit` is how many names the file may have.
    pub fn save(&mut self, agent_lines: Vec<CacheLine>, limit: usize, is_end: bool) {
        if self.writer.is_some() {
            self.join_writer();
            if !is_end {
                return;
            }
        }
        let Some(text) = self.text(agent_lines, limit, is_end) else {
            return;
        };
        let path = self.path.clone();
        let writer = thread::Builder::new()
            .name("instance ids".into())
            .spawn(move || cache_file::write(&path, &text));
        match writer {
            Ok(writer) => self.writer = Some(writer),
            Err(err) => self.log_result(Err(err), WRITE_FAILED),
        }
        if is_end {
            self.join_writer();
        }
    }

    /// Returns what the file is to say. `None`: it cannot be read, and may say more than is agent_lines, or there is nothing to say.
    fn text(&mut self, agent_lines: Vec<CacheLine>, limit: usize, is_end: bool) -> Option<String> {
        self.last_attempt = Some(Instant::now());
        self.read(&agent_lines);
        self.is_changed = false;
        if !self.is_read || self.next == 0 {
            return None;
        }
        let lines = self.lines(agent_lines, limit, Now::read().seconds);
        let reserved = match is_end {
            true => 0,
            // As many as there are names: what is written grows with what is given, not with its square.
            false => u32::try_from(lines.len()).unwrap_or(0).max(MIN_RESERVED),
        };
        self.reserved = (self.next + reserved).min(HIGHEST_ID + 1);
        Some(cache_file::text(&lines, self.reserved))
    }

    /// Returns the lines for the file at `now`: those of the agents, and, up to `limit` in all, those of other names that were
    /// seen within a week, the latest first.
    #[must_use]
    pub fn lines(&self, mut agent_lines: Vec<CacheLine>, limit: usize, now: u64) -> Vec<CacheLine> {
        let others = self.names.values();
        let is_recent = |line: &&CacheLine| now.saturating_sub(line.seen) < MAX_AGE;
        let mut others: Vec<_> = others.filter(is_recent).cloned().collect();
        others.sort_unstable_by_key(|line| Reverse((line.seen, line.id)));
        others.truncate(limit.saturating_sub(agent_lines.len()));
        agent_lines.append(&mut others);
        agent_lines
    }

    /// Waits for the thread that writes the file, and notes how that ended.
    fn join_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            let panicked = |_| Err(io::Error::other("the thread that writes it panicked"));
            self.log_result(writer.join().unwrap_or_else(panicked), WRITE_FAILED);
        }
    }

    /// Notes whether the file could be read or written, and logs it where that is new.
    fn log_result(&mut self, done: io::Result<()>, until: &str) {
        let path = self.path.display();
        match &done {
            Ok(()) if self.has_failed => tracing::info!("{path}: instance ids are saved again"),
            Err(err) if !self.has_failed => tracing::warn!("{path}: {err}; {until}"),
            _ => {}
        }
        self.has_failed = done.is_err();
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

    fn with_next(next: u32) -> Ids {
        Ids {
            next,
            ..Ids::default()
        }
    }

    fn ids(file: &[(u32, u64, &str)], agent_lines: &[(u32, u64, &str)], next: u32) -> Ids {
        let mut ids = with_next(next);
        ids.merge(lines(file), &lines(agent_lines), NOW);
        ids
    }

    /// Gives an id while agents have `taken`.
    fn assign(ids: &mut Ids, name: &str, taken: &[u32]) -> Option<u32> {
        ids.assign(name, || taken.iter().copied().collect())
    }

    #[test]
    fn known_name_keeps_its_id_and_a_new_one_gets_the_next() {
        let mut ids = ids(&[(3, 1, "a"), (9, 1, "b")], &[(5, 1, "c")], 6);
        let given = ["b", "new", "a", "newer"].map(|name| assign(&mut ids, name, &[5]));
        assert_eq!(given, [9, 10, 3, 11].map(Some));
        assert_eq!(ids.next(), 12);
    }

    #[test]
    fn name_of_an_expired_agent_gets_another_id() {
        let mut ids = ids(&[(3, 1, "a")], &[], 0);
        assert_eq!(assign(&mut ids, "a", &[]), Some(3));
        assert_eq!(assign(&mut ids, "a", &[]), Some(4));
        assert_eq!(ids.lines(Vec::new(), 10, NOW), []);
    }

    #[test]
    fn agent_ids_override_the_file() {
        let file = [(5, 1, "old"), (7, 1, "c"), (8, 1, "d"), (8, 1, "e")];
        let mut ids = ids(&file, &[(5, 1, "c")], 6);
        assert_eq!(assign(&mut ids, "old", &[5]), Some(9), "5 is another's");
        assert_eq!(assign(&mut ids, "d", &[5, 9]), Some(8));
        assert_eq!(
            assign(&mut ids, "e", &[5, 8, 9]),
            Some(10),
            "8 is another's"
        );
    }

    #[test]
    fn late_file_assigns_no_id_twice() {
        let mut ids = with_next(40);
        assert_eq!(assign(&mut ids, "a", &[]), Some(40));
        let file = lines(&[(7, 1, "a"), (50, 1, "b"), (40, 1, "d")]);
        ids.merge(file, &lines(&[(40, 1, "a")]), NOW);
        assert_eq!(assign(&mut ids, "b", &[40]), Some(50));
        assert_eq!(
            assign(&mut ids, "d", &[40, 50]),
            Some(51),
            "40 is a's by now"
        );
        assert_eq!(ids.lines(Vec::new(), 10, NOW), [], "a keeps 40");
    }

    #[test]
    fn next_id_of_the_state_file_survives_a_lost_file() {
        assert_eq!(
            assign(&mut ids(&[], &[(2, 1, "c")], 40), "a", &[2]),
            Some(40)
        );
    }

    #[test]
    fn last_id_is_followed_by_the_lowest_free_one() {
        let mut ids = ids(&[(0, 1, "a"), (HIGHEST_ID, 1, "b")], &[(1, 1, "c")], 2);
        assert_eq!(assign(&mut ids, "d", &[1]), Some(2));
        let allocated = ids.allocate(|| [1, 2].into());
        assert_eq!(allocated, Some(3));
    }

    #[test]
    fn file_has_agents_and_the_latest_names_that_fit() {
        let file = [(0, 11, "a"), (1, 12, "b"), (7, 13, "d")];
        let agent_lines = [(0, NOW, "a")];
        let mut ids = ids(&file, &agent_lines, 1);
        let with = |limit| ids.lines(lines(&agent_lines), limit, NOW);
        assert_eq!(with(0), lines(&agent_lines));
        assert_eq!(with(2), lines(&[(0, NOW, "a"), (7, 13, "d")]));
        let all = [(0, NOW, "a"), (7, 13, "d"), (1, 12, "b")];
        assert_eq!(with(3), lines(&all));
        assert_eq!(
            assign(&mut ids, "new", &[0]),
            Some(8),
            "1 is not given again"
        );
    }

    #[test]
    fn file_drops_names_unused_for_a_week() {
        let file = [(1, 12, "b"), (7, 13, "d")];
        let agent_lines = [(0, 11, "a")];
        let ids = ids(&file, &agent_lines, 1);
        // b's week is over, and that of d in a second.
        let kept = ids.lines(lines(&agent_lines), 10, 12 + MAX_AGE);
        assert_eq!(kept, lines(&[(0, 11, "a"), (7, 13, "d")]));
    }

    #[test]
    fn name_with_a_future_time_is_dropped_after_a_week() {
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
        ids.load(&[], 0);
        assert_eq!(ids.assign("new", HashSet::new), Some(100));
        ids.save(vec![line(100, "new".into())], 1000, false);
        ids.save(Vec::new(), 1000, false);
        let restarted = || {
            let mut ids = Ids::new(path.clone());
            ids.load(&[], 0);
            ids
        };
        assert_eq!(restarted().next(), 202, "101 names, and as many reserved");
        assert!(!ids.has_failed && ids.reserved == 202);
        ids.save(vec![line(100, "new".into())], 1000, true);
        assert_eq!(restarted().next(), 101, "nothing is reserved after the end");
    }
}
