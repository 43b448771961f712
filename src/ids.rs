//! Which instance id a name has: ids only rise, and none is given to a second name, since archives may know it as the first one's.
//!
//! They outlive the daemon in the state file and the host in the file of instance ids (`cache_file`), where names stay that no
//! agent has at the moment; `kept` says when that is read and written.

use crate::state::record::HIGHEST_ID;
use cache_file::{Line, known_as};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

pub mod cache_file;
pub mod kept;

/// Names that no agent has lose their id when they were not seen for a week, in seconds.
const MAX_AGE: u64 = 7 * 24 * 60 * 60;

/// All names that have an id, and what comes next.
#[derive(Debug, Default)]
pub struct Ids {
    names: HashMap<String, Had>,
    next: u32,
}

/// A name's id, and when it was last seen: seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Had {
    id: u32,
    seen: u64,
}

/// What is to be kept of the names.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The agents that are known, with the ids that they have: these all stay.
    pub known: &'a [(u32, &'a str)],
    /// The ids of those that are seen now.
    pub seen: &'a HashSet<u32>,
    /// How many names there may be.
    pub limit: usize,
    /// Seconds since 1970.
    pub now: u64,
}

impl Ids {
    /// The ids that known agents have, and `next`, which is more than any that was given before, as far as that is known.
    #[must_use]
    pub fn new(known: &[(u32, &str)], next: u32, now: u64) -> Self {
        let mut ids = Self {
            names: HashMap::new(),
            next,
        };
        for &(id, name) in known {
            ids.next = ids.next.max(id + 1);
            ids.names.insert(name.to_owned(), Had { id, seen: now });
        }
        ids
    }

    /// Learns what a file says. Where it contradicts what is known already, that is right; and no id is given to a second name.
    pub fn learn(&mut self, lines: Vec<Line>) {
        let mut taken: HashSet<u32> = self.names.values().map(|had| had.id).collect();
        // A higher one was never given: the file is damaged.
        for line in lines.into_iter().filter(|line| line.id <= HIGHEST_ID) {
            let Line { id, seen, name } = line;
            self.next = self.next.max(id + 1);
            match name.map(|name| (self.names.get_mut(&name), name)) {
                Some((Some(had), _)) if had.id == id => had.seen = seen,
                Some((None, name)) if taken.insert(id) => {
                    self.names.insert(name, Had { id, seen });
                }
                _ => {}
            }
        }
    }

    /// The id of a name: the one that it had, or a new one; `None`: all are taken.
    pub fn give(&mut self, name: &str, now: u64) -> Option<u32> {
        if let Some(had) = self.names.get(name) {
            return Some(had.id);
        }
        let id = self.draw()?;
        let had = Had { id, seen: now };
        self.names.insert(name.to_owned(), had);
        Some(id)
    }

    /// A number that was never given, for no name; `None`: all are taken.
    pub fn draw(&mut self) -> Option<u32> {
        let id = match self.next {
            next if next <= HIGHEST_ID => next,
            // Tens of millions of agents, or a damaged file: better a second name than no service.
            _ => {
                let taken: HashSet<u32> = self.names.values().map(|had| had.id).collect();
                (0..=HIGHEST_ID).find(|id| !taken.contains(id))?
            }
        };
        self.next = self.next.max(id + 1);
        Some(id)
    }

    /// Gives the name another id when it comes again.
    pub fn forget(&mut self, name: &str) {
        self.names.remove(name);
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

    /// Forgets names that nobody has had for long, and of those that there is no room for the ones that were seen first; what
    /// is left is what a file is to say.
    pub fn keep(&mut self, keep: Keep) -> Vec<Line> {
        let Keep { seen, now, .. } = keep;
        let mut known = HashMap::new();
        for &(id, name) in keep.known {
            // What an agent has is right, whatever was known of its name.
            let before = self.names.remove(name).filter(|had| had.id == id);
            let seen = match before {
                Some(before) if !seen.contains(&id) => before.seen,
                _ => now,
            };
            known.insert(name.to_owned(), Had { id, seen });
        }
        let taken: HashSet<u32> = known.values().map(|had| had.id).collect();
        let mut others: Vec<_> = self.names.drain().collect();
        others.retain_mut(|(name, had)| {
            // Nobody was seen later than now: it would be kept for good, and before those that are known.
            had.seen = had.seen.min(now);
            // Nor has the file room for what it cannot tell from one that is known.
            let is_known = taken.contains(&had.id) || known.contains_key(known_as(name));
            now - had.seen < MAX_AGE && !is_known
        });
        others.sort_unstable_by_key(|(_, had)| Reverse((had.seen, had.id)));
        others.truncate(keep.limit.saturating_sub(known.len()));
        self.names = known;
        self.names.extend(others);
        let lines = self.names.iter().map(|(name, had)| Line {
            id: had.id,
            seen: had.seen,
            name: Some(name.clone()),
        });
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[(u32, u64, &str)]) -> Vec<Line> {
        let lines = lines.iter().map(|&(id, seen, name)| Line {
            id,
            seen,
            name: Some(name.into()),
        });
        lines.collect()
    }

    fn ids(file: &[(u32, u64, &str)], known: &[(u32, &str)], next: u32) -> Ids {
        let mut ids = Ids::new(known, next, 99);
        ids.learn(lines(file));
        ids
    }

    /// What is kept at second 99, in the order of the ids.
    fn kept(ids: &mut Ids, known: &[(u32, &str)], seen: &[u32], limit: usize) -> Vec<Line> {
        kept_at(99, ids, known, seen, limit)
    }

    fn kept_at(
        now: u64,
        ids: &mut Ids,
        known: &[(u32, &str)],
        seen: &[u32],
        limit: usize,
    ) -> Vec<Line> {
        let seen = &seen.iter().copied().collect();
        let mut lines = ids.keep(Keep {
            known,
            seen,
            limit,
            now,
        });
        lines.sort_by_key(|line| line.id);
        lines
    }

    #[test]
    fn a_name_gets_the_id_that_it_had_and_a_new_one_the_next() {
        let mut ids = ids(&[(3, 1, "a"), (9, 1, "b")], &[(5, "c")], 0);
        assert_eq!(ids.give("b", 99), Some(9));
        assert_eq!(ids.give("new", 99), Some(10));
        assert_eq!(ids.give("a", 99), Some(3));
        assert_eq!(ids.give("b", 99), Some(9), "also when it was forgotten");
        assert_eq!(ids.give("new", 99), Some(10));
        assert_eq!(ids.next(), 11);
    }

    #[test]
    fn what_known_agents_have_is_right() {
        let file = [(5, 1, "old"), (7, 1, "c"), (8, 1, "d"), (8, 1, "e")];
        let mut ids = ids(&file, &[(5, "c")], 0);
        assert_eq!(ids.give("old", 99), Some(9), "5 is another's");
        assert_eq!(ids.give("c", 99), Some(5), "7 was never its");
        let rest = [ids.give("d", 99), ids.give("e", 99)];
        assert_eq!(rest, [Some(8), Some(10)]);
    }

    #[test]
    fn no_id_is_given_twice_though_the_file_is_lost_or_was_read_late() {
        let mut ids = ids(&[], &[(2, "c")], 40);
        assert_eq!(ids.give("a", 99), Some(40));
        ids.learn(lines(&[(7, 1, "a"), (50, 1, "b"), (40, 1, "d")]));
        assert_eq!(ids.give("a", 99), Some(40), "that was seen already");
        assert_eq!(ids.give("b", 99), Some(50));
        assert_eq!(ids.give("d", 99), Some(51), "40 is another's by now");
    }

    #[test]
    fn ids_that_a_line_without_a_name_says_were_given_are_not_given_again() {
        let mut ids = ids(&[(0, 1, "a")], &[], 0);
        ids.learn(vec![Line {
            id: 63,
            seen: 1,
            name: None,
        }]);
        assert_eq!(ids.give("b", 99), Some(64));
    }

    #[test]
    fn an_id_that_cannot_have_been_given_uses_none_up() {
        let mut ids = ids(&[(0, 1, "a"), (HIGHEST_ID + 1, 1, "b")], &[], 0);
        assert_eq!(ids.give("b", 99), Some(1));
    }

    #[test]
    fn where_all_are_used_up_the_lowest_free_one_is_given() {
        let mut ids = ids(&[(0, 1, "a"), (HIGHEST_ID, 1, "b")], &[(1, "c")], 0);
        assert_eq!(ids.give("d", 99), Some(2));
        assert_eq!(ids.give("e", 99), Some(3));
    }

    #[test]
    fn those_that_are_seen_get_the_time_and_others_keep_theirs() {
        let file = [(0, 11, "a"), (1, 12, "b"), (7, 13, "d")];
        let known = [(0, "a"), (1, "b"), (3, "new")];
        let mut ids = ids(&file, &known, 0);
        let expected = [(0, 11, "a"), (1, 99, "b"), (3, 99, "new"), (7, 13, "d")];
        for _ in 0..2 {
            assert_eq!(kept(&mut ids, &known, &[1, 3], 10), lines(&expected));
        }
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for_and_the_known_and_the_newest_are() {
        let file = [(0, 11, "a"), (1, 12, "b"), (7, 13, "d")];
        let known = [(0, "a"), (1, "b")];
        let mut some = ids(&file, &known[..1], 0);
        let expected = lines(&[(0, 11, "a"), (7, 13, "d")]);
        assert_eq!(kept(&mut some, &known[..1], &[], 2), expected);
        assert_eq!(some.give("b", 99), Some(8), "1 is not given again");
        let mut all = ids(&file, &known, 0);
        let expected = lines(&[(0, 11, "a"), (1, 12, "b")]);
        assert_eq!(kept(&mut all, &known, &[], 1), expected);
    }

    #[test]
    fn a_name_that_was_not_seen_for_a_week_is_forgotten_unless_it_is_known() {
        let file = [(0, 11, "a"), (1, 12, "b"), (7, 13, "d")];
        let mut ids = ids(&file, &[(0, "a")], 0);
        // b's week is over, and that of d in a second.
        let kept = kept_at(12 + MAX_AGE, &mut ids, &[(0, "a")], &[], 10);
        assert_eq!(kept, lines(&[(0, 11, "a"), (7, 13, "d")]));
    }

    #[test]
    fn what_was_seen_later_than_now_or_looks_like_a_known_name_takes_no_place_from_it() {
        let file = [(48, 1 << 60, "13 b"), (49, 1 << 60, "other")];
        let known = [(55, "13")];
        let mut ids = ids(&file, &known, 0);
        let expected = lines(&[(49, 99, "other"), (55, 99, "13")]);
        assert_eq!(kept(&mut ids, &known, &[], 10), expected);
        let kept = kept_at(99 + MAX_AGE, &mut ids, &known, &[], 10);
        assert_eq!(kept, lines(&[(55, 99, "13")]), "a week later");
    }
}
