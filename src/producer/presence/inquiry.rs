//! Questions to /proc of which it depends whether a batch was counted.

use crate::find::discover::FileFacts;
use crate::producer::survey::{Mappers, Survey};
use crate::producer::writer::Writer;
use crate::ring::commit::Commit;
use nix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long is waited for what /proc shows where it decides whether a batch was counted.
const PATIENCE: Duration = Duration::from_millis(100);
/// Between two such questions there is so much more time than one takes.
const REST: u32 = 10;

/// Questions of which a batch depends, and which are waited for. Whoever may write to a ring can raise them as often as he likes:
/// so they have a tenth of the time, and one thread.
#[derive(Debug)]
pub struct Inquiry {
    patience: Duration,
    /// One that was not answered in time: /proc is not asked again before it is.
    late: Option<Survey>,
    /// When the next may be asked.
    next: Option<Instant>,
}

impl Default for Inquiry {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Inquiry {
    /// None was asked yet; each will be waited for so long.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            late: None,
            next: None,
        }
    }

    fn ask(&mut self) -> Option<Mappers> {
        let begun = Instant::now();
        if self.next.is_some_and(|next| begun < next) {
            return None;
        }
        if let Some(late) = self.late.take() {
            if matches!(late.answer(), Ok(None)) {
                self.late = Some(late);
                return None;
            }
        }
        let survey = Survey::begin(HashSet::new()).ok()?;
        let mappers = survey.wait(self.patience);
        if mappers.is_none() {
            self.late = Some(survey);
        }
        let now = Instant::now();
        self.next = Some(now + (now - begun) * REST);
        mappers
    }
}

/// Whether a process writes to the file that has started since a batch was counted (a time of CLOCK_MONOTONIC), and the one
/// that wrote the batch has ended: then a ring with the same bytes in the same place is another one. Asked rarely, since it
/// looks through all of /proc; what /proc does not show in time, or may not be asked for now, is not so: rather is a batch
/// lost than counted twice.
#[must_use]
pub fn has_new_writer(
    inquiry: &mut Inquiry,
    commit: &Commit,
    since: u64,
    facts: &FileFacts,
    path: &Path,
) -> bool {
    let Some(mappers) = inquiry.ask() else {
        return false;
    };
    let ago = time(ClockId::CLOCK_MONOTONIC).saturating_sub(Duration::from_nanos(since));
    let since = time(ClockId::CLOCK_BOOTTIME).saturating_sub(ago);
    let found = mappers.of(facts.id.dev, facts.id.ino, path);
    let writers: Vec<Writer> = found
        .iter()
        .filter(|mapper| mapper.is_agent())
        .map(|mapper| mapper.process)
        .collect();
    let is_new = |process: &Writer| process.started() > since;
    match commit.ring.writer {
        Some(writer) => !writer.is_running() && writers.iter().any(is_new),
        // A child of the one that wrote may be left over, so that only all of them are proof.
        None => !writers.is_empty() && writers.iter().all(is_new),
    }
}

fn time(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_batch_depends_on_is_not_asked_as_often_as_a_stranger_likes() {
        let mut inquiry = Inquiry::default();
        // Whether it is answered in time depends on the machine.
        let _ = inquiry.ask();
        assert!(inquiry.next.is_some(), "it was asked");
        // Later than this test can last.
        let next = Instant::now() + Duration::from_secs(3600);
        inquiry.next = Some(next);
        assert!(inquiry.ask().is_none(), "not before its time");
        assert_eq!(inquiry.next, Some(next));
    }
}
