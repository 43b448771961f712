// SPDX-License-Identifier: GPL-2.0-or-later

//! Answer times while rings have more events than a drain has time for.

use super::{TX_BYTES, judge, turn};
use crate::support::Home;
use crate::support::measure::timed;
use crate::support::pdu::Link;
use crate::support::writer::{Layout, RingWriter};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

#[test]
#[ignore = "measures response times"]
fn answers_are_in_time_during_a_backlog() {
    let _turn = turn();
    let home = Home::new();
    let slots = 1 << 16;
    let rings = [(); 8].map(|()| {
        let number = fs::read_dir(home.rings()).expect("there").count();
        let path = home.ring(format!("flood-{number}"));
        drop(RingWriter::create(&path, Layout::V1, slots).expect("a ring"));
        let ring = OpenOptions::new().read(true).write(true).open(path);
        let ring = ring.expect("there");
        let len = usize::try_from(slots * Layout::V1.slot_size()).expect("small");
        ring.write_all_at(&vec![1; len], 40).expect("room");
        ring
    });
    let mut link = Link::open(&home);
    link.fetch(&[TX_BYTES]).expect("the first answer");
    let mut all = Vec::new();
    for _ in 0..300 {
        for ring in &rings {
            // A write position one slot before the read position: the ring is full again.
            let mut word = [0; 8];
            ring.read_exact_at(&mut word, 8).expect("a header");
            let last = u64::from_le_bytes(word).wrapping_sub(1) % slots;
            ring.write_all_at(&last.to_le_bytes(), 0).expect("room");
        }
        all.push(timed(&mut link, TX_BYTES).1);
    }
    judge(&all);
    let truncated = link.fetch(&["control.drain.truncated"]).expect("an answer");
    assert!(truncated[0][&u32::MAX] > 0, "drains ran out of time");
    assert!(link.end().success());
}
