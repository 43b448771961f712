//! Finds the directories that are configured, some at a time: a stranger may own what a pattern looks through, and make as many
//! as he likes.

use super::{AS_A_SHELL, Directory, Holds, LIST, PASS, Places};
use super::{is_configured, is_wild, open_below, split, walk};
use crate::config::DirectoryPattern;
use crate::find::discover::FileFacts;
use glob::Pattern;
use nix::dir::{Dir, OwningIter};
use nix::sys::stat::{Mode, fstat};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Names that are taken from a listing at a time, in their order: each look goes the same way.
const CHUNK: usize = 1024;
/// Names of one directory that are gone through: it may be a stranger's, and grow while it is listed.
const MOST_NAMES: usize = 1 << 16;

/// What a step of it came to.
#[derive(Debug)]
pub enum Step {
    /// A directory, and whose it is: `None` for one that the configuration writes out, and so is the administrator's choice.
    Found(Directory, Option<u32>),
    /// The time is over.
    NotYet,
    /// That was all.
    Done,
}

/// One look for all directories.
#[derive(Debug)]
pub struct Expansion {
    places: Places,
    /// The patterns that are still to have their turn: those that are written out first, then those for rings.
    left: std::vec::IntoIter<DirectoryPattern>,
    /// Whether several of them may match one directory.
    are_several: bool,
    base: PathBuf,
    label: Option<String>,
    components: Vec<OsString>,
    levels: Vec<Level>,
    met: HashSet<PathBuf>,
}

/// A directory on the way, and the names in it that are still to be followed.
#[derive(Debug)]
struct Level {
    fd: OwnedFd,
    path: PathBuf,
    names: std::vec::IntoIter<OsString>,
    /// Names that were gone through.
    count: usize,
    /// What comes after these, and what must match.
    rest: Option<(OwningIter, Pattern)>,
}

impl Expansion {
    /// Nothing is found yet.
    #[must_use]
    pub fn new(places: Places) -> Self {
        let mut left: Vec<_> = places.rings.iter().chain(&places.stores).cloned().collect();
        left.sort_by_key(|pattern| !pattern.literal);
        Self {
            places,
            are_several: left.len() > 1,
            left: left.into_iter(),
            base: PathBuf::new(),
            label: None,
            components: Vec::new(),
            levels: Vec::new(),
            met: HashSet::new(),
        }
    }

    /// Goes on to the next directory, until `end`.
    pub fn step(&mut self, end: Instant) -> Step {
        let mut looked = 0;
        loop {
            let depth = self.levels.len();
            let Some(level) = self.levels.last_mut() else {
                match self.begin() {
                    None => return Step::Done,
                    Some(None) => continue,
                    Some(Some(found)) => return Step::Found(found, None),
                }
            };
            looked += 1;
            if looked % 16 == 0 && Instant::now() >= end {
                return Step::NotYet;
            }
            let name = match level.next() {
                Next::Name(name) => name,
                Next::NotYet if Instant::now() >= end => return Step::NotYet,
                Next::NotYet => continue,
                Next::Done => {
                    self.levels.pop();
                    continue;
                }
            };
            let Ok(fd) = open_below(&level.fd, &name, PASS) else {
                continue;
            };
            let path = level.path.join(&name);
            if depth < self.components.len() {
                if let Some(level) = Level::new(fd, path, &self.components[depth]) {
                    self.levels.push(level);
                }
                continue;
            }
            let owner = fstat(&fd).map(|stat| FileFacts::new(&stat).uid);
            let (Some(found), Ok(owner)) = (self.found(path), owner) else {
                continue;
            };
            return Step::Found(found, Some(owner));
        }
    }

    /// Begins with the next pattern; the directory, if it is written out; `None`: there is no more.
    fn begin(&mut self) -> Option<Option<Directory>> {
        let pattern = self.left.next()?;
        let DirectoryPattern {
            path,
            label,
            literal,
        } = pattern;
        self.label = label;
        if literal {
            self.base = PathBuf::from(path);
            return Some(self.found(self.base.clone()));
        }
        let (base, components) = split(Path::new(&path));
        self.components = components.into_iter().map(OsString::from).collect();
        self.base = base;
        let Some(first) = self.components.first() else {
            return Some(self.found(self.base.clone()));
        };
        if let Ok(fd) = walk::pass(&self.base) {
            self.levels.extend(Level::new(fd, self.base.clone(), first));
        }
        Some(None)
    }

    /// Each comes once, for all that is looked for there.
    fn found(&mut self, path: PathBuf) -> Option<Directory> {
        let holds = Holds {
            rings: is_configured(&self.places.rings, &path),
            stores: is_configured(&self.places.stores, &path),
        };
        let is_new = !self.are_several || self.met.insert(path.clone());
        is_new.then(|| Directory {
            path,
            label: self.label.clone(),
            holds,
            base: self.base.clone(),
            inside: None,
        })
    }
}

impl Level {
    /// What is in a directory and matches a component; `None`: nothing.
    fn new(fd: OwnedFd, path: PathBuf, component: &OsStr) -> Option<Self> {
        let mut level = Self {
            fd,
            path,
            names: Vec::new().into_iter(),
            count: 0,
            rest: None,
        };
        if is_wild(component) {
            // Patterns are checked when the configuration is read. It is opened anew to be listed: what led here may only have
            // been passed through.
            let pattern = Pattern::new(component.to_str()?).ok()?;
            let listing = Dir::openat(&level.fd, ".", LIST, Mode::empty()).ok()?;
            level.rest = Some((listing.into_iter(), pattern));
        } else {
            level.names = vec![component.to_owned()].into_iter();
        }
        Some(level)
    }

    /// The next name that matches, of those that are at hand.
    fn next(&mut self) -> Next {
        if let Some(name) = self.names.next() {
            return Next::Name(name);
        }
        let Some((listing, pattern)) = self.rest.as_mut().filter(|_| self.count < MOST_NAMES)
        else {
            return Next::Done;
        };
        let (mut chunk, before) = (Vec::new(), self.count);
        for entry in listing.take(CHUNK) {
            self.count += 1;
            let Ok(entry) = entry else { continue };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let is_match = |name: &str| pattern.matches_with(name, AS_A_SHELL);
            if name != "." && name != ".." && name.to_str().is_some_and(is_match) {
                chunk.push(name.to_owned());
            }
        }
        if self.count == before {
            return Next::Done;
        }
        chunk.sort_unstable();
        self.names = chunk.into_iter();
        Next::NotYet
    }
}

/// What comes next in a directory.
enum Next {
    Name(OsString),
    /// More was read, and the clock is to be looked at.
    NotYet,
    Done,
}
