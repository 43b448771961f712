//! When an agent is an instance, and what becomes of its totals: over time that the tests set, without pmcd.

// By path, as in support/mod.rs, whose other parts need pmcd.
#[path = "support/world.rs"]
mod world;
#[path = "support/writer.rs"]
mod writer;

use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};
use pmdanixl::agents::agent::{Agent, Life};
use pmdanixl::event::EventType;
use pmdanixl::metrics::Buckets;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use world::{LONG, SECOND, World, push, push_to};
use writer::{Kind, Layout, RingWriter};

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
fn a_restart_is_told_from_another_reader() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    for _ in 0..2 {
        (0..5).for_each(|_| push(&mut ring, 1));
        world.pass(1);
    }
    let mut ring = world.ring("a");
    push(&mut ring, 1000);
    world.pass(1);
    assert_eq!(world.account(), [1010, 1, 0]);
    // Another reader takes two of three.
    (0..3).for_each(|_| push(&mut ring, 100));
    let file = fs::OpenOptions::new()
        .write(true)
        .open(world.path("a"))
        .expect("there");
    file.write_all_at(&3_u64.to_le_bytes(), 8).expect("written");
    world.pass(1);
    assert_eq!(world.account(), [1110, 1, 2]);
}

/// A lock on a whole file, kept until the descriptor is closed.
fn locked(mut options: fs::OpenOptions, path: &Path, kind: i32) -> File {
    let file = options.read(true).open(path).expect("there");
    let mut lock: libc::flock = whole_file();
    lock.l_type = libc::c_short::try_from(kind).expect("small");
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).expect("nobody else has it");
    file
}

fn whole_file() -> libc::flock {
    libc::flock {
        l_type: 0,
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

#[test]
fn a_stranger_who_may_only_read_a_ring_cannot_keep_its_reader_away() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    let _lock = locked(fs::OpenOptions::new(), &world.path("a"), libc::F_RDLCK);
    push(&mut ring, 1);
    world.pass(1);
    assert_eq!((world.account(), ring.pending()), ([1, 0, 0], 0));
}

#[test]
fn a_ring_with_traffic_is_taken_over_soon_after_its_drainer_has_gone() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    let mut writing = fs::OpenOptions::new();
    writing.write(true);
    let lock = locked(writing, &world.path("a"), libc::F_WRLCK);
    push(&mut ring, 1);
    world.pass(1);
    assert_eq!(
        (world.account(), ring.pending()),
        ([1, 0, 0], 1),
        "only followed"
    );
    drop(lock);
    for _ in 0..12 {
        push(&mut ring, 1);
        world.tick(1, SECOND / 5, SECOND);
    }
    assert_eq!((world.account(), ring.pending()), ([13, 0, 0], 0));
}

#[test]
fn who_locks_a_ring_and_does_not_drain_it_keeps_its_reader_away_for_seconds_only() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    let mut writing = fs::OpenOptions::new();
    writing.write(true);
    let _lock = locked(writing, &world.path("a"), libc::F_WRLCK);
    // As long as there is nothing to take out, nobody can tell.
    world.pass(10);
    (0..3).for_each(|_| push(&mut ring, 1));
    world.pass(2);
    assert_eq!((world.account(), ring.pending()), ([3, 0, 0], 3));
    world.pass(4);
    assert_eq!((world.account(), ring.pending()), ([3, 0, 0], 0));
    (0..3).for_each(|_| push(&mut ring, 1));
    world.pass(1);
    assert_eq!((world.account(), ring.pending()), ([6, 0, 0], 0));
    // It drains after all: all six, and one more.
    push(&mut ring, 1);
    let file = fs::OpenOptions::new().write(true).open(world.path("a"));
    let file = file.expect("there");
    file.write_all_at(&7_u64.to_le_bytes(), 8).expect("written");
    world.pass(1);
    push(&mut ring, 1);
    world.pass(2);
    assert_eq!((world.account(), ring.pending()), ([7, 0, 1], 1));
}

#[test]
fn who_puts_read_pos_before_the_end_again_and_again_gets_two_batches_a_drain() {
    let mut world = World::new(|_| ());
    // What /proc shows is not waited for.
    world.agents.set_patience(Duration::ZERO);
    let mut ring = world.ring("a");
    for _ in 0..16 {
        push(&mut ring, 1);
        world.pass(1);
    }
    let file = fs::OpenOptions::new().write(true).open(world.path("a"));
    let (file, done) = (file.expect("there"), AtomicBool::new(false));
    let counted = |world: &World| {
        let agent = world.agents.iter().next().expect("an agent");
        agent.entry.account.events
    };
    // Two and one before the end, and as many once more.
    let positions = [0_u64, 13].map(u64::to_le_bytes).concat();
    let most = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                file.write_all_at(&positions, 0).expect("written");
            }
        });
        let drains = (0..50_000).map(|_| {
            let before = counted(&world);
            world.agents.drain(world.now, LONG, &mut Vec::new());
            counted(&world) - before
        });
        let most = drains.max();
        done.store(true, Relaxed);
        most
    });
    assert!(most <= Some(4), "{most:?}");
}

#[test]
fn a_ring_that_is_followed_and_restarted_shows_nothing_old() {
    let mut world = World::new(|config| config.observe = true);
    let mut ring = world.ring("a");
    (0..6).for_each(|_| push(&mut ring, 1));
    world.pass(1);
    let mut ring = world.ring("a");
    push(&mut ring, 1000);
    world.pass(2);
    assert_eq!((world.account(), ring.pending()), ([1006, 1, 0], 1));
}

/// Fills a ring with events of no type.
fn fill(file: &File, slots: u64) {
    let len = file.metadata().expect("open").len() - 40;
    let zeros = vec![0; usize::try_from(len).expect("small")];
    file.write_all_at(&zeros, 40).expect("written");
    file.write_all_at(&(slots - 1).to_le_bytes(), 0)
        .expect("written");
}

#[test]
fn events_where_nothing_was_ever_written_are_not_read() {
    let mut world = World::in_memory();
    let path = world.path("sparse");
    let mut ring = RingWriter::create(&path, Layout::V4, 1 << 36).expect("a sparse ring");
    push(&mut ring, 1);
    world.pass(1);
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("there");
    for position in [1_u64 << 35, (1 << 36) - 1, 1000] {
        file.write_all_at(&position.to_le_bytes(), 0)
            .expect("written");
        world.pass(5);
    }
    let agents: Vec<_> = world.agents.iter().collect();
    let totals = &agents[0].entry.account.totals;
    assert_eq!((totals.get(EventType::TxBytes), totals.unknown()), (1, 0));
    // Not a page was made for them.
    assert!(file.metadata().expect("open").blocks() < 100);
}

#[test]
fn a_hole_that_is_punched_into_a_ring_that_had_none_is_not_read() {
    let mut world = World::in_memory();
    let path = world.path("a");
    let mut ring = RingWriter::create(&path, Layout::V4, 4096).expect("a ring");
    // All slots are written to, and it is long enough ago that a change shows in the file's times.
    for _ in 0..5 {
        for _ in 0..1000 {
            push(&mut ring, 1);
        }
        world.pass(1);
    }
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("there");
    let age = || {
        let changed = file.metadata().expect("open").modified();
        changed.expect("a time").elapsed().unwrap_or_default()
    };
    while age() < Duration::from_millis(50) {
        std::thread::sleep(Duration::from_millis(1));
    }
    push(&mut ring, 1);
    world.pass(1);
    let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, punch, 8 * 4096, 4 * 4096).expect("a hole");
    let blocks = || file.metadata().expect("open").blocks();
    let before = blocks();
    // All slots but one.
    file.write_all_at(&900_u64.to_le_bytes(), 0)
        .expect("written");
    world.pass(5);
    assert_eq!(blocks(), before, "not a page was made");
    // What a hole holds would be events of no bytes.
    let agents: Vec<_> = world.agents.iter().collect();
    assert_eq!(agents[0].entry.account.events, 5001);
}

#[test]
fn a_position_that_moves_while_it_is_looked_at_leads_into_no_hole() {
    let mut world = World::in_memory();
    let path = world.path("a");
    let mut ring = RingWriter::create(&path, Layout::V4, 1 << 20).expect("a ring");
    push(&mut ring, 1);
    world.pass(1);
    let file = fs::OpenOptions::new().write(true).open(&path);
    let file = file.expect("there");
    let blocks = || file.metadata().expect("open").blocks();
    let before = blocks();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                // From an event that may be there to all that were never written.
                for (pos, word) in [(2_u64, 0), (1, 8), (1 << 19, 0)] {
                    file.write_all_at(&pos.to_le_bytes(), word)
                        .expect("written");
                }
            }
        });
        for _ in 0..10_000 {
            world.pass(1);
        }
        done.store(true, Relaxed);
    });
    // The slot that is said to be the next, and the ring's last, are looked at wherever they are: a page each.
    assert!(blocks() <= before + 2 * 8, "{} and {before}", blocks());
}

#[test]
fn the_rings_of_one_agent_have_their_turns_as_those_of_many_have() {
    let mut world = World::new(|_| ());
    let slots = 1 << 16;
    for _ in 0..20 {
        // Unlinked and made again, while the old one is still held.
        let path = world.path("flood");
        std::mem::forget(RingWriter::create(&path, Layout::V1, slots).expect("a ring"));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("there");
        world.agents.scan(world.now, SECOND);
        world.now += 3 * SECOND;
        fill(&file, slots);
        fs::remove_file(path).expect("there");
    }
    let budget = Duration::from_millis(2);
    let started = Instant::now();
    world.tick(1, SECOND, budget);
    let took = started.elapsed();
    let drained = |world: &World| {
        let agents = world.agents.iter();
        agents
            .map(|agent| agent.entry.account.totals.unknown())
            .sum()
    };
    let first: u64 = drained(&world);
    assert!(first < 20 * slots / 2, "{took:?} for {first} events");
    // Each tick counts a batch at least.
    for _ in 0..20 * slots / pmdanixl::ring::BATCH {
        world.tick(1, SECOND, budget);
    }
    assert_eq!(drained(&world), 20 * (slots - 1));
}

#[test]
fn no_pair_is_made_across_what_a_full_ring_lost_wherever_its_batch_began() {
    for before in [0, 1] {
        for (requests, pairs) in [(14, 0), (5, 1)] {
            let mut world = World::new(|_| ());
            let mut ring = RingWriter::create(&world.path("a"), Layout::V4, 16).expect("a ring");
            for _ in 0..before {
                push(&mut ring, 1);
                world.pass(1);
            }
            for _ in 0..requests {
                assert!(ring.push(Kind::TxRequests, 1));
            }
            assert!(ring.push(Kind::XferTime, 10));
            // The bytes of that transfer are lost where the ring is full, and what comes then are another's.
            let is_full = !ring.push(Kind::TxBytes, 1 << 20);
            assert_eq!(is_full, requests == 14);
            world.pass(1);
            if is_full {
                assert!(ring.push(Kind::TxBytes, 1 << 30));
                world.pass(1);
            }
            let agents: Vec<_> = world.agents.iter().collect();
            let bandwidths =
                (0..64).filter_map(|bucket| agents[0].bucket(Buckets::Bandwidth, bucket));
            assert_eq!(bandwidths.sum::<u64>(), pairs, "{before} {requests}");
        }
    }
}

#[test]
fn a_full_ring_that_is_followed_is_full_once_however_many_batches_it_is() {
    let mut world = World::new(|config| config.observe = true);
    let path = world.path("a");
    let mut ring = RingWriter::create(&path, Layout::V4, 1 << 15).expect("a ring");
    while ring.push(Kind::TxBytes, 1) {}
    world.tick(9, Duration::from_millis(100), LONG);
    let entry = |world: &World| world.agents.iter().next().expect("an agent").entry.clone();
    let found = entry(&world);
    assert_eq!((found.full, found.highwater), (1, (1 << 15) - 1));
    assert_eq!(found.account.events, (1 << 15) - 1);
    // As long as nobody drains it, it loses what comes: a rate shows that.
    for _ in 0..3 {
        let before = entry(&world).full;
        world.pass(10);
        let more = entry(&world).full - before;
        assert!((2..=10).contains(&more), "{more} times in 10 s");
    }
    drop(ring);
    world.pass(10);
    let ended = entry(&world).full;
    world.pass(10);
    assert_eq!(
        entry(&world).full,
        ended,
        "nobody is there to lose anything"
    );
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
    assert_eq!(world.agents.iter().next().map(total), Some(Some(9)));
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

/// What this thread has worked, however busy the machine is with others.
fn own_time() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.expect("Linux has it").into()
}

#[test]
fn rings_that_hold_more_than_there_is_time_for_have_their_turns() {
    let mut world = World::new(|_| ());
    let slots = 1 << 16;
    for number in 0..30 {
        let path = world.path(&format!("flood-{number}"));
        drop(RingWriter::create(&path, Layout::V1, slots).expect("a ring"));
        let file = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("there");
        fill(&file, slots);
    }
    push(&mut world.ring("good"), 1);
    world.agents.scan(world.now, SECOND);
    let started = own_time();
    let budget = Duration::from_millis(5);
    let mut ticks = 0;
    while !world
        .agents
        .iter()
        .any(|agent| agent.total(EventType::TxBytes) == Some(1))
    {
        world.tick(1, Duration::from_millis(50), budget);
        ticks += 1;
    }
    // A batch more than the budget at most, on a machine that may be slow.
    let each = (own_time() - started) / ticks;
    assert!(each < 20 * budget, "{each:?} for each of {ticks} ticks");
    assert!(
        ticks <= 31,
        "one agent at least has its turn in each tick: {ticks}"
    );
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

#[test]
fn one_ring_under_two_paths_is_counted_once() {
    let mut world = World::new(|_| ());
    let mut again = world.config.telemetry_dir[0].clone();
    again.path += "/../";
    again.path += world
        .dir
        .path()
        .file_name()
        .and_then(|name| name.to_str())
        .expect("a name");
    world.config.telemetry_dir.push(again);
    world.configure();
    push(&mut world.ring("a"), 9);
    world.pass(3);
    assert_eq!(world.sent(), [("a", 9)].into());
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

/// Where all events are alike, a producer that has gone round leaves the bytes that were there before, as one that was started
/// anew does; and write-back changes the times of its file.
#[test]
fn a_ring_of_events_that_are_all_alike_is_never_counted_twice_where_it_is_followed() {
    for lag in 0..8 {
        let mut world = World::new(|config| config.observe = true);
        let mut ring = world.ring("a");
        let mut pushed = 0;
        push(&mut ring, 1);
        world.pass(2);
        let file = world.path("a");
        for round in 0..60_u32 {
            for _ in 0..1 + round % 5 {
                pushed += u64::from(ring.push(Kind::TxBytes, 1));
            }
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600 + (round & 1));
            fs::set_permissions(&file, mode).expect("ours");
            // As old as a settled time is.
            std::thread::sleep(Duration::from_millis(if round % 10 == 0 { 25 } else { 0 }));
            world.pass(1);
            let sent = world.sent()["a"];
            assert!(
                sent <= 1 + pushed,
                "{sent} of {pushed}, lag {lag}, round {round}"
            );
            // Another drains it, and may be behind.
            let behind = lag.min(ring.pending());
            let read_pos = (ring.write_pos() + 16 - behind) % 16;
            ring.set_read_pos(read_pos);
        }
        let [sent, resets, _] = world.account();
        assert!(
            sent + 16 * resets > pushed,
            "{sent} of {pushed}, {resets} resets"
        );
    }
}

#[test]
fn a_ring_whose_positions_were_wrong_is_drained_soon_after_they_are_right() {
    let mut world = World::in_memory();
    let mut ring = world.ring("a");
    push(&mut ring, 3);
    ring.set_read_pos(1 << 40);
    world.pass(5);
    // Until the times of the file are old enough to tell.
    std::thread::sleep(Duration::from_millis(60));
    world.pass(60);
    assert_eq!(world.sent(), [].into());
    // Through its mapping, which leaves the times of the file as they are.
    ring.set_read_pos(0);
    world.pass(5);
    assert_eq!((world.sent(), ring.pending()), ([("a", 3)].into(), 0));
}
