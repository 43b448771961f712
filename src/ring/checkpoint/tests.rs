// SPDX-License-Identifier: GPL-2.0-or-later

use super::*;
use crate::ring::layout::{Layout, header};
use crate::ring::tests::{put, ring_of};
use crate::shm::ReadWord;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A v4 ring of 16 slots whose values are 100 plus the position, and the checkpoint of its batch `from..end`.
pub(crate) struct RingFixture {
    file: File,
    pub(crate) ring: Ring,
    pub(crate) checkpoint: Checkpoint,
}

impl RingFixture {
    pub(crate) fn new(from: u64, end: u64) -> Self {
        let (file, ring) = ring_of(16);
        let mut fixture = Self {
            file,
            ring,
            checkpoint: Checkpoint::default(),
        };
        (0..16).for_each(|pos| fixture.write_value(pos, 100 + pos));
        let identity = RingIdentity {
            versions: (4 << 32) | 4,
            capacity: 16,
            changed: (7, 7),
            shows_changes: true,
            ..RingIdentity::default()
        };
        fixture.checkpoint = Checkpoint {
            ring: identity,
            from,
            end,
            fingerprint: fixture.read(|ring| ring.fingerprint(from, end)),
            producer: fixture.read(|ring| ProducerState {
                write_pos: end,
                next: ring.slot_at(end),
                tail_hash: ring.tail_hash(end),
            }),
            released: false,
        };
        fixture
    }

    fn read<T>(&self, run: impl FnOnce(Consumer<ReadWord>) -> T) -> T {
        self.ring.read(run).expect("whole")
    }

    /// Writes the value of a slot.
    fn write_value(&mut self, pos: u64, value: u64) {
        self.file
            .write_all_at(&value.to_le_bytes(), 40 + 16 * pos + 8)
            .expect("written");
    }

    fn verdict(&self, identity: RingIdentity, read_pos: u64, write_pos: u64) -> Verdict {
        self.set_write_pos(write_pos);
        self.verdict_at(identity, read_pos, write_pos)
    }

    fn verdict_at(&self, identity: RingIdentity, read_pos: u64, write_pos: u64) -> Verdict {
        self.read(|ring| {
            let evidence = self
                .checkpoint
                .evidence((read_pos, write_pos), &identity, &ring);
            self.checkpoint.decide(&evidence)
        })
    }

    /// Lets the producer write its next slot.
    fn with_next_written(mut self) -> Self {
        self.write_value(self.checkpoint.end, 1);
        self
    }

    /// Sets the position of the producer that is loaded after the slots.
    pub(crate) fn set_write_pos(&self, write_pos: u64) {
        put(&self.file, header::WRITE_POS, write_pos);
    }

    /// Identity of the ring after its file was touched.
    fn touched(&self) -> RingIdentity {
        RingIdentity {
            changed: (8, 8),
            ..self.checkpoint.ring
        }
    }
}

#[test]
fn signs_of_a_restart_give_the_verdicts_of_the_table() {
    // The kind of a batch, signs of a restart, and the verdicts with `read_pos` at the start of the batch, in it, at
    // its end, and elsewhere. Without a sign, the file was touched and the producer has written nothing since.
    let table = "
        in_flight none               Release   Overtaken(3) Done            Passed(2)
        in_flight other_file         NewRing   NewRing      NewRing         NewRing
        in_flight writes_unreleased  NewRing   NewRing      Done            Passed(2)
        in_flight read_pos_0         NewRing   NewRing      Done            NewRing
        in_flight read_pos_0+time    Release   Overtaken(3) Done            Passed(2)
        in_flight batch              NewRing   Overtaken(3) Done            Passed(2)
        in_flight batch+last         NewRing   NewRing      Done            NewRing
        in_flight ahead              Release   NewRing      Done            NewRing
        in_flight ahead+next         Release   Overtaken(3) Done            Passed(2)
        from_0    read_pos_0         Release   Overtaken(3) Done            Passed(2)
        from_0    batch              NewRing   Overtaken(3) NewRingReleased Passed(2)
        from_0    behind             Release   NewRing      NewRingReleased NewRing
        from_0    behind+tail+batch  NewRing   NewRing      Done            NewRing
        from_0    restarting         Release   Overtaken(3) NewRingReleased Passed(2)
        released  writes_unreleased  Passed(2) Passed(2)    Done            Passed(2)
        released  ahead              NewRing   NewRing      Done            NewRing
    ";
    for row in table.trim().lines() {
        let columns: Vec<_> = row.split_whitespace().collect();
        let has = |sign| columns[1].split('+').any(|each| each == sign);
        let checkpoint = Checkpoint {
            from: if columns[0] == "from_0" { 0 } else { 4 },
            end: 10,
            released: columns[0] == "released",
            ..Checkpoint::default()
        };
        let verdict = |read_pos| {
            let evidence = Evidence {
                is_same_file: !has("other_file"),
                read_pos,
                is_read_pos_0: has("read_pos_0"),
                past_end: 2,
                is_end_pending: !has("writes_unreleased"),
                write_pos: u64::from(has("ahead")).cmp(&u64::from(has("behind"))),
                is_restarting: has("restarting"),
                is_unchanged: has("time"),
                is_batch_overwritten: has("batch"),
                is_last_overwritten: has("last"),
                is_next_unwritten: !has("next"),
                is_tail_unwritten: !has("tail"),
            };
            format!("{:?}", checkpoint.decide(&evidence))
        };
        use ReadPos::{Elsewhere, End, Inside, Start};
        let verdicts = [Start, Inside(3), End, Elsewhere].map(verdict);
        assert_eq!(verdicts[..], columns[2..], "{row}");
    }
}

#[test]
fn unchanged_file_gets_its_verdict_from_read_pos() {
    let fixture = RingFixture::new(4, 10);
    let same = fixture.checkpoint.ring;
    assert_eq!(fixture.verdict(same, 10, 12), Verdict::Done);
    assert_eq!(fixture.verdict(same, 4, 12), Verdict::Release);
    assert_eq!(fixture.verdict(same, 7, 12), Verdict::Overtaken(3));
    assert_eq!(fixture.verdict(same, 12, 12), Verdict::Passed(2));
    assert_eq!(fixture.verdict(same, 2, 2), Verdict::Passed(8));
    assert_eq!(fixture.verdict(same, 0, 0), Verdict::Passed(6));
}

#[test]
fn other_file_version_or_capacity_is_a_new_ring() {
    let fixture = RingFixture::new(4, 10);
    let same = fixture.checkpoint.ring;
    let other = |change: fn(&mut RingIdentity)| {
        let mut other = same;
        change(&mut other);
        [4, 10, 0].map(|read_pos| fixture.verdict(other, read_pos, 10))
    };
    assert_eq!(other(|ring| ring.id.ino = 1), [Verdict::NewRing; 3]);
    assert_eq!(other(|ring| ring.born = (1, 0)), [Verdict::NewRing; 3]);
    assert_eq!(
        other(|ring| ring.versions = (3 << 32) | 3),
        [Verdict::NewRing; 3]
    );
    assert_eq!(other(|ring| ring.capacity = 8), [Verdict::NewRing; 3]);
}

#[test]
fn touched_file_with_unchanged_slots_is_the_same_ring() {
    let fixture = RingFixture::new(4, 10).with_next_written();
    let touched = fixture.touched();
    assert_eq!(fixture.verdict(touched, 10, 3), Verdict::Done);
    // The producer may have filled the ring up to the unreleased slots.
    assert_eq!(fixture.verdict(touched, 4, 3), Verdict::Release);
    assert_eq!(fixture.verdict(touched, 7, 6), Verdict::Overtaken(3));
    assert_eq!(fixture.verdict(touched, 12, 12), Verdict::Passed(2));
}

#[test]
fn unreleased_slot_that_was_overwritten_shows_a_restart() {
    let mut fixture = RingFixture::new(4, 10).with_next_written();
    let touched = fixture.touched();
    fixture.write_value(5, 1);
    assert_eq!(fixture.verdict(touched, 4, 12), Verdict::NewRing);
    // Another reader released the slot, so it may be overwritten.
    assert_eq!(fixture.verdict(touched, 7, 12), Verdict::Overtaken(3));
    fixture.write_value(9, 1);
    assert_eq!(fixture.verdict(touched, 7, 12), Verdict::NewRing);
    assert_eq!(fixture.verdict(touched, 10, 12), Verdict::Done);
}

#[test]
fn write_pos_within_the_batch_shows_a_restart() {
    let fixture = RingFixture::new(4, 10).with_next_written();
    let touched = fixture.touched();
    for write_pos in 4..10 {
        assert_eq!(
            fixture.verdict(touched, 4, write_pos),
            Verdict::NewRing,
            "{write_pos}"
        );
    }
    assert_eq!(fixture.verdict(touched, 7, 7), Verdict::NewRing);
    assert_eq!(fixture.verdict(touched, 7, 6), Verdict::Overtaken(3));
}

#[test]
fn same_bytes_at_0_in_a_touched_file_are_released_in_doubt() {
    let fixture = RingFixture::new(0, 2);
    for (ring, is_doubtful) in [(fixture.checkpoint.ring, false), (fixture.touched(), true)] {
        // When in doubt, lose the batch rather than count it twice.
        assert_eq!(fixture.verdict(ring, 0, 2), Verdict::Release);
        assert_eq!(fixture.checkpoint.is_doubtful(&ring), is_doubtful);
    }
    let fixture = RingFixture::new(4, 10);
    assert!(!fixture.checkpoint.is_doubtful(&fixture.touched()));
}

#[test]
fn read_pos_before_released_slots_shows_a_restart() {
    let mut fixture = RingFixture::new(0, 2).with_next_written();
    fixture.checkpoint.released = true;
    // The new ring has the same bytes in the same place: only the position shows the restart.
    let touched = fixture.touched();
    assert_eq!(fixture.verdict(touched, 0, 2), Verdict::NewRing);
    assert_eq!(fixture.verdict(touched, 2, 2), Verdict::Done);
    assert_eq!(fixture.verdict(touched, 5, 5), Verdict::Passed(3));
    assert_eq!(
        fixture.verdict(fixture.checkpoint.ring, 0, 5),
        Verdict::Passed(14)
    );
}

#[test]
fn swap_from_0_in_a_new_ring_is_undone() {
    let mut fixture = RingFixture::new(0, 5);
    let same = fixture.checkpoint.ring;
    let touched = fixture.touched();
    assert_eq!(fixture.verdict(touched, 5, 5), Verdict::Done);
    // The new producer is not as far as the old one was, whose next slot is unchanged.
    assert_eq!(fixture.verdict(touched, 5, 0), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(same, 5, 3), Verdict::Done);
    fixture.checkpoint.released = true;
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::Done);
    // The new producer is further, and has overwritten the batch.
    fixture.checkpoint.released = false;
    fixture.write_value(2, 9);
    assert_eq!(fixture.verdict(touched, 5, 5), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(touched, 5, 9), Verdict::NewRingReleased);
    // A producer that went round has written the old next slot.
    fixture.checkpoint.released = false;
    let fixture = fixture.with_next_written();
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::Done);
}

#[test]
fn producer_with_the_bytes_of_its_last_round_is_the_same() {
    for from in [0, 4] {
        let fixture = RingFixture::new(from, 10);
        // A steady load: the bytes that are written at 10 are those that were there before.
        let touched = fixture.touched();
        assert_eq!(
            fixture.verdict(touched, from, 12),
            Verdict::Release,
            "{from}"
        );
    }
}

#[test]
fn producer_that_goes_round_during_the_capture_is_the_same() {
    let mut fixture = RingFixture::new(0, 15);
    let touched = fixture.touched();
    // The producer waited at 15 for space. Before the slots are compared, it has gone on to 3.
    for (pos, value) in [(15, 1), (0, 2), (1, 3), (2, 4)] {
        fixture.write_value(pos, value);
    }
    fixture.set_write_pos(3);
    assert_eq!(fixture.verdict_at(touched, 15, 15), Verdict::Done);
    // If it is still at 15 although slots changed, it restarted.
    fixture.set_write_pos(15);
    assert_eq!(
        fixture.verdict_at(touched, 15, 15),
        Verdict::NewRingReleased
    );
}

#[test]
fn released_slots_may_be_written_again() {
    let mut fixture = RingFixture::new(4, 10);
    fixture.checkpoint.released = true;
    assert_eq!(
        fixture.verdict(fixture.checkpoint.ring, 5, 6),
        Verdict::Passed(11)
    );
}

#[test]
fn change_time_that_was_too_young_proves_nothing() {
    let mut fixture = RingFixture::new(4, 10);
    fixture.checkpoint.ring.shows_changes = false;
    assert_eq!(
        fixture.verdict(fixture.checkpoint.ring, 0, 0),
        Verdict::NewRing
    );
}

#[test]
fn change_after_a_time_before_the_clock_is_seen() {
    let fixture = RingFixture::new(4, 10);
    let identity = || RingIdentity::of(&fixture.ring).expect("open");
    while file::clock() <= identity().changed {
        std::thread::yield_now();
    }
    let before = identity();
    assert!(before.is_unchanged(&identity()));
    let len = Layout::V4.file_len(16).expect("small");
    fixture.file.set_len(len).expect("the same size");
    assert!(!before.is_unchanged(&identity()));
}

#[test]
fn batch_round_the_end_gets_the_same_verdicts() {
    let fixture = RingFixture::new(14, 3).with_next_written();
    let same = fixture.checkpoint.ring;
    assert_eq!(fixture.verdict(same, 14, 5), Verdict::Release);
    assert_eq!(fixture.verdict(same, 0, 5), Verdict::Overtaken(2));
    assert_eq!(fixture.verdict(same, 5, 5), Verdict::Passed(2));
    assert_eq!(fixture.verdict(fixture.touched(), 14, 13), Verdict::Release);
    assert_eq!(fixture.verdict(fixture.touched(), 14, 14), Verdict::NewRing);
}
