use super::*;
use crate::ring::layout::{CAPACITY, Header, Layout, VERSIONS, WRITE_POS};
use crate::shm::ReadWord;
use std::fs::File;
use std::os::unix::fs::FileExt;

fn write_word(file: &File, word: usize, value: u64) {
    let at = 8 * u64::try_from(word).expect("small");
    file.write_all_at(&value.to_le_bytes(), at)
        .expect("written");
}

/// A v4 ring of 16 slots with these words in the slots from 0 on, and the commit of its batch `from..end`.
pub(crate) struct RingFixture {
    file: File,
    pub(crate) ring: Ring,
    pub(crate) checkpoint: Checkpoint,
}

impl RingFixture {
    pub(crate) fn new(from: u64, end: u64) -> Self {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(Layout::V4.file_len(16).expect("small"))
            .expect("room");
        let header = Header {
            write_pos: 0,
            read_pos: 0,
            version: 4,
            expected_version: 4,
            capacity: 16,
            mask: 15,
        };
        let ring = Ring::map(
            file.try_clone().expect("a descriptor"),
            &header,
            Layout::V4,
            false,
        )
        .expect("mapped");
        for (word, value) in [(VERSIONS, (4 << 32) | 4), (CAPACITY, 16)] {
            write_word(&file, word, value);
        }
        let mut fixture = Self {
            file,
            ring,
            checkpoint: Checkpoint::default(),
        };
        (0..16).for_each(|pos| fixture.put(pos, 100 + pos));
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
            followed: false,
            released: false,
        };
        fixture
    }

    fn read<T>(&self, run: impl FnOnce(Consumer<ReadWord>) -> T) -> T {
        self.ring.read(run).expect("whole")
    }

    /// Writes a slot's value.
    fn put(&mut self, pos: u64, value: u64) {
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
            self.checkpoint.verdict(&RingView {
                identity: &identity,
                read_pos,
                write_pos,
                ring,
            })
        })
    }

    /// The producer writes the slot that was its next.
    fn with_next_written(mut self) -> Self {
        self.put(self.checkpoint.end, 1);
        self
    }

    /// Where the producer is when its position is looked at once more.
    pub(crate) fn set_write_pos(&self, write_pos: u64) {
        write_word(&self.file, WRITE_POS, write_pos);
    }

    /// The same ring, whose file was touched.
    fn touched(&self) -> RingIdentity {
        RingIdentity {
            changed: (8, 8),
            ..self.checkpoint.ring
        }
    }
}

#[test]
fn an_unchanged_file_is_the_same_ring_and_the_position_tells_the_fate() {
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
fn another_file_version_or_size_is_a_new_ring_wherever_its_position_is() {
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
fn a_touched_file_whose_slots_are_as_they_were_is_the_same_ring() {
    let fixture = RingFixture::new(4, 10).with_next_written();
    let touched = fixture.touched();
    assert_eq!(fixture.verdict(touched, 10, 3), Verdict::Done);
    // The producer may have filled the ring up to what it was not given back.
    assert_eq!(fixture.verdict(touched, 4, 3), Verdict::Release);
    assert_eq!(fixture.verdict(touched, 7, 6), Verdict::Overtaken(3));
    assert_eq!(fixture.verdict(touched, 12, 12), Verdict::Passed(2));
}

#[test]
fn a_slot_that_was_overwritten_before_it_was_given_back_betrays_a_restart() {
    let mut fixture = RingFixture::new(4, 10).with_next_written();
    let touched = fixture.touched();
    fixture.put(5, 1);
    assert_eq!(fixture.verdict(touched, 4, 12), Verdict::NewRing);
    // Given back by another reader, it may be overwritten.
    assert_eq!(fixture.verdict(touched, 7, 12), Verdict::Overtaken(3));
    fixture.put(9, 1);
    assert_eq!(fixture.verdict(touched, 7, 12), Verdict::NewRing);
    assert_eq!(fixture.verdict(touched, 10, 12), Verdict::Done);
}

#[test]
fn a_producer_that_stands_within_the_batch_was_restarted() {
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
fn the_same_bytes_at_the_start_of_a_ring_are_taken_for_counted_with_a_doubt_if_it_was_touched() {
    let fixture = RingFixture::new(0, 2);
    for (ring, is_doubtful) in [(fixture.checkpoint.ring, false), (fixture.touched(), true)] {
        // Rather lost than counted twice.
        assert_eq!(fixture.verdict(ring, 0, 2), Verdict::Release);
        assert_eq!(fixture.checkpoint.is_doubtful(&ring), is_doubtful);
    }
    let fixture = RingFixture::new(4, 10);
    assert!(!fixture.checkpoint.is_doubtful(&fixture.touched()));
}

#[test]
fn a_position_behind_slots_that_were_given_back_betrays_a_restart() {
    let mut fixture = RingFixture::new(0, 2).with_next_written();
    fixture.checkpoint.released = true;
    // The same bytes in the same place, and nothing to tell the writers apart.
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
fn a_swap_from_0_that_met_a_new_ring_is_taken_back() {
    let mut fixture = RingFixture::new(0, 5);
    let same = fixture.checkpoint.ring;
    let touched = fixture.touched();
    assert_eq!(fixture.verdict(touched, 5, 5), Verdict::Done);
    // The new producer has not come as far as the old one, whose next slot it left alone.
    assert_eq!(fixture.verdict(touched, 5, 0), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(same, 5, 3), Verdict::Done);
    fixture.checkpoint.released = true;
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::Done);
    // It has come further, over the batch.
    fixture.checkpoint.released = false;
    fixture.put(2, 9);
    assert_eq!(fixture.verdict(touched, 5, 5), Verdict::NewRingReleased);
    assert_eq!(fixture.verdict(touched, 5, 9), Verdict::NewRingReleased);
    // A producer that has gone round has written it.
    fixture.checkpoint.released = false;
    let fixture = fixture.with_next_written();
    assert_eq!(fixture.verdict(touched, 5, 3), Verdict::Done);
}

#[test]
fn a_producer_that_writes_the_bytes_of_its_last_round_is_the_same() {
    for from in [0, 4] {
        let fixture = RingFixture::new(from, 10);
        // Sums of a steady load: what is written at 10 is what stood there.
        let touched = fixture.touched();
        assert_eq!(
            fixture.verdict(touched, from, 12),
            Verdict::Release,
            "{from}"
        );
    }
}

#[test]
fn a_producer_that_goes_round_and_over_the_batch_during_the_look_is_the_same() {
    let mut fixture = RingFixture::new(0, 15);
    let touched = fixture.touched();
    // It waited for room: from 15, where it was seen, it has gone on to 3 before the slots were compared.
    for (pos, value) in [(15, 1), (0, 2), (1, 3), (2, 4)] {
        fixture.put(pos, value);
    }
    fixture.set_write_pos(3);
    assert_eq!(fixture.verdict_at(touched, 15, 15), Verdict::Done);
    // That it is still where it was is proof of a restart.
    fixture.set_write_pos(15);
    assert_eq!(
        fixture.verdict_at(touched, 15, 15),
        Verdict::NewRingReleased
    );
}

#[test]
fn followed_ring_is_a_new_one_if_its_producer_went_back() {
    let mut fixture = RingFixture::new(4, 10);
    fixture.checkpoint.followed = true;
    let (same, touched) = (fixture.checkpoint.ring, fixture.touched());
    // Nothing was written at 10 and beyond, where the producer was to go on.
    assert_eq!(fixture.verdict(touched, 0, 3), Verdict::NewRing);
    assert_eq!(fixture.verdict(touched, 4, 12), Verdict::Release);
    // The other reader has released the batch, so that the producer may be anywhere.
    assert_eq!(fixture.verdict(same, 4, 5), Verdict::Passed(10));
    let mut fixture = fixture.with_next_written();
    assert_eq!(
        fixture.verdict(touched, 4, 3),
        Verdict::Release,
        "it went round"
    );
    fixture.put(5, 1);
    assert_eq!(fixture.verdict(touched, 7, 12), Verdict::NewRing);
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
fn batch_is_in_flight_unless_released_or_another_readers() {
    let in_flight = |followed, released| {
        let checkpoint = Checkpoint {
            followed,
            released,
            ..Checkpoint::default()
        };
        checkpoint.is_in_flight()
    };
    assert!(in_flight(false, false));
    assert!(!in_flight(false, true));
    assert!(!in_flight(true, false));
}

#[test]
fn a_change_time_that_was_too_young_proves_nothing() {
    let mut fixture = RingFixture::new(4, 10);
    fixture.checkpoint.ring.shows_changes = false;
    assert_eq!(
        fixture.verdict(fixture.checkpoint.ring, 0, 0),
        Verdict::NewRing
    );
}

#[test]
fn a_batch_that_wraps_is_judged_alike() {
    let fixture = RingFixture::new(14, 3).with_next_written();
    let same = fixture.checkpoint.ring;
    assert_eq!(fixture.verdict(same, 14, 5), Verdict::Release);
    assert_eq!(fixture.verdict(same, 0, 5), Verdict::Overtaken(2));
    assert_eq!(fixture.verdict(same, 5, 5), Verdict::Passed(2));
    assert_eq!(fixture.verdict(fixture.touched(), 14, 13), Verdict::Release);
    assert_eq!(fixture.verdict(fixture.touched(), 14, 14), Verdict::NewRing);
}
