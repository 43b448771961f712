// SPDX-License-Identifier: GPL-2.0-or-later

//! Publication, withdrawal, eviction and totals of agents over time, through the test kit: a test clock, without pmcd.

use crate::support::kit::writer::{Layout, RingWriter};
use crate::support::kit::{self, Core, SECOND, push, push_to};
use crate::support::needs_root;
use pmdanixl::metrics::Value;
use std::fs::{self, File};
use std::time::Duration;

#[test]
fn exited_agent_stays_for_retain_and_returns_with_totals() {
    let mut core = Core::new("retain = \"10s\"");
    let mut ring = core.ring("a");
    push(&mut ring, 1);
    core.run(60);
    assert_eq!(core.sent(), [("a", 1)].into(), "a silent agent is alive");
    push(&mut ring, 2);
    drop(ring);
    core.run(9);
    assert_eq!(core.sent(), [("a", 3)].into());
    core.run(5);
    assert_eq!(core.sent(), [].into());
    core.run(1000);
    let mut ring = core.ring("a");
    push(&mut ring, 4);
    core.run(3);
    assert_eq!(core.sent(), [("a", 7)].into());
}

#[test]
fn events_of_a_ring_found_late_are_in_no_percentile() {
    for (after, found) in [(0, true), (120, false)] {
        let mut core = Core::new("");
        let mut ring = core.ring_of("a", 1 << 14);
        // More events than a batch has.
        for _ in 0..2000 {
            assert_eq!(ring.push_transfer(false, 4096, 120, 20), 4);
        }
        core.advance(after * SECOND);
        core.run(1);
        let values = |core: &Core| {
            (
                core.transfers("latency.xfer_time.histogram", "a"),
                core.get("latency.xfer_time.p50", "a").is_some(),
                core.bandwidths("a"),
            )
        };
        let all = u64::from(found) * 2000;
        assert_eq!(values(&core), (2000, found, all), "{after} s");
        assert_eq!(ring.push_transfer(false, 4096, 240, 20), 4);
        core.run(1);
        assert_eq!(values(&core), (2001, true, all + 1));
    }
}

#[test]
fn withdrawn_agent_has_no_window() {
    // Without `retain`, the agent may be withdrawn before a fetch has seen it.
    for retain in ["0s", "1s"] {
        let mut core = Core::new(&format!("retain = {retain:?}"));
        let mut ring = core.ring("a");
        assert_eq!(ring.push_transfer(false, 4096, 120, 20), 4);
        core.run(1);
        let longest = |core: &Core| core.remembered("latency.xfer_time.max", "a");
        assert_eq!(longest(&core), Some(Value::F64(120.0)));
        drop(ring);
        core.run(5);
        assert_eq!(core.sent(), [].into());
        assert_eq!(longest(&core), None, "{retain:?}");
    }
}

#[test]
fn opening_the_file_of_an_exited_agent_does_not_revive_it() {
    let mut core = Core::new("retain = \"2s\"");
    let ring = core.ring("a");
    core.run(3);
    assert_eq!(core.sent(), [("a", 0)].into());
    drop(ring);
    core.run(6);
    assert_eq!(core.sent(), [].into());
    let reader = File::open(core.path("a")).expect("there");
    core.run(60);
    assert_eq!(core.sent(), [].into());
    drop(reader);
    push(&mut core.ring("a"), 5);
    core.run(3);
    assert_eq!(core.sent(), [("a", 5)].into());
}

#[test]
fn agent_restarted_with_identical_events_loses_none() {
    let mut core = Core::new("");
    for turn in 1..=5 {
        // A crash loop: the first event of each start is the registration of memory.
        push(&mut core.ring("a"), 100);
        core.run(1);
        assert_eq!(core.only(), [100 * turn, turn - 1, 0]);
    }
}

#[test]
fn restart_after_a_batch_that_wrapped_is_recognised() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    for count in [14, 5] {
        (0..count).for_each(|_| push(&mut ring, 1));
        core.run(1);
    }
    let mut ring = core.ring("a");
    (0..4).for_each(|_| push(&mut ring, 1));
    core.run(1);
    assert_eq!(core.only(), [23, 1, 0]);
}

#[test]
fn unknown_holder_keeps_a_silent_agent_for_twice_retain() {
    let mut core = Core::new("retain = \"100s\"");
    let mut ring = core.ring("a");
    push(&mut ring, 7);
    let seen = |core: &Core| (core.instances().len(), core.status("a"));
    core.run(90);
    assert_eq!(seen(&core), (1, "idle".into()));
    core.run(20);
    assert_eq!(seen(&core), (1, "unknown".into()));
    core.run(80);
    assert_eq!(core.instances().len(), 1);
    core.run(20);
    assert!(
        core.instances().is_empty(),
        "a reader does not keep the agent"
    );
    push(&mut ring, 2);
    core.run(1);
    assert_eq!(seen(&core), (1, "live".into()));
    core.assert_sent([("a", 9)]);
}

#[test]
fn returned_agent_is_distinguished_from_its_predecessor() {
    let mut core = Core::new("retain = \"1s\"");
    drop(push_to(core.ring("a"), 1));
    core.run(5);
    assert_eq!(core.sent(), [].into());
    fs::remove_file(core.path("a")).expect("there");
    core.run(5);
    let again = push_to(core.ring("a"), 2);
    core.run(1);
    assert_eq!(core.value("agent.starts", "a"), 2);
    assert_eq!(core.labels("a").get("user"), None, "the process is unknown");
    assert_eq!(core.status("a"), "live", "not idle after the restart");
    drop(again);
}

#[test]
fn exited_agent_does_not_stay_longer_after_reattaching() {
    let mut core = Core::new("retain = \"10s\"");
    drop(push_to(core.ring("a"), 1));
    core.run(6);
    assert_eq!(core.sent(), [("a", 1)].into());
    // The ring is detached and attached again, like at a restart of the daemon.
    core.configure("retain = \"10s\"\ntelemetry_dir = []");
    core.configure("retain = \"10s\"");
    core.run(6);
    assert_eq!(core.sent(), [].into());
}

#[test]
fn file_of_an_exited_agent_is_an_instance_if_it_has_events() {
    let mut core = Core::new("");
    drop(core.ring("empty"));
    push(&mut core.ring("full"), 3);
    core.run(3);
    assert_eq!(core.sent(), [("full", 3)].into());
}

#[test]
fn exited_ring_is_drained_before_eviction_and_found_on_restart() {
    let mut core = Core::new("retain = \"1s\"\nmax_agents = 1");
    let mut old = core.ring("old");
    push(&mut old, 1);
    core.run(2);
    drop(old);
    core.run(6);
    assert_eq!(core.sent(), [].into());
    // An event after the last drain: a restart that the daemon has not seen yet.
    let mut old = core.ring("old");
    push(&mut old, 10);
    let mut new = core.ring("new");
    push(&mut new, 5);
    core.run(3);
    assert_eq!(
        core.sent(),
        [("old", 11)].into(),
        "an agent with events stays"
    );
    drop(old);
    core.run(6);
    assert_eq!(core.sent(), [("new", 5)].into());
    drop(new);
    core.run(6);
    push(&mut core.ring("old"), 100);
    core.run(2);
    assert_eq!(core.sent(), [("old", 111)].into());
}

#[test]
fn evicted_agent_has_no_window() {
    let mut core = Core::new("retain = \"1h\"\nmax_agents = 1");
    let mut old = core.ring("old");
    assert_eq!(old.push_transfer(false, 4096, 120, 20), 4);
    core.run(1);
    let longest = |core: &Core| core.remembered("latency.xfer_time.max", "old");
    assert!(longest(&core).is_some());
    drop(old);
    core.run(6);
    // The agent has exited, and would stay for an hour.
    push(&mut core.ring("new"), 5);
    core.run(3);
    assert_eq!(core.sent(), [("new", 5)].into());
    assert_eq!(longest(&core), None);
}

#[test]
fn idle_held_ring_is_evicted_for_a_ring_with_events() {
    let mut core = Core::new("retain = \"1s\"\nmax_agents = 1");
    drop(push_to(core.ring("old"), 1));
    core.run(4);
    assert_eq!(core.sent(), [].into());
    let reader = File::open(core.path("old")).expect("there");
    // The daemon cannot know whether the agent will write again.
    let mut new = core.ring("new");
    core.run(6);
    assert_eq!((core.sent(), core.attached()), ([].into(), 1));
    push(&mut new, 5);
    core.run(6);
    assert_eq!((core.sent(), new.pending()), ([("new", 5)].into(), 0));
    // A reader does not revive the agent.
    core.run(6);
    assert_eq!(core.sent(), [("new", 5)].into());
    drop(reader);
}

#[test]
fn ring_with_events_is_not_evicted_after_its_writer_ended() {
    let mut core = Core::new("retain = \"1s\"\nmax_agents = 1");
    drop(push_to(core.ring("old"), 1));
    core.run(4);
    drop(push_to(core.ring("old"), 10));
    push(&mut core.ring("new"), 5);
    core.run(1);
    assert_eq!(core.sent(), [("old", 11)].into());
}

#[test]
fn header_written_after_its_file_is_found_at_the_next_tick() {
    let tick = Duration::from_millis(50);
    let mut core = Core::new("");
    fs::write(core.path("slow"), [0; 40 + 16 * 16]).expect("written");
    // Longer than the resolution of the directory's time.
    std::thread::sleep(tick);
    core.tick(1, tick, SECOND);
    push(&mut core.ring("slow"), 3);
    core.tick(2, tick, SECOND);
    assert_eq!(core.sent(), [("slow", 3)].into());
}

#[test]
fn restart_with_another_layout_of_its_version_is_read_as_that() {
    let mut core = Core::new("");
    let path = core.path("a");
    let ring = |layout| RingWriter::create(&path, layout, 16).expect("a ring");
    let _v2 = push_to(ring(Layout::V2), 1);
    core.run(1);
    let _named = push_to(ring(Layout::V2Named), 10);
    core.run(3);
    assert_eq!(core.only(), [11, 1, 0]);
}

#[test]
fn records_of_exited_agents_are_limited() {
    let mut core = Core::new("max_agents = 2");
    for number in 0..40 {
        let name = format!("agent-{number:02}");
        push(&mut core.ring(&name), 1);
        core.run(3);
        fs::remove_file(core.path(&name)).expect("there");
        core.run(3);
    }
    let kept = core.known();
    assert_eq!(kept, 8, "four times max_agents");
    assert!(core.forgotten.len() == 32 && core.forgotten.contains(&"agent-31".into()));
    assert_eq!(core.sent(), [("agent-38", 1), ("agent-39", 1)].into());
    // An expired agent begins at zero.
    push(&mut core.ring("agent-00"), 7);
    core.run(3);
    assert_eq!(core.sent()["agent-00"], 7);
}

#[test]
fn rings_left_out_of_the_configuration_are_detached() {
    let mut core = Core::new("retain = \"1s\"");
    let mut ring = core.ring("a");
    push(&mut ring, 1);
    core.run(2);
    core.configure("retain = \"1s\"\nowners = [4242]");
    // An exited agent is not evicted, since a pmie rule may report it.
    assert!(core.instances().is_empty());
    push(&mut ring, 1);
    core.run(5);
    assert_eq!((core.sent(), ring.pending()), ([].into(), 1));
    core.configure("retain = \"1s\"");
    core.run(3);
    assert_eq!((core.sent(), ring.pending()), ([("a", 2)].into(), 0));
}

/// In a directory that all users may write to, another user makes a file with the name of an agent after its file was
/// removed.
#[test]
fn ring_of_another_user_with_the_same_name_is_another_agent() {
    needs_root();
    let mut core = Core::new("retain = \"10s\"");
    let give = |core: &Core, uid| {
        std::os::unix::fs::chown(core.path("worker"), Some(uid), None).expect("root may");
    };
    let mut ring = core.ring("worker");
    give(&core, 1000);
    push(&mut ring, 1000);
    core.run(2);
    assert_eq!(core.sent(), [("worker", 1000)].into());
    drop(ring);
    fs::remove_file(core.path("worker")).expect("there");
    core.run(20);
    assert_eq!(core.sent(), [].into());
    let mut ring = core.ring_of("worker", 512);
    give(&core, 1001);
    // A value above the limit for one event is not counted. Sums saturate at u64::MAX.
    push(&mut ring, u64::MAX - 400);
    let most = kit::layers::MAX_VALUE;
    for _ in 0..256 {
        push(&mut ring, most);
    }
    core.run(2);
    assert_eq!(core.sent(), [("worker@uid1001", 256 * most)].into());
    for _ in 0..256 {
        push(&mut ring, most);
    }
    core.run(2);
    assert_eq!(core.sent(), [("worker@uid1001", u64::MAX)].into());
    // Both agents keep their totals, also after a restart of the daemon.
    for turn in 1..=2 {
        drop(ring);
        fs::remove_file(core.path("worker")).expect("there");
        core.run(20);
        ring = core.ring("worker");
        give(&core, 1000);
        push(&mut ring, 7);
        core.run(2);
        assert_eq!(core.sent(), [("worker", 1000 + 7 * turn)].into());
    }
    let host = core.host_sent();
    assert_eq!(host, u64::MAX, "sums saturate");
}

#[test]
fn too_large_ring_is_attached_when_the_limit_is_raised() {
    let mut core = Core::new("max_capacity = 8");
    let mut ring = core.ring("a");
    push(&mut ring, 5);
    core.run(5);
    assert_eq!(core.sent(), [].into());
    core.configure("max_capacity = 16");
    core.run(5);
    assert_eq!(core.sent(), [("a", 5)].into());
}

/// Writes through a mapping change neither size nor times of a file on tmpfs, and on other file systems only sometimes.
#[test]
fn reload_checks_a_rejected_file_again() {
    let mut core = Core::new("");
    let mut ring = core.ring("a");
    push(&mut ring, 5);
    let sound = fs::read(core.path("a")).expect("there");
    ring.restore(&[0xff; 40]);
    core.run(5);
    assert_eq!(core.sent(), [].into());
    ring.restore(&sound);
    core.configure("");
    core.run(1);
    assert_eq!(core.sent(), [("a", 5)].into());
}
