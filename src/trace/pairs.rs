// SPDX-License-Identifier: GPL-2.0-or-later

//! Pairs of a process and a remote agent: their figures, and their end with the process.

use super::maps::{
    MAX_HANDLES_OF_USER, MAX_PAIRS_OF_USER, Maps, NAME_LEN, PAIR_WORDS, USERS, figure,
};
use super::protocol::PairReading;
use crate::discovery::name;
use crate::procfs::process::ProcessId;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Result;

/// What stands for the name of a remote agent if the handle was made before tracing began. No agent has this name,
/// since `~` is escaped in names.
const UNKNOWN: &str = "~unknown";
/// A pair without open handles that was not used for this long is removed if its user needs room, in ns.
const IDLE_TIME: u64 = 60_000_000_000;
/// Clock ticks of /proc (USER_HZ, 100 a second) in ns.
const TICK: u64 = 10_000_000;

/// A pair, as the tracer knows it.
#[derive(Debug)]
struct Pair {
    key: Vec<u64>,
    /// Process. `None`: it has ended.
    process: Option<ProcessId>,
    created: u64,
    user: usize,
    /// True if the key was removed in an earlier step. The number is free once no handle has it.
    is_removed: bool,
}

/// What the open handles of a pair say.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    handles: u64,
    in_flight: u64,
    /// Time of the first post.
    oldest: Option<u64>,
}

/// All pairs, by number.
#[derive(Debug)]
pub struct Pairs {
    known: BTreeMap<u64, Pair>,
    /// Handles and pairs that were removed for each place of users.
    freed: Vec<[u64; 2]>,
    /// Handles of users with nearly as many as they may have that are not in flight, and since when, in ns.
    unposted: HashMap<Vec<u64>, u64>,
}

impl Default for Pairs {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            freed: vec![[0; 2]; USERS as usize],
            unposted: HashMap::new(),
        }
    }
}

impl Pairs {
    /// Removes what belongs to processes that have ended, and what a user has too much of. Returns the figures of the
    /// pairs of these processes, with so many buckets, and failed posts if they are read. `now` is CLOCK_MONOTONIC in
    /// ns.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn step(
        &mut self,
        maps: &Maps,
        requested: &HashSet<ProcessId>,
        (buckets, at_return): (usize, bool),
        now: u64,
    ) -> Result<Vec<PairReading>> {
        let mut running = HashMap::new();
        let mut is_running = |id: ProcessId| *running.entry(id).or_insert_with(|| id.is_running());
        self.find_new(maps)?;
        for pair in self.known.values_mut() {
            pair.process = pair.process.filter(|&id| is_running(id));
        }
        let open = self.read_handles(maps, now)?;
        let open_of = |number: u64| open.get(&number).copied().unwrap_or_default();
        // First those that were removed before this step: no program can still be about to use them.
        let free = |number: &u64, pair: &Pair| {
            pair.is_removed && (pair.process.is_none() || open_of(*number).handles == 0)
        };
        let numbers = self
            .known
            .iter()
            .filter(|(number, pair)| free(number, pair));
        for number in Vec::from_iter(numbers.map(|(&number, _)| number)) {
            self.free(maps, number)?;
        }
        let mut readings = Vec::new();
        let mut idle: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        for (&number, pair) in &self.known {
            let Some(process) = pair.process.filter(|_| !pair.is_removed) else {
                continue;
            };
            let figures = maps.figures.get(&[number])?;
            let of = |offset: i16| figures[usize::from(offset.unsigned_abs()) / 8];
            let open = open_of(number);
            let last = of(figure::LAST);
            if open.handles == 0 && now.saturating_sub(last) > IDLE_TIME {
                idle.entry(pair.user).or_default().push((last, number));
            }
            if !requested.contains(&process) {
                continue;
            }
            let first = usize::from(figure::BUCKETS.unsigned_abs()) / 8;
            readings.push(PairReading {
                process,
                remote: remote_name(&pair.key),
                created: pair.created,
                in_flight: open.in_flight,
                oldest: open.oldest.map(|posted| now.saturating_sub(posted)),
                posted: of(figure::POSTED),
                released: of(figure::RELEASED),
                reposted: of(figure::REPOSTED),
                failed: at_return.then(|| of(figure::FAILED)),
                time: of(figure::TIME),
                buckets: figures[first..first + buckets].to_vec(),
            });
        }
        self.remove_ended(maps)?;
        self.remove_idle(maps, idle)?;
        Ok(readings)
    }

    /// Returns the number of handles and pairs that found no room.
    ///
    /// # Errors
    /// Those of bpf(2).
    pub fn lost(maps: &Maps) -> Result<u64> {
        let mut lost = 0_u64;
        for place in 0..u64::from(USERS) {
            lost += maps.taken.get(&[place])?[2..].iter().sum::<u64>();
        }
        Ok(lost)
    }

    /// Adds pairs that the programs have made.
    fn find_new(&mut self, maps: &Maps) -> Result<()> {
        for (key, value) in maps.pairs.entries()? {
            let number = value[0];
            if self.known.contains_key(&number) {
                continue;
            }
            let figures = maps.figures.get(&[number])?;
            let of = |offset: i16| figures[usize::from(offset.unsigned_abs()) / 8];
            let created = of(figure::CREATED);
            let process = ProcessId::of(process_of(key[0])).ok();
            // A process that began later has the id of the one that has made the pair.
            let process = process.filter(|id| id.start.saturating_mul(TICK) <= created);
            self.known.insert(
                number,
                Pair {
                    key,
                    process,
                    created,
                    user: usize::try_from(of(figure::USER)).unwrap_or(0) % USERS as usize,
                    is_removed: false,
                },
            );
        }
        Ok(())
    }

    /// Reads the open handles, and removes those of processes that have ended. Of a user that has nearly as many as it
    /// may have, it also removes those that are not in flight for a minute, such as handles that were deleted without
    /// a release.
    fn read_handles(&mut self, maps: &Maps, now: u64) -> Result<HashMap<u64, Open>> {
        let mut open: HashMap<u64, Open> = HashMap::new();
        let mut processes: HashMap<u64, bool> = HashMap::new();
        let mut counts = vec![0_u32; USERS as usize];
        let handles = maps.handles.entries()?;
        let mut unposted = HashMap::new();
        let place_of = |value: &[u64]| usize::try_from(value[2]).unwrap_or(0) % USERS as usize;
        for (_, value) in &handles {
            counts[place_of(value)] += 1;
        }
        for (key, value) in handles {
            let (posted, number, place) = (value[0], value[1], place_of(&value));
            let has_process = match self.known.get(&number) {
                Some(pair) => pair.process.is_some(),
                // That of number 0, which is for all pairs without room.
                None => *processes.entry(key[1]).or_insert_with(|| {
                    u32::try_from(key[1]).is_ok_and(|pid| ProcessId { pid, start: 0 }.has_process())
                }),
            };
            let mut is_excess = false;
            if posted == 0 && counts[place] > MAX_HANDLES_OF_USER / 4 * 3 {
                // It may be about to be posted.
                let since = self.unposted.get(&key).copied().unwrap_or(now);
                is_excess = now.saturating_sub(since) > IDLE_TIME;
                unposted.insert(key.clone(), since);
            }
            if !has_process || is_excess {
                if maps.handles.remove(&key)? {
                    self.freed[place][0] += 1;
                    maps.freed.set(&[place as u64], &self.freed[place])?;
                }
                continue;
            }
            let open = open.entry(number).or_default();
            open.handles += 1;
            if posted > 0 {
                open.in_flight += 1;
                let oldest = open.oldest.unwrap_or(now).min(posted);
                open.oldest = Some(oldest);
            }
        }
        self.unposted = unposted;
        Ok(open)
    }

    /// Gives the number of a pair back.
    fn free(&mut self, maps: &Maps, number: u64) -> Result<()> {
        if let Some(pair) = self.known.remove(&number) {
            maps.figures.set(&[number], &[0; figure::WORDS])?;
            self.freed[pair.user][1] += 1;
            maps.freed
                .set(&[pair.user as u64], &self.freed[pair.user])?;
            maps.free.push(number)?;
        }
        Ok(())
    }

    /// Removes the keys of pairs whose process has ended.
    fn remove_ended(&mut self, maps: &Maps) -> Result<()> {
        for pair in self.known.values_mut() {
            if pair.process.is_none() && !pair.is_removed {
                maps.pairs.remove(&pair.key)?;
                pair.is_removed = true;
            }
        }
        Ok(())
    }

    /// Removes the keys of idle pairs of users that have nearly as many pairs as they may have, those that were not
    /// used for longest first, until half of the room is free.
    fn remove_idle(&mut self, maps: &Maps, idle: HashMap<usize, Vec<(u64, u64)>>) -> Result<()> {
        for (user, mut idle) in idle {
            let of_user = self.known.values().filter(|pair| pair.user == user).count();
            let limit = MAX_PAIRS_OF_USER as usize;
            if of_user <= limit / 4 * 3 {
                continue;
            }
            idle.sort_unstable();
            for (_, number) in idle.into_iter().take(of_user - limit / 2) {
                if let Some(pair) = self.known.get_mut(&number) {
                    maps.pairs.remove(&pair.key)?;
                    pair.is_removed = true;
                }
            }
        }
        Ok(())
    }
}

/// Returns the process id in the first word of a key.
fn process_of(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap_or_default()
}

/// Returns the name of the remote agent in the key of a pair, as it is written in an instance. A longer name than is
/// kept ends with its length.
fn remote_name(key: &[u64]) -> String {
    let len = usize::try_from(key[0] >> 32).unwrap_or(usize::MAX);
    let words = key[1..PAIR_WORDS].iter();
    let bytes = Vec::from_iter(words.flat_map(|word| word.to_ne_bytes()));
    match len {
        0 => UNKNOWN.to_owned(),
        len if len > NAME_LEN as usize => format!("{}~{len}", name::instance_name(&bytes)),
        len => name::instance_name(&bytes[..len]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &[u8], len: u64) -> Vec<u64> {
        let mut bytes = [0; 64];
        bytes[..name.len()].copy_from_slice(name);
        let words = bytes
            .chunks(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        [len << 32 | 4242].into_iter().chain(words).collect()
    }

    #[test]
    fn remote_name_is_escaped_and_tells_long_names_apart() {
        assert_eq!(remote_name(&key(b"decode-0", 8)), "decode-0");
        assert_eq!(remote_name(&key(b"a::~b", 5)), "a%3A%3A%7Eb");
        assert_eq!(remote_name(&key(b"", 0)), "~unknown");
        let long = [b'x'; 64];
        assert_eq!(remote_name(&key(&long, 64)), "x".repeat(64));
        assert_eq!(remote_name(&key(&long, 70)), "x".repeat(64) + "~70");
        assert_eq!(process_of(key(b"a", 1)[0]), 4242);
    }
}
