//! Which instance id a name has: ids only rise, and none is given to a second name, since archives may know it as the first one's.
//!
//! They outlive the daemon in the state file and the host in the file of instance ids (`cache_file`), where names stay that no
//! agent has at the moment.

use std::collections::{HashMap, HashSet};

/// The highest id whose agent can have histograms: their instance ids are the agent's times 64, in 31 bits.
const HIGHEST: u32 = (1 << 25) - 1;

/// Ids of names that no known agent has, and what comes next.
#[derive(Debug, Default)]
pub struct Ids {
    of_names: HashMap<String, u32>,
    next: u32,
}

impl Ids {
    /// `kept` is what the file says, `known` what known agents have, which is right where the two differ, and `next` is more
    /// than any id that was given before, as far as that is known.
    #[must_use]
    pub fn new(kept: Vec<(u32, String)>, known: &[(u32, &str)], next: u32) -> Self {
        let mut taken: HashSet<u32> = known.iter().map(|(id, _)| *id).collect();
        let named: HashSet<&str> = known.iter().map(|(_, name)| *name).collect();
        let mut ids = Self {
            of_names: HashMap::new(),
            next: 0,
        };
        let highest = taken.iter().max();
        ids.next = next.max(highest.map_or(0, |id| id + 1));
        // A higher one was never given: the file is damaged.
        for (id, name) in kept.into_iter().filter(|(id, _)| *id <= HIGHEST) {
            ids.next = ids.next.max(id + 1);
            if !named.contains(name.as_str())
                && !ids.of_names.contains_key(&name)
                && taken.insert(id)
            {
                ids.of_names.insert(name, id);
            }
        }
        ids
    }

    /// The id of a name that no known agent has: the one that it had, or a new one; `None`: all are taken. `known` is what known
    /// agents have.
    pub fn give(&mut self, name: &str, known: impl FnOnce() -> HashSet<u32>) -> Option<u32> {
        if let Some(id) = self.of_names.remove(name) {
            return Some(id);
        }
        if self.next <= HIGHEST {
            self.next += 1;
            return Some(self.next - 1);
        }
        // Tens of millions of agents, or a damaged file: better a second name than no service.
        let mut taken = known();
        taken.extend(self.of_names.values());
        (0..=HIGHEST).find(|id| !taken.contains(id))
    }

    /// Names that no known agent has, and their ids.
    #[must_use]
    pub fn kept(&self) -> &HashMap<String, u32> {
        &self.of_names
    }

    /// More than any id that was given.
    #[must_use]
    pub fn next(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(lines: &[(u32, &str)]) -> Vec<(u32, String)> {
        lines
            .iter()
            .map(|&(id, name)| (id, name.to_owned()))
            .collect()
    }

    fn nobody() -> HashSet<u32> {
        HashSet::new()
    }

    #[test]
    fn a_name_gets_the_id_that_it_had_and_a_new_one_the_next() {
        let mut ids = Ids::new(kept(&[(3, "a"), (9, "b")]), &[(5, "c")], 0);
        assert_eq!(ids.give("b", nobody), Some(9));
        assert_eq!(ids.give("new", nobody), Some(10));
        assert_eq!(ids.give("a", nobody), Some(3));
        assert_eq!(ids.give("b", nobody), Some(11), "its agent was forgotten");
        assert_eq!(ids.next(), 12);
    }

    #[test]
    fn what_known_agents_have_is_right() {
        let mut ids = Ids::new(
            kept(&[(5, "old"), (7, "c"), (8, "d"), (8, "e")]),
            &[(5, "c")],
            0,
        );
        assert_eq!(ids.give("old", nobody), Some(9), "5 is another's");
        assert_eq!(ids.give("c", nobody), Some(10), "7 was never its");
        assert_eq!(
            [ids.give("d", nobody), ids.give("e", nobody)],
            [Some(8), Some(11)]
        );
    }

    #[test]
    fn no_id_is_given_twice_though_the_file_is_lost() {
        let mut ids = Ids::new(Vec::new(), &[(2, "c")], 40);
        assert_eq!(ids.give("a", nobody), Some(40));
    }

    #[test]
    fn an_id_that_cannot_have_been_given_uses_none_up() {
        let mut ids = Ids::new(kept(&[(0, "a"), (HIGHEST + 1, "b")]), &[], 0);
        assert_eq!(ids.give("b", nobody), Some(1));
    }

    #[test]
    fn where_all_are_used_up_the_lowest_free_one_is_given() {
        let mut ids = Ids::new(kept(&[(0, "a"), (HIGHEST, "b")]), &[(1, "c")], 0);
        assert_eq!(ids.give("d", || [1].into()), Some(2));
    }
}
