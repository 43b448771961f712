// SPDX-License-Identifier: GPL-2.0-or-later

//! Recovery: acts on the verdict about a batch whose slots may not have been released, and begins with a ring again.
//!
//! `Checkpoint::decide` in `src/ring/checkpoint.rs` decides what became of the batch. Begin with `RingReader::recover`.

use super::super::TrackedFile;
use super::RingReader;
use crate::error::RingFault;
use crate::log;
use crate::ring::Ring;
use crate::ring::checkpoint::{Checkpoint, RingIdentity, Verdict};
use crate::source::context::DrainContext;

impl RingReader {
    /// Finds out what became of the last counted batch, and goes on from there.
    pub(super) fn recover(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        // A restart sets `read_pos` to 0 as well, so a release from 0 may have succeeded on the new ring. The verdict
        // after it finds that out. A batch that is to be released from 0 without beginning there takes one verdict
        // more.
        for _ in 0..3 {
            let batch = self.checkpoint;
            self.act_on_verdict(file, context).inspect_err(|&fault| {
                // The producer is in the midst of a restart. Whatever the new ring will be, it begins at 0.
                let is_from_0 = batch.from == 0 && !batch.released;
                if is_from_0 && fault != RingFault::StatFailed {
                    let _ = self.ring.release(batch.end, 0);
                }
            })?;
            if self.checkpoint.released {
                break;
            }
        }
        Ok(())
    }

    /// Finds the verdict about the last counted batch, and acts on it. After a release from 0 it does not note the
    /// release.
    fn act_on_verdict(
        &mut self,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let (read_pos, write_pos) = self.ring.positions()?;
        let identity = self.identity()?;
        let evidence = self.ring.read(|ring| {
            let positions = (read_pos, write_pos);
            self.checkpoint.evidence(positions, &identity, &ring)
        })?;
        let verdict = self.checkpoint.decide(&evidence);
        let end = self.checkpoint.end;
        match verdict {
            Verdict::Passed(missed) => {
                context.entry.add_foreign_reads(missed);
                // The position is loaded again: the producer may have restarted since. What another reader took in
                // between is not among the foreign reads.
                let checkpoint = empty_checkpoint(&self.ring, identity)?;
                self.resume_from(checkpoint, context);
            }
            Verdict::NewRing => self.resume_after_restart(identity, file, context)?,
            Verdict::NewRingReleased => {
                if evidence.may_be_running() {
                    let (path, len) = (log::shown(&file.path), self.ring.between(end, 0));
                    tracing::warn!(
                        "{path}: its agent is taken for restarted; if it was not, the last {len} events before the ring's end are lost"
                    );
                    context.shared.doubtful_batches += 1;
                }
                // If the swap fails, the producer has set `read_pos` to 0 itself.
                let _ = self.ring.release(end, 0)?;
                self.resume_after_restart(identity, file, context)?;
            }
            Verdict::Done => self.note_released(context),
            // Only of a batch that begins at 0 does the verdict after a release from 0 tell whether a new ring was
            // released.
            Verdict::Release | Verdict::Overtaken(_)
                if read_pos == 0 && self.checkpoint.from != 0 =>
            {
                if let Verdict::Overtaken(foreign) = verdict {
                    context.entry.add_foreign_reads(foreign);
                }
                self.checkpoint = self.counted_from_0()?;
                context.commit(self.checkpoint);
            }
            // If the release fails, `read_pos` has moved again, and the next drain recovers again.
            Verdict::Release | Verdict::Overtaken(_) => {
                if verdict == Verdict::Release && self.checkpoint.is_doubtful(&identity) {
                    self.count_doubt(file, context);
                }
                if self.ring.release(read_pos, end)?.is_ok() {
                    if let Verdict::Overtaken(foreign) = verdict {
                        context.entry.add_foreign_reads(foreign);
                        context.write_entry();
                    }
                    if read_pos != 0 {
                        self.note_released(context);
                    }
                }
            }
        }
        Ok(())
    }

    /// The checkpoint of all slots from 0 to the end of the last batch, which were counted and are not released.
    fn counted_from_0(&self) -> Result<Checkpoint, RingFault> {
        let end = self.checkpoint.end;
        Ok(Checkpoint {
            from: 0,
            fingerprint: self.ring.read(|ring| ring.fingerprint(0, end))?,
            producer: self.ring.read(|ring| ring.producer_state())??,
            ..self.checkpoint
        })
    }

    /// Counts and logs a doubtful batch: it may be of a new ring with the same first events, which are then lost.
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

    /// Begins with a ring again after a producer restart, at `read_pos`.
    pub(super) fn resume_after_restart(
        &mut self,
        identity: RingIdentity,
        file: &mut TrackedFile,
        context: &mut DrainContext,
    ) -> Result<(), RingFault> {
        let checkpoint = empty_checkpoint(&self.ring, identity)?;
        context.entry.add_reset();
        context.add_start();
        file.liveness.producer_restarted();
        self.resume_from(checkpoint, context);
        Ok(())
    }

    /// Goes on from a checkpoint with an empty batch.
    fn resume_from(&mut self, checkpoint: Checkpoint, context: &mut DrainContext) {
        self.checkpoint = checkpoint;
        self.gaps.clear();
        context.commit(checkpoint);
    }
}

/// The checkpoint of a ring from which nothing was counted yet: an empty batch at `read_pos`.
pub(super) fn empty_checkpoint(
    ring: &Ring,
    identity: RingIdentity,
) -> Result<Checkpoint, RingFault> {
    let (pos, _) = ring.positions()?;
    let last = pos.wrapping_sub(1) & (ring.capacity() - 1);
    Ok(Checkpoint {
        producer: ring.read(|ring| ring.producer_state())??,
        ring: identity,
        from: pos,
        end: pos,
        fingerprint: ring.read(|ring| ring.fingerprint(last, pos))?,
        released: true,
    })
}

/// True if the ring was full when its last known batch was copied or, if the batch's slots were not released, is full
/// now. The producer had to stop at the slot before the batch, and events are missing from there.
pub(super) fn had_overflow(ring: &Ring, checkpoint: &Checkpoint) -> bool {
    let most_pending = ring.capacity() - 1;
    let current = ring.positions().ok().filter(|_| checkpoint.is_in_flight());
    let write_pos = current.map_or(checkpoint.producer.write_pos, |(_, write_pos)| write_pos);
    checkpoint.from != checkpoint.end
        && (ring.between(checkpoint.from, checkpoint.producer.write_pos) == most_pending
            || ring.between(checkpoint.from, write_pos) == most_pending)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::checkpoint::tests::RingFixture;

    #[test]
    fn overflow_is_found_in_the_checkpoint() {
        // The batch has 15 of 16 slots.
        let mut overflowed = RingFixture::new(4, 3);
        assert!(had_overflow(&overflowed.ring, &overflowed.checkpoint));
        overflowed.checkpoint.released = true;
        assert!(had_overflow(&overflowed.ring, &overflowed.checkpoint));
        let mut empty = RingFixture::new(4, 3).checkpoint;
        (empty.from, empty.end, empty.producer.write_pos) = (4, 4, 3);
        assert!(
            !had_overflow(&overflowed.ring, &empty),
            "nothing was counted"
        );
    }

    #[test]
    fn overflow_before_the_release_is_found_in_the_ring() {
        let mut fixture = RingFixture::new(4, 10);
        fixture.set_write_pos(2);
        assert!(!had_overflow(&fixture.ring, &fixture.checkpoint));
        fixture.set_write_pos(3);
        assert!(had_overflow(&fixture.ring, &fixture.checkpoint));
        fixture.checkpoint.released = true;
        assert!(!had_overflow(&fixture.ring, &fixture.checkpoint));
    }
}
