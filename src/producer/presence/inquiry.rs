//! Questions to /proc of which it depends whether a batch was counted.

use crate::base::file::{FileFacts, FileId};
use crate::producer::holdups::{Holdups, Look};
use crate::producer::survey::{self, Mappers};
use crate::producer::writer::Writer;
use crate::ring::commit::Commit;
use nix::time::{ClockId, clock_gettime};
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a ring waits for what /proc shows where it decides whether a batch was counted: many times as long as a look takes.
const PATIENCE: Duration = Duration::from_millis(500);
/// Between two such questions there is so much more time than one takes.
const REST: u32 = 10;

/// Questions of which a batch depends, one at a time. The ring that asks waits, and nothing else does: it asks again at each
/// drain. Whoever may write to a ring can raise them as often as he likes: so they have a tenth of the time, and one thread.
#[derive(Debug)]
pub struct Inquiry {
    patience: Duration,
    open: Option<Question>,
    /// When the next may be asked.
    next: Option<Instant>,
    /// Who has held up this one, or another look at processes.
    holdups: Holdups,
}

/// One that was asked.
#[derive(Debug)]
struct Question {
    /// Who has this file mapped.
    file: FileId,
    asked: Instant,
    survey: Look<Mappers>,
}

/// What is known of an answer.
#[derive(Debug)]
enum Answer {
    Shown(Box<Mappers>),
    NotYet,
    /// Nothing, and it is not waited for.
    Nothing,
}

impl Default for Inquiry {
    fn default() -> Self {
        Self::new(PATIENCE)
    }
}

impl Inquiry {
    /// None was asked yet; for each answer a ring will wait so long.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self {
            patience,
            open: None,
            next: None,
            holdups: Holdups::default(),
        }
    }

    /// Who has held up looks at processes.
    pub fn holdups(&mut self) -> &mut Holdups {
        &mut self.holdups
    }

    /// Whether a ring waits for an answer.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let open = self.open.as_ref();
        open.is_some_and(|question| question.asked.elapsed() < self.patience)
    }

    fn ask(&mut self, file: FileId) -> Answer {
        let now = Instant::now();
        if let Some(mut question) = self.open.take() {
            let answer = question.survey.answer(now);
            let in_time = now.duration_since(question.asked) < self.patience;
            let is_own = question.file == file;
            match answer {
                // /proc is not asked again before it has answered, or was given up.
                Ok(None) => {
                    let Question {
                        file,
                        asked,
                        survey,
                    } = question;
                    let survey = self.holdups.go_on(survey, now);
                    self.open = survey.map(|survey| Question {
                        file,
                        asked,
                        survey,
                    });
                    return match is_own && in_time {
                        true => Answer::NotYet,
                        false => Answer::Nothing,
                    };
                }
                Ok(Some(mappers)) => {
                    self.next = Some(now + mappers.took * REST);
                    // Any other has not asked this, or did not wait for it.
                    if is_own && in_time {
                        return Answer::Shown(Box::new(mappers));
                    }
                }
                Err(_) => self.next = Some(now + PATIENCE * REST),
            }
        }
        if self.next.is_some_and(|next| now < next) {
            return Answer::Nothing;
        }
        let Some(avoided) = self.holdups.avoided(now) else {
            return Answer::Nothing;
        };
        let Ok(survey) = survey::begin(HashSet::new(), [file.ino].into(), None, avoided) else {
            return Answer::Nothing;
        };
        self.open = Some(Question {
            file,
            asked: now,
            survey,
        });
        Answer::NotYet
    }
}

/// What is told of who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Whether it is a new process.
    IsNew(bool),
    /// That is being asked, and is to be asked again at the next drain.
    NotYet,
    /// Nothing: it may not be asked for now, or was not shown in time.
    Nothing,
}

/// Whether a process writes to the file that has started since a batch was counted (a time of CLOCK_MONOTONIC), and the one
/// that wrote the batch has ended: then a ring with the same bytes in the same place is another one. `None`: that is being
/// asked, and is to be asked again at the next drain. Asked rarely, since it looks through all of /proc; what /proc does not
/// show in time, or may not be asked for now, is not so: rather is a batch lost than counted twice.
#[must_use]
pub fn has_new_writer(
    inquiry: &mut Inquiry,
    commit: &Commit,
    since: u64,
    facts: &FileFacts,
    path: &Path,
) -> Option<bool> {
    match new_writer(inquiry, commit, since, facts, path) {
        Told::IsNew(is_new) => Some(is_new),
        Told::NotYet => None,
        Told::Nothing => Some(false),
    }
}

/// The same, where something is to be done once it is told, and can wait.
#[must_use]
pub fn new_writer(
    inquiry: &mut Inquiry,
    commit: &Commit,
    since: u64,
    facts: &FileFacts,
    path: &Path,
) -> Told {
    let mappers = match inquiry.ask(facts.id) {
        Answer::Shown(mappers) => mappers,
        Answer::NotYet => return Told::NotYet,
        Answer::Nothing => return Told::Nothing,
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
    Told::IsNew(match commit.ring.writer {
        Some(writer) => !writer.is_running() && writers.iter().any(is_new),
        // A child of the one that wrote may be left over, so that only all of them are proof.
        None => !writers.is_empty() && writers.iter().all(is_new),
    })
}

fn time(clock: ClockId) -> Duration {
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Later than a test can last.
    const LONG: Duration = Duration::from_secs(3600);

    fn file(ino: u64) -> FileId {
        FileId { dev: 1, ino }
    }

    #[test]
    fn the_ring_that_has_asked_waits_for_the_answer_and_no_other_does() {
        let mut inquiry = Inquiry::new(LONG);
        assert!(!inquiry.is_open());
        assert!(matches!(inquiry.ask(file(1)), Answer::NotYet));
        assert!(inquiry.is_open());
        let end = Instant::now() + Duration::from_secs(120);
        while !matches!(inquiry.ask(file(1)), Answer::Shown(_)) {
            assert!(Instant::now() < end, "no answer");
            std::thread::yield_now();
        }
        assert!(!inquiry.is_open());
        // Whoever has not asked does not wait for another's, which is not his either.
        inquiry.next = None;
        assert!(matches!(inquiry.ask(file(1)), Answer::NotYet));
        while matches!(&inquiry.open, Some(question) if question.file == file(1)) {
            assert!(Instant::now() < end, "no answer");
            assert!(matches!(inquiry.ask(file(2)), Answer::Nothing));
        }
    }

    #[test]
    fn what_a_batch_depends_on_is_not_asked_as_often_as_a_stranger_likes() {
        let mut inquiry = Inquiry::new(Duration::ZERO);
        assert!(matches!(inquiry.ask(file(1)), Answer::NotYet));
        // The time that a ring waits for it is over at once.
        let end = Instant::now() + Duration::from_secs(120);
        while inquiry.next.is_none() {
            assert!(Instant::now() < end, "no answer");
            assert!(matches!(inquiry.ask(file(1)), Answer::Nothing));
        }
        let next = Instant::now() + LONG;
        inquiry.next = Some(next);
        assert!(
            matches!(inquiry.ask(file(1)), Answer::Nothing),
            "not before its time"
        );
        assert_eq!(inquiry.next, Some(next));
        assert!(inquiry.open.is_none());
    }
}
