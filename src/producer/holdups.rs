//! Reads of other processes, in threads of their own, and the processes that stall them.
//!
//! To read what a process has mapped or was started with waits for its memory to be free of changes, and a process of another
//! user may keep it busy without an end: by a file system of its own that does not answer, or by userfaultfd(2). A read that
//! stalls is abandoned, and later ones skip that process and others of its group for a while: no user's processes keep others
//! from being seen.

use crate::log;
use crate::producer::writer::{Writer, namespace};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A read that does not get any further for so long is abandoned.
pub const STUCK: Duration = Duration::from_secs(10);
/// So long, at least, the group of a stalled process is skipped.
const AVOID: Duration = Duration::from_secs(600);
/// While so many abandoned reads wait, there is no other.
const MAX_STUCK: usize = 8;

/// The processes that are skipped with a stalled one, in words: all with user namespaces of their own, which any user can make;
/// else those of its container; else those of its user, but of root that process alone. Nothing here waits for the process.
fn group(process: Writer) -> String {
    let pid = process.pid.to_string();
    // `None`: it is ours, or hidden.
    let other = |kind| {
        let (its, ours) = (namespace(&pid, kind).ok()?, namespace("self", kind).ok()?);
        (its != ours).then_some(its)
    };
    match (other("user"), other("mnt"), owner(process)) {
        (Some(_), ..) => "with user namespaces of their own".into(),
        (_, Some(container), _) => format!("in mount namespace {container}"),
        (.., None | Some(0)) => format!("with pid {pid}"),
        (.., Some(uid)) => format!("of uid {uid}"),
    }
}

/// The user of a process; `None`: it has ended.
fn owner(process: Writer) -> Option<u32> {
    let meta = fs::metadata(format!("/proc/{}", process.pid)).ok()?;
    Some(meta.uid())
}

/// What a read asks before it reads a process.
#[derive(Debug)]
pub struct Gate {
    /// Groups of processes that are skipped.
    skipped: Vec<String>,
    announce: Sender<Writer>,
}

impl Gate {
    /// A gate that skips nothing, and where it announces the processes that are read.
    #[must_use]
    pub fn open() -> (Self, Receiver<Writer>) {
        Self::new(Vec::new())
    }

    fn new(skipped: Vec<String>) -> (Self, Receiver<Writer>) {
        let (announce, announced) = mpsc::channel();
        (Self { skipped, announce }, announced)
    }

    /// True if a process may be read. The read waits for that process from here on, until it asks for another.
    #[must_use]
    pub fn may_read(&self, process: Writer) -> bool {
        // Almost always nothing is skipped.
        let may_read = self.skipped.is_empty() || !self.skipped.contains(&group(process));
        if may_read {
            // Nothing receives it once the read is abandoned.
            let _ = self.announce.send(process);
        }
        may_read
    }
}

/// A read of processes that goes on in a thread of its own. Nothing is shared with it but what it announces.
#[derive(Debug)]
pub struct Look<T> {
    announced: Receiver<Writer>,
    thread: JoinHandle<T>,
    /// The process that is read. `None`: the first was not announced yet.
    at: Option<Writer>,
    /// When it last got further.
    since: Instant,
}

/// How far a read is.
#[derive(Debug)]
pub enum Progress<T> {
    /// It goes on.
    Going(Look<T>),
    /// It has ended with this; `None`: it has failed.
    Ended(Option<T>),
    /// A process has stalled it, and it is abandoned. The next one skips that process.
    Stalled,
}

/// A read that was abandoned.
#[derive(Debug)]
struct Held {
    by: Writer,
    group: String,
    /// The group is skipped until then at least.
    until: Instant,
    announced: Receiver<Writer>,
}

impl Held {
    /// True until its thread ends.
    fn waits(&self) -> bool {
        let mut announced = std::iter::repeat_with(|| self.announced.try_recv());
        announced.find(Result::is_err) == Some(Err(TryRecvError::Empty))
    }
}

/// The reads that were abandoned.
#[derive(Debug, Default)]
pub struct Holdups(Vec<Held>);

impl Holdups {
    /// Begins a read; `None`: so many wait that there is to be no other, or no thread can be started.
    pub fn begin<T: Send + 'static>(
        &mut self,
        now: Instant,
        read: impl FnOnce(&Gate) -> T + Send + 'static,
    ) -> Option<Look<T>> {
        self.0.retain(|held| now < held.until || held.waits());
        if self.waiting().len() >= MAX_STUCK {
            return None;
        }
        let (gate, announced) = Gate::new(self.0.iter().map(|held| held.group.clone()).collect());
        let thread = thread::Builder::new().name("survey".into());
        let thread = thread.spawn(move || read(&gate));
        let failed = |err: &_| tracing::debug!("no thread to read /proc with: {err}");
        Some(Look {
            announced,
            thread: thread.inspect_err(failed).ok()?,
            at: None,
            since: now,
        })
    }

    /// Waits so long for the end of a read, and abandons it if a process stalls it.
    pub fn poll<T>(&mut self, mut look: Look<T>, wait: Duration, now: Instant) -> Progress<T> {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match look.announced.recv_timeout(left) {
                Ok(process) => (look.at, look.since) = (Some(process), now),
                Err(RecvTimeoutError::Disconnected) => {
                    return Progress::Ended(look.thread.join().ok());
                }
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        let is_stuck = now.saturating_duration_since(look.since) >= STUCK;
        let Some(by) = look.at.filter(|_| is_stuck) else {
            return Progress::Going(look);
        };
        let group = group(by);
        let _about = log::about(owner(by));
        tracing::warn!(
            "/proc does not answer: process {} keeps its memory busy; as long as it does, and for ten minutes, processes {group} are skipped",
            by.pid
        );
        self.0.push(Held {
            by,
            group,
            until: now + AVOID,
            announced: look.announced,
        });
        if self.waiting().len() == MAX_STUCK {
            tracing::error!(
                "/proc does not answer: eight processes keep their memory busy; until one of them does no more, nothing new is found out of processes"
            );
        }
        Progress::Stalled
    }

    /// Has a read go on to its end, and begins another one where a process stalls it. `None`: it has come to none.
    pub fn look<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&Gate) -> T + Clone + Send + 'static,
    ) -> Option<T> {
        let mut look = self.begin(Instant::now(), read.clone())?;
        loop {
            look = match self.poll(look, STUCK / 10, Instant::now()) {
                Progress::Going(look) => look,
                Progress::Ended(found) => return found,
                Progress::Stalled => self.begin(Instant::now(), read.clone())?,
            }
        }
    }

    /// The processes that stall a read now.
    #[must_use]
    pub fn waiting(&self) -> Vec<u32> {
        let waiting = self.0.iter().filter(|held| held.waits());
        waiting.map(|held| held.by.pid).collect()
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
    fn stalled_process_is_skipped_with_its_user_or_user_namespaces() {
        let (mut child, process) = sleeper();
        let expected = match nix::unistd::geteuid().as_raw() {
            0 => format!("with pid {}", process.pid),
            uid => format!("of uid {uid}"),
        };
        assert_eq!(group(process), expected);
        // Any user may have that, where it is not forbidden.
        let unshared = Command::new("unshare")
            .args(["--user", "sleep", "600"])
            .spawn();
        if let Ok(mut unshared) = unshared {
            let end = Instant::now() + Duration::from_secs(120);
            let process = Writer::of(unshared.id()).expect("it runs");
            while matches!(unshared.try_wait(), Ok(None)) && Instant::now() < end {
                if group(process) == "with user namespaces of their own" {
                    break;
                }
            }
            assert!(Instant::now() < end);
            let _ = unshared.kill();
            unshared.wait().expect("our child");
        }
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    /// A read that has announced a process, and goes on until the sender is dropped.
    fn stalled(holdups: &mut Holdups, process: Writer, now: Instant) -> (Look<bool>, Sender<()>) {
        let (go, wait) = mpsc::channel::<()>();
        let look = holdups.begin(now, move |gate| {
            let may_read = gate.may_read(process);
            let _ = wait.recv();
            may_read
        });
        let mut look = look.expect("a thread");
        while look.at.is_none() {
            look = match holdups.poll(look, Duration::ZERO, now) {
                Progress::Going(look) => look,
                other => panic!("{other:?}"),
            };
        }
        (look, go)
    }

    #[test]
    fn stalled_process_is_skipped_until_it_answers_and_for_a_while() {
        let start = Instant::now();
        let mut holdups = Holdups::default();
        let (mut child, process) = sleeper();
        let (look, go) = stalled(&mut holdups, process, start);
        let Progress::Going(look) = holdups.poll(look, Duration::ZERO, start + STUCK / 2) else {
            panic!("it is not stalled for long");
        };
        assert_eq!(holdups.look(move |gate| gate.may_read(process)), Some(true));
        let progress = holdups.poll(look, Duration::ZERO, start + STUCK);
        assert!(matches!(progress, Progress::Stalled));
        let skips = |holdups: &mut Holdups, now| {
            let mut look = holdups.begin(now, move |gate| gate.may_read(process));
            loop {
                match holdups.poll(look.expect("it goes on"), STUCK, now) {
                    Progress::Going(going) => look = Some(going),
                    Progress::Ended(may_read) => return may_read == Some(false),
                    Progress::Stalled => panic!("it is not stalled"),
                }
            }
        };
        let late = start + STUCK + AVOID;
        assert!(skips(&mut holdups, start + STUCK));
        assert!(skips(&mut holdups, late), "it still waits");
        drop(go);
        while holdups.0.iter().any(Held::waits) {
            thread::yield_now();
        }
        assert!(skips(&mut holdups, start + STUCK), "it may do so again");
        assert!(!skips(&mut holdups, late));
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    #[test]
    fn no_read_begins_while_eight_are_stalled() {
        let now = Instant::now();
        let mut holdups = Holdups::default();
        let mut ends = Vec::new();
        for pid in 1..=8 {
            let process = Writer {
                pid: pid + (1 << 30),
                start: 1,
            };
            let (look, end) = stalled(&mut holdups, process, now);
            let progress = holdups.poll(look, Duration::ZERO, now + STUCK);
            assert!(matches!(progress, Progress::Stalled));
            ends.push(end);
        }
        assert!(holdups.begin(now + STUCK, |_| ()).is_none());
        assert!(
            holdups.begin(now + 2 * AVOID, |_| ()).is_none(),
            "they still wait"
        );
        ends.pop();
        while holdups.waiting().len() == MAX_STUCK {
            thread::yield_now();
        }
        assert!(holdups.begin(now + STUCK, |_| ()).is_some());
    }

    #[test]
    fn read_that_panics_has_failed() {
        let found: Option<()> = Holdups::default().look(|_| panic!("as the test wants it"));
        assert_eq!(found, None);
    }
}
