// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::agents::registry::{AgentKey, Registry};
use crate::entry::{Entry, Lifecycle, Name};
use crate::event::{Event, EventType, Events};
use crate::procfs::facts::Facts;
use crate::stats::windows::Windows;
use proptest::prelude::*;
use std::time::Instant;

/// Bucket above all default bounds.
const LAST: usize = 18;

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.set_bounds(&Bounds::default());
    registry
}

/// Returns an agent that is an instance, with this number as name and base.
fn agent(number: u32) -> Agent {
    let name = Name {
        raw: number.to_string().into(),
        instance: number.to_string(),
        directory: "/tmp".into(),
        part: String::new(),
        owner: 0,
    };
    let mut entry = Entry {
        is_counted: true,
        lifecycle: Lifecycle::Active,
        ..Entry::default()
    };
    entry.stats.set_bounds(&Bounds::default());
    entry.stats.bucket_base = Some(number);
    Agent::new(name, entry, Instant::now())
}

fn set_role(agent: &mut Agent, role: &str) {
    let mut facts = Facts::default();
    facts.set("role", Some(role));
    agent.set_facts(Some(facts));
}

/// Counts transfers of these times, and posts of a microsecond each.
fn count(agent: &mut Agent, times: &[u64]) {
    let both = |&time: &u64| [(EventType::XferPostTime, 1), (EventType::XferTime, time)];
    let events = times.iter().flat_map(both);
    let events = Vec::from_iter(events.map(|(kind, value)| Event::new(Some(kind), value)));
    let (events, mut windows) = (Events::of(&events), Windows::new(Instant::now()));
    let stats = &mut agent.entry.stats;
    stats.apply(&events, &[], &Bounds::default(), 1234, &mut windows);
}

/// Returns an agent of a role that has counted transfers of these times.
fn server(number: u32, role: &str, times: &[u64]) -> Agent {
    let mut agent = agent(number);
    set_role(&mut agent, role);
    count(&mut agent, times);
    agent
}

fn at(registry: &mut Registry, key: AgentKey) -> &mut Agent {
    registry.get_mut(key).expect("there")
}

/// Computes the sums. Returns the number of transfers of each role, in the order of [`ROLES`].
fn transfers(registry: &mut Registry) -> [Option<u64>; ROLES.len()] {
    registry.add_times();
    let times = registry.role_times();
    std::array::from_fn(|role| times.up_to(role, Histogram::XferTime, LAST))
}

#[test]
fn buckets_of_the_agents_of_a_role_are_added_up() {
    let mut registry = registry();
    registry.insert(server(1, "decode", &[5, 30, 30_000_000]));
    registry.insert(server(2, "decode", &[30]));
    registry.insert(server(3, "prefill", &[70]));
    let expected = [None, Some(1), Some(4), None];
    assert_eq!(transfers(&mut registry), expected);
    assert_eq!(transfers(&mut registry), expected, "each is added once");
    let of = |of, bucket| registry.role_times().up_to(2, of, bucket);
    let up_to = [0, 1, 2, LAST - 1, LAST].map(|bucket| of(Histogram::XferTime, bucket));
    assert_eq!(up_to, [1, 1, 3, 3, 4].map(Some));
    assert_eq!(of(Histogram::PostTime, 0), Some(4));
    assert_eq!(of(Histogram::Size, 0), None);
}

#[test]
fn role_that_becomes_known_moves_no_earlier_transfers() {
    let mut registry = registry();
    let mut unknown = agent(1);
    count(&mut unknown, &[5; 3]);
    let key = registry.insert(unknown);
    assert_eq!(transfers(&mut registry), [Some(3), None, None, None]);
    set_role(at(&mut registry, key), "both");
    count(at(&mut registry, key), &[5; 2]);
    assert_eq!(transfers(&mut registry), [Some(3), None, None, Some(2)]);
    // An instance keeps its labels until the next process is found.
    at(&mut registry, key).outdate_facts();
    count(at(&mut registry, key), &[5]);
    assert_eq!(transfers(&mut registry), [Some(3), None, None, Some(3)]);
}

#[test]
fn roles_that_are_not_known_are_one_sum() {
    let mut registry = registry();
    for (number, role) in (1..).zip(["root", "decode2", "", "unknown"]) {
        registry.insert(server(number, role, &[5]));
    }
    assert_eq!(transfers(&mut registry), [Some(4), None, None, None]);
}

#[test]
fn expired_agent_stays_in_the_sums() {
    let mut registry = registry();
    let key = registry.insert(server(1, "decode", &[5]));
    assert_eq!(transfers(&mut registry)[2], Some(1));
    count(at(&mut registry, key), &[5, 5]);
    at(&mut registry, key).entry.lifecycle = Lifecycle::Dormant;
    registry.remove(key).expect("there");
    assert_eq!(transfers(&mut registry)[2], Some(3));
    let key = registry.insert(server(2, "decode", &[5]));
    registry.remove(key).expect("there");
    assert_eq!(
        transfers(&mut registry)[2],
        Some(4),
        "without a fetch before"
    );
}

#[test]
fn agent_is_left_out_until_it_is_an_instance() {
    let mut registry = registry();
    let mut waiting = server(1, "decode", &[5]);
    waiting.entry.lifecycle = Lifecycle::AwaitingLabels { deadline: 1 };
    waiting.entry.stats.bucket_base = None;
    let key = registry.insert(waiting);
    assert_eq!(transfers(&mut registry), [None; 4]);
    let agent = at(&mut registry, key);
    (agent.entry.lifecycle, agent.entry.stats.bucket_base) = (Lifecycle::Active, Some(1));
    assert_eq!(transfers(&mut registry)[2], Some(1));
    let mut observed = self::agent(2);
    observed.entry.is_counted = false;
    registry.insert(observed);
    assert_eq!(transfers(&mut registry)[0], None, "its ring is not drained");
}

#[test]
fn agent_of_the_state_file_counts_from_the_start_on() {
    let mut registry = registry();
    let mut restored = server(1, "prefill", &[5; 7]);
    restored.added_times = AddedTimes::of(&restored.entry.stats);
    let key = registry.insert(restored);
    assert_eq!(transfers(&mut registry)[1], Some(0));
    count(at(&mut registry, key), &[5]);
    assert_eq!(transfers(&mut registry)[1], Some(1));
    let mut dormant = server(2, "decode", &[5; 7]);
    dormant.entry.lifecycle = Lifecycle::Dormant;
    dormant.added_times = AddedTimes::of(&dormant.entry.stats);
    registry.insert(dormant);
    assert_eq!(transfers(&mut registry)[2], None, "nothing came since");
}

#[test]
fn other_bounds_begin_at_zero() {
    let mut registry = registry();
    let other = Bounds::from_config(&[7, 8]).expect("good");
    let key = registry.insert(server(1, "decode", &[5; 7]));
    assert_eq!(transfers(&mut registry)[2], Some(7));
    registry.set_bounds(&Bounds::default());
    assert_eq!(transfers(&mut registry)[2], Some(7), "they are the same");
    registry.set_bounds(&other);
    assert_eq!(transfers(&mut registry), [None; 4], "its bounds are others");
    // What was counted before is not added when the former bounds come back.
    registry.set_bounds(&Bounds::default());
    assert_eq!(transfers(&mut registry)[2], Some(0));
    count(at(&mut registry, key), &[5]);
    assert_eq!(transfers(&mut registry)[2], Some(1));
}

#[test]
fn histogram_that_began_again_is_added_from_zero() {
    let mut registry = registry();
    let key = registry.insert(server(1, "decode", &[5; 7]));
    assert_eq!(transfers(&mut registry)[2], Some(7));
    // A store with other bounds, and then one with the configured ones.
    let stats = &mut at(&mut registry, key).entry.stats;
    stats.set_bounds(&Bounds::SIZE);
    stats.bucket_base = Some(2);
    assert_eq!(transfers(&mut registry)[2], Some(7));
    at(&mut registry, key)
        .entry
        .stats
        .set_bounds(&Bounds::default());
    at(&mut registry, key).entry.stats.bucket_base = Some(3);
    count(at(&mut registry, key), &[5; 2]);
    assert_eq!(transfers(&mut registry)[2], Some(9));
}

/// What happens to one of a few agents.
#[derive(Clone, Debug)]
enum Step {
    Count(u64),
    Role(usize),
    Publish(bool),
    /// Its counts become those of this many steps of counting ago, as after a panic.
    Lose(u64),
    Expire,
    Sum,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40_000_000_u64).prop_map(Step::Count),
        1 => (0..ROLES.len()).prop_map(Step::Role),
        1 => any::<bool>().prop_map(Step::Publish),
        1 => (1..4_u64).prop_map(Step::Lose),
        1 => Just(Step::Expire),
        3 => Just(Step::Sum),
    ]
}

proptest! {
    #[test]
    fn no_sum_ever_decreases(steps in prop::collection::vec((0..3_usize, step()), 1..60)) {
        let mut registry = registry();
        let (mut next, mut keys) = (0, Vec::new());
        let mut add = |registry: &mut Registry| {
            next += 1;
            registry.insert(agent(next))
        };
        for _ in 0..3 {
            keys.push(add(&mut registry));
        }
        let (mut counted, mut lost) = (0, 0);
        let mut before = [[0; LAST + 1]; ROLES.len()];
        for (which, step) in steps {
            let agent = at(&mut registry, keys[which]);
            match step {
                Step::Count(time) => {
                    count(agent, &[time]);
                    counted += 1;
                }
                Step::Role(role) => set_role(agent, ROLES[role]),
                Step::Publish(is_instance) => {
                    agent.entry.lifecycle = match is_instance {
                        true => Lifecycle::Active,
                        false => Lifecycle::Dormant,
                    };
                }
                Step::Lose(times) => {
                    let was = agent.entry.stats.histogram_count(Histogram::XferTime);
                    let left = usize::try_from(was.saturating_sub(times)).expect("few");
                    let mut now = self::agent(0);
                    count(&mut now, &vec![5; left]);
                    now.entry.stats.bucket_base = agent.entry.stats.bucket_base;
                    agent.entry.stats = now.entry.stats;
                    lost += times;
                }
                Step::Expire => {
                    registry.remove(keys[which]).expect("there");
                    keys[which] = add(&mut registry);
                }
                Step::Sum => registry.add_times(),
            }
            let times = registry.role_times();
            for (role, before) in before.iter_mut().enumerate() {
                for (bucket, before) in before.iter_mut().enumerate() {
                    let sum = times.up_to(role, Histogram::XferTime, bucket).unwrap_or(0);
                    prop_assert!(sum >= *before, "{} {bucket}: {before} {sum}", ROLES[role]);
                    *before = sum;
                }
            }
        }
        let all: u64 = transfers(&mut registry).into_iter().flatten().sum();
        // Counts that were lost may have been added before, and those in their place go to another bucket.
        prop_assert!(lost > 0 || all == counted, "{all} of {counted}");
    }
}
