//! Reads of other processes, in threads of their own, and the processes that stall them.
//!
//! To read what a process has mapped or was started with waits for its memory to be free of changes, and a process of another
//! user may keep it busy without an end: by a file system of its own that does not answer, or by userfaultfd(2). A read that
//! stalls is abandoned, and later ones skip that process and others of its group for a while: no user's processes keep others
//! from being seen.

use crate::log;
use crate::producer::writer::{Writer, namespace};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A read that does not get any further for so long is abandoned.
pub const STUCK: Duration = Duration::from_secs(10);
/// So long, at least, the group of a stalled process is skipped.
const AVOID: Duration = Duration::from_secs(600);
/// While so many abandoned reads wait, there is no other.
const MAX_STUCK: usize = 8;

/// Processes that are skipped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// All that have a user namespace of their own: any user can make one.
    Namespaces,
    /// Those of a container, by its mount namespace.
    Container(u64),
    /// Those of a user outside of containers.
    User(u32),
    /// One process: root's, or one whose user is not known.
    Process(Writer),
}

impl Group {
    /// Finds the group of a process; nothing of that waits for it.
    fn of(process: Writer) -> Self {
        let pid = process.pid.to_string();
        // `None`: it is ours, or hidden.
        let other = |kind| {
            let (its, ours) = (namespace(&pid, kind).ok()?, namespace("self", kind).ok()?);
            (its != ours).then_some(its)
        };
        match (other("user"), other("mnt"), owner(process)) {
            (Some(_), ..) => Self::Namespaces,
            (_, Some(container), _) => Self::Container(container),
            (.., None | Some(0)) => Self::Process(process),
            (.., Some(uid)) => Self::User(uid),
        }
    }

    fn skipped(self) -> &'static str {
        match self {
            Self::Namespaces => "no process with a user namespace of its own is",
            Self::Container(_) => "no process of its container is",
            Self::User(_) => "no process of its user is",
            Self::Process(_) => "it is not",
        }
    }
}

/// The user of a process; `None`: it has ended.
fn owner(process: Writer) -> Option<u32> {
    let meta = fs::metadata(format!("/proc/{}", process.pid)).ok()?;
    Some(meta.uid())
}

/// Processes that a read skips.
#[derive(Clone, Debug, Default)]
pub struct Avoided(Vec<Group>);

impl Avoided {
    /// True if this process is one of them.
    #[must_use]
    pub fn has(&self, process: Writer) -> bool {
        // Almost always there are none.
        !self.0.is_empty() && self.0.contains(&Group::of(process))
    }
}

/// Says which process is read now; `None`: none, and what waits does not wait for one.
pub type At<'a> = &'a mut dyn FnMut(Option<Writer>);

#[derive(Debug)]
enum Said<T> {
    At(Option<Writer>),
    Done(T),
}

/// A read of processes that goes on in a thread of its own. Nothing is shared with it but what it says.
#[derive(Debug)]
pub struct Look<T> {
    said: Receiver<Said<T>>,
    thread: JoinHandle<()>,
    at: Option<Writer>,
    /// When it last got further.
    since: Instant,
}

impl<T: Send + 'static> Look<T> {
    /// Starts it.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(name: &str, look: impl FnOnce(At) -> T + Send + 'static) -> io::Result<Self> {
        let (say, said) = mpsc::channel();
        let look = move || {
            // Sending fails once the read is abandoned.
            let found = look(&mut |process| drop(say.send(Said::At(process))));
            let _ = say.send(Said::Done(found));
        };
        Ok(Self {
            said,
            thread: thread::Builder::new().name(name.into()).spawn(look)?,
            at: None,
            since: Instant::now(),
        })
    }

    /// What was found, once all was read; `None` until then.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub fn answer(&mut self, now: Instant) -> Result<Option<T>, RecvError> {
        self.answer_within(Duration::ZERO, now)
    }

    /// What was found, which is waited for until then.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub fn answer_until(&mut self, end: Instant) -> Result<Option<T>, RecvError> {
        let now = Instant::now();
        self.answer_within(end.saturating_duration_since(now), now)
    }

    fn answer_within(&mut self, patience: Duration, now: Instant) -> Result<Option<T>, RecvError> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(Said::At(process)) => (self.at, self.since) = (process, now),
                Ok(Said::Done(found)) => return Ok(Some(found)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            }
        }
    }
}

/// A read that was abandoned.
#[derive(Debug)]
struct Held {
    by: Writer,
    group: Group,
    /// The group is skipped until then at least.
    until: Instant,
    thread: JoinHandle<()>,
}

impl Held {
    fn waits(&self) -> bool {
        !self.thread.is_finished()
    }
}

/// The reads that were abandoned.
#[derive(Debug, Default)]
pub struct Holdups(Vec<Held>);

impl Holdups {
    /// The processes that a read which begins now skips; `None`: so many wait that there is to be no other.
    pub fn avoided(&mut self, now: Instant) -> Option<Avoided> {
        self.0.retain(|held| now < held.until || held.waits());
        let avoided = self.0.iter().map(|held| held.group).collect();
        (self.waiting().len() < MAX_STUCK).then_some(Avoided(avoided))
    }

    /// Has a read go on to its end: where a process stalls it, another one begins that skips it. `None`: it has come to none.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn look<T: Send + 'static>(
        &mut self,
        begin: impl Fn(Avoided) -> io::Result<Look<T>>,
    ) -> io::Result<Option<T>> {
        while let Some(avoided) = self.avoided(Instant::now()) {
            let mut look = Some(begin(avoided)?);
            while let Some(mut going) = look {
                match going.answer_until(Instant::now() + STUCK / 10) {
                    Ok(None) => look = self.go_on(going, Instant::now()),
                    Ok(found) => return Ok(found),
                    Err(_) => return Ok(None),
                }
            }
        }
        Ok(None)
    }

    /// The processes that stall a read now.
    #[must_use]
    pub fn waiting(&self) -> Vec<u32> {
        let waiting = self.0.iter().filter(|held| held.waits());
        waiting.map(|held| held.by.pid).collect()
    }

    /// Abandons a read if a process stalls it, so that another one can begin; otherwise it goes on.
    pub fn go_on<T: Send + 'static>(&mut self, look: Look<T>, now: Instant) -> Option<Look<T>> {
        let is_stuck = now.saturating_duration_since(look.since) >= STUCK;
        let Some(by) = look.at.filter(|_| is_stuck) else {
            return Some(look);
        };
        let group = Group::of(by);
        let _about = log::about(owner(by));
        tracing::warn!(
            "/proc does not answer: process {} keeps its memory busy; as long as it does, and for ten minutes, {} looked at",
            by.pid,
            group.skipped()
        );
        self.0.push(Held {
            by,
            group,
            until: now + AVOID,
            thread: look.thread,
        });
        if self.waiting().len() == MAX_STUCK {
            tracing::error!(
                "/proc does not answer: eight processes keep their memory busy; until one of them does no more, nothing new is found out of processes"
            );
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn sleeper() -> (Child, Writer) {
        let child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let writer = Writer::of(child.id()).expect("it runs");
        (child, writer)
    }

    #[test]
    fn a_process_stands_for_itself_its_user_or_all_user_namespaces() {
        let (mut child, process) = sleeper();
        let of = |process| Group::of(process);
        let other = Writer {
            pid: std::process::id(),
            start: 1,
        };
        let expected = match nix::unistd::geteuid().as_raw() {
            0 => Group::Process(process),
            uid => Group::User(uid),
        };
        assert_eq!(of(process), expected);
        assert_eq!(
            of(process) == of(other),
            expected != Group::Process(process)
        );
        child.kill().expect("it runs");
        child.wait().expect("our child");
        assert_eq!(of(process), Group::Process(process), "it has ended");
    }

    #[test]
    fn who_holds_looks_up_is_left_alone_while_he_does_and_for_a_while() {
        let start = Instant::now();
        let mut holdups = Holdups::default();
        let (mut child, process) = sleeper();
        let (go, wait) = mpsc::channel::<()>();
        let look = Look::begin("look", move |at| {
            at(Some(process));
            let _ = wait.recv();
        });
        let mut look = look.expect("a thread");
        while look.at.is_none() {
            assert_eq!(look.answer(start), Ok(None));
        }
        // Where it does not say at whom it is, or not for long, it goes on.
        look = holdups.go_on(look, start + STUCK / 2).expect("not long");
        assert!(
            holdups
                .avoided(start)
                .is_some_and(|avoided| !avoided.has(process))
        );
        assert!(holdups.go_on(look, start + STUCK).is_none());
        let has = |holdups: &mut Holdups, now| {
            let avoided = holdups.avoided(now).expect("there is room");
            avoided.has(process)
        };
        let late = start + STUCK + AVOID;
        assert!(
            has(&mut holdups, start + STUCK) && has(&mut holdups, late),
            "it still waits"
        );
        drop(go);
        while holdups.0.iter().any(Held::waits) {
            thread::yield_now();
        }
        assert!(has(&mut holdups, start + STUCK), "it may do so again");
        assert!(!has(&mut holdups, late));
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    #[test]
    fn where_many_wait_there_is_no_other_look_until_one_ends() {
        let now = Instant::now();
        let mut holdups = Holdups::default();
        let mut ends = Vec::new();
        for pid in 1..=8 {
            assert!(holdups.avoided(now).is_some());
            let (end, ended) = mpsc::channel::<()>();
            ends.push(end);
            let mut look = Look::begin("look", move |_| ended.recv().is_ok()).expect("a thread");
            look.at = Some(Writer {
                pid: pid + (1 << 30),
                start: 1,
            });
            let stuck = look.since + STUCK;
            assert!(holdups.go_on(look, stuck).is_none());
        }
        assert!(holdups.avoided(now + STUCK).is_none());
        assert!(
            holdups.avoided(now + 2 * AVOID).is_none(),
            "they still wait"
        );
        ends.pop();
        while holdups.waiting().len() == MAX_STUCK {
            thread::yield_now();
        }
        assert!(holdups.avoided(now + STUCK).is_some());
    }

    #[test]
    fn a_look_answers_once_and_says_when_it_cannot() {
        let mut look = Look::begin("look", |at| {
            at(None);
            7
        })
        .expect("a thread");
        let end = Instant::now() + Duration::from_secs(120);
        assert_eq!(look.answer_until(end), Ok(Some(7)));
        assert_eq!(look.answer_until(end), Err(RecvError));
        assert_eq!(look.answer(end), Err(RecvError));
    }
}
