//! Which agents a drain passes over: those in which nothing happens, as it is with almost all, almost always.

use crate::agents::agent::Agent;
use crate::base::clock::Now;
use crate::journal::ledger::Books;
use crate::journal::record::Lifecycle;
use crate::shm::HeaderPoll;
use std::time::{Duration, Instant};

/// What a drain looks at of an agent that it passes over, beside its file. It lies close to those of the other agents: an agent by
/// itself is, where there are a thousand, out of the processor's cache by the next tick.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// `None`: the agent is not passed over.
    until: Option<Instant>,
    /// Its ring, or its store.
    file: Option<HeaderPoll>,
    /// Its other files: a ring that was replaced and is written to all the same, or a ring beside a store.
    more: Vec<HeaderPoll>,
}

/// For so long one that has left, and has no file, is not looked at: what happens to it wakes it.
const GONE: Duration = Duration::from_secs(3600);

impl Quiet {
    /// As of a drain that has just been; `is_whole` says whether that left nothing. An agent in which nothing happens is looked
    /// at as often as it is asked who has its file: what passes with time alone is found out as late as that, but for the end of
    /// one that has exited, which is known beforehand.
    pub(super) fn renew(&mut self, agent: &Agent, now: &Now, is_whole: bool, books: &Books) {
        let look = books.check_period;
        let lifecycle = agent.entry.lifecycle;
        let left = match lifecycle.exited_since() {
            Some(since) => books.config.retain.saturating_sub(now.since(since)),
            None => Duration::MAX,
        };
        let without = if lifecycle.is_awake() { look } else { GONE };
        self.until = now.instant.checked_add(left.min(without));
        self.file = None;
        // Its room stays, for a tick allocates nothing.
        self.more.clear();
        let is_settled = !matches!(lifecycle, Lifecycle::AwaitingLabels { .. });
        // Of several rings not all may have had their turn.
        let is_whole = agent.sources.len() < 2 || is_whole;
        for (number, source) in agent.sources.iter().enumerate() {
            let header_poll = source.header_poll();
            let until = source.quiet_until(look);
            // The store of one that has left is let go by the next drain.
            let until = until.filter(|_| lifecycle.is_awake() || source.as_ring().is_some());
            let earliest = self.until.zip(until).map(|(one, other)| one.min(other));
            self.until = earliest.filter(|_| header_poll.is_some());
            match number {
                0 => self.file = header_poll,
                _ => self.more.extend(header_poll),
            }
        }
        self.until = self.until.filter(|_| is_settled && is_whole);
    }

    /// Whether a drain would change nothing.
    #[inline]
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
            && self.file.as_ref().is_none_or(HeaderPoll::is_unchanged)
            && self.more.iter().all(HeaderPoll::is_unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Agents;
    use crate::config::{Config, DirectoryPattern};
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    const SECOND: Duration = Duration::from_secs(1);
    const RETAIN: Duration = Duration::from_millis(2500);
    /// For what is not about time.
    const LONG: Duration = Duration::from_secs(3600);

    /// A v4 ring of four slots with one event in its first, which nobody has, and the agent whose it is.
    fn agent(observe: bool) -> (tempfile::TempDir, Agents, Instant) {
        let dir = tempfile::tempdir().expect("a directory");
        let words = [1, 0, (4 << 32) | 4, 4, 3, 0, 5, 0, 0, 0, 0, 0, 0_u64];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(dir.path().join("a"), bytes).expect("written");
        let agents = Agents::new(&Config {
            telemetry_dir: vec![DirectoryPattern {
                path: dir.path().to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            proc_facts: false,
            retain: RETAIN,
            observe,
            ..Config::default()
        });
        (dir, agents, Instant::now())
    }

    fn tick(agents: &mut Agents, now: Instant) {
        agents.scan(now, LONG);
        agents.drain(now, LONG);
    }

    #[test]
    fn who_has_exited_is_passed_over_until_it_leaves() {
        let (_dir, mut agents, mut now) = agent(false);
        while agents
            .iter()
            .all(|agent| agent.entry.lifecycle.exited_since().is_none())
        {
            now += SECOND;
            tick(&mut agents, now);
        }
        let exited = now;
        for half_seconds in 0..5 {
            let now = exited + half_seconds * SECOND / 2;
            tick(&mut agents, now);
            assert!(agents.agents.quiet(0).holds(now + SECOND / 4));
            assert!(agents.iter().all(|agent| agent.is_published()));
        }
        assert!(!agents.agents.quiet(0).holds(exited + RETAIN));
        tick(&mut agents, exited + RETAIN);
        assert!(agents.iter().all(|agent| !agent.is_published()));
    }

    #[test]
    fn who_has_left_and_has_no_file_is_not_looked_at() {
        let (dir, mut agents, mut now) = agent(false);
        tick(&mut agents, now);
        fs::remove_file(dir.path().join("a")).expect("there");
        while agents.iter().any(|agent| agent.entry.lifecycle.is_awake()) {
            now += SECOND;
            tick(&mut agents, now);
        }
        assert!(agents.agents.quiet(0).holds(now + LONG / 2));
        // Its file is there again, with what it was.
        let words = [1, 0, (4 << 32) | 4, 4, 3, 0, 5, 0, 0, 0, 0, 0, 0_u64];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(dir.path().join("a"), bytes).expect("written");
        while agents.iter().all(|agent| !agent.entry.lifecycle.is_awake()) {
            now += SECOND;
            tick(&mut agents, now);
        }
        let sent = |agent: &Agent| agent.total(crate::event::EventType::TxBytes);
        assert_eq!(agents.iter().map(sent).collect::<Vec<_>>(), [10]);
    }

    #[test]
    fn an_agent_of_two_rings_is_passed_over_while_nothing_happens_in_either() {
        let (dir, mut agents, mut now) = agent(false);
        let path = dir.path().join("a");
        tick(&mut agents, now);
        // The first stays open, and is no file of that name any more.
        let open = |path: &std::path::Path| File::options().write(true).open(path).expect("there");
        let first = open(&path);
        let bytes = fs::read(&path).expect("there");
        fs::rename(&path, dir.path().join(".old")).expect("there");
        fs::remove_file(dir.path().join(".old")).expect("there");
        fs::write(&path, &bytes).expect("written");
        let second = open(&path);
        let rings = |agents: &Agents| {
            let rings = agents.iter().map(|agent| agent.sources.len());
            rings.sum::<usize>()
        };
        while rings(&agents) < 2 {
            now += SECOND;
            tick(&mut agents, now);
        }
        tick(&mut agents, now);
        let sent = |agents: &Agents| {
            let agent = agents.iter().next().expect("one");
            agent.total(crate::event::EventType::TxBytes)
        };
        let mut expected = sent(&agents);
        assert_eq!(
            expected, 5,
            "the second is a copy of the first as it was drained"
        );
        for (ring, upto) in [(&first, 2_u64), (&second, 2), (&first, 3), (&second, 3)] {
            assert!(agents.agents.quiet(0).holds(now));
            let slot = [0, 7_u64].map(u64::to_le_bytes).concat();
            ring.write_all_at(&slot, 8 * (5 + 2 * (upto - 1)))
                .expect("written");
            ring.write_all_at(&upto.to_le_bytes(), 0).expect("written");
            assert!(!agents.agents.quiet(0).holds(now));
            now += SECOND;
            tick(&mut agents, now);
            expected += 7;
            assert_eq!(sent(&agents), expected);
            tick(&mut agents, now);
        }
        assert!(
            !agents.agents.quiet(0).holds(now + SECOND),
            "who has them is asked"
        );
    }

    #[test]
    fn a_ring_that_is_followed_is_passed_over_while_nobody_moves() {
        let (dir, mut agents, mut now) = agent(true);
        let ring = dir.path().join("a");
        let ring = File::options().write(true).open(ring).expect("there");
        let put = |word: u64, value: u64| {
            ring.write_all_at(&value.to_le_bytes(), 8 * word)
                .expect("written");
        };
        let pending = |agents: &Agents| agents.iter().next().expect("one").pending();
        for (word, value, waits) in [(0, 1, 1), (1, 1, 0), (0, 2, 1), (0, 0, 3)] {
            put(word, value);
            assert!(agents.agents.end() == 0 || !agents.agents.quiet(0).holds(now));
            now += SECOND;
            tick(&mut agents, now);
            tick(&mut agents, now);
            assert_eq!(pending(&agents), Some(waits));
            assert!(agents.agents.quiet(0).holds(now + SECOND / 2));
        }
        // Full, and counted so again and again, as long as somebody has it.
        assert!(!agents.agents.quiet(0).holds(now + SECOND));
    }

    #[test]
    fn a_store_that_nobody_changes_is_passed_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nixl.4242.17.0.mmap");
        fs::write(&path, crate::store::format::tests::store("a", "0", &[1.0])).expect("written");
        let mut agents = Agents::new(&Config {
            telemetry_dir: Vec::new(),
            multiproc_dir: vec![DirectoryPattern {
                path: dir.path().to_str().expect("UTF-8").into(),
                label: None,
                literal: true,
            }],
            proc_facts: false,
            ..Config::default()
        });
        let mut now = Instant::now();
        let store = File::options().write(true).open(&path).expect("there");
        for time in 10..15_u64 {
            now += SECOND;
            tick(&mut agents, now);
            assert!(agents.agents.quiet(0).holds(now + SECOND / 2));
            // A counter, and then the time of the change.
            for (word, value) in [(94, 1000 + time), (3, time)] {
                store
                    .write_all_at(&value.to_le_bytes(), 8 * word)
                    .expect("written");
            }
            assert!(!agents.agents.quiet(0).holds(now + SECOND / 2));
        }
    }
}
