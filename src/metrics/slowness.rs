// SPDX-License-Identifier: GPL-2.0-or-later

//! Slowness of agents compared with their peers. Peers are the agents of the same engine and role in the same pod,
//! container or job.
//!
//! Peers can have different ports: a server often has one rank, and its peers are the servers of its role at other
//! ports.

use crate::agents::Agent;
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

/// Sum and number of the median transfer times of a peer group in the last minute, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Medians {
    count: u32,
    sum: f64,
}

impl Medians {
    fn add(&mut self, median: f64) {
        self.count += 1;
        self.sum += median;
    }

    /// Divides one median by the mean of the others. `None`: there is no other, or their mean is below the resolution
    /// of NIXL's clock (1 microsecond).
    fn slowness(self, median: f64) -> Option<f64> {
        let others = self.count.checked_sub(1).filter(|&others| others > 0)?;
        let mean = (self.sum - median) / f64::from(others);
        (mean >= 1.0).then_some(median / mean)
    }
}

/// Returns instance id and slowness of each agent: its median transfer time, divided by the mean of those of its peers.
/// Agents without transfers in the last minute are left out.
#[must_use]
pub fn of_agents<'a>(agents: impl Iterator<Item = (u32, &'a Agent)>) -> Vec<(u32, f64)> {
    let agents = agents
        .filter_map(|(id, agent)| Some((id, ComparedAgents::of(agent), agent.xfer_time(50)?)));
    let agents = Vec::from_iter(agents);
    let mut groups: HashMap<&ComparedAgents, Medians> = HashMap::new();
    for (_, group, median) in &agents {
        groups.entry(group).or_default().add(*median);
    }
    let of = |(id, group, median): &(u32, _, f64)| Some((*id, groups[group].slowness(*median)?));
    agents.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{Entry, Name};
    use crate::procfs::facts::Facts;
    use std::time::Instant;

    /// Creates an agent with these process facts in this directory. Each of its transfers took `time` microseconds.
    fn agent(facts: Option<Facts>, directory: &str, time: Option<u64>) -> Agent {
        let name = Name {
            raw: "a".into(),
            instance: "a".into(),
            directory: directory.into(),
            part: String::new(),
            owner: 0,
        };
        let mut agent = Agent::new(name, Entry::default(), Instant::now());
        agent.set_facts(facts);
        if let Some(time) = time {
            for _ in 0..9 {
                agent.windows.xfer_time.record(time);
            }
        }
        agent
    }

    fn of(engine: &str) -> Facts {
        let mut facts = Facts::default();
        facts.set("engine", Some(engine));
        facts.set("user", Some("root"));
        facts
    }

    /// Returns slownesses rounded to halves, because medians have an error of a few percent.
    fn rounded_slowness(agents: &[Agent]) -> Vec<(u32, f64)> {
        let found = of_agents((0..).zip(agents));
        let round = |value: f64| (value * 2.0).round() / 2.0;
        found
            .into_iter()
            .map(|(id, value)| (id, round(value)))
            .collect()
    }

    #[test]
    fn rank_is_compared_with_its_own_engine_only() {
        let rank = |engine, time| agent(Some(of(engine)), "/run/nixl", Some(time));
        let mut agents = vec![
            rank("vllm", 900),
            rank("sglang", 9000),
            rank("vllm", 900),
            rank("sglang", 9000),
            rank("vllm", 900),
        ];
        assert_eq!(
            rounded_slowness(&agents),
            [0, 1, 2, 3, 4].map(|id| (id, 1.0))
        );
        agents[2] = rank("vllm", 3600);
        let slow = rounded_slowness(&agents);
        assert_eq!(slow[2], (2, 4.0), "{slow:?}");
        assert_eq!((slow[1], slow[3]), ((1, 1.0), (3, 1.0)));
    }

    fn server(role: &str, port: u16, time: u64) -> Agent {
        let mut facts = of("vllm");
        facts.set("role", Some(role));
        facts.set("port", Some(port));
        agent(Some(facts), "/run/nixl", Some(time))
    }

    #[test]
    fn servers_of_different_roles_are_not_compared() {
        let agents = [
            server("prefill", 8100, 900),
            server("decode", 8200, 9000),
            server("prefill", 8100, 900),
            server("decode", 8200, 9000),
        ];
        assert_eq!(rounded_slowness(&agents), [0, 1, 2, 3].map(|id| (id, 1.0)));
    }

    #[test]
    fn servers_of_one_rank_that_differ_by_port_are_peers() {
        let agents = [server("decode", 8200, 900), server("decode", 8201, 3600)];
        assert_eq!(rounded_slowness(&agents), [(0, 0.5), (1, 4.0)]);
    }

    #[test]
    fn agent_without_peers_or_transfers_has_no_slowness() {
        let rank = |time| agent(Some(of("vllm")), "/run/nixl", time);
        assert_eq!(rounded_slowness(&[rank(Some(900))]), []);
        assert_eq!(rounded_slowness(&[rank(Some(900)), rank(None)]), []);
        let other = agent(Some(of("trtllm")), "/run/nixl", Some(5));
        assert_eq!(rounded_slowness(&[rank(Some(900)), rank(None), other]), []);
    }

    #[test]
    fn zero_times_are_not_a_reference() {
        let rank = |time| agent(Some(of("vllm")), "/run/nixl", Some(time));
        assert_eq!(rounded_slowness(&[rank(0), rank(0)]), []);
        // The agent with time 0 is not a reference, but it is compared with the other one.
        assert_eq!(rounded_slowness(&[rank(0), rank(900)]), [(0, 0.0)]);
    }

    #[test]
    fn peer_group_has_one_engine_container_and_user() {
        let group =
            |facts: Facts, directory| ComparedAgents::of(&agent(Some(facts), directory, None));
        let vllm = || of("vllm");
        // Ranks of a job may each have a directory of their own.
        assert_eq!(group(vllm(), "/a"), group(vllm(), "/b"));
        for (name, value) in [
            ("engine", "kvbm"),
            ("role", "decode"),
            ("pod_uid", "2c48913c"),
            ("container_id", &"9".repeat(64)),
            ("slurm_job_id", "4711"),
            ("user", "other"),
        ] {
            let mut facts = vllm();
            facts.set(name, Some(value));
            assert_ne!(group(facts.clone(), "/a"), group(vllm(), "/a"), "{facts:?}");
        }
        // Labels of a single rank do not separate peers.
        let mut own = vllm();
        for name in ["local_rank", "gpu", "rank", "port", "command"] {
            own.set(name, Some("3"));
        }
        assert_eq!(group(own, "/a"), group(vllm(), "/a"));
    }

    #[test]
    fn unknown_agent_is_compared_within_its_directory() {
        let unknown = |directory| agent(None, directory, Some(900));
        let agents = [unknown("/a"), unknown("/b"), unknown("/a")];
        assert_eq!(rounded_slowness(&agents), [(0, 1.0), (2, 1.0)]);
        let known = agent(Some(Facts::default()), "/a", Some(900));
        let agents = [unknown("/a"), unknown("/b"), known];
        assert_eq!(rounded_slowness(&agents), [(0, 1.0), (2, 1.0)]);
    }
}
