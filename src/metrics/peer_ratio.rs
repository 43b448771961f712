// SPDX-License-Identifier: GPL-2.0-or-later

//! Transfer times of agents compared with their peers. Peers are the agents of the same engine and role in the same
//! pod, container or job.
//!
//! In each size class of its transfers, an agent is compared with the median of all agents that have such transfers,
//! itself included. So up to half of the agents can be slow: all of them are found, and the others stay at 1.
//!
//! Peers can have different ports: a server often has one rank, and its peers are the servers of its role at other
//! ports.

use crate::agents::Agent;
use crate::stats::sized_times::{MeanTime, SIZE_CLASSES};
use std::collections::HashMap;
use std::path::PathBuf;

/// Labels that are equal for peers.
const LABELS: [&str; 5] = ["engine", "role", "pod_uid", "container_id", "slurm_job_id"];

/// Key of a peer group: the values that peers have in common, as far as they are known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ComparedAgents {
    labels: [Option<String>; 5],
    user: Option<String>,
    /// Directory, if none of the labels is known. Otherwise it is ignored, because each rank may have a directory of
    /// its own.
    directory: Option<PathBuf>,
}

impl ComparedAgents {
    fn of(agent: &Agent) -> Self {
        let facts = agent.labelled_facts();
        let known = |label| facts.get(label).map(str::to_owned);
        // A role is only known together with an engine.
        let is_known = LABELS.iter().any(|label| facts.get(label).is_some());
        Self {
            labels: LABELS.map(known),
            user: agent.user().or_else(|| known("user")),
            directory: (!is_known).then(|| agent.name.directory.clone()),
        }
    }
}

/// Class of agents whose transfers have no known size: those of stores, and of rings without bytes after each time.
const UNSIZED: usize = SIZE_CLASSES;

/// Mean times of the transfers of an agent in the last minute, by size class.
type Times = [Option<MeanTime>; SIZE_CLASSES + 1];

/// Returns the times of an agent. `None`: it has exited, or completed nothing in the last minute.
fn times(agent: &Agent) -> Option<Times> {
    if agent.has_exited() {
        return None;
    }
    let mut times = [None; SIZE_CLASSES + 1];
    times[..UNSIZED].copy_from_slice(&agent.windows.sized_times.means());
    if times.iter().all(Option::is_none) {
        times[UNSIZED] = Some(MeanTime {
            transfers: 1,
            // The resolution of NIXL's clock.
            micros: agent.xfer_time(50)?.max(1.0),
        });
    }
    Some(times)
}

/// Mean times of a group of compared agents in each size class.
#[derive(Debug, Default)]
struct Group([Vec<f64>; SIZE_CLASSES + 1]);

impl Group {
    fn add(&mut self, times: &Times) {
        for (all, time) in self.0.iter_mut().zip(times) {
            all.extend(time.map(|time| time.micros));
        }
    }

    fn sort(&mut self) {
        for all in &mut self.0 {
            all.sort_unstable_by(f64::total_cmp);
        }
    }

    /// Returns the median of a size class. Of an even number of agents, it is the lower of the middle two: a slow half
    /// does not raise it. `None`: no second agent has such transfers.
    fn median(&self, class: usize) -> Option<f64> {
        let all = &self.0[class];
        (all.len() > 1).then(|| all[(all.len() - 1) / 2])
    }

    /// Returns the ratio of an agent's times to the medians: the geometric mean over its transfers. `None`: there is no
    /// median for any of them.
    fn ratio(&self, times: &Times) -> Option<f64> {
        let (mut transfers, mut logs) = (0.0, 0.0);
        for (class, time) in times.iter().enumerate() {
            if let Some((time, median)) = time.zip(self.median(class)) {
                transfers += time.transfers as f64;
                logs += time.transfers as f64 * (time.micros / median).ln();
            }
        }
        (transfers > 0.0).then(|| (logs / transfers).exp())
    }
}

/// A comparison of agents with their peers. All agents are added, and then each may have a ratio.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Positions in `groups`.
    positions: HashMap<ComparedAgents, usize>,
    groups: Vec<Group>,
    /// Instance id, position of the group, and times.
    agents: Vec<(u32, usize, Times)>,
}

impl Comparison {
    /// Adds an agent with its instance id.
    pub fn add(&mut self, id: u32, agent: &Agent) {
        let Some(times) = times(agent) else {
            return;
        };
        let next = self.groups.len();
        let position = *self
            .positions
            .entry(ComparedAgents::of(agent))
            .or_insert(next);
        if position == next {
            self.groups.push(Group::default());
        }
        self.groups[position].add(&times);
        self.agents.push((id, position, times));
    }

    /// Returns instance id and peer ratio of each agent that has one.
    pub fn ratios(self) -> impl Iterator<Item = (u32, f64)> {
        let mut groups = self.groups;
        groups.iter_mut().for_each(Group::sort);
        let ratio = move |(id, position, times): (u32, usize, Times)| {
            Some((id, groups[position].ratio(&times)?))
        };
        self.agents.into_iter().filter_map(ratio)
    }
}

/// Returns instance id and peer ratio of each agent that has one.
pub fn of_agents<'a>(
    agents: impl Iterator<Item = (u32, &'a Agent)>,
) -> impl Iterator<Item = (u32, f64)> {
    let mut comparison = Comparison::default();
    agents.for_each(|(id, agent)| comparison.add(id, agent));
    comparison.ratios()
}

#[cfg(test)]
mod tests;
