//! Finds out what became of a batch whose slots may not have been released, and begins with a ring again.

use super::super::TrackedFile;
use super::{Mode, RingReader};
use crate::error::RingFault;
use crate::log;
use crate::ring::Ring;
use crate::ring::checkpoint::{Commit, Fate, Identity, Sight};
use crate::source::context::Ledger;

impl RingReader {
    /// Finds out what became of the batch that was counted last, and goes on from there. In a ring that may not be written to now
    /// nothing is released: from here on the slots of the batch are another process's to give back.
    pub(super) fn settle(
        &mut self,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<(), RingFault> {
        let (read_pos, write_pos) = self.ring.positions()?;
        let identity = self.identity()?;
        let fate = self.ring.read(|ring| {
            self.commit.judge(&Sight {
                identity: &identity,
                read_pos,
                write_pos,
                ring,
            })
        })?;
        let (upto, writes) = (self.commit.upto, self.mode == Mode::Drain);
        match fate {
            Fate::Passed(missed) => {
                ledger.entry.add_foreign_reads(missed);
                let commit = begin(&self.ring, None, identity, self.mode)?;
                self.go_on_from(commit, ledger);
            }
            Fate::NewRing => self.renew(None, identity, file, ledger)?,
            Fate::NewRingReleased if writes => {
                // If it fails, the producer has put it there itself.
                let _ = self.ring.release(upto, 0)?;
                self.renew(None, identity, file, ledger)?;
            }
            // Its events begin at 0; `read_pos` is where the swap has put it.
            Fate::NewRingReleased => self.renew(Some(0), identity, file, ledger)?,
            // A reader of what was counted here takes nothing away.
            _ if !writes => {}
            Fate::Done => self.released(ledger),
            // Where that fails, the position has moved again, and the next drain looks anew.
            Fate::Release | Fate::Overtaken(_) => {
                if fate == Fate::Release && self.commit.is_doubtful(&identity) {
                    self.note_doubt(file, ledger);
                }
                if self.ring.release(read_pos, upto)?.is_ok() {
                    if let Fate::Overtaken(taken) = fate {
                        ledger.entry.add_foreign_reads(taken);
                        ledger.keep();
                    }
                    self.released(ledger);
                }
            }
        }
        if !writes {
            self.commit.observed = true;
            ledger.commit(self.commit);
        }
        Ok(())
    }

    /// It may be another ring with the same first events, which are lost then.
    fn note_doubt(&self, file: &TrackedFile, ledger: &mut Ledger) {
        let (path, len) = (
            log::shown(&file.path),
            self.ring.between(0, self.commit.upto),
        );
        tracing::warn!(
            "{path}: its first {len} events are taken for those that were counted before; if its agent was restarted meanwhile, they are lost"
        );
        ledger.books.doubtful += 1;
    }

    /// The producer was started anew: its events begin at a position, or where `read_pos` is.
    pub(super) fn renew(
        &mut self,
        pos: Option<u64>,
        ring: Identity,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<(), RingFault> {
        let commit = begin(&self.ring, pos, ring, self.mode)?;
        ledger.entry.add_reset();
        ledger.add_start();
        file.liveness.producer_restarted();
        self.go_on_from(commit, ledger);
        Ok(())
    }

    /// Goes on from a commit of which nothing was counted yet.
    fn go_on_from(&mut self, commit: Commit, ledger: &mut Ledger) {
        self.commit = commit;
        self.gaps.clear();
        ledger.commit(commit);
    }
}

/// The commit of a ring of which nothing was counted yet: an empty batch at a position, or where `read_pos` is.
pub(super) fn begin(
    ring: &Ring,
    pos: Option<u64>,
    identity: Identity,
    mode: Mode,
) -> Result<Commit, RingFault> {
    let (read_pos, _) = ring.positions()?;
    let pos = pos.unwrap_or(read_pos);
    let last = pos.wrapping_sub(1) & (ring.capacity() - 1);
    Ok(Commit {
        ahead: ring.read(|ring| ring.ahead())??,
        ring: identity,
        from: pos,
        upto: pos,
        print: ring.read(|ring| ring.print(last, pos))?,
        observed: mode != Mode::Drain,
        released: true,
    })
}

/// Whether a ring was full when the last batch that is known of it was copied, or, where its slots were not given back, is full
/// now: from the slot before the batch on, where the producer had to stop, events are missing.
pub(super) fn was_full(ring: &Ring, commit: &Commit) -> bool {
    let most = ring.capacity() - 1;
    let stands = ring.positions().ok().filter(|_| commit.is_in_flight());
    let write_pos = stands.map_or(commit.ahead.write_pos, |(_, write_pos)| write_pos);
    !commit.observed
        && commit.from != commit.upto
        && (ring.between(commit.from, commit.ahead.write_pos) == most
            || ring.between(commit.from, write_pos) == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::checkpoint::tests::Table;

    #[test]
    fn full_ring_is_seen_from_its_last_batch() {
        // 15 of 16 slots.
        let mut full = Table::new(4, 3);
        assert!(was_full(&full.ring, &full.commit));
        full.commit.released = true;
        assert!(was_full(&full.ring, &full.commit));
        full.commit.observed = true;
        assert!(!was_full(&full.ring, &full.commit), "another drains it");
        let mut none = Table::new(4, 3).commit;
        (none.from, none.upto, none.ahead.write_pos) = (4, 4, 3);
        assert!(!was_full(&full.ring, &none), "nothing was counted");
    }

    #[test]
    fn ring_that_filled_up_before_the_release_was_full() {
        let mut table = Table::new(4, 10);
        table.moves_on(2);
        assert!(!was_full(&table.ring, &table.commit));
        table.moves_on(3);
        assert!(was_full(&table.ring, &table.commit));
        table.commit.released = true;
        assert!(!was_full(&table.ring, &table.commit));
    }
}
