//! The directories that only a container sees: those of processes that have telemetry open in another mount namespace, reached
//! through `/proc/PID/root`.
//!
//! A process is looked into if its mount namespace is another than ours, it was told to write telemetry (NIXL_TELEMETRY_DIR,
//! NIXL_TELEMETRY_MULTIPROC_DIR, in its own environment or in that of another process of its namespace), and it has a file of that
//! directory mapped to write to it. The path is followed as the process would, without a way out of its root (openat2(2)).
//!
//! What a stranger could make last is done in a thread of its own ([`look`]): that opens the directories as well, and hands them
//! over open, so that the one thread that does all else never follows a path of a container. It lists them and opens files in them,
//! though, and so they are taken only from file systems that wait for nobody, and only where the process is in our user namespace:
//! in one of his own anybody can put together a file system that keeps waiting whoever looks. A thread that is held up in spite of
//! that is left to itself, and whoever holds it up is not looked at again.
//!
//! An open directory keeps its file system mounted. It is let go when the last process has ended that was seen to use it, and
//! so are the rings there, when they are drained.

use crate::find::directory::Directory;
use crate::log;
use crate::producer::holdups::{Holdups, Look};
use crate::producer::writer::Writer;
use look::{Found, Known};
use nix::errno::Errno;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub mod look;
pub mod name;
mod place;
pub mod process;
pub use place::{MAX_PLACES, MAX_PLACES_EACH, Place, Refused, Why};

/// Between two looks there is so much time, ...
const EVERY: Duration = Duration::from_secs(5);
/// ... and where they take long, so many times as much as one takes, but not more than this.
const REST: u32 = 20;
const LONGEST: Duration = Duration::from_secs(60);
/// How often it is asked whether the processes still run.
const CHECK: Duration = Duration::from_secs(1);
/// How long rings of a container that has ended are kept at most.
pub const GRACE: Duration = Duration::from_secs(10);
/// Why directories are left alone is said of so many.
const MAX_SAID: usize = 1024;

/// The containers of this host.
#[derive(Debug)]
pub struct Containers {
    places: Vec<Place>,
    looking: Option<Look<Found>>,
    next_look: Instant,
    next_check: Instant,
    /// Whether there is no openat2(2).
    off: bool,
    /// What was said of directories that are left alone, by mount namespace and path.
    said: HashSet<(u64, PathBuf)>,
    /// Whether it was said that not all processes can be looked at.
    said_hidden: bool,
}

/// What a step came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Whether the directories, or the ways to them, are others now.
    pub changed: bool,
    /// The directories that are not there any more.
    pub ended: Vec<PathBuf>,
    /// The names that another directory has now.
    pub replaced: Vec<PathBuf>,
    /// Whether it was asked which processes still run, as it is once a second.
    pub checked: bool,
    /// How long a look took that has ended.
    pub looked: Option<Duration>,
}

impl Containers {
    /// None are known yet. Where the kernel has no openat2(2), none will be; that is logged.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let can = process::can_open_beneath();
        if let Err(errno) = can {
            tracing::warn!("containers are not looked into: {}", without_openat2(errno));
        }
        Self {
            places: Vec::new(),
            looking: None,
            next_look: now,
            next_check: now,
            off: can.is_err(),
            said: HashSet::new(),
            said_hidden: false,
        }
    }

    /// The directories.
    #[must_use]
    pub fn to_scan(&self) -> Vec<Directory> {
        self.places.iter().map(Place::to_scan).collect()
    }

    /// One of them.
    #[must_use]
    pub fn place(&self, path: &Path) -> Option<&Place> {
        self.places.iter().find(|place| place.path == path)
    }

    /// Begins a look when it is time, takes what one has found, and notices which directories have lost their processes.
    pub fn step(&mut self, now: Instant, holdups: &mut Holdups) -> Step {
        let mut step = Step::default();
        if now >= self.next_check {
            self.next_check = now + CHECK;
            step.checked = true;
            self.check(&mut step);
        }
        if let Some(mut looking) = self.looking.take() {
            let answer = looking.answer(now);
            if matches!(answer, Ok(None)) {
                self.looking = holdups.go_on(looking, now);
            } else if let Ok(Some(found)) = answer {
                step.looked = Some(found.took);
                self.next_look = now + (found.took * REST).clamp(EVERY, LONGEST);
                self.say(&found.refused);
                if found.hidden > 0 && !std::mem::replace(&mut self.said_hidden, true) {
                    tracing::warn!("{}", hidden(found.hidden));
                }
                self.take(found.places, &mut step);
            }
        } else if now >= self.next_look && !self.off {
            self.begin(now, holdups);
        }
        step
    }

    fn begin(&mut self, now: Instant, holdups: &mut Holdups) {
        self.next_look = now + EVERY;
        let Some(avoided) = holdups.avoided(now) else {
            return;
        };
        // Those that have ended keep no name from those that come after them.
        let known = self.places.iter().map(Known::from).collect();
        match look::begin(known, avoided) {
            Ok(looking) => self.looking = Some(looking),
            Err(err) => tracing::debug!("no thread to look for containers with: {err}"),
        }
    }

    /// Says once of each directory why it is left alone.
    fn say(&mut self, refused: &[Refused]) {
        for refused in refused {
            let place = (refused.mnt, refused.directory.clone());
            if self.said.len() < MAX_SAID && self.said.insert(place) {
                let _about = log::about(None);
                tracing::warn!("{refused}");
            }
        }
    }

    /// Takes what was found. What was not found again stays as long as its processes run: they may have closed their files, or
    /// were not shown just then.
    fn take(&mut self, found: Vec<Place>, step: &mut Step) {
        for place in found {
            let has_room = self.places.len() < MAX_PLACES;
            let mut known = self.places.iter_mut();
            match known.find(|known| known.path == place.path) {
                Some(known) if *known == place => {}
                Some(known) => {
                    if known.inside != place.inside {
                        step.replaced.push(place.path.clone());
                    }
                    *known = place;
                    step.changed = true;
                }
                None if has_room && place.processes.iter().any(Writer::is_running) => {
                    let _about = log::about(None);
                    tracing::info!("{}: is {:?}", place.path.display(), place.reached_at());
                    self.places.push(place);
                    step.changed = true;
                }
                None => {}
            }
        }
    }

    /// Notices which processes have ended.
    fn check(&mut self, step: &mut Step) {
        self.places.retain_mut(|place| {
            // Of the others it is asked when it is their turn: there may be many.
            let gone = place.processes.iter().take_while(|one| !one.is_running());
            let gone = gone.count();
            place.processes.drain(..gone);
            step.changed |= gone > 0;
            if place.processes.is_empty() {
                let _about = log::about(None);
                tracing::info!("{}: its processes have ended", place.path.display());
                step.ended.push(place.path.clone());
            }
            !place.processes.is_empty()
        });
    }
}

/// That so many processes may not be looked at.
#[must_use]
pub fn hidden(count: usize) -> String {
    let processes = if count == 1 { "process" } else { "processes" };
    format!(
        "containers: {count} {processes} cannot be looked at, and may have telemetry open; run as root or with CAP_SYS_PTRACE"
    )
}

/// Why no directory of a container is opened.
#[must_use]
pub fn without_openat2(errno: Errno) -> String {
    format!(
        "openat2(2) is not to be had ({errno}); it needs Linux 5.6, and no filter that forbids it"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::directory::{Holds, Inside};
    use std::process::{Child, Command};
    use tempfile::TempDir;

    /// Three directories, open.
    pub fn inside() -> (Vec<TempDir>, [Inside; 3]) {
        let dirs: Vec<TempDir> = (0..3)
            .map(|_| tempfile::tempdir().expect("a directory"))
            .collect();
        let open = |at: usize| {
            let dir: &TempDir = &dirs[at];
            let fd = nix::fcntl::open(
                dir.path(),
                crate::find::directory::LIST,
                nix::sys::stat::Mode::empty(),
            );
            Inside::new(fd.expect("there")).expect("a directory")
        };
        let opened = [0, 1, 2].map(open);
        (dirs, opened)
    }

    fn sleeper() -> (Child, Writer) {
        let child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let writer = Writer::of(child.id()).expect("it runs");
        (child, writer)
    }

    fn place(path: &str, process: Writer, inside: &Inside) -> Place {
        Place {
            path: path.into(),
            label: None,
            holds: Holds::default(),
            mnt: 7,
            processes: vec![process],
            directory: "/tmp/nixl".into(),
            inside: inside.clone(),
        }
    }

    fn end(mut child: Child) {
        child.kill().expect("it runs");
        child.wait().expect("our child");
    }

    fn took(containers: &mut Containers, found: Vec<Place>) -> Step {
        let mut step = Step::default();
        containers.take(found, &mut step);
        step
    }

    fn checked(containers: &mut Containers) -> Step {
        let mut step = Step::default();
        containers.check(&mut step);
        step
    }

    #[test]
    fn a_directory_is_let_go_when_its_last_process_has_ended() {
        let (dirs, [a, ..]) = inside();
        let mut containers = Containers::new(Instant::now());
        let ((first, one), (second, other)) = (sleeper(), sleeper());
        let mut found = place("container:x/tmp/nixl", one, &a);
        found.processes.push(other);
        assert!(took(&mut containers, vec![found.clone()]).changed);
        let same = took(&mut containers, vec![found.clone()]);
        assert_eq!(same, Step::default());
        let reached = |containers: &Containers| Some(containers.place(&found.path)?.reached_at());
        let at = |process: Writer| Some(format!("/proc/{}/root/tmp/nixl", process.pid).into());
        assert_eq!(reached(&containers), at(one));
        end(first);
        let step = checked(&mut containers);
        assert!(step.changed && step.ended.is_empty());
        assert_eq!(reached(&containers), at(other));
        // It is there for as long as its process runs, though no look shows it.
        assert_eq!(took(&mut containers, vec![]), Step::default());
        end(second);
        let step = checked(&mut containers);
        assert!(step.changed);
        assert_eq!(step.ended, [found.path.clone()]);
        assert_eq!((reached(&containers), containers.to_scan()), (None, vec![]));
        // What a look brings that began before that is too late.
        assert_eq!(took(&mut containers, vec![found.clone()]), Step::default());
        drop(dirs);
    }

    #[test]
    fn another_directory_of_that_name_takes_its_place() {
        let (dirs, [a, b, _]) = inside();
        let mut containers = Containers::new(Instant::now());
        let (child, process) = sleeper();
        took(&mut containers, vec![place("container:x/tmp", process, &a)]);
        let before = containers.to_scan();
        let step = took(&mut containers, vec![place("container:x/tmp", process, &b)]);
        assert!(step.changed && step.ended.is_empty());
        assert_eq!(step.replaced, [PathBuf::from("container:x/tmp")]);
        let after = containers.to_scan();
        assert!(after.len() == 1 && after != before);
        end(child);
        drop(dirs);
    }

    #[test]
    fn of_a_directory_that_is_left_alone_it_is_said_once() {
        let mut containers = Containers::new(Instant::now());
        let refused = Refused {
            pid: 1,
            mnt: 7,
            directory: "/tmp".into(),
            why: Why::FileSystem(0x6969),
        };
        let many: Vec<Refused> = (0..2 * MAX_SAID as u64)
            .map(|mnt| Refused {
                mnt: mnt / 2,
                ..refused.clone()
            })
            .collect();
        containers.say(&many[..4]);
        assert_eq!(containers.said.len(), 2);
        containers.say(&many);
        containers.say(&many);
        assert_eq!(containers.said.len(), MAX_SAID);
        let text = refused.to_string();
        assert!(
            text.starts_with("/proc/1/root/tmp: is on a file system"),
            "{text}"
        );
    }
}
