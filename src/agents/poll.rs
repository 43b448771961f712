// SPDX-License-Identifier: GPL-2.0-or-later

//! Polls of the files of agents in which nothing happens. A drain skips these agents, which most are.

use crate::agents::Agent;
use crate::base::clock::Now;
use crate::entry::Lifecycle;
use crate::shm::HeaderPoll;
use crate::source::context::Shared;
use std::time::{Duration, Instant};

/// What a drain reads of an agent that it skips, beside the header of the file. The polls of all agents are close to
/// each other in memory: with a thousand agents, the agents themselves are not in the CPU's cache in the next
/// tick.
#[derive(Debug, Default)]
pub(crate) struct AgentPoll {
    /// When the agent is drained at the latest. `None`: in the next tick.
    until: Option<Instant>,
    /// Header of its first file, as of the last drain.
    file: Option<HeaderPoll>,
    /// Headers of its other files: rings that were replaced and are still written to.
    more: Vec<HeaderPoll>,
}

/// Time for which an agent that is not an instance and has no file is skipped. Attaching a file ends it.
const WITHOUT_FILE: Duration = Duration::from_secs(3600);

impl AgentPoll {
    /// Sets the poll after a drain of its agent; `is_complete`: the drain left no event. The agent is skipped until its
    /// liveness is due to be checked, values of its windows are too old, or its time as an instance is over.
    pub(crate) fn reset(&mut self, agent: &Agent, now: &Now, is_complete: bool, shared: &Shared) {
        let check = shared.check_period;
        let pause = match agent.entry.lifecycle {
            Lifecycle::Dormant => Some(WITHOUT_FILE),
            Lifecycle::AwaitingLabels { .. } => None,
            Lifecycle::Active => Some(check),
            Lifecycle::Exited { since } => {
                Some(check.min(shared.config.retain.saturating_sub(now.since(since))))
            }
        };
        // `None` is less than any time.
        self.until = pause.map(|pause| now.instant + pause);
        if let Some(change) = agent.windows.next_change() {
            self.until = self.until.min(Some(change));
        }
        self.file = None;
        // Keeps its capacity, since a tick should not allocate.
        self.more.clear();
        // Of several rings, some may not have been drained.
        if agent.sources.len() > 1 && !is_complete {
            self.until = None;
        }
        for source in &agent.sources {
            // The next drain detaches the store of an agent that is no longer an instance.
            let is_over = agent.entry.lifecycle.is_dormant() && source.as_store().is_some();
            let (until, header) = source.poll(check).filter(|_| !is_over).unzip();
            self.until = self.until.min(until);
            match self.file {
                None => self.file = header,
                Some(_) => self.more.extend(header),
            }
        }
    }

    /// True if a drain of the agent would change nothing.
    #[inline]
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
            && self.file.as_ref().is_none_or(HeaderPoll::is_unchanged)
            && self.more.iter().all(HeaderPoll::is_unchanged)
    }
}
