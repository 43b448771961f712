//! When an agent is an instance, and what becomes of its totals: over time that the tests set, without pmcd.

// By path, as in support/mod.rs, whose other parts need pmcd.
#[path = "support/world.rs"]
mod world;
#[path = "support/writer.rs"]
mod writer;

use pmdanixl::agents::agent::Agent;
use pmdanixl::event::EventType;
use pmdanixl::producer::life::Life;
use pmdanixl::totals::Buckets;
use std::fs::{self, File};
use std::time::Duration;
use world::{LONG, SECOND, World, push, push_to};
use writer::{Layout, RingWriter};

#[test]
fn an_exited_agent_stays_for_retain_and_goes_on_with_its_totals_when_it_returns() {
    let mut world = World::new(|config| config.retain = 10 * SECOND);
    let mut ring = world.ring("a");
    push(&mut ring, 1);
    world.pass(60);
    assert_eq!(world.sent(), [("a", 1)].into(), "a silent agent is alive");
    push(&mut ring, 2);
    drop(ring);
    world.pass(9);
    assert_eq!(world.sent(), [("a", 3)].into());
    world.pass(5);
    assert_eq!(world.sent(), [].into());
    world.pass(1000);
    let mut ring = world.ring("a");
    push(&mut ring, 4);
    world.pass(3);
    assert_eq!(world.sent(), [("a", 7)].into());
}

#[test]
fn what_waited_in_a_ring_that_is_found_late_is_in_no_percentile() {
    for (observe, after, found) in [(false, 0, true), (false, 120, false), (true, 120, false)] {
        let mut world = World::new(|config| config.observe = observe);
        let mut ring = RingWriter::create(&world.path("a"), Layout::V4, 1 << 14).expect("a ring");
        // More than a batch.
        for _ in 0..2000 {
            assert_eq!(ring.push_transfer(false, 4096, 120, 20), 4);
        }
        world.now += after * SECOND;
        world.pass(1);
        let told = |world: &World| {
            let agent = world.agents.iter().next().expect("an agent");
            let counts = (0..19).filter_map(|at| agent.bucket(Buckets::XferTime, at));
            (
                counts.sum::<u64>(),
                agent.xfer_time(50).is_some(),
                agent.windows.bandwidth.count(),
            )
        };
        let all = u64::from(found) * 2000;
        assert_eq!(told(&world), (2000, found, all), "{observe}, {after} s");
        assert_eq!(ring.push_transfer(false, 4096, 240, 20), 4);
        world.pass(1);
        assert_eq!(told(&world), (2001, true, all + 1));
    }
}

#[test]
fn an_agent_that_is_only_remembered_keeps_no_window() {
    // With none, it may go before it was ever shown.
    for retain in [Duration::ZERO, SECOND] {
        let mut world = World::new(|config| config.retain = retain);
        let mut ring = world.ring("a");
        assert_eq!(ring.push_transfer(false, 4096, 120, 20), 4);
        world.pass(1);
        let longest = |world: &World| {
            let agent = world.agents.iter().next().expect("an agent");
            agent.windows.xfer_time.max()
        };
        assert_eq!(longest(&world), Some(120));
        drop(ring);
        world.pass(5);
        assert_eq!(world.sent(), [].into());
        assert_eq!(longest(&world), None, "{retain:?}");
    }
}

#[test]
fn whoever_opens_the_file_of_an_exited_agent_does_not_bring_it_back() {
    let mut world = World::new(|config| config.retain = 2 * SECOND);
    let ring = world.ring("a");
    world.pass(3);
    assert_eq!(world.sent(), [("a", 0)].into());
    drop(ring);
    world.pass(6);
    assert_eq!(world.sent(), [].into());
    let reader = File::open(world.path("a")).expect("there");
    world.pass(60);
    assert_eq!(world.sent(), [].into());
    drop(reader);
    push(&mut world.ring("a"), 5);
    world.pass(3);
    assert_eq!(world.sent(), [("a", 5)].into());
}

#[test]
fn an_agent_that_restarts_with_the_same_bytes_in_the_same_place_loses_none() {
    let mut world = World::new(|_| ());
    for turn in 1..=5 {
        // As in a loop of crashes: its first event is the registration of its memory.
        push(&mut world.ring("a"), 100);
        world.pass(1);
        assert_eq!(world.account(), [100 * turn, turn - 1, 0]);
    }
}

#[test]
fn a_restart_after_a_batch_that_went_round_is_a_restart() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    for count in [14, 5] {
        (0..count).for_each(|_| push(&mut ring, 1));
        world.pass(1);
    }
    let mut ring = world.ring("a");
    (0..4).for_each(|_| push(&mut ring, 1));
    world.pass(1);
    assert_eq!(world.account(), [23, 1, 0]);
}

#[test]
fn who_has_a_silent_agents_file_keeps_it_for_twice_retain_where_nobody_knows_who_it_is() {
    let mut world = World::new(|config| config.retain = 100 * SECOND);
    let mut ring = world.ring("a");
    push(&mut ring, 7);
    let state = |world: &World| world.agents.iter().next().expect("an agent").state;
    world.pass(90);
    assert_eq!((world.instances.len(), state(&world)), (1, Life::Idle));
    world.pass(20);
    assert_eq!((world.instances.len(), state(&world)), (1, Life::Unknown));
    world.pass(80);
    assert_eq!(world.instances.len(), 1);
    world.pass(20);
    assert!(
        world.instances.is_empty(),
        "a backup would keep it for good"
    );
    push(&mut ring, 2);
    world.pass(1);
    assert_eq!((world.instances.len(), state(&world)), (1, Life::Live));
    let total = |agent: &Agent| agent.total(EventType::TxBytes);
    assert_eq!(world.agents.iter().next().map(total), Some(9));
}

#[test]
fn an_agent_that_returns_is_not_taken_for_the_one_before() {
    let mut world = World::new(|config| config.retain = SECOND);
    drop(push_to(world.ring("a"), 1));
    world.pass(5);
    assert_eq!(world.sent(), [].into());
    fs::remove_file(world.path("a")).expect("there");
    world.pass(5);
    let again = push_to(world.ring("a"), 2);
    world.pass(1);
    let agent = world.agents.iter().next().expect("an agent");
    assert_eq!((agent.entry.starts, &agent.facts), (2, &None));
    assert_eq!(agent.state, Life::Live, "and not idle since it was away");
    drop(again);
}

#[test]
fn an_exited_agent_does_not_stay_longer_when_its_ring_is_looked_at_anew() {
    let mut world = World::new(|config| config.retain = 10 * SECOND);
    drop(push_to(world.ring("a"), 1));
    world.pass(6);
    assert_eq!(world.sent(), [("a", 1)].into());
    // The ring is let go and attached again, as at a restart of the daemon.
    let config = std::mem::take(&mut world.config.telemetry_dir);
    world.configure();
    world.config.telemetry_dir = config;
    world.configure();
    world.pass(6);
    assert_eq!(world.sent(), [].into());
}

#[test]
fn a_file_that_an_exited_agent_left_empty_is_no_instance_and_one_with_events_is() {
    let mut world = World::new(|_| ());
    drop(world.ring("empty"));
    push(&mut world.ring("full"), 3);
    world.pass(3);
    assert_eq!(world.sent(), [("full", 3)].into());
}

#[test]
fn an_exited_ring_is_drained_before_it_makes_room_and_is_found_again_when_it_restarts() {
    let mut world = World::new(|config| (config.retain, config.max_agents) = (SECOND, 1));
    let mut old = world.ring("old");
    push(&mut old, 1);
    world.pass(2);
    drop(old);
    world.pass(6);
    assert_eq!(world.sent(), [].into());
    // An event that came after the last drain: a restart that has not been seen yet.
    let mut old = world.ring("old");
    push(&mut old, 10);
    let mut new = world.ring("new");
    push(&mut new, 5);
    world.pass(3);
    assert_eq!(world.sent(), [("old", 11)].into(), "one that speaks stays");
    drop(old);
    world.pass(6);
    assert_eq!(world.sent(), [("new", 5)].into());
    drop(new);
    world.pass(6);
    push(&mut world.ring("old"), 100);
    world.pass(2);
    assert_eq!(world.sent(), [("old", 111)].into());
}

#[test]
fn who_gives_his_place_up_keeps_no_window() {
    let mut world = World::new(|config| (config.retain, config.max_agents) = (LONG, 1));
    let mut old = world.ring("old");
    assert_eq!(old.push_transfer(false, 4096, 120, 20), 4);
    world.pass(1);
    let longest = |world: &World| {
        let mut agents = world.agents.iter();
        let old = agents.find(|agent| agent.name.raw == "old");
        old.expect("remembered").windows.xfer_time.max()
    };
    assert!(longest(&world).is_some());
    drop(old);
    world.pass(6);
    // It has exited, and would stay for an hour.
    push(&mut world.ring("new"), 5);
    world.pass(3);
    assert_eq!(world.sent(), [("new", 5)].into());
    assert_eq!(longest(&world), None);
}

#[test]
fn a_ring_that_is_only_held_open_makes_room_for_one_that_has_something_to_say() {
    let mut world = World::new(|config| (config.retain, config.max_agents) = (SECOND, 1));
    drop(push_to(world.ring("old"), 1));
    world.pass(4);
    assert_eq!(world.sent(), [].into());
    let reader = File::open(world.path("old")).expect("there");
    // Nobody knows whether it will.
    let mut new = world.ring("new");
    world.pass(6);
    assert_eq!((world.sent(), world.agents.effort().rings), ([].into(), 1));
    push(&mut new, 5);
    world.pass(6);
    assert_eq!((world.sent(), new.pending()), ([("new", 5)].into(), 0));
    // Who only looks brings nobody back.
    world.pass(6);
    assert_eq!(world.sent(), [("new", 5)].into());
    drop(reader);
}

#[test]
fn a_ring_that_holds_events_makes_no_room_though_its_writer_is_gone() {
    let mut world = World::new(|config| (config.retain, config.max_agents) = (SECOND, 1));
    drop(push_to(world.ring("old"), 1));
    world.pass(4);
    drop(push_to(world.ring("old"), 10));
    push(&mut world.ring("new"), 5);
    world.pass(1);
    assert_eq!(world.sent(), [("old", 11)].into());
}

#[test]
fn a_header_that_comes_after_its_file_is_seen_at_the_next_tick() {
    let tick = Duration::from_millis(50);
    let mut world = World::new(|_| ());
    fs::write(world.path("slow"), [0; 40 + 16 * 16]).expect("written");
    // Long enough for the directory's own time to be told from later ones.
    std::thread::sleep(tick);
    world.tick(1, tick, SECOND);
    push(&mut world.ring("slow"), 3);
    world.tick(2, tick, SECOND);
    assert_eq!(world.sent(), [("slow", 3)].into());
}

#[test]
fn a_ring_that_is_set_up_anew_with_another_size_is_seen_at_the_next_ticks() {
    let tick = Duration::from_millis(50);
    let mut world = World::new(|_| ());
    push(&mut world.ring("a"), 1);
    world.tick(3, tick, SECOND);
    let path = world.path("a");
    let mut larger = RingWriter::create(&path, Layout::V4, 64).expect("a ring");
    push(&mut larger, 2);
    world.tick(3, tick, SECOND);
    assert_eq!(world.sent(), [("a", 3)].into());
}

#[test]
fn a_ring_that_is_set_up_anew_with_another_layout_of_the_same_version_is_read_as_that() {
    let mut world = World::new(|_| {});
    let path = world.path("a");
    let ring = |layout| RingWriter::create(&path, layout, 16).expect("a ring");
    let _v2 = push_to(ring(Layout::V2), 1);
    world.pass(1);
    let _named = push_to(ring(Layout::V2Named), 10);
    world.pass(3);
    assert_eq!(world.account(), [11, 1, 0]);
}

#[test]
fn agents_that_come_and_go_for_ever_are_not_all_remembered() {
    let mut world = World::new(|config| config.max_agents = 2);
    for number in 0..40 {
        let name = format!("agent-{number:02}");
        push(&mut world.ring(&name), 1);
        world.pass(3);
        fs::remove_file(world.path(&name)).expect("there");
        world.pass(3);
    }
    let kept = world.agents.effort().known;
    assert_eq!(kept, 8, "four times max_agents");
    assert!(world.forgotten.len() == 32 && world.forgotten.contains(&"agent-31".into()));
    assert_eq!(world.sent(), [("agent-38", 1), ("agent-39", 1)].into());
    // What is forgotten begins anew.
    push(&mut world.ring("agent-00"), 7);
    world.pass(3);
    assert_eq!(world.sent()["agent-00"], 7);
}

#[test]
fn rings_that_the_configuration_leaves_out_are_let_go_with_their_agent() {
    let mut world = World::new(|config| config.retain = SECOND);
    let mut ring = world.ring("a");
    push(&mut ring, 1);
    world.pass(2);
    world.config.owners = Some(vec![4242]);
    world.configure();
    // Not one that has exited, which a rule may tell of.
    assert!(world.instances.is_empty());
    push(&mut ring, 1);
    world.pass(5);
    assert_eq!((world.sent(), ring.pending()), ([].into(), 1));
    world.config.owners = None;
    world.configure();
    world.pass(3);
    assert_eq!((world.sent(), ring.pending()), ([("a", 2)].into(), 0));
}

/// In a directory that all may write to, a stranger takes the name of an agent whose file is gone.
#[test]
fn a_strangers_ring_of_an_agents_name_is_another_agent() {
    if !nix::unistd::geteuid().is_root() {
        return println!("left out: it takes root to give a file to others");
    }
    let mut world = World::new(|config| config.retain = 10 * SECOND);
    let give = |world: &World, uid| {
        std::os::unix::fs::chown(world.path("worker"), Some(uid), None).expect("root may");
    };
    let mut ring = world.ring("worker");
    give(&world, 1000);
    push(&mut ring, 1000);
    world.pass(2);
    assert_eq!(world.sent(), [("worker", 1000)].into());
    drop(ring);
    fs::remove_file(world.path("worker")).expect("there");
    world.pass(20);
    assert_eq!(world.sent(), [].into());
    let mut ring = RingWriter::create(&world.path("worker"), Layout::V4, 512).expect("a ring");
    give(&world, 1001);
    // What one event cannot be is not believed; and what many come to stays at the most that there is.
    push(&mut ring, u64::MAX - 400);
    let most = pmdanixl::event::MAX_VALUE;
    for _ in 0..256 {
        push(&mut ring, most);
    }
    world.pass(2);
    assert_eq!(world.sent(), [("worker@uid1001", 256 * most)].into());
    for _ in 0..256 {
        push(&mut ring, most);
    }
    world.pass(2);
    assert_eq!(world.sent(), [("worker@uid1001", u64::MAX)].into());
    // Both go on as what they were, also after a restart of the daemon.
    for turn in 1..=2 {
        drop(ring);
        fs::remove_file(world.path("worker")).expect("there");
        world.pass(20);
        ring = world.ring("worker");
        give(&world, 1000);
        push(&mut ring, 7);
        world.pass(2);
        assert_eq!(world.sent(), [("worker", 1000 + 7 * turn)].into());
    }
    let host = world.agents.host_total(EventType::TxBytes);
    assert_eq!(host, u64::MAX, "sums stay at the most");
}

#[test]
fn a_ring_that_is_too_large_is_taken_when_more_is_allowed() {
    let mut world = World::new(|config| config.max_capacity = 8);
    let mut ring = world.ring("a");
    push(&mut ring, 5);
    world.pass(5);
    assert_eq!(world.sent(), [].into());
    world.config.max_capacity = 16;
    world.configure();
    world.pass(5);
    assert_eq!(world.sent(), [("a", 5)].into());
}
