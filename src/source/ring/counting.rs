//! How the events of a ring are counted: each once, whatever its producer, other readers and kills of this process do meanwhile.

use super::super::TrackedFile;
use super::{FULL_AGAIN, Mode, RingReader};
use crate::error::RingFault;
use crate::event::Events;
use crate::log;
use crate::producer::life::Life;
use crate::ring::commit::{Commit, Fate, Identity, Sight};
use crate::ring::protocol::Consumer;
use crate::ring::{BATCH, Ring, sparse};
use crate::state::ledger::Ledger;
use crate::totals::window;
use crate::totals::windows::Windows;
use std::io;
use std::time::Instant;

/// What a batch has taken of what waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Nothing,
    /// Events, or there was a change that took their place.
    Some,
    /// All but the last before the ring's end, which is a batch of its own.
    AllButOne,
}

impl RingReader {
    /// Whether there were events, or a change that took their place.
    pub(super) fn consume(
        &mut self,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<bool, RingFault> {
        let taken = self.consume_batch(file, ledger)?;
        if taken == Taken::AllButOne {
            // Once: whoever may write to the ring can put its end anywhere, again and again.
            self.consume_batch(file, ledger)?;
        }
        Ok(taken != Taken::Nothing)
    }

    /// Counts one batch, each of its events once, whatever ends this process, pmcd or the producer, and at whatever instruction.
    ///
    /// The record says whether the batch is counted, and `commit` changes that in one step. What a kill leaves:
    ///
    /// - before `commit` has changed the record: the batch is not counted and its slots still hold it: the next start reads it;
    /// - after that: the batch is counted, and whether its slots were released is open. The next start finds that out from the
    ///   ring's positions and bytes (`settle`), releases them if they were not, and never reads them again;
    /// - after `released`: nothing is open.
    ///
    /// Where the ring does not tell, the batch is taken for counted: rather is one lost than counted twice.
    fn consume_batch(
        &mut self,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<Taken, RingFault> {
        if let Some(taken) = self.find_waiting(file, ledger)? {
            return Ok(taken);
        }
        let mut events = std::mem::take(&mut ledger.books.room);
        let taken = self.read(&mut events, ledger.books.for_answer)?;
        self.apply(events, self.pending, self.pending, file, ledger);
        ledger.commit(self.commit);
        if self.release(file, ledger)? {
            self.released(ledger);
        }
        self.find_gap();
        Ok(taken)
    }

    /// Settles the batch before, if that is open, and looks how many events wait. `None`: some do.
    fn find_waiting(
        &mut self,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<Option<Taken>, RingFault> {
        self.more = false;
        let (mut read_pos, mut write_pos) = self.ring.positions()?;
        // Also after a kill that came before the slots were known to have been released.
        let moved = read_pos != self.commit.upto || !self.commit.released;
        if moved {
            self.settle(file, ledger)?;
            (read_pos, write_pos) = self.ring.positions()?;
            if read_pos != self.commit.upto {
                // It moves while it is looked at: more of it at the next tick.
                return Ok(Some(Taken::Some));
            }
        }
        self.pending = self.ring.between(read_pos, write_pos);
        let nothing = if moved { Taken::Some } else { Taken::Nothing };
        Ok((self.pending == 0).then_some(nothing))
    }

    /// Reads a batch of those that wait, by loads only, and remembers which.
    fn read(&mut self, events: &mut Events, is_for_answer: bool) -> Result<Taken, RingFault> {
        // Before the slots are copied: a restart from here on changes it.
        let ring = self.identity()?;
        self.check_allocated(self.pending)?;
        // Not more than was checked: later events may lie in a hole.
        let limit = self.pending.min(BATCH);
        self.more = self.pending > limit;
        // A batch that begins at 0 is the one of which it may be hard to tell whether its slots were released in a new ring. So
        // none ends there but one of a single event, and where the ring was half full, that waits for the next drain, by which
        // more have come; but for an answer, which has all, if it would be seen that the ring was set up anew.
        let end = self.commit.upto + limit;
        let is_cut = limit > 1 && self.ring.between(0, end) == 0;
        let batch = self
            .ring
            .read(|ring| ring.take(limit - u64::from(is_cut), events))??;
        if batch.from != self.commit.upto {
            return Err(RingFault::Restarted);
        }
        // A restart in the midst of the copy may have left positions that fit, but not the slots that were copied first.
        let after = self.identity()?;
        let is_same = ring.settled && after.changed == ring.changed;
        if !is_same && self.ring.read(|ring| ring.print(batch.from, batch.upto))? != batch.print {
            return Err(RingFault::Restarted);
        }
        self.commit = Commit::of(&batch, ring, false);
        let is_busy = self.pending >= self.ring.capacity() / 2;
        let has_time = is_busy && !(is_for_answer && is_same);
        Ok(match is_cut && !has_time {
            true => Taken::AllButOne,
            false => Taken::Some,
        })
    }

    /// Adds the events of the batch that was read to the totals in memory. `waits` is how many of them waited to be read, and
    /// `pending` how many the ring is to have held when it was looked at.
    fn apply(
        &mut self,
        events: Events,
        waits: u64,
        pending: u64,
        file: &TrackedFile,
        ledger: &mut Ledger,
    ) {
        let (now, is_aged) = (ledger.now, self.is_aged(waits, file, ledger));
        let Ledger {
            entry,
            windows,
            books,
            ..
        } = ledger;
        let mut of_any_age = is_aged.then(|| Windows::new(now.instant));
        let windows = of_any_age.as_mut().unwrap_or(windows);
        let before = entry.commit.map(|commit| commit.ring.id);
        if before != Some(self.commit.ring.id) {
            // Of another ring of the agent's.
            entry.account.cut();
        }
        let cuts = self.gaps.of(&self.commit);
        let account = &mut entry.account;
        account.count(&events, cuts, &books.bounds, now.seconds, windows);
        entry.add_look(pending, self.commit.ring.capacity);
        // Also where it was away: the process that writes it had started by then.
        (entry.last_event, entry.last_seen) = (now.stamp, now.stamp);
        // Not kept: at the next start it is added up from the entries.
        books.host.add(events.totals());
        books.counted += events.list().len() as u64;
        books.room = events;
    }

    /// Gives the slots of the batch that was counted back to the producer. `false`: it was found out what became of them, and
    /// that is noted.
    fn release(&mut self, file: &mut TrackedFile, ledger: &mut Ledger) -> Result<bool, RingFault> {
        let Commit { from, upto, .. } = self.commit;
        if self.ring.release(from, upto)?.is_err() {
            self.settle(file, ledger)?;
            return Ok(false);
        }
        // A restart sets the position to 0 as well, so that there the swap may have met the new ring.
        if from == 0 {
            self.settle(file, ledger).inspect_err(|&fault| {
                // In the midst of a restart: whatever the new ring will be, it begins at 0.
                if fault != RingFault::Unseen {
                    let _ = self.ring.release(upto, 0);
                }
            })?;
            return Ok(false);
        }
        Ok(true)
    }

    /// The producer may have filled the ring before it got the slots of the last batch: from where it stood then, events are
    /// missing.
    fn find_gap(&mut self) {
        let Commit { from, upto, .. } = self.commit;
        let (_, write_pos) = self.ring.positions().unwrap_or((upto, upto));
        let stood = self.ring.between(from, upto) + self.ring.between(upto, write_pos);
        // A ring that was found to have begun anew has an empty batch.
        if from != upto && stood >= self.ring.capacity() - 1 {
            self.gaps.add(self.ring.between(1, from));
        }
    }

    /// Finds out what became of the batch that was counted last, and goes on from there. In a ring that may not be written to now
    /// nothing is released: from here on the slots of the batch are another process's to give back.
    fn settle(&mut self, file: &mut TrackedFile, ledger: &mut Ledger) -> Result<(), RingFault> {
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

    /// The slots of the last batch are the producer's again.
    fn released(&mut self, ledger: &mut Ledger) {
        self.commit.released = true;
        ledger.released(self.commit.ring.id);
    }

    /// Counts what a ring holds that another process drains.
    pub(super) fn follow(
        &mut self,
        file: &mut TrackedFile,
        ledger: &mut Ledger,
    ) -> Result<bool, RingFault> {
        self.more = false;
        if !self.commit.observed {
            self.settle(file, ledger)?;
        }
        let (read_pos, write_pos) = self.ring.positions()?;
        self.pending = self.ring.between(read_pos, write_pos);
        if write_pos == self.commit.upto {
            // As long as it stands so, its agent loses what comes.
            if self.is_full_again(ledger) && file.presence.life(true) != Life::Exited {
                let capacity = self.ring.capacity();
                ledger.entry.add_look(self.pending, capacity);
                ledger.keep();
            }
            return Ok(false);
        }
        let ring = self.identity()?;
        // Where the one that drains it is ahead of it, the producer has gone round: in a new ring nobody can be.
        let is_behind = write_pos < read_pos;
        let commit = &self.commit;
        let is_other = |now: Consumer<_>| commit.is_of_another(&now, &ring, write_pos);
        if !is_behind && self.ring.read(is_other)? {
            // That is no proof where the same bytes come again and again. What lies before `write_pos` was written since in
            // either case, and is counted; from `read_pos` on it may have been already.
            self.renew(Some(0), ring, file, ledger)?;
        }
        let from = self.commit.upto;
        let new = self.ring.between(from, write_pos);
        self.check_allocated(new)?;
        let limit = new.min(BATCH);
        self.more = new > limit;
        let mut events = std::mem::take(&mut ledger.books.room);
        let batch = self
            .ring
            .read(|ring| ring.follow(from, limit, &mut events))??;
        self.commit = Commit::of(&batch, ring, true);
        let is_full = self.pending + 1 == self.ring.capacity();
        let pending = match is_full && !self.is_full_again(ledger) {
            true => 0,
            false => self.pending,
        };
        self.apply(events, new, pending, file, ledger);
        ledger.commit(self.commit);
        if is_full {
            self.gaps.add(write_pos);
        }
        Ok(true)
    }

    /// Whether the batch has events that waited when the ring was found, of a file that was made, or started anew, before those
    /// of which the last minute's percentiles are: nothing tells when they came. So many wait now.
    fn is_aged(&mut self, waits: u64, file: &TrackedFile, ledger: &Ledger) -> bool {
        let len = self.ring.between(self.commit.from, self.commit.upto);
        let aged = self.aged.get_or_insert_with(|| {
            let made = u64::try_from(file.facts.changed.0).unwrap_or(0);
            match ledger.now.seconds.saturating_sub(made) > window::LENGTH.as_secs() {
                true => waits,
                false => 0,
            }
        });
        let is_aged = *aged > 0;
        *aged = aged.saturating_sub(len);
        is_aged
    }

    /// Whether it is full and is to be counted so: once, however many batches it takes to follow, and again as long as it stays so.
    fn is_full_again(&mut self, ledger: &Ledger) -> bool {
        let now = ledger.now.instant;
        let is_full = self.pending + 1 == self.ring.capacity();
        let is_due = |full: Instant| now.saturating_duration_since(full) >= FULL_AGAIN;
        let counts = is_full && self.full.is_none_or(is_due);
        if counts {
            self.full = Some(now);
        } else if !is_full {
            self.full = None;
        }
        counts
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
        file.presence.renewed();
        self.go_on_from(commit, ledger);
        Ok(())
    }

    /// Goes on from a commit of which nothing was counted yet.
    fn go_on_from(&mut self, commit: Commit, ledger: &mut Ledger) {
        self.commit = commit;
        self.gaps.clear();
        ledger.commit(commit);
    }

    fn check_allocated(&self, pending: u64) -> Result<(), RingFault> {
        match sparse::has_room_for(self.ring.file(), self.ring.shape.layout, pending) {
            true => Ok(()),
            false => Err(RingFault::Sparse),
        }
    }

    pub(super) fn identity(&self) -> Result<Identity, RingFault> {
        Identity::of(&self.ring).map_err(|err| match err.kind() {
            io::ErrorKind::InvalidData => RingFault::Reformatted,
            _ => RingFault::Unseen,
        })
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
    let ahead = ring.read(|ring| ring.ahead())??;
    let last = pos.wrapping_sub(1) & (ring.capacity() - 1);
    Ok(Commit {
        write_pos: ahead.write_pos,
        next: ahead.next,
        beyond: ahead.beyond,
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
    let write_pos = stands.map_or(commit.write_pos, |(_, write_pos)| write_pos);
    !commit.observed
        && commit.from != commit.upto
        && (ring.between(commit.from, commit.write_pos) == most
            || ring.between(commit.from, write_pos) == most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::commit::tests::Table;

    #[test]
    fn full_ring_is_seen_from_its_last_batch() {
        // 15 of 16 slots.
        let mut full = Table::new(4, 3);
        assert!(was_full(&full.ring, &full.commit));
        full.commit.released = true;
        assert!(was_full(&full.ring, &full.commit));
        full.commit.observed = true;
        assert!(!was_full(&full.ring, &full.commit), "another drains it");
        let none = Commit {
            from: 4,
            upto: 4,
            write_pos: 3,
            ..Table::new(4, 3).commit
        };
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
