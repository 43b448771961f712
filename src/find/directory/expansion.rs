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
/// Names that one look goes through, in all: a directory may grow while it is listed.
const MOST_NAMES: usize = 1 << 20;

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
    /// Which pattern has its turn next: those for rings first.
    next: usize,
    base: PathBuf,
    label: Option<String>,
    components: Vec<OsString>,
    levels: Vec<Level>,
    met: HashSet<PathBuf>,
    names: usize,
}

/// A directory on the way, and the names in it that are still to be followed.
#[derive(Debug)]
struct Level {
    fd: OwnedFd,
    path: PathBuf,
    names: std::vec::IntoIter<OsString>,
    /// What comes after these, and what must match.
    rest: Option<(OwningIter, Pattern)>,
}

impl Expansion {
    /// Nothing is found yet.
    #[must_use]
    pub fn new(places: Places) -> Self {
        Self {
            places,
            next: 0,
            base: PathBuf::new(),
            label: None,
            components: Vec::new(),
            levels: Vec::new(),
            met: HashSet::new(),
            names: 0,
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
            let Some(name) = level.next(&mut self.names) else {
                self.levels.pop();
                continue;
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
        let mut patterns = self.places.rings.iter().chain(&self.places.stores);
        let pattern = patterns.nth(self.next)?.clone();
        self.next += 1;
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
        self.met.insert(path.clone()).then(|| Directory {
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

    /// The next name; `names` counts those that were looked at.
    fn next(&mut self, names: &mut usize) -> Option<OsString> {
        loop {
            if let Some(name) = self.names.next() {
                return Some(name);
            }
            let (listing, pattern) = self.rest.as_mut().filter(|_| *names < MOST_NAMES)?;
            let mut chunk = Vec::new();
            let mut entries = listing.take(CHUNK).peekable();
            entries.peek()?;
            for entry in entries {
                *names += 1;
                let Ok(entry) = entry else { continue };
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                let is_match = |name: &str| pattern.matches_with(name, AS_A_SHELL);
                if name != "." && name != ".." && name.to_str().is_some_and(is_match) {
                    chunk.push(name.to_owned());
                }
            }
            chunk.sort_unstable();
            self.names = chunk.into_iter();
        }
    }
}
