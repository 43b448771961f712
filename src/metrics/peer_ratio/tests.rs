// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::entry::{Entry, Name};
use crate::procfs::agent_state::AgentState;
use crate::procfs::facts::{Facts, labels};
use crate::stats::bucket_bounds::BucketBounds;
use crate::stats::histogram::Bounds;
use std::ops::RangeInclusive;
use std::time::Instant;

/// Ratios of agents that are equally fast.
const EQUAL: RangeInclusive<f64> = 0.6..=1.5;
/// Ratios of agents that are ten times as slow.
const SLOW: RangeInclusive<f64> = 3.0..=30.0;
const MIB: u64 = 1 << 20;

/// Creates an agent with these process facts in this directory, and no transfers.
fn agent(facts: Option<Facts>, directory: &str) -> Agent {
    let name = Name {
        raw: "a".into(),
        instance: "a".into(),
        directory: directory.into(),
        part: String::new(),
        owner: 0,
    };
    let mut agent = Agent::new(name, Entry::default(), Instant::now());
    agent.set_facts(facts);
    agent
}

fn facts_of(engine: &str) -> Facts {
    let mut facts = Facts::default();
    facts.set("engine", Some(engine));
    facts.set("user", Some("root"));
    facts
}

/// Adds transfers of these bytes and microseconds.
fn with(mut agent: Agent, transfers: impl IntoIterator<Item = (u64, u64)>) -> Agent {
    for (bytes, micros) in transfers {
        agent.windows.xfer_time.record(micros);
        let bucket = Bounds::SIZE.find(bytes);
        agent.windows.sized_times.record(bucket, micros as f64);
    }
    agent
}

/// Creates a rank of vLLM with transfers of these bytes and microseconds.
fn rank(transfers: impl IntoIterator<Item = (u64, u64)>) -> Agent {
    with(agent(Some(facts_of("vllm")), "/run/nixl"), transfers)
}

/// Creates a rank of vLLM with nine transfers of 1 MiB that take so many microseconds.
fn steady(micros: u64) -> Agent {
    rank([(MIB, micros); 9])
}

/// Microseconds of a transfer between two hosts.
fn time(bytes: u64) -> u64 {
    40 + bytes / 10_000
}

/// Returns the ratio of each agent that has one, by its index.
fn ratios(agents: &[Agent]) -> Vec<(u32, f64)> {
    of_agents((0..).zip(agents)).collect()
}

/// Returns the ratio of each agent that has one, rounded.
fn rounded(agents: &[Agent]) -> Vec<(u32, f64)> {
    let found = ratios(agents).into_iter();
    found.map(|(id, ratio)| (id, ratio.round())).collect()
}

/// Asserts that all agents have a ratio: the first `slow` a high one, the others that of equal agents.
#[track_caller]
fn assert_only_the_first_are_slow(agents: &[Agent], slow: usize) {
    let ratios = ratios(agents);
    assert_eq!(ratios.len(), agents.len(), "{ratios:?}");
    for (index, (_, ratio)) in ratios.iter().enumerate() {
        let expected = if index < slow { SLOW } else { EQUAL };
        assert!(expected.contains(ratio), "{slow} slow: {ratios:?}");
    }
}

#[test]
fn every_slow_rank_up_to_half_of_all_is_found() {
    for count in 2..=16 {
        for slow in 0..=count / 2 {
            let time = |index| 900 + 40 * (index as u64 % 5);
            let agents = (0..count).map(|index| match index < slow {
                true => steady(10 * time(index)),
                false => steady(time(index)),
            });
            assert_only_the_first_are_slow(&Vec::from_iter(agents), slow);
        }
    }
}

#[test]
fn slow_ranks_are_found_whatever_they_mix() {
    let mut random = fastrand::Rng::with_seed(7);
    for count in 2..=16 {
        for slow in 0..=count / 2 {
            let agents = (0..count).map(|index| {
                // From 1.5 KiB to 768 MiB. Half of a rank's transfers have about the same size.
                let favourite = random.u32(0..19);
                let transfers = (0..random.u32(200..400)).map(|_| {
                    let shift = [favourite, random.u32(0..19)][random.usize(0..2)];
                    let bytes = (15 * random.u64(70..130)) << shift;
                    let micros = time(bytes) * random.u64(80..120) / 100;
                    (bytes, if index < slow { 10 * micros } else { micros })
                });
                rank(Vec::from_iter(transfers))
            });
            assert_only_the_first_are_slow(&Vec::from_iter(agents), slow);
        }
    }
}

#[test]
fn ranks_that_alternate_between_two_sizes_are_equal() {
    let sizes = [690 * MIB, 1536].map(|bytes| (bytes, time(bytes)));
    for transfers in 3..40_usize {
        let alternating = |first| (first..first + transfers).map(|number| sizes[number % 2]);
        let agents = [0, 1, 0, 1].map(|first| rank(alternating(first)));
        assert_only_the_first_are_slow(&agents, 0);
        let slow = sizes.map(|(bytes, micros)| (bytes, 10 * micros));
        let agents = [rank(slow), rank(alternating(0)), rank(alternating(1))];
        assert_only_the_first_are_slow(&agents, 1);
    }
}

#[test]
fn one_rank_on_tcp_does_not_change_the_others() {
    for count in 2..=8 {
        let agents = (0..count).map(|index| steady(if index == 0 { 1_100_000 } else { 600 }));
        let ratios = ratios(&Vec::from_iter(agents));
        assert_eq!(ratios.len(), count);
        assert!(ratios[0].1 > 1000.0, "{ratios:?}");
        assert!(
            ratios[1..].iter().all(|(_, ratio)| *ratio == 1.0),
            "{ratios:?}"
        );
    }
}

#[test]
fn sizes_weigh_by_the_transfers_of_the_agent() {
    let usual = || rank([(MIB, 100), (4096, 16)]);
    // 100 x in one of four transfers: 100^(1/4).
    let agents = [
        rank([(MIB, 10_000), (4096, 16), (4096, 16), (4096, 16)]),
        usual(),
        usual(),
    ];
    let found = ratios(&agents);
    assert!((3.0..3.3).contains(&found[0].1), "{found:?}");
    // Transfers of a size that no peer has do not count.
    let agents = [
        rank([(64 * MIB, 1_000_000), (MIB, 200)]),
        rank([(MIB, 100)]),
    ];
    let found = ratios(&agents);
    assert!((1.9..2.1).contains(&found[0].1), "{found:?}");
}

#[test]
fn agent_without_peers_or_transfers_has_no_ratio() {
    let other = || with(agent(Some(facts_of("trtllm")), "/run/nixl"), [(MIB, 5); 9]);
    assert_eq!(ratios(&[steady(900)]), []);
    assert_eq!(ratios(&[steady(900), rank([])]), []);
    assert_eq!(ratios(&[steady(900), rank([]), other()]), []);
    assert_eq!(
        ratios(&[steady(900), rank([(4096, 900)])]),
        [],
        "other sizes"
    );
}

#[test]
fn exited_agents_are_not_compared() {
    let exited = || {
        let mut exited = steady(9);
        exited.entry.agent_state = AgentState::Exited;
        exited
    };
    assert_eq!(ratios(&[steady(900), exited(), exited()]), []);
    let agents = [exited(), steady(900), exited(), steady(9000), rank([])];
    let found = ratios(&agents);
    assert!(
        matches!(found[..], [(1, 1.0), (3, ratio)] if ratio > 9.0),
        "{found:?}"
    );
}

/// Creates an agent with a store that has nine transfers in this bucket of NIXL's default bounds.
fn store(bucket: usize) -> Agent {
    let mut store = agent(Some(facts_of("vllm")), "/run/nixl");
    store.name.part = "store".into();
    store.entry.stats.set_bounds(&Bounds::default());
    let mut counts = [0; 19];
    counts[bucket] = 9;
    store.windows.xfer_time.record_buckets(&counts);
    store
}

#[test]
fn stores_are_compared_by_their_medians() {
    let bounds = BucketBounds::of(&Bounds::default());
    let upper = [6, 9].map(|bucket| bounds.lower_and_upper(bucket).1);
    assert_eq!(upper, [Some(1000.0), Some(10_000.0)]);
    let agents = [store(9), store(6), store(6), store(9)];
    let expected = [(0, 10.0), (1, 1.0), (2, 1.0), (3, 10.0)];
    assert_eq!(rounded(&agents), expected);
    // Rings whose transfers have sizes are compared by size.
    let found = rounded(&[store(9), store(6), steady(9), steady(9)]);
    assert_eq!(found, [(0, 10.0), (1, 1.0), (2, 1.0), (3, 1.0)]);
    assert_eq!(ratios(&[store(6), steady(9)]), []);
}

#[test]
fn rings_without_sizes_are_compared_by_their_medians() {
    let unsized_rank = |micros| {
        let mut rank = rank([]);
        (0..9).for_each(|_| rank.windows.xfer_time.record(micros));
        rank
    };
    let agents = [20, 0, 0].map(unsized_rank);
    let expected = [(0, 20.0), (1, 1.0), (2, 1.0)];
    assert_eq!(rounded(&agents), expected, "0 counts as 1");
}

#[test]
fn rank_is_compared_with_its_own_engine_only() {
    let other = |micros| {
        with(
            agent(Some(facts_of("sglang")), "/run/nixl"),
            [(MIB, micros); 9],
        )
    };
    let agents = [
        steady(3600),
        other(9000),
        steady(900),
        other(9000),
        steady(900),
    ];
    let found = ratios(&agents);
    assert!((3.8..4.2).contains(&found[0].1), "{found:?}");
    assert!(
        found[1..].iter().all(|(_, ratio)| *ratio == 1.0),
        "{found:?}"
    );
}

fn server(role: &str, port: u16, micros: u64) -> Agent {
    let mut facts = facts_of("vllm");
    facts.set("role", Some(role));
    facts.set("port", Some(port));
    with(agent(Some(facts), "/run/nixl"), [(MIB, micros); 9])
}

#[test]
fn servers_of_different_roles_are_not_compared() {
    let agents = [
        server("prefill", 8100, 900),
        server("decode", 8200, 9000),
        server("prefill", 8100, 900),
        server("decode", 8200, 9000),
    ];
    assert_only_the_first_are_slow(&agents, 0);
}

#[test]
fn servers_of_one_rank_that_differ_by_port_are_peers() {
    let agents = [server("decode", 8201, 9000), server("decode", 8200, 900)];
    assert_only_the_first_are_slow(&agents, 1);
}

#[test]
fn peer_group_has_one_engine_container_and_user() {
    let group = |facts: Facts, directory| ComparedAgents::of(&agent(Some(facts), directory));
    let vllm = || facts_of("vllm");
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
    for name in ["local_rank", labels::GPU_LIST, "rank", "port", "command"] {
        own.set(name, Some("3"));
    }
    assert_eq!(group(own, "/a"), group(vllm(), "/a"));
}

#[test]
fn unknown_agent_is_compared_within_its_directory() {
    let unknown = |directory| with(agent(None, directory), [(MIB, 900)]);
    let agents = [unknown("/a"), unknown("/b"), unknown("/a")];
    assert_eq!(ratios(&agents), [(0, 1.0), (2, 1.0)]);
    let known = with(agent(Some(Facts::default()), "/a"), [(MIB, 900)]);
    let agents = [unknown("/a"), unknown("/b"), known];
    assert_eq!(ratios(&agents), [(0, 1.0), (2, 1.0)]);
}
