//! Which agents a drain passes over: those in which nothing happens, as it is with almost all, almost always.

use crate::agents::Agent;
use crate::base::clock::Now;
use crate::journal::ledger::Books;
use crate::journal::record::Lifecycle;
use crate::shm::Rest;
use std::time::{Duration, Instant};

/// What a drain looks at of an agent that it passes over, beside its file. It lies close to those of the other agents: an agent by
/// itself is, where there are a thousand, out of the processor's cache by the next tick.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    /// `None`: the agent is not passed over.
    until: Option<Instant>,
    /// Its ring, or its store.
    file: Option<Rest>,
    /// Its other files: a ring that was replaced and is written to all the same, or a ring beside a store.
    more: Vec<Rest>,
}

/// For so long one that has left, and has no file, is not looked at: what happens to it wakes it.
const GONE: Duration = Duration::from_secs(3600);

impl Quiet {
    /// As of a drain that has just been; `is_whole` says whether that left nothing. An agent in which nothing happens is looked
    /// at as often as it is asked who has its file: what passes with time alone is found out as late as that, but for the end of
    /// one that has exited, which is known beforehand.
    pub(crate) fn renew(&mut self, agent: &Agent, now: &Now, is_whole: bool, books: &Books) {
        let look = books.check_every;
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
            let rest = source.rest();
            let until = source.quiet_until(look);
            // The store of one that has left is let go by the next drain.
            let until = until.filter(|_| lifecycle.is_awake() || source.as_ring().is_some());
            let earliest = self.until.zip(until).map(|(one, other)| one.min(other));
            self.until = earliest.filter(|_| rest.is_some());
            match number {
                0 => self.file = rest,
                _ => self.more.extend(rest),
            }
        }
        self.until = self.until.filter(|_| is_settled && is_whole);
    }

    /// Whether a drain would change nothing.
    #[inline]
    pub(crate) fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
            && self.file.as_ref().is_none_or(Rest::holds)
            && self.more.iter().all(Rest::holds)
    }
}
