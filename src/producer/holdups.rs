//! Looks at processes, in threads of their own, and the processes that hold them up.
//!
//! To read what a process has mapped or was started with waits for its memory to be free of changes, and a process of a stranger's
//! may keep it busy for as long as he likes: by a file system of his own that does not answer, or by userfaultfd(2). Such a look is
//! given up, and the next ones leave that process and its like alone for a while: nobody's processes keep others from being seen.

use super::writer::Writer;
use crate::log;
use crate::producer::writer::namespace;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{self, Receiver, RecvError, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// A look that does not get any further for so long is given up.
pub const STUCK: Duration = Duration::from_secs(10);
/// So long, at least, who has held one up is left alone with his like.
const AVOID: Duration = Duration::from_secs(600);
/// As long as so many looks that were given up wait, there is no other.
const MAX_STUCK: usize = 8;

/// A process that was looked at, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    process: Writer,
    /// Its user; `None`: it has ended.
    uid: Option<u32>,
    /// Its mount namespace, where that is neither hidden nor ours.
    mnt: Option<u64>,
    /// Whether its user namespace is certainly not ours: anybody can make one.
    is_foreign: bool,
}

impl Suspect {
    /// Finds that out, of which nothing waits for the process.
    #[must_use]
    pub fn of(process: Writer) -> Self {
        let pid = process.pid.to_string();
        let other = |kind| {
            let (its, ours) = (namespace(&pid, kind).ok()?, namespace("self", kind).ok()?);
            (its != ours).then_some(its)
        };
        let meta = fs::metadata(format!("/proc/{pid}"));
        Self {
            process,
            uid: meta.ok().map(|meta| meta.uid()),
            mnt: other("mnt"),
            is_foreign: other("user").is_some(),
        }
    }

    /// Whether it is left alone because of this one: those that have a user namespace of their own are all alike, the others are
    /// if they belong to the same container or, outside of containers, to the same user, unless that is root.
    fn is_like(&self, held: &Self) -> bool {
        if self.process == held.process {
            return true;
        }
        match held {
            Self {
                is_foreign: true, ..
            } => self.is_foreign,
            _ if self.is_foreign || self.mnt != held.mnt => false,
            Self { mnt: Some(_), .. } => true,
            Self { uid, .. } => self.uid == *uid && uid.is_some_and(|uid| uid != 0),
        }
    }

    fn like(&self) -> &'static str {
        match self {
            Self {
                is_foreign: true, ..
            } => "no process with a user namespace of its own is",
            Self { mnt: Some(_), .. } => "no process of its container is",
            Self { uid: Some(0), .. } => "it is not",
            _ => "no process of its user is",
        }
    }
}

/// Whom a look passes over.
#[derive(Clone, Debug, Default)]
pub struct Avoided(Vec<Suspect>);

impl Avoided {
    /// Whether this process is one of them.
    #[must_use]
    pub fn has(&self, process: Writer) -> bool {
        // Almost always nobody is.
        !self.0.is_empty() && {
            let suspect = Suspect::of(process);
            self.0.iter().any(|held| suspect.is_like(held))
        }
    }
}

/// Says which process is looked at now; `None`: none, and what waits does not wait for one.
pub type At<'a> = &'a mut dyn FnMut(Option<Writer>);

enum Said<T> {
    At(Option<Writer>),
    Done(T),
}

/// A look through processes that goes on in a thread of its own. Nothing is shared with it but what it says.
pub struct Look<T> {
    said: Receiver<Said<T>>,
    /// Nothing comes of it; it is closed when the thread has ended.
    ended: Receiver<()>,
    at: Option<Writer>,
    /// When it last got further.
    since: Instant,
}

impl<T> std::fmt::Debug for Look<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Look")
            .field("at", &self.at)
            .field("since", &self.since)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Look<T> {
    /// Starts it.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn begin(name: &str, look: impl FnOnce(At) -> T + Send + 'static) -> io::Result<Self> {
        let (say, said) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let look = move || {
            let _end: mpsc::Sender<()> = end;
            // Nobody waits any more, if that fails.
            let found = look(&mut |process| drop(say.send(Said::At(process))));
            let _ = say.send(Said::Done(found));
        };
        thread::Builder::new().name(name.into()).spawn(look)?;
        Ok(Self {
            said,
            ended,
            at: None,
            since: Instant::now(),
        })
    }

    /// What was found, once all was looked through; `None` until then.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub fn answer(&mut self, now: Instant) -> Result<Option<T>, RecvError> {
        loop {
            match self.said.try_recv() {
                Ok(Said::At(process)) => (self.at, self.since) = (process, now),
                Ok(Said::Done(found)) => return Ok(Some(found)),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
            }
        }
    }

    /// The same, waited for until then.
    ///
    /// # Errors
    /// The thread has ended without an answer.
    pub fn answer_until(&mut self, end: Instant) -> Result<Option<T>, RecvError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(Said::At(process)) => (self.at, self.since) = (process, Instant::now()),
                Ok(Said::Done(found)) => return Ok(Some(found)),
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            }
        }
    }

    /// The process that holds it up, as of the last question for its answer.
    fn held_up_by(&self, now: Instant) -> Option<Writer> {
        let is_stuck = now.saturating_duration_since(self.since) >= STUCK;
        self.at.filter(|_| is_stuck)
    }
}

/// A look that was given up.
#[derive(Debug)]
struct Held {
    by: Suspect,
    /// It is left alone until then at least.
    until: Instant,
    ended: Receiver<()>,
}

impl Held {
    fn waits(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Empty)
    }
}

/// The processes that have held up a look.
#[derive(Debug, Default)]
pub struct Holdups(Vec<Held>);

impl Holdups {
    /// Whom a look that begins now passes over; `None`: so many wait that there is to be no other.
    pub fn avoided(&mut self, now: Instant) -> Option<Avoided> {
        self.0.retain(|held| now < held.until || held.waits());
        let avoided = self.0.iter().map(|held| held.by).collect();
        (self.waiting().len() < MAX_STUCK).then_some(Avoided(avoided))
    }

    /// Has a look go on to its end: where a process holds it up, another one begins that passes over it. `None`: it has come to none.
    ///
    /// # Errors
    /// There is no thread to be had.
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

    /// The processes that hold a look up now.
    #[must_use]
    pub fn waiting(&self) -> Vec<u32> {
        let waiting = self.0.iter().filter(|held| held.waits());
        waiting.map(|held| held.by.process.pid).collect()
    }

    /// Gives a look up if a process holds it up, so that another one can begin; otherwise it goes on.
    pub fn go_on<T: Send + 'static>(&mut self, look: Look<T>, now: Instant) -> Option<Look<T>> {
        let Some(process) = look.held_up_by(now) else {
            return Some(look);
        };
        let by = Suspect::of(process);
        let _about = log::about(by.uid);
        tracing::warn!(
            "/proc does not answer: process {} keeps its memory busy; as long as it does, and for ten minutes, {} looked at",
            process.pid,
            by.like()
        );
        self.0.push(Held {
            by,
            until: now + AVOID,
            ended: look.ended,
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

    fn suspect(pid: u32, uid: u32, mnt: Option<u64>, is_foreign: bool) -> Suspect {
        Suspect {
            process: Writer { pid, start: 1 },
            uid: Some(uid),
            mnt,
            is_foreign,
        }
    }

    #[test]
    fn a_process_stands_for_its_container_its_user_or_all_user_namespaces() {
        let [user, root] = [suspect(1, 4242, None, false), suspect(2, 0, None, false)];
        let [container, namespace] = [
            suspect(3, 1000, Some(7), false),
            suspect(4, 4242, Some(8), true),
        ];
        for (held, alike, others) in [
            (
                user,
                vec![suspect(9, 4242, None, false)],
                vec![root, container, namespace],
            ),
            (
                root,
                vec![root],
                vec![user, suspect(9, 0, None, false), container, namespace],
            ),
            (
                container,
                vec![suspect(9, 0, Some(7), false)],
                vec![
                    user,
                    root,
                    suspect(9, 1000, Some(9), false),
                    suspect(9, 1000, None, false),
                ],
            ),
            (
                namespace,
                vec![suspect(9, 1, Some(9), true), suspect(9, 1, None, true)],
                vec![user, root, container],
            ),
        ] {
            assert!(alike.iter().all(|one| one.is_like(&held)), "{held:?}");
            assert!(others.iter().all(|one| !one.is_like(&held)), "{held:?}");
        }
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
            let (end, ended) = mpsc::channel();
            ends.push(end);
            let (say, said) = mpsc::channel::<Said<()>>();
            drop(say);
            let look = Look {
                said,
                ended,
                at: Some(Writer {
                    pid: pid + (1 << 30),
                    start: 1,
                }),
                since: now,
            };
            assert!(holdups.go_on(look, now + STUCK).is_none());
        }
        assert!(holdups.avoided(now + STUCK).is_none());
        assert!(
            holdups.avoided(now + 2 * AVOID).is_none(),
            "they still wait"
        );
        ends.pop();
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
