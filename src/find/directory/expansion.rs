//! Finds the directories that are configured, some at a time: a stranger may own what a pattern looks through, and make as many
//! as he likes.

use super::{
    AS_A_SHELL, Directory, Holds, PASS, Places, is_configured, is_wild, open_below, split, walk,
};
use crate::base::file::{FileFacts, LIST};
use crate::config::DirectoryPattern;
use glob::Pattern;
use nix::dir::{Dir, OwningIter, Type};
use nix::errno::Errno;
use nix::sys::stat::{Mode, fstat};
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Names that are taken from a listing at a time, in their order: each look goes the same way.
const CHUNK: usize = 1024;
/// Names that are gone through of one directory of root's, which may grow while it is listed, and of all directories of one
/// other user together: he may make as many as he likes, one in the other.
const MOST_NAMES: usize = 1 << 16;
const ROOT: u32 = 0;

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
    /// Names that were gone through in the directories of each user but root.
    names: HashMap<u32, usize>,
    most_names: usize,
    closed: Vec<(String, Errno)>,
}

/// A directory on the way, and the names in it that are still to be followed.
#[derive(Debug)]
struct Level {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
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
            names: HashMap::new(),
            most_names: MOST_NAMES,
            closed: Vec::new(),
        }
    }

    /// Patterns whose part before the first wildcard cannot be opened, of those that are finished, and why.
    #[must_use]
    pub fn closed(&self) -> &[(String, Errno)] {
        &self.closed
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
            let name = match next(level, &mut self.names, self.most_names) {
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
        match walk::pass(&self.base) {
            Ok(fd) => {
                let level = Level::new(fd, self.base.clone(), first);
                self.levels.extend(level);
            }
            Err(errno) => self.closed.push((path, errno)),
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
        })
    }
}

impl Level {
    /// What is in a directory and matches a component; `None`: nothing.
    fn new(fd: OwnedFd, path: PathBuf, component: &OsStr) -> Option<Self> {
        let mut level = Self {
            owner: FileFacts::new(&fstat(&fd).ok()?).uid,
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
}

/// The next name that matches, of those that are at hand.
fn next(level: &mut Level, names: &mut HashMap<u32, usize>, most: usize) -> Next {
    if let Some(name) = level.names.next() {
        return Next::Name(name);
    }
    let count = match level.owner {
        ROOT => &mut level.count,
        owner => names.entry(owner).or_default(),
    };
    let Some((listing, pattern)) = level.rest.as_mut().filter(|_| *count < most) else {
        return Next::Done;
    };
    let (mut chunk, before) = (Vec::new(), *count);
    for entry in listing.take(CHUNK.min(most - before)) {
        *count += 1;
        let Ok(entry) = entry else { continue };
        // Where the file system does not tell what it is, that is found out when it is opened.
        if entry
            .file_type()
            .is_some_and(|kind| kind != Type::Directory)
        {
            continue;
        }
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let is_match = |name: &str| pattern.matches_with(name, AS_A_SHELL);
        if name != "." && name != ".." && name.to_str().is_some_and(is_match) {
            chunk.push(name.to_owned());
        }
    }
    if *count == before {
        return Next::Done;
    }
    chunk.sort_unstable();
    level.names = chunk.into_iter();
    Next::NotYet
}

/// What comes next in a directory.
enum Next {
    Name(OsString),
    /// More was read, and the clock is to be looked at.
    NotYet,
    Done,
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::{Uid, chown};
    use std::fs;
    use std::time::Duration;

    fn below(dir: &Path, pattern: &str) -> Expansion {
        let path = dir.join(pattern).to_str().expect("UTF-8").to_owned();
        Expansion::new(Places {
            rings: vec![DirectoryPattern {
                path,
                label: None,
                literal: false,
            }],
            ..Places::default()
        })
    }

    /// How many directories are found.
    fn count(expansion: &mut Expansion) -> usize {
        let (mut found, end) = (0, Instant::now() + Duration::from_secs(3600));
        while !matches!(expansion.step(end), Step::Done) {
            found += 1;
        }
        found
    }

    #[test]
    fn what_is_no_directory_is_not_opened() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir(dir.path().join("pod-1")).expect("made");
        fs::write(dir.path().join("pod-2"), "").expect("made");
        std::os::unix::fs::symlink("pod-1", dir.path().join("pod-3")).expect("made");
        let mut expansion = below(dir.path(), "pod-*");
        expansion.begin();
        let level = expansion.levels.last_mut().expect("it is listed");
        assert!(matches!(
            next(level, &mut HashMap::new(), 100),
            Next::NotYet
        ));
        assert_eq!(level.names.as_slice(), ["pod-1"]);
    }

    #[test]
    fn all_directories_of_a_stranger_have_the_names_of_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let in_each = |owner: Option<u32>| {
            let top = dir.path().join(format!("{owner:?}"));
            for place in 0..30 {
                let outer = top.join(place.to_string());
                fs::create_dir_all(outer.join("a")).expect("made");
                // ".", ".." and this one.
                let owner = owner.map(Uid::from_raw);
                chown(&outer, owner, None).expect("the tests are run as root");
            }
            let mut expansion = below(&top, "*/*");
            expansion.most_names = 42;
            count(&mut expansion)
        };
        if !nix::unistd::geteuid().is_root() {
            println!("left out: directories of a stranger, which only root can make");
            return;
        }
        assert_eq!(in_each(None), 30);
        assert_eq!(in_each(Some(4242)), 42 / 3);
    }
}
