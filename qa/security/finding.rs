// SPDX-License-Identifier: GPL-2.0-or-later

//! Time until an agent of another user is found while one user has more files than the limits allow.

use crate::support::other_user::{OtherUser, VICTIM, ring, shared_home};
use crate::support::pdu::Link;
use crate::support::{Home, wait_for};
use std::fs;
use std::time::{Duration, Instant};

/// Limit of the time until an agent of another user is found.
const SOON: Duration = Duration::from_secs(10);
const AGENTS: usize = 8;

/// Starts agents of another user one after the other, and waits until the event of each is counted.
fn appear_soon(home: &Home, link: &mut Link) {
    let waits = (0..AGENTS).map(|number| {
        let name = format!("victim-{number}");
        let started = Instant::now();
        let ring = ring(home, VICTIM, &name);
        wait_for("the event is counted", || {
            // A fetch scans directories, too. The pause leaves most of the scans to ticks.
            std::thread::sleep(Duration::from_millis(500));
            let values = link.sent();
            values.get(&name).copied()
        });
        let took = started.elapsed();
        drop(ring);
        fs::remove_file(home.ring(&name)).expect("there");
        took
    });
    let waits: Vec<Duration> = waits.collect();
    println!("{waits:?}");
    assert!(waits.iter().all(|took| *took < SOON), "{waits:?}");
}

#[test]
#[ignore = "measures the delay until an agent is found"]
fn agent_appears_soon_beside_6000_rings_of_another_user() {
    for held in [true, false] {
        let home = shared_home();
        home.set("max_agents = 1000");
        let rings = OtherUser::does(&home, &["rings", "6000"]);
        let held = held.then_some(rings);
        let mut link = Link::open(&home);
        appear_soon(&home, &mut link);
        drop(held);
        assert!(link.end().success());
    }
}

#[test]
#[ignore = "measures the delay until an agent is found"]
fn agent_appears_soon_beside_rings_with_changing_names() {
    let home = shared_home();
    home.set("max_agents = 100");
    let names = OtherUser::does(&home, &["names", "200"]);
    let mut link = Link::open(&home);
    std::thread::sleep(SOON);
    appear_soon(&home, &mut link);
    assert!(names.times() > 0);
    assert!(link.end().success());
}
