//! Finds out what became of a batch whose slots may not have been released, and begins with a ring again.

use super::super::TrackedFile;
use super::{Mode, RingReader};
use crate::error::RingFault;
use crate::log;
use crate::ring::Ring;
use crate::ring::checkpoint::{Checkpoint, RingIdentity, RingView, Verdict};
use crate::source::context::DrainContext;

impl RingReader {
    /// Finds out what became of the batch that was counted last, and goes on from there. In a ring that may not be written to now
    /// nothing is released: from here on the slots of the batch are another process's to give back.
    pub(super) fn recover(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let (read_pos, write_pos) = self.ring.positions()?;
        let identity = self.identity()?;
        let verdict = self.ring.read(|ring| {
            self.checkpoint.verdict(&RingView {
                identity: &identity,
                read_pos,
                write_pos,
                ring,
            })
        })?;
        let (end, may_release) = (self.checkpoint.end, self.mode == Mode::Drain);
        match verdict {
            Verdict::Passed(missed) => {
                context.entry.add_foreign_reads(missed);
                let checkpoint = empty_checkpoint(&self.ring, None, identity, self.mode)?;
                self.resume_from(checkpoint, context);
            }
            Verdict::NewRing => self.resume_after_restart(None, identity, file, context)?,
            Verdict::NewRingReleased if may_release => {
                // If it fails, the producer has put it there itself.
                let _ = self.ring.release(end, 0)?;
                self.resume_after_restart(None, identity, file, context)?;
            }
            // Its events begin at 0; `read_pos` is where the swap has put it.
            Verdict::NewRingReleased => {
                self.resume_after_restart(Some(0), identity, file, context)?
            }
            // A reader of what was counted here takes nothing away.
            _ if !may_release => {}
            Verdict::Done => self.note_released(context),
            // Where that fails, the position has moved again, and the next drain looks anew.
            Verdict::Release | Verdict::Overtaken(_) => {
                if verdict == Verdict::Release && self.checkpoint.is_doubtful(&identity) {
                    self.count_doubt(file, context);
                }
                if self.ring.release(read_pos, end)?.is_ok() {
                    if let Verdict::Overtaken(foreign) = verdict {
                        context.entry.add_foreign_reads(foreign);
                        context.write_entry();
                    }
                    self.note_released(context);
                }
            }
        }
        if !may_release {
            self.checkpoint.followed = true;
            context.commit(self.checkpoint);
        }
        Ok(())
    }

    /// It may be another ring with the same first events, which are lost then.
    fn count_doubt(&self, file: &TrackedFile, context: &mut DrainContext) {
        let (path, len) = (
            log::shown(&file.path),
            self.ring.between(0, self.checkpoint.end),
        );
        tracing::warn!(
            "{path}: its first {len} events are taken for those that were counted before; if its agent was restarted meanwhile, they are lost"
        );
        context.shared.doubtful_batches += 1;
    }

    /// The producer was started anew: its events begin at a position, or where `read_pos` is.
    pub(super) fn resume_after_restart(
        &mut self,
        pos: Option<u64>,
        ring: RingIdentity,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let checkpoint = empty_checkpoint(&self.ring, pos, ring, self.mode)?;
        context.entry.add_reset();
        context.add_start();
        file.liveness.producer_restarted();
        self.resume_from(checkpoint, context);
        Ok(())
    }

    /// Goes on from a commit of which nothing was counted yet.
    fn resume_from(&mut self, checkpoint: Checkpoint, context: &mut DrainContext) {
        self.checkpoint = checkpoint;
        self.gaps.clear();
        context.commit(checkpoint);
    }
}

/// The commit of a ring of which nothing was counted yet: an empty batch at a position, or where `read_pos` is.
pub(super) fn empty_checkpoint(
    ring: &Ring,
    pos: Option<u64>,
    identity: RingIdentity,
    mode: Mode,
) -> Result<Checkpoint, RingFault> {
    let (read_pos, _) = ring.positions()?;
    let pos = pos.unwrap_or(read_pos);
    let last = pos.wrapping_sub(1) & (ring.capacity() - 1);
    Ok(Checkpoint {
        producer: ring.read(|ring| ring.producer_state())??,
        ring: identity,
        from: pos,
        end: pos,
        fingerprint: ring.read(|ring| ring.fingerprint(last, pos))?,
        followed: mode != Mode::Drain,
        released: true,
    })
}

/// Whether a ring was full when the last batch that is known of it was copied, or, where its slots were not given back, is full
/// now: from the slot before the batch on, where the producer had to stop, events are missing.
pub(super) fn had_overflow(ring: &Ring, checkpoint: &Checkpoint) -> bool {
    let most_pending = ring.capacity() - 1;
    let current = ring.positions().ok().filter(|_| checkpoint.is_in_flight());
    let write_pos = current.map_or(checkpoint.producer.write_pos, |(_, write_pos)| write_pos);
    !checkpoint.followed
        && checkpoint.from != checkpoint.end
        && (ring.between(checkpoint.from, checkpoint.producer.write_pos) == most_pending
            || ring.between(checkpoint.from, write_pos) == most_pending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::checkpoint::tests::RingFixture;

    #[test]
    fn full_ring_is_seen_from_its_last_batch() {
        // 15 of 16 slots.
        let mut overflowed = RingFixture::new(4, 3);
        assert!(had_overflow(&overflowed.ring, &overflowed.checkpoint));
        overflowed.checkpoint.released = true;
        assert!(had_overflow(&overflowed.ring, &overflowed.checkpoint));
        overflowed.checkpoint.followed = true;
        assert!(
            !had_overflow(&overflowed.ring, &overflowed.checkpoint),
            "another drains it"
        );
        let mut empty = RingFixture::new(4, 3).checkpoint;
        (empty.from, empty.end, empty.producer.write_pos) = (4, 4, 3);
        assert!(
            !had_overflow(&overflowed.ring, &empty),
            "nothing was counted"
        );
    }

    #[test]
    fn ring_that_filled_up_before_the_release_was_full() {
        let mut fixture = RingFixture::new(4, 10);
        fixture.set_write_pos(2);
        assert!(!had_overflow(&fixture.ring, &fixture.checkpoint));
        fixture.set_write_pos(3);
        assert!(had_overflow(&fixture.ring, &fixture.checkpoint));
        fixture.checkpoint.released = true;
        assert!(!had_overflow(&fixture.ring, &fixture.checkpoint));
    }
}
