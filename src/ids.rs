// SPDX-License-Identifier: GPL-2.0-or-later

//! Instance identifiers. They only grow, and an id is never assigned to a second name, because archives have it under
//! the first.
//!
//! Within a boot, the record of an agent has its id, and the state file has the next id. The id file (`cache_file`) is
//! written from these. It survives a reboot, and also has the ids of names without an agent. A slow disk must not block
//! the event loop, so a thread writes the file. The thread shares no state with the event loop.

use crate::base::clock::Now;
use crate::entry::HIGHEST_ID;
use cache_file::CacheLine;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub mod cache_file;

/// Seconds after which a name without an agent is left out of the file: one week.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;
/// Time after which the file is written even without a change, so that the times in it are recent.
const SAVE_INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest time between two writes if no ids must be reserved, and time before a failed write is tried again.
const MIN_SAVE_INTERVAL: Duration = Duration::from_secs(10);
/// Smallest number of ids to reserve.
const MIN_RESERVED: u32 = 64;
/// What to do about a failed write, and its consequence, for the log.
const WRITE_FAILED: &str = "make space, or give its directory to the user that pmdanixl runs as; until it can be written, instance ids do not outlive the host";

/// Ids of names without an agent, the next id, and the id file.
#[derive(Debug, Default)]
pub struct Ids {
    path: PathBuf,
    names: HashMap<String, CacheLine>,
    /// Next id: greater than all ids that were assigned.
    next: u32,
    /// Greater than all ids that are assigned or reserved in the file.
    reserved: u32,
    /// True if the file was read. It is not written before that.
    is_read: bool,
    /// True if the last read or write failed.
    has_failed: bool,
    /// True if agents have changed since the last write.
    is_changed: bool,
    /// Time of the last write, successful or not.
    last_attempt: Option<Instant>,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl Ids {
    /// Creates the ids without reading the file.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }

    /// Reads the file. `agent_lines` are the lines of the agents. `next` is the next id of the state file.
    pub fn load(&mut self, agent_lines: &[CacheLine], next: u32) {
        self.next = next;
        self.read(agent_lines);
        if !self.is_read && next == 0 {
            // Without id file and state file the assigned ids are unknown. It is very unlikely that half of all ids
            // were assigned, or more ids than minutes have passed since the last such start.
            let half = HIGHEST_ID / 2;
            let minutes = u32::try_from(Now::read().seconds / 60 % u64::from(half)).unwrap_or(0);
            self.next = half + minutes;
        }
    }

    /// Reads the file if it was not read yet.
    fn read(&mut self, agent_lines: &[CacheLine]) {
        if self.is_read {
            return;
        }
        // Tried twice: a lack of memory or descriptors can be over at the second attempt.
        match cache_file::read(&self.path).or_else(|_| cache_file::read(&self.path)) {
            Ok(lines) => {
                self.merge(lines, agent_lines, Now::read().seconds);
                self.is_read = true;
            }
            Err(err) => {
                let remedy = "remove what is not a file of instance ids, or give the file to the user that pmdanixl runs as; until it can be read, agents may get new instance ids, and none is saved";
                self.log_result(Err(err), remedy);
            }
        }
    }

    /// Adds the lines of the id file. `now` is in seconds since 1970. If a line contradicts `agent_lines`, the lines of
    /// the agents, it is ignored.
    pub fn merge(&mut self, lines: Vec<CacheLine>, agent_lines: &[CacheLine], now: u64) {
        let names: HashSet<&str> = agent_lines.iter().map(|line| line.name.as_str()).collect();
        let mut ids: HashSet<u32> = agent_lines.iter().map(|line| line.id).collect();
        for mut line in lines {
            self.next = self.next.max(line.id + 1);
            let is_known =
                names.contains(line.name.as_str()) || self.names.contains_key(&line.name);
            if !is_known && ids.insert(line.id) {
                // A future time would keep the name forever, and before other names.
                line.seen = line.seen.min(now);
                self.names.insert(line.name.clone(), line);
            }
        }
    }

    /// Returns the id for the name of an agent: the one in the file, or a new one. `None`: all ids are in use.
    pub fn assign(&mut self, name: &str, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        match self.names.remove(name) {
            Some(line) => Some(line.id),
            None => self.allocate(taken),
        }
    }

    /// Returns an id that was never assigned. `taken` returns the ids of the agents. `None`: all ids are in use.
    pub fn allocate(&mut self, taken: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        if self.next <= HIGHEST_ID {
            self.next += 1;
            return Some(self.next - 1);
        }
        // After 33 million agents, or with a damaged file: a second name for an id is better than no service.
        tracing::warn!(
            "{}: no instance id is left, or the file is damaged; ids of agents that no longer exist are used again",
            self.path.display()
        );
        let mut taken = taken();
        taken.extend(self.names.values().map(|line| line.id));
        (0..=HIGHEST_ID).find(|id| !taken.contains(id))
    }

    /// Returns the next id: greater than all ids that were assigned.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Records that agents were published or withdrawn.
    pub fn mark_changed(&mut self) {
        self.is_changed = true;
    }

    /// True if [`Ids::save`] has something to do.
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

    /// Starts a thread that writes the file, or collects the result of the last one. If `is_end`, waits for the thread.
    /// `agent_lines` are the lines of the agents. `limit` is the largest number of names in the file.
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

    /// Returns the new text of the file. `None`: the file cannot be read and may have unknown ids, or no id was
    /// assigned.
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
            // As many as there are names: then the number of written bytes grows linearly with the number of ids, not
            // quadratically.
            false => u32::try_from(lines.len()).unwrap_or(0).max(MIN_RESERVED),
        };
        self.reserved = (self.next + reserved).min(HIGHEST_ID + 1);
        Some(cache_file::text(&lines, self.reserved))
    }

    /// Returns the lines for the file at `now`. First those of the agents, then other names seen within a week, latest
    /// first. Together at most `limit` lines, but always all agents.
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

    /// Waits for the writing thread and logs its result.
    fn join_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            let panicked = |_| Err(io::Error::other("the writing thread panicked"));
            self.log_result(writer.join().unwrap_or_else(panicked), WRITE_FAILED);
        }
    }

    /// Logs the first failure after a success, and the first success after a failure. `remedy` has what to do about a
    /// failure, and its consequence.
    fn log_result(&mut self, done: io::Result<()>, remedy: &str) {
        let path = self.path.display();
        match &done {
            Ok(()) if self.has_failed => tracing::info!("{path}: instance ids are saved again"),
            Err(err) if !self.has_failed => {
                tracing::warn!("{path}: the file of instance ids cannot be used: {err}; {remedy}");
            }
            _ => {}
        }
        self.has_failed = done.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time at which the files of these tests are read, in seconds since 1970.
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

    /// Assigns an id while agents have the ids `taken`.
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
        // The week of b is over; that of d ends one second later.
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
