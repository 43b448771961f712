//! Drains of all rings, one agent after the other.

use super::quiet::Quiet;
use super::{AgentKey, Agents, Change};
use crate::agents::agent::Now;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How many agents in which nothing happens are passed over between two looks at the clock.
const LOOK_AT_CLOCK: usize = 64;

/// How a drain goes.
#[derive(Clone, Copy, Debug)]
struct Pass {
    now: Now,
    /// When it is cut off.
    end: Instant,
    /// Those that were drained to their end since then are passed over.
    since: Option<Instant>,
}

/// What drains of several agents came to.
#[derive(Debug, Default)]
struct FoundOut {
    /// Files that are to be looked at anew.
    again: Vec<PathBuf>,
    /// Whether the state file turned out to be broken.
    broken: bool,
    /// Agents of which more waits than was taken.
    more: Vec<AgentKey>,
}

impl Agents {
    /// As [`Agents::drain`], for an answer, which does not wait for /proc: a ring of which that would decide is left for the next
    /// drain.
    pub fn drain_for_answer(
        &mut self,
        now: Instant,
        budget: Duration,
        changes: &mut Vec<Change>,
    ) -> bool {
        let inquiry = self.books.inquiry.take();
        let in_time = self.drain(now, budget, changes);
        self.books.inquiry = inquiry;
        in_time
    }

    /// Counts the events that wait in the rings, and lets agents that have exited go when it is time. When the budget is
    /// used up, the rest has its turn first the next time; whether there is none.
    pub fn drain(&mut self, now: Instant, budget: Duration, changes: &mut Vec<Change>) -> bool {
        self.drain_since(None, now, budget, changes)
    }

    /// Goes on with a drain that was cut off, and began then: whoever had nothing more in it has no second turn.
    pub fn drain_on(
        &mut self,
        began: Instant,
        now: Instant,
        budget: Duration,
        changes: &mut Vec<Change>,
    ) -> bool {
        self.drain_since(Some(began), now, budget, changes)
    }

    fn drain_since(
        &mut self,
        since: Option<Instant>,
        now: Instant,
        budget: Duration,
        changes: &mut Vec<Change>,
    ) -> bool {
        let end = Instant::now() + budget;
        let now = self.clock.at(now);
        let pass = Pass { now, end, since };
        let mut found = FoundOut {
            more: std::mem::take(&mut self.more),
            ..FoundOut::default()
        };
        let (places, first) = (self.agents.places(), self.next_served);
        let first = if first < places { first } else { 0 };
        let mut in_time = [first..places, 0..first]
            .into_iter()
            .all(|range| self.drain_range(range, pass, &mut found, changes));
        // Those that hold more than a batch, in turn: who has more still is behind the last.
        let mut next = 0;
        while in_time && next < found.more.len() {
            let only = found.more[next].place();
            next += 1;
            in_time = self.drain_range(only..only + 1, pass, &mut found, changes);
        }
        found.more.clear();
        self.more = found.more;
        for path in found.again {
            if let (Some(directory), Some(name)) = (path.parent(), path.file_name()) {
                self.scanner.look_again(directory, name);
            }
        }
        if found.broken {
            self.give_state_up();
        }
        if self.retry.is_some_and(|retry| now.instant >= retry) {
            self.keep_all(now.instant);
        }
        self.forget(changes);
        in_time
    }

    /// Drains the agents in these places, one after the other; whether that was done in time.
    fn drain_range(
        &mut self,
        places: Range<usize>,
        pass: Pass,
        found: &mut FoundOut,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Pass { now, end, since } = pass;
        for (number, place) in places.enumerate() {
            let quiet = self.agents.quiet(place);
            if since.is_some_and(|since| quiet.was_drained(since)) || quiet.holds(now.instant) {
                if number % LOOK_AT_CLOCK == 0 && Instant::now() >= end {
                    self.next_served = place + 1;
                    return false;
                }
                continue;
            }
            let Some((key, quiet, agent)) = self.agents.at(place) else {
                continue;
            };
            let outcome = agent.drain(now, end, &mut self.books);
            for id in outcome.gone {
                self.attached.remove(&id);
            }
            match agent.turn(now.instant) {
                Some(true) => changes.push(Change::Appeared(key)),
                Some(false) => changes.push(Change::Left { key, id: agent.id }),
                None => {}
            }
            changes.extend(agent.turn_ranges().then_some(Change::Ranges(key)));
            found.again.extend(outcome.again);
            let in_time = Instant::now() < end;
            let drained = (in_time && !outcome.more).then_some(now.instant);
            *quiet = Quiet::of(agent, now.instant, drained);
            found.broken |= outcome.broken;
            self.asks |= agent.asks();
            found.more.extend(outcome.more.then_some(key));
            self.next_served = place + 1;
            if !in_time {
                return false;
            }
        }
        true
    }
}
