// SPDX-License-Identifier: GPL-2.0-or-later

//! Fuzz target: a daemon that ends with a half drained ring, and starts again with a changed state file or a changed
//! ring.

use super::daemon::{Home, SECOND, pass};
use super::state::spoil;
use super::writer::{HEADER, Kind, RingWriter};
use super::{Input, assert_instance_name, layout_of_number};
use pmdanixl::collector::Collector;
use pmdanixl::event::EventType;
use pmdanixl::shm::guard_against_sigbus;
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

const CAPACITY: u64 = 8;

/// The input is the layout, how many events there are before and after, how many words of the ring's file are written
/// over, those words, and what is written over the state file.
pub fn run(input: &[u8]) {
    guard_against_sigbus().expect("a handler");
    let mut input = Input(input);
    let layout = layout_of_number(input.u8());
    let home = Home::new();
    let path = home.path("rings/agent");
    let mut ring = RingWriter::create(&path, layout, CAPACITY).expect("a ring");
    let (before, after) = (u64::from(input.u8()), u64::from(input.u8()));
    // As many events as fit: one drain may leave the last of them.
    let mut pushed = 0;
    let mut push = |events| {
        for _ in 0..events {
            pushed += u64::from(ring.push(Kind::TxBytes, 1));
        }
    };
    for batch in [before % 5, before / 5 % CAPACITY] {
        push(batch);
        started(&home, 1);
    }
    push(after);

    let count = input.u8() % 8;
    let unspoilt = count == 0 && input.is_empty();
    let file = File::options().write(true).open(&path).expect("ours");
    for _ in 0..count {
        let (word, value) = (u64::from(input.u8()), input.u64());
        // Small values, so that most are valid positions.
        let value = if value >> 56 == 0 { value % 16 } else { value };
        let at = 8 * (word % HEADER.first_slot.max(8));
        file.write_all_at(&value.to_le_bytes(), at).expect("room");
    }
    spoil(&home.path("nixl/state"), &mut input);
    let bytes = fs::read(&path).expect("there");
    let read_pos = ring.read_pos();

    let agents = started(&home, 3);
    // In the ring, only read_pos was changed, to a valid position.
    let now = fs::read(&path).expect("there");
    assert!(now.len() == bytes.len());
    let at = usize::try_from(8 * HEADER.read_pos).expect("small");
    assert!(now[..at] == bytes[..at] && now[at + 8..] == bytes[at + 8..]);
    let read = ring.read_pos();
    assert!(read == read_pos || read < CAPACITY);
    let mut names = HashSet::new();
    for agent in agents.iter() {
        assert_instance_name(&agent.name.instance);
        assert!(names.insert(&agent.name.instance));
    }
    if unspoilt {
        let agent = agents.iter().next().expect("the agent");
        assert_eq!(agent.total(EventType::TxBytes), pushed);
        assert_eq!((agent.entry.resets, agent.entry.foreign_reads), (0, 0));
    }
    home.assert_kept_by_a_restart(agents);
}

/// Starts the daemon, which scans and drains so many times.
fn started(home: &Home, times: u32) -> Collector {
    let (mut agents, now) = (home.start(), Instant::now());
    (1..=times).for_each(|time| pass(&mut agents, now + 3 * time * SECOND));
    agents
}
