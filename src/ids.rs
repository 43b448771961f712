//! Instance ids only rise, and no id is given to a second name: archives may know it as the first one's.
//!
//! Within a boot an agent's record has its id, and the state file the next one. The id file (`cache_file`) is written from these.
//! It outlives the host, and tells the ids of names that no agent has yet. `kept` says when it is read and written.

use crate::state::record::HIGHEST_ID;
use cache_file::Line;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

pub mod cache_file;
pub mod kept;

/// Seconds after which a name that no agent has is left out of the file: a week.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;

/// Ids of names that no agent has yet, and the next id.
#[derive(Debug, Default)]
pub struct Ids {
    names: HashMap<String, Line>,
    next: u32,
}

impl Ids {
    /// No names. `next` is more than any id that is known to be given.
    #[must_use]
    pub fn new(next: u32) -> Self {
        Self {
            names: HashMap::new(),
            next,
        }
    }

    /// Learns what the id file says at `now`, in seconds since 1970. Where it contradicts `known`, the lines of the agents, it is
    /// wrong.
    pub fn learn(&mut self, lines: Vec<Line>, known: &[Line], now: u64) {
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
        let id = match self.next {
            next if next <= HIGHEST_ID => next,
            // Tens of millions of agents, or a damaged file: better a second name than no service.
            _ => {
                let mut taken = taken();
                taken.extend(self.names.values().map(|line| line.id));
                (0..=HIGHEST_ID).find(|id| !taken.contains(id))?
            }
        };
        self.next = self.next.max(id + 1);
        Some(id)
    }

    /// Gives no id below this one to a new name.
    pub fn skip_to(&mut self, next: u32) {
        self.next = self.next.max(next);
    }

    /// More than any id that was given.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Returns the lines for the file at `now`: those of the agents, and, up to `limit` in all, those of other names that were
    /// seen within a week, the latest first.
    #[must_use]
    pub fn lines(&self, mut known: Vec<Line>, limit: usize, now: u64) -> Vec<Line> {
        let others = self.names.values();
        let is_recent = |line: &&Line| now.saturating_sub(line.seen) < MAX_AGE;
        let mut others: Vec<_> = others.filter(is_recent).cloned().collect();
        others.sort_unstable_by_key(|line| Reverse((line.seen, line.id)));
        others.truncate(limit.saturating_sub(known.len()));
        known.append(&mut others);
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When the files of these tests are read: seconds since 1970.
    const NOW: u64 = 99;

    fn lines(lines: &[(u32, u64, &str)]) -> Vec<Line> {
        let lines = lines.iter().map(|&(id, seen, name)| Line {
            id,
            seen,
            name: name.into(),
        });
        lines.collect()
    }

    fn ids(file: &[(u32, u64, &str)], known: &[(u32, u64, &str)], next: u32) -> Ids {
        let mut ids = Ids::new(next);
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
        let mut ids = Ids::new(40);
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
}
