//! What an answer holds: all that was written before it was asked for.

mod support;
#[allow(clippy::duplicate_mod, reason = "support has it as well")]
#[path = "support/world.rs"]
mod world;

use pmdanixl::event::EventType;
use std::process::Command;
use support::pdu::Link;
use support::{Home, PMDANIXL, wait_for, writer};
use world::{LONG, SECOND, World, push};
use writer::{Kind, Layout, RingWriter};

const TX_BYTES: &str = "transfer.tx_bytes";

/// What an answer has of the world's only agent.
fn answer(world: &mut World) -> u64 {
    let mut changes = Vec::new();
    world.agents.drain(world.now, LONG, &mut changes);
    while world.agents.is_asking() {
        world.agents.drain(world.now, LONG, &mut changes);
    }
    let agent = world.agents.iter().next().expect("an agent");
    agent.total(EventType::TxBytes).expect("read")
}

#[test]
fn it_has_the_last_event_wherever_the_ring_ends_and_however_full_it_is() {
    let mut world = World::new(|_| ());
    let mut ring = world.ring("a");
    push(&mut ring, 1);
    world.tick(1, SECOND, LONG);
    let mut sent = 1;
    for events in [
        15,
        8,
        9,
        7,
        1,
        2,
        14,
        13,
        12,
        11,
        10,
        6,
        5,
        4,
        3,
        15,
        15,
        16 - 2,
    ] {
        for _ in 0..4 {
            for _ in 0..events {
                assert!(ring.push(Kind::TxBytes, 1));
            }
            sent += events;
            let at = ring.write_pos();
            assert_eq!(answer(&mut world), sent, "{events} events up to slot {at}");
        }
    }
}

/// It is not known how soon each is answered: one in which the processor was busy with something else has it from the tick or not
/// at all.
#[test]
fn it_has_what_an_agent_wrote_that_was_started_anew_with_a_ring_of_another_size() {
    let home = Home::new();
    home.set("drain_interval = \"1s\"");
    let start = |round: u32| {
        let capacity = [16, 64, 256][round as usize % 3];
        let path = home.ring("agent");
        let mut ring = RingWriter::create(&path, Layout::V4, capacity).expect("a ring");
        for _ in 0..3 {
            push(&mut ring, 1);
        }
        ring
    };
    let _first = start(0);
    let mut link = Link::start(&home, Command::new(PMDANIXL)).expect("it starts");
    let shown = |link: &mut Link| {
        let values = link.values(TX_BYTES).expect("an answer");
        values.get("agent").copied().unwrap_or(0)
    };
    wait_for("it is an instance", || {
        (shown(&mut link) == 3).then_some(())
    });
    let (mut at_once, mut rings) = (0, Vec::new());
    for round in 1..=20 {
        rings.push(start(round));
        let sent = 3 * (u64::from(round) + 1);
        at_once += u32::from(shown(&mut link) == sent);
        wait_for("all is counted", || {
            let now = shown(&mut link);
            assert!(now <= sent, "{now} of {sent}");
            (now == sent).then_some(())
        });
    }
    assert!(at_once >= 15, "{at_once} of 20 answers had it at once");
    assert!(link.end().success());
}
