// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfers by time, summed over the agents of each role since the daemon began.
//!
//! The sums are computed when a client asks for them, and when an agent expires: each agent remembers what of it they
//! include, and what it has counted since is added to the role that it has then. So a role that becomes known later
//! moves no earlier transfers, and no sum decreases.

use super::Agent;
use crate::procfs::facts::server::ROLES;
use crate::stats::Histogram;
use crate::stats::agent_stats::AgentStats;
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::{Bounds, BucketCounts};

/// Histograms of transfer times and of post times.
type Times = [BucketCounts; 2];

/// What of an agent's histograms of times the sums include. `None`: nothing.
#[derive(Debug, Default)]
pub(crate) struct AddedTimes(Option<Box<(u32, Times)>>);

impl AddedTimes {
    /// Returns all that the agent has counted until now, so that only later transfers are added.
    pub(crate) fn of(stats: &AgentStats) -> Self {
        let times = stats.times();
        let is_empty = times.iter().all(|counts| counts.total() == 0);
        let base = stats.bucket_base.filter(|_| !is_empty);
        Self(base.map(|base| Box::new((base, times.map(Clone::clone)))))
    }

    /// Includes what was counted since. Returns that, for each histogram and bucket.
    fn update(&mut self, base: u32, stats: &AgentStats) -> Times {
        // With another base, the histograms have begun at zero.
        let of_base = self.0.take().filter(|added| added.0 == base);
        let mut added = of_base.unwrap_or_else(|| Box::new((base, Times::default())));
        let mut more = Times::default();
        for ((added, more), counts) in added.1.iter_mut().zip(&mut more).zip(stats.times()) {
            for ((added, more), &count) in added.0.iter_mut().zip(&mut more.0).zip(&counts.0) {
                // After a panic, an agent goes on with the counts of its record, which may be smaller.
                *more = count.saturating_sub(*added);
                *added = count.max(*added);
            }
        }
        let has_any = added.1.iter().any(|counts| counts.total() > 0);
        self.0 = has_any.then_some(added);
        more
    }
}

/// Transfers by time, summed over the agents of each of [`ROLES`].
#[derive(Debug, Default)]
pub struct RoleTimes {
    bounds: BucketBounds,
    /// `None`: there was no agent of the role yet.
    sums: [Option<Box<Times>>; ROLES.len()],
}

impl RoleTimes {
    /// Sets the bounds. Begins at zero if they change, and then returns true.
    pub(super) fn set_bounds(&mut self, bounds: &Bounds) -> bool {
        let bounds = BucketBounds::of(bounds);
        let is_other = self.bounds != bounds;
        if is_other {
            *self = Self {
                bounds,
                ..Self::default()
            };
        }
        is_other
    }

    /// Adds what an agent has counted since the last call, if it was ever an instance. An agent whose store has other
    /// bounds is left out.
    pub(super) fn add(&mut self, agent: &mut Agent) {
        let (stats, is_published) = (&agent.entry.stats, agent.is_published());
        let base = agent.counted(stats.bucket_base).flatten();
        let Some(base) = base.filter(|_| *stats.bucket_bounds() == self.bounds) else {
            return;
        };
        let more = agent.added_times.update(base, &agent.entry.stats);
        let has_more = more.iter().any(|counts| counts.total() > 0);
        if !is_published && !has_more {
            return;
        }
        let sums = self.sums[role_of(agent)].get_or_insert_default();
        for (sum, more) in sums.iter_mut().zip(&more) {
            sum.add(more);
        }
    }

    /// Returns the number of transfers up to the upper bound of a bucket. `None`: there was no agent of the role yet,
    /// or the histogram is not one of times.
    #[must_use]
    pub fn up_to(&self, role: usize, of: Histogram, bucket: usize) -> Option<u64> {
        let counts = self.sums.get(role)?.as_ref()?.get(of as usize)?;
        let below = counts.0.get(..=bucket)?;
        Some(below.iter().copied().fold(0, u64::saturating_add))
    }
}

/// Returns the place of an agent's role in [`ROLES`].
fn role_of(agent: &Agent) -> usize {
    let role = agent.facts.any().and_then(|facts| facts.get("role"));
    let place = role.and_then(|role| ROLES.iter().position(|&known| known == role));
    place.unwrap_or(0)
}

#[cfg(test)]
mod tests;
