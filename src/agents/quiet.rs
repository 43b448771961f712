//! Which agents a drain passes over: those in which nothing happens, as it is with almost all, almost always.

use crate::agents::agent::Agent;
use crate::ring::Rest;
use std::time::{Duration, Instant};

/// What a drain looks at of an agent that it passes over, beside its ring. It lies close to those of the other agents: an agent by
/// itself is, where there are a thousand, out of the processor's cache by the next tick.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// `None`: the agent is not passed over.
    until: Option<Instant>,
    /// When it was last drained to its end.
    drained: Option<Instant>,
    /// Its ring.
    ring: Option<Rest>,
}

impl Quiet {
    /// As of a drain that has just been; `drained` is when that was, if it left nothing. An agent in which nothing happens is looked
    /// at every `look`: what passes with time alone is found out as late as that.
    pub(super) fn of(
        agent: &Agent,
        now: Instant,
        drained: Option<Instant>,
        look: Duration,
    ) -> Self {
        let is_settled = match agent.entry.active {
            true => agent.shown && agent.entry.silent_since.is_none(),
            false => !agent.shown,
        };
        let (until, ring) = match &agent.sources[..] {
            [] => (Some(now + look), None),
            [source] => {
                let rest = source.rest();
                (source.quiet_until(look).filter(|_| rest.is_some()), rest)
            }
            // For a short time only.
            _ => (None, None),
        };
        let until =
            until.filter(|_| is_settled && agent.store.is_none() && agent.stranger.is_none());
        Self {
            until,
            drained,
            ring,
        }
    }

    /// Whether nothing was left in it by a drain since then.
    pub(super) fn was_drained(&self, since: Instant) -> bool {
        self.drained.is_some_and(|drained| drained >= since)
    }

    /// Whether a drain would change nothing.
    #[inline]
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until) && self.ring.as_ref().is_none_or(Rest::holds)
    }
}
